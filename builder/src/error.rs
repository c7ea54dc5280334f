//! What stops a build: one enum that says what, where and why, with a hint for what to do.
//!
//! Faults of single records are no errors but [rejects](crate::reject).

use std::io;
use std::path::{Path, PathBuf};

/// Result of the builder's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How to go on with what was stopped.
pub(crate) const GO_ON: &str = "what is done stays; run the same command again to go on";

/// Whatever stops a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option or a combination of options that cannot work.
    #[error("{what}")]
    Usage {
        /// What is wrong, value last in backticks.
        what: String,
        /// What to do instead.
        hint: String,
    },
    /// A file operation failed.
    #[error("could not {action} `{}`: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
        /// Whether it stopped something that the same command goes on with.
        goes_on: bool,
    },
    /// The output disk is full, or will be.
    #[error("not enough space for `{}`: {needed} bytes needed, {free} free", path.display())]
    DiskFull {
        /// The output folder.
        path: PathBuf,
        /// Bytes that must be written.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The model folder cannot be used.
    #[error("model folder: {what} in `{}`", path.display())]
    Model {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// What to do.
        hint: String,
    },
    /// An input cannot be used.
    #[error("{what}: `{uri}`")]
    Input {
        /// What is wrong.
        what: String,
        /// The input's URI.
        uri: String,
        /// What to do.
        hint: String,
    },
    /// A source failed in a way that another try may mend: the build stops, nothing becomes a reject.
    #[error("could not fetch `{uri}` after {tries} {}: {what}", if *tries == 1 { "try" } else { "tries" })]
    Fetch {
        /// The object.
        uri: String,
        /// How often it was tried.
        tries: u32,
        /// The last failure, with the server's code and request id where there is one.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A file of a remote is missing, or is not what the manifest names.
    #[error("{what}: `{uri}`")]
    Remote {
        /// What is wrong.
        what: String,
        /// The file.
        uri: String,
        /// What to do.
        hint: String,
    },
    /// Others hold the folder.
    #[error("{holder} `{}`", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who holds it, and what for.
        holder: String,
    },
    /// The output holds an unfinished build of something else.
    #[error("`{}` holds an unfinished build with another {changed}", path.display())]
    Changed {
        /// The output folder.
        path: PathBuf,
        /// What changed, old and new.
        changed: String,
    },
    /// Too many records could not be used.
    #[error("{rejects} of {records} records rejected, more than the allowed {allowed}: {top}")]
    TooManyRejects {
        /// Rejected records so far.
        rejects: u64,
        /// Records in the plan.
        records: u64,
        /// How many are allowed.
        allowed: u64,
        /// The most frequent reasons.
        top: String,
        /// What to do.
        hint: String,
    },
    /// Samples fit into no pack, and `--overlong fail` was asked for.
    #[error(
        "{count} over-long samples fit into no pack, the longest with {tokens} tokens and {patches} patches: partition {partition}, row `{row}`"
    )]
    Overlong {
        /// How many.
        count: u64,
        /// Tokens of the one with the most tokens.
        tokens: u32,
        /// Its patches.
        patches: u32,
        /// Its partition.
        partition: u32,
        /// Its row in the partition.
        row: u32,
    },
    /// Something that was made before would now be made differently.
    #[error(
        "what was made before cannot be made again, as its source or the version of stoker has changed: `{}`", path.display()
    )]
    Otherwise {
        /// The file.
        path: PathBuf,
    },
    /// A signal asked the build to stop.
    #[error("stopped by {}", if *signal == 2 { "SIGINT" } else { "SIGTERM" })]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// A file of the cache is damaged or cannot be written.
    #[error(transparent)]
    Formats(#[from] stoker_formats::Error),
    /// A cache cannot be read.
    #[error(transparent)]
    Reader(#[from] stoker_reader::Error),
}

impl Error {
    /// An [`Error::Io`] maker for `map_err`.
    pub fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
            goes_on: false,
        }
    }

    /// The same error, of something that the same command goes on with.
    #[must_use]
    pub(crate) fn resumable(mut self) -> Self {
        if let Self::Io { goes_on, .. } = &mut self {
            *goes_on = true;
        }
        self
    }

    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. }
            | Self::Model { hint, .. }
            | Self::Input { hint, .. }
            | Self::Fetch { hint, .. }
            | Self::Remote { hint, .. }
            | Self::TooManyRejects { hint, .. } => Some(hint.clone()).filter(|hint| !hint.is_empty()),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory => Some(
                "give this process more memory; what is done stays, run the same command again to go on"
                    .into(),
            ),
            Self::Io {
                action,
                source,
                goes_on: true,
                ..
            } => how_to_go_on(action, source),
            Self::Io { .. } => None,
            Self::DiskFull { .. } => Some(
                "free space or write to another disk; what is done stays, run the same command again to go on"
                    .into(),
            ),
            Self::Locked { .. } => Some("wait for it to end, or stop it".into()),
            Self::Changed { .. } => Some(
                "run the earlier command to finish that build, or add --restart to drop it".into(),
            ),
            Self::Overlong { .. } => Some(
                "raise --max-tokens or --max-patches, or say --overlong reject or --overlong alone; nothing was written"
                    .into(),
            ),
            Self::Otherwise { .. } => Some(
                "bring the source back as it was, copy the file from an intact node, or build into another --output"
                    .into(),
            ),
            Self::Interrupted { .. } => Some(GO_ON.into()),
            Self::Formats(error) => error.hint().map(Into::into),
            Self::Reader(error) => error.hint().map(Into::into),
        }
    }

    /// The process exit code of this error: 1 too many rejects, over-long samples or damage, 128 + signal when interrupted, else 2.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::TooManyRejects { .. } | Self::Overlong { .. } => 1,
            Self::Reader(error) if error.is_damage() => 1,
            Self::Interrupted { signal } => 128 + u8::try_from(*signal).unwrap_or(2),
            _ => 2,
        }
    }
}

/// What to do about a failed file operation of something that can go on. What is not there, or where something else is, does not come
/// by waiting.
fn how_to_go_on(action: &str, source: &io::Error) -> Option<String> {
    use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound, PermissionDenied};
    let first = match source.kind() {
        NotFound | NotADirectory | IsADirectory | AlreadyExists => return None,
        PermissionDenied if ["open", "read", "stat"].contains(&action) => {
            "make it readable, or remove it and its records; "
        }
        io::ErrorKind::Unsupported if action == "open" => {
            "images on disk need Linux 5.6 or later, and a sandbox that allows `openat2`; "
        }
        _ if source.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
            "raise `ulimit -n`; "
        }
        _ => "",
    };
    Some(format!("{first}{GO_ON}"))
}
