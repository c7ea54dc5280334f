//! One builder per output: an exclusive flock on `stoker.lock`, free the moment its holder dies. Whoever only needs that nobody
//! builds there shares it.
//!
//! The file stays; only the lock counts. Its text names the last builder for the second builder's message.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::folder::open_regular;
use crate::publish::{NO_FOLLOW, Publisher};

/// Name of the lock file in the output folder.
pub const LOCK_NAME: &str = "stoker.lock";

/// What the holder writes about itself is short.
const TEXT_BYTES_MAX: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
}

/// The held lock, or a share of it; dropping it frees the output.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the existing folder `output`, or says who holds it.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process holds it, [`Error::DiskFull`] or [`Error::Io`] otherwise.
    pub fn take(output: &Path) -> Result<Self> {
        let path = output.join(LOCK_NAME);
        let publisher = Publisher::new(output.to_path_buf());
        let mut file = open(&path).map_err(|error| publisher.fault("open", &path, error))?;
        lock(&file, FlockOperation::NonBlockingLockExclusive, output)?;
        let holder = Holder {
            pid: std::process::id(),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        let text = serde_json::to_string(&holder).unwrap_or_default();
        file.set_len(0)
            .and_then(|()| file.write_all(text.as_bytes()))
            .map_err(|error| publisher.fault("write", &path, error))?;
        Ok(Self { _file: file })
    }

    /// Holds the lock of the existing folder `output` with others that share it, so that nobody takes it meanwhile. None where
    /// the file system can only be read: nobody could take it there.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn share(output: &Path) -> Result<Option<Self>> {
        let path = output.join(LOCK_NAME);
        let opened = match open_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => open(&path),
            opened => opened.map(|(file, _)| file),
        };
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => return Ok(None),
            opened => opened.map_err(Error::io("open", &path))?,
        };
        lock(&file, FlockOperation::NonBlockingLockShared, output)?;
        Ok(Some(Self { _file: file }))
    }
}

/// The file, made if it is missing.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(NO_FOLLOW)
        .open(path)
}

/// Locks `file`, or says who holds it.
fn lock(file: &File, operation: FlockOperation, output: &Path) -> Result<()> {
    let Err(error) = rustix::fs::flock(file, operation) else {
        return Ok(());
    };
    if error != rustix::io::Errno::WOULDBLOCK {
        return Err(Error::io("lock", output.join(LOCK_NAME))(error.into()));
    }
    let locked = |holder: String| Error::Locked {
        path: output.to_path_buf(),
        holder,
    };
    // Then the text names nobody who holds it now.
    if rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Err(locked("nodes that sync with --prune are reading".into()));
    }
    let mut text = String::new();
    let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let Holder { pid, host } = serde_json::from_str(&text).unwrap_or(Holder {
        pid: 0,
        host: "unknown".into(),
    });
    let builder = format!("another builder (pid {pid} on host {host}) is writing");
    Err(locked(builder))
}
