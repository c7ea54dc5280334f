//! Which shards are on this node.
//!
//! Owns the look into the shard folders when a reader opens. Invariant: one listing a folder, whatever the number of
//! shards; sizes are checked when a shard is opened.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;

use stoker_formats::{FileName, Folder};

use crate::error::{Error, Result};
use crate::files::CacheFiles;

/// Fails naming every file that is needed and not there: the sample index of each of `partitions`, which every node counts
/// loss tokens with, and all other files of those that are `held` here.
pub(crate) fn check(
    files: &CacheFiles,
    partitions: impl Iterator<Item = u32>,
    held: impl Fn(u32) -> bool,
) -> Result<()> {
    let images = names(files, files.images())?;
    let samples = names(files, files.text())?;
    let mut missing = Vec::new();
    for partition in partitions {
        let entry = files.partition(partition)?;
        if !held(partition) {
            let index = FileName::Index { partition };
            if !samples.contains(&index) {
                missing.push(format!("{}/{index}", files.text()));
            }
            continue;
        }
        for (folder, present, plan) in [
            (files.images(), &images, &entry.images),
            (files.text(), &samples, &entry.samples),
        ] {
            let shards = (0u32..)
                .zip(plan.shards.iter())
                .filter(|(_, shard)| shard.is_some())
                .map(|(ordinal, _)| FileName::Shard { partition, ordinal });
            for name in shards.chain([FileName::Index { partition }]) {
                if !present.contains(&name) {
                    missing.push(format!("{folder}/{name}"));
                }
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Missing {
        root: files.root().to_path_buf(),
        files: missing,
    })
}

fn names(files: &CacheFiles, folder: Folder) -> Result<HashSet<FileName>> {
    let root = files.root().join(folder.to_string());
    let mut names = HashSet::new();
    for kind in ["shards", "index"] {
        let path = root.join(kind);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Error::io("list", &path)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &path))?;
            names.extend(parse(kind, &entry.file_name()));
        }
    }
    Ok(names)
}

fn parse(kind: &str, name: &OsStr) -> Option<FileName> {
    FileName::parse(&format!("{kind}/{}", name.to_str()?)).ok()
}
