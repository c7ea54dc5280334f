//! Why a cache cannot be opened or a row cannot be read.

use std::io;
use std::path::PathBuf;

/// A fault met while opening or reading a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("could not {action} `{}`: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file holds other bytes than the manifest says.
    #[error("{what}: `{}`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The bytes of a file are no valid part of a cache.
    #[error("{error} in `{}`", path.display())]
    Formats {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: stoker_formats::Error,
    },
}

impl Error {
    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io { .. } => None,
            Self::Damaged { .. } => Some("run `stoker verify` to see what it costs"),
            Self::Formats { error, .. } => error.hint(),
        }
    }
}
