//! One builder per output: an exclusive flock on `stoker.lock`, free the moment its holder dies.
//!
//! The file stays; only the lock counts. Its text names the holder for the second builder's message.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::publish::NO_FOLLOW;

/// Name of the lock file in the output folder.
pub const LOCK_NAME: &str = "stoker.lock";

/// What the holder writes about itself is short.
const TEXT_BYTES_MAX: u64 = 4096;

#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
    host: String,
}

/// The held lock; dropping it frees the output.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the existing folder `output`, or says who holds it.
    ///
    /// # Errors
    /// [`Error::Locked`] when another process holds it, [`Error::Io`] otherwise.
    pub fn take(output: &Path) -> Result<Self> {
        let path = output.join(LOCK_NAME);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(NO_FOLLOW)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(Error::io("lock", &path)(error.into()));
            }
            let mut text = String::new();
            let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
            let holder = serde_json::from_str(&text).unwrap_or(Holder {
                pid: 0,
                host: "unknown".into(),
            });
            return Err(Error::Locked {
                path: output.to_path_buf(),
                pid: holder.pid,
                host: holder.host,
            });
        }
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
            .map_err(Error::io("write", &path))?;
        Ok(Self { _file: file })
    }
}
