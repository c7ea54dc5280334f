//! Which partitions a folder holds, where several nodes share a cache.
//!
//! Owns the rule that tells a share from a damaged whole: the folder `parts` marks a folder that holds a share. Invariant: a
//! partition of which a shard is there, or which a part record of the cache's plans names, is held, and what it lacks is damage.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use stoker_formats::{FileName, PARTS_FOLDER};
use stoker_reader::CacheFiles;

use crate::build::named::plan_ids;
use crate::error::Result;
use crate::records;

/// The partitions whose shards are on other nodes, ascending.
///
/// # Errors
/// If the folder of part records cannot be listed.
pub(crate) fn elsewhere(files: &CacheFiles) -> Result<Vec<u32>> {
    let parts = files.root().join(PARTS_FOLDER);
    if !parts.is_dir() {
        return Ok(Vec::new());
    }
    let mut held = BTreeSet::new();
    for found in records::find(files.root())? {
        if let Ok(record) = found.read()
            && records::ids(&record) == plan_ids(files.manifest())
        {
            held.extend(record.partitions.iter().map(|entry| entry.partition));
        }
    }
    let mut with_shards = BTreeSet::new();
    for file in files.expected() {
        if let FileName::Shard { partition, .. } = file.name {
            with_shards.insert(partition);
            if fs::symlink_metadata(files.path(file.folder, file.name)).is_ok() {
                held.insert(partition);
            }
        }
    }
    Ok(with_shards.difference(&held).copied().collect())
}

/// Ascending numbers for a person: `0, 2-5`.
pub(crate) fn numbers(list: &[u32]) -> String {
    let mut text = String::new();
    for run in list.chunk_by(|one, next| one + 1 == *next) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = match run {
            [first, .., last] => write!(text, "{comma}{first}-{last}"),
            [only] => write!(text, "{comma}{only}"),
            [] => Ok(()),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_runs() {
        assert_eq!(numbers(&[]), "");
        assert_eq!(numbers(&[3]), "3");
        assert_eq!(numbers(&[0, 2, 3, 4, 7, 9, 10]), "0, 2-4, 7, 9-10");
    }
}
