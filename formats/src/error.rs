//! What can be wrong with bytes on disk, or with rows handed to a writer.
//!
//! Owns the crate's one error enum. It never carries a decoder's own words: those of a hostile file are not ours
//! to print.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault in a file of a cache, or in what was to be written to one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing failed.
    #[error("could not {action}: {source}")]
    Io {
        /// The operation, as a verb with its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Another error, with the file it stands in.
    #[error("{source}, in `{}`", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        source: Box<Error>,
    },
    /// An Arrow file does not have the exact layout of its kind.
    #[error("not the layout of {kind}: {what} at byte `{at}`")]
    Layout {
        /// What the file should be.
        kind: &'static str,
        /// What is wrong.
        what: &'static str,
        /// Where in the file.
        at: u64,
    },
    /// A row that is read is damaged, or its index entry is.
    #[error("{what}: {kind} row {row} of partition {partition}, shard `{shard}`")]
    Row {
        /// "image" or "sample".
        kind: &'static str,
        /// The partition.
        partition: u32,
        /// The shard's ordinal in the partition.
        shard: u32,
        /// The row's number in the partition.
        row: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A row or a piece of metadata that cannot be written.
    #[error("{kind} cannot be written: {what}, row `{row}`")]
    Unwritable {
        /// What was to be written.
        kind: &'static str,
        /// What is wrong with it.
        what: &'static str,
        /// The row's number in its file.
        row: u64,
    },
    /// A receipt that its reader would refuse.
    #[error("a receipt of more than {limit} bytes could not be read again: `{bytes}`")]
    LongReceipt {
        /// Its bytes.
        bytes: usize,
        /// How many it may have.
        limit: usize,
    },
    /// A file of a newer major version.
    #[error("{kind} has format version {major}.{minor}, this program reads up to version `{}.{}`", crate::VERSION.major, crate::VERSION.minor)]
    NewerVersion {
        /// What the file is.
        kind: &'static str,
        /// The file's major version.
        major: u32,
        /// The file's minor version.
        minor: u32,
    },
    /// A file's content differs from the hash that was recorded of it.
    #[error("{kind} is damaged: its content does not match the recorded hash `{expected}`")]
    Damaged {
        /// What the file is.
        kind: &'static str,
        /// The recorded hash, in hex.
        expected: String,
    },
    /// A JSON document does not say what its kind must say.
    #[error("not a valid {kind}: {what} at `{at}`")]
    Document {
        /// What the document should be.
        kind: &'static str,
        /// What is wrong.
        what: &'static str,
        /// The field, or the byte.
        at: String,
    },
    /// A pack table is damaged, or is not the one of its entry.
    #[error("pack table is damaged: {what}, at `{at}`")]
    Pack {
        /// What is wrong.
        what: &'static str,
        /// The byte, or partition and pack.
        at: String,
    },
    /// A name that is none of a cache's names.
    #[error("not a name inside a cache: `{}`", name.escape_debug())]
    Name {
        /// The name, cut to a printable length.
        name: String,
    },
    /// The Arrow or Parquet encoder refused to write.
    #[error("could not encode {kind}: {source}")]
    Encoder {
        /// What was to be written.
        kind: &'static str,
        /// The encoder's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// An [`Error::Io`] maker for `map_err`.
    pub(crate) fn io(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }

    /// An [`Error::Encoder`] maker for `map_err`; keeps the system's reason where there is one.
    pub(crate) fn arrow(kind: &'static str) -> impl Fn(arrow_schema::ArrowError) -> Self {
        move |error| match error {
            arrow_schema::ArrowError::IoError(_, source) => Self::Io {
                action: "write an Arrow file",
                source,
            },
            other => Self::Encoder {
                kind,
                source: Box::new(other),
            },
        }
    }

    /// The same error, naming the file it stands in.
    #[must_use]
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        Self::InFile {
            path: path.as_ref().to_path_buf(),
            source: Box::new(self),
        }
    }

    /// Whether the file is of a newer version: not ours to judge.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        match self {
            Self::InFile { source, .. } => source.is_newer(),
            _ => matches!(self, Self::NewerVersion { .. }),
        }
    }

    /// Whether the bytes are not what was written.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::InFile { source, .. } => source.is_damage(),
            Self::Layout { .. }
            | Self::Row { .. }
            | Self::Damaged { .. }
            | Self::Document { .. }
            | Self::Pack { .. } => true,
            _ => false,
        }
    }

    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::InFile { source, .. } => source.hint(),
            Self::Layout { .. } | Self::Row { .. } | Self::Damaged { .. } => {
                Some("mend the cache with `stoker repair`, or copy the file from an intact node")
            }
            Self::NewerVersion { .. } => {
                Some("read it with the program version that wrote it, or a later one")
            }
            Self::Document { .. } => Some(
                "mend the cache with `stoker repair`, copy the file from an intact node, or run the build command again",
            ),
            Self::LongReceipt { .. } => {
                Some("lower --shard-bytes or raise --partitions, and build with --restart")
            }
            Self::Pack { .. } => Some(
                "copy the file again from an intact node, or remove the table's .json file and run `stoker pack` again",
            ),
            Self::Io { .. }
            | Self::Unwritable { .. }
            | Self::Name { .. }
            | Self::Encoder { .. } => None,
        }
    }
}
