//! What a sync has said of a folder: which partitions of the cache it was to bring there.
//!
//! Owns reading that record. Invariant: a record of another cache, or in a folder that is no share, says nothing.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use stoker_formats::limits::MAX_SHARE_BYTES;
use stoker_formats::{PARTS_FOLDER, PartFile, ShareRecord};

use crate::error::{Error, Result};
use crate::files::{CacheFiles, read_whole};

/// The partitions that the folder of `files` shall hold of this cache, ascending; none if no sync has said so.
///
/// # Errors
/// [`Error::Formats`] or [`Error::Damaged`] if the record is damaged, or of a newer version; [`Error::Io`] if it cannot be read.
pub fn synced_partitions(files: &CacheFiles) -> Result<Option<Vec<u32>>> {
    let fingerprint = files.manifest().fingerprint;
    let name = Path::new(PARTS_FOLDER).join(PartFile::Share(fingerprint).to_string());
    let path = files.root().join(name);
    let metadata = match fs::symlink_metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let bytes = read_whole(&path, &metadata, MAX_SHARE_BYTES as u64)?;
    let record = ShareRecord::parse(&bytes).map_err(Error::formats(&path))?;
    let is_of_it = |last: &u32| *last < files.partitions();
    if record.fingerprint != fingerprint || !record.partitions.last().is_none_or(is_of_it) {
        return Err(Error::Damaged {
            path,
            what: "the record of another cache's share".into(),
        });
    }
    Ok(Some(record.partitions))
}
