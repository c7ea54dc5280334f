//! Which partitions a folder holds, where several nodes share a cache.
//!
//! Owns the rule that tells a share from a damaged whole: the folder `parts` marks a folder that holds a share. Invariant: a
//! partition that a part record of the cache's plans or the record of a sync names is held, and what it lacks is damage. Of others
//! that is held of which a shard is there; but if a sync has said what the folder shall hold, only what is there whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::{self, DirEntry};
use std::path::Path;

use stoker_formats::{FileName, PARTS_FOLDER, PartFile};
use stoker_reader::{CacheFiles, synced_partitions};

use crate::build::named::plan_ids;
use crate::error::{Error, Result};
use crate::folder;
use crate::records;

/// What a folder shall hold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The partitions whose shards are on other nodes, ascending.
    pub(crate) elsewhere: Vec<u32>,
    /// Those of which shards are here although no record names them and a sync has said what shall be here, ascending.
    pub(crate) extra: Vec<u32>,
    /// The records that cannot be read, and so say nothing.
    pub(crate) damages: Vec<DamagedRecord>,
}

/// A record of what a folder shall hold that is damaged.
#[derive(Debug)]
pub(crate) struct DamagedRecord {
    /// Relative to the folder.
    pub(crate) file: String,
    /// What is wrong with it.
    pub(crate) what: String,
}

/// The partitions whose shards are on other nodes, ascending.
///
/// # Errors
/// As [`look`].
pub(crate) fn elsewhere(files: &CacheFiles) -> Result<Vec<u32>> {
    Ok(look(files)?.elsewhere)
}

/// Looks what the folder of `files` shall hold.
///
/// # Errors
/// If the folder of part records cannot be listed, or the record of a sync cannot be read or is of a newer version.
pub(crate) fn look(files: &CacheFiles) -> Result<Held> {
    if !files.root().join(PARTS_FOLDER).is_dir() {
        return Ok(Held::default());
    }
    let mut damages = Vec::new();
    let mut damaged = |file: PartFile, what| {
        let file = format!("{PARTS_FOLDER}/{file}");
        damages.push(DamagedRecord { file, what });
    };
    let synced = match synced_partitions(files) {
        Ok(synced) => synced,
        Err(error) => {
            let what = error.damage().ok_or(error)?;
            damaged(PartFile::Share(files.manifest().fingerprint), what);
            None
        }
    };
    let mut wanted: BTreeSet<u32> = synced.iter().flatten().copied().collect();
    for found in records::find(files.root())? {
        match found.read() {
            Ok(record) if records::ids(&record) == plan_ids(files.manifest()) => {
                wanted.extend(record.partitions.iter().map(|entry| entry.partition));
            }
            Ok(_) => {}
            // What a newer release says is not ours to judge.
            Err(Error::Formats(error)) if error.is_newer() => {}
            Err(error) => damaged(PartFile::Record(found.name), error.to_string()),
        }
    }
    let (mut elsewhere, mut extra) = (Vec::new(), Vec::new());
    for (partition, Shards { here, missing }) in shards(files) {
        if wanted.contains(&partition) {
            continue;
        }
        if here == 0 || (synced.is_some() && missing > 0) {
            elsewhere.push(partition);
        }
        if here > 0 && synced.is_some() {
            extra.push(partition);
        }
    }
    Ok(Held {
        elsewhere,
        extra,
        damages,
    })
}

/// Whether a sync has left word of a share, of whatever cache, in the folder `root`.
pub(crate) fn is_synced(root: &Path) -> bool {
    let is_share = |entry: &DirEntry| {
        let name = entry.file_name();
        matches!(
            name.to_str().map(PartFile::parse),
            Some(Ok(PartFile::Share(_)))
        )
    };
    folder::entries(&root.join(PARTS_FOLDER)).is_ok_and(|found| found.iter().any(is_share))
}

/// How many shards of a partition are in the folder, whatever they are, and how many are not.
#[derive(Debug, Default)]
struct Shards {
    here: usize,
    missing: usize,
}

/// Of each partition that has any.
fn shards(files: &CacheFiles) -> BTreeMap<u32, Shards> {
    let mut shards: BTreeMap<u32, Shards> = BTreeMap::new();
    for file in files.expected() {
        if let FileName::Shard { partition, .. } = file.name {
            let of = shards.entry(partition).or_default();
            if fs::symlink_metadata(files.path(file.folder, file.name)).is_ok() {
                of.here += 1;
            } else {
                of.missing += 1;
            }
        }
    }
    shards
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
