//! Looks into folders of a cache.
//!
//! Owns what a folder that is not there means: nothing is in it. Invariant: nothing is opened or changed.

use std::fs::{self, DirEntry};
use std::io::ErrorKind;
use std::path::Path;

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
