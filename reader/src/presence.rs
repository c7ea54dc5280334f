//! Which shards are on this node.
//!
//! Owns the look into the shard folders when a reader opens. Invariant: one listing a folder, whatever the number of
//! shards; sizes are checked when a shard is opened.

use std::fs::File;
use std::io::ErrorKind;

use rustix::fs::RawDir;
use stoker_formats::{FileName, Folder};

use crate::error::{Error, Result};
use crate::files::CacheFiles;

/// Bytes of a folder's names that are listed at a time: some thousand names.
const LISTED_BYTES: usize = 64 << 10;

/// Fails naming every file that is needed and not there: the sample index of each of `partitions`, which every node counts
/// loss tokens with, and all other files of those that are `held` here.
pub(crate) fn check(
    files: &CacheFiles,
    partitions: impl Iterator<Item = u32>,
    held: impl Fn(u32) -> bool,
) -> Result<()> {
    let images = Present::list(files, files.images())?;
    let samples = Present::list(files, files.text())?;
    let mut missing = Vec::new();
    for partition in partitions {
        let entry = files.partition(partition)?;
        let index = FileName::Index { partition };
        if !held(partition) {
            if !samples.has(index) {
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
            let needed = shards.chain([index]).filter(|name| !present.has(*name));
            missing.extend(needed.map(|name| format!("{folder}/{name}")));
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

/// The shards and indexes that lie in the folder of a plan.
struct Present {
    /// Partition and ordinal, ascending.
    shards: Vec<(u32, u32)>,
    /// Partitions, ascending.
    indexes: Vec<u32>,
}

impl Present {
    fn list(files: &CacheFiles, folder: Folder) -> Result<Self> {
        let root = files.root().join(folder.to_string());
        let (mut shards, mut indexes) = (Vec::new(), Vec::new());
        for kind in ["shards", "index"] {
            let path = root.join(kind);
            let folder = match File::open(&path) {
                Ok(folder) => folder,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("list", &path)(error)),
            };
            let mut name = format!("{kind}/");
            let stem = name.len();
            // Without an allocation a name: there are ten thousands.
            let mut listed = Vec::with_capacity(LISTED_BYTES);
            let mut entries = RawDir::new(folder, listed.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry.map_err(|error| Error::io("list", &path)(error.into()))?;
                name.truncate(stem);
                name.push_str(entry.file_name().to_str().unwrap_or_default());
                match FileName::parse(&name) {
                    Ok(FileName::Shard { partition, ordinal }) => shards.push((partition, ordinal)),
                    Ok(FileName::Index { partition }) => indexes.push(partition),
                    _ => {}
                }
            }
        }
        shards.sort_unstable();
        indexes.sort_unstable();
        Ok(Self { shards, indexes })
    }

    fn has(&self, name: FileName) -> bool {
        match name {
            FileName::Shard { partition, ordinal } => {
                self.shards.binary_search(&(partition, ordinal)).is_ok()
            }
            FileName::Index { partition } => self.indexes.binary_search(&partition).is_ok(),
            _ => false,
        }
    }
}
