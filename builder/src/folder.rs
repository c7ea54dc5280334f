//! Looks into folders of a cache.
//!
//! Owns what a folder that is not there means: nothing is in it. Invariant: nothing is changed, and what somebody else may
//! have put under a name of ours can neither hold a read up nor fill the memory.

use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{Error, Result};

/// What is in a folder, in the order of the system; nothing if it is not there.
pub(crate) fn entries(folder: &Path) -> Result<Vec<DirEntry>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Error::io("list", folder)(error)),
    };
    entries
        .map(|entry| entry.map_err(Error::io("list", folder)))
        .collect()
}

/// Whether a regular file of so many bytes is there, and not through a link.
pub(crate) fn has_file(path: &Path, bytes: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == bytes)
}

/// A regular file, opened to be read and not through a link, and its size.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    // Non-blocking, because a FIFO without a writer would hold the open for ever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// The bytes of a regular file of at most `bytes_max`, and not through a link.
pub(crate) fn read_regular(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let (file, size) = open_regular(path)?;
    if size > bytes_max as u64 {
        return Err(io::Error::other(format!("longer than {bytes_max} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
