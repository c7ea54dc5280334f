//! What a reader asks for files that its node does not hold.
//!
//! Owns the words only: how a remote is reached is the implementer's business. Invariant: what a fallback has brought
//! without an error is the file that the manifest means.

use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use stoker_formats::Manifest;

use crate::files::CacheFile;

/// How long a batch waits for a file by default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A copy of one cache, elsewhere. Called by several threads at a time.
pub trait Fallback: Send + Sync + fmt::Debug {
    /// Where it is, without secrets: for messages.
    fn uri(&self) -> String;

    /// The copy's manifest. Asked for only where something is missing.
    ///
    /// # Errors
    /// Why it could not be read, in words; [`Incomplete`] as below.
    fn manifest(&self) -> Result<Manifest, Box<dyn StdError + Send + Sync>>;

    /// Writes `file` to `to`, which is empty, and checks it against the manifest's hash. Waits, with its own tries; returns soon
    /// with any error once `stop` says so.
    ///
    /// # Errors
    /// Why it could not, in words, after all tries; [`Incomplete`] if that is no matter of the network. What was written then counts
    /// for nothing.
    fn bring(
        &self,
        file: &CacheFile,
        to: &File,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Box<dyn StdError + Send + Sync>>;
}

/// The copy lacks a file, or holds a damaged one: another try mends nothing.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Incomplete(pub String);

/// What the files that are brought from elsewhere may take.
#[derive(Debug, Clone)]
pub struct RemoteOptions {
    /// Bytes of the files in the folder at most, unfinished ones included. Needed as soon as a cache has a fallback.
    pub cache_disk: Option<u64>,
    /// The folder; the readers of one node share it. By default `fallback` in the folder of the first cache that has one.
    pub cache_folder: Option<PathBuf>,
    /// How long a batch waits for a file before that is an error.
    pub timeout: Duration,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            cache_disk: None,
            cache_folder: None,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// Why something of a fallback did not come, by what that said.
pub(crate) fn fault_of(error: &(dyn StdError + Send + Sync + 'static)) -> RemoteFault {
    if error.is::<Incomplete>() {
        RemoteFault::Incomplete(error.to_string())
    } else {
        RemoteFault::Failed(error.to_string())
    }
}

/// Why a file is not here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteFault {
    /// The fallback could not bring it.
    #[error("{0}")]
    Failed(String),
    /// The fallback does not hold it, or holds it damaged.
    #[error("{0}")]
    Incomplete(String),
    /// It took too long.
    #[error("it did not come within {seconds} s")]
    TimedOut {
        /// How long it may take.
        seconds: u64,
    },
    /// It cannot be kept beside what must stay.
    #[error("its {bytes} bytes, beside {indexes} of indexes, do not fit cache_disk={cache_disk}")]
    NoRoom {
        /// Bytes of the file.
        bytes: u64,
        /// Bytes of indexes that stay as long as the reader.
        indexes: u64,
        /// The bound.
        cache_disk: u64,
    },
    /// The reader is being closed, or goes elsewhere.
    #[error("the reader has stopped")]
    Stopped,
}
