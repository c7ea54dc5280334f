//! Which partitions a folder holds, where several nodes share a cache.
//!
//! Owns the rule that tells a share from a damaged whole: the folder `parts` marks a folder that holds a share. Invariant: a
//! partition of which a shard is there, or which a part record of the cache's plans or the record of a sync names, is held, and
//! what it lacks is damage.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;

use stoker_formats::{FileName, PARTS_FOLDER, PartFile};
use stoker_reader::{CacheFiles, synced_partitions};

use crate::build::named::plan_ids;
use crate::error::Result;
use crate::records;

/// What a folder shall hold.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The partitions whose shards are on other nodes, ascending.
    pub(crate) elsewhere: Vec<u32>,
    /// What is wrong with the record of the sync, which then says nothing.
    pub(crate) damage: Option<String>,
}

/// The partitions whose shards are on other nodes, ascending.
///
/// # Errors
/// As [`look`].
pub(crate) fn elsewhere(files: &CacheFiles) -> Result<Vec<u32>> {
    Ok(look(files)?.elsewhere)
}

/// The record that a sync has left of what it brought of this cache, relative to the folder.
pub(crate) fn record(files: &CacheFiles) -> String {
    format!(
        "{PARTS_FOLDER}/{}",
        PartFile::Share(files.manifest().fingerprint)
    )
}

/// Looks what the folder of `files` shall hold.
///
/// # Errors
/// If the folder of part records cannot be listed, or the record of a sync cannot be read or is of a newer version.
pub(crate) fn look(files: &CacheFiles) -> Result<Held> {
    if !files.root().join(PARTS_FOLDER).is_dir() {
        return Ok(Held::default());
    }
    let mut held = BTreeSet::new();
    let mut damage = None;
    match synced_partitions(files) {
        Ok(synced) => held.extend(synced.into_iter().flatten()),
        Err(error) => match error.damage() {
            Some(what) => damage = Some(what),
            None => return Err(error.into()),
        },
    }
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
    Ok(Held {
        elsewhere: with_shards.difference(&held).copied().collect(),
        damage,
    })
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
