//! Which shards are on this node.
//!
//! Owns the look into the shard folders when a reader opens. Invariant: one listing a folder, whatever the number of
//! shards; sizes are checked when a shard is opened.

use std::fs::File;
use std::io::ErrorKind;

use rustix::fs::RawDir;
use stoker_formats::{FileName, Folder};

use crate::error::{Error, Result};
use crate::files::{CacheFile, CacheFiles};
use crate::open_files::{FileId, FileKind};
use crate::synced::synced_partitions;

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
                missing.push((partition, files.text(), index));
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
            missing.extend(needed.map(|name| (partition, folder, name)));
        }
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(absence(files, missing))
    }
}

/// The error of `missing` files, each with its partition: what a sync was to bring is lost, what it was not is on other nodes.
fn absence(files: &CacheFiles, missing: Vec<(u32, Folder, FileName)>) -> Error {
    let root = files.root().to_path_buf();
    // A damaged record says nothing.
    let synced = synced_partitions(files).ok().flatten();
    let is_elsewhere = |(partition, _, name): &(u32, Folder, FileName)| {
        let is_synced = |synced: &Vec<u32>| synced.binary_search(partition).is_ok();
        matches!(name, FileName::Shard { .. })
            && synced.as_ref().is_some_and(|synced| !is_synced(synced))
    };
    let (elsewhere, lost): (Vec<_>, Vec<_>) = missing.into_iter().partition(is_elsewhere);
    if lost.is_empty() {
        let mut partitions: Vec<u32> = elsewhere.into_iter().map(|(number, ..)| number).collect();
        partitions.dedup();
        return Error::Elsewhere { root, partitions };
    }
    Error::Missing {
        root,
        files: lost
            .into_iter()
            .map(|(_, folder, name)| format!("{folder}/{name}"))
            .collect(),
    }
}

/// The files that a node lacks, whether it should hold them or not.
#[derive(Debug, Default)]
pub(crate) struct Absent {
    pub(crate) indexes: Vec<CacheFile>,
    /// The ordinals of image shards and of sample shards by partition, ascending.
    images: Vec<Vec<u32>>,
    samples: Vec<Vec<u32>>,
}

impl Absent {
    /// What is not there of `partitions`, which ascend.
    pub(crate) fn find(files: &CacheFiles, partitions: impl Iterator<Item = u32>) -> Result<Self> {
        let images = Present::list(files, files.images())?;
        let samples = Present::list(files, files.text())?;
        let mut absent = Self::default();
        for partition in partitions {
            let entry = files.partition(partition)?;
            let name = FileName::Index { partition };
            for (folder, present, plan, into) in [
                (files.images(), &images, &entry.images, &mut absent.images),
                (files.text(), &samples, &entry.samples, &mut absent.samples),
            ] {
                let shards = (0u32..)
                    .zip(&plan.shards)
                    .filter(|(_, shard)| shard.is_some())
                    .map(|(ordinal, _)| ordinal)
                    .filter(|ordinal| {
                        !present.has(FileName::Shard {
                            partition,
                            ordinal: *ordinal,
                        })
                    });
                into.resize(partition as usize, Vec::new());
                into.push(shards.collect());
                if !present.has(name) {
                    absent.indexes.push(CacheFile {
                        folder,
                        name,
                        entry: plan.index,
                    });
                }
            }
        }
        Ok(absent)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let mut shards = self.images.iter().chain(&self.samples);
        self.indexes.is_empty() && shards.all(Vec::is_empty)
    }

    fn of(&self, kind: FileKind, partition: u32) -> &[u32] {
        let shards = match kind {
            FileKind::ImageShard => &self.images,
            FileKind::SampleShard => &self.samples,
            FileKind::ImageIndex | FileKind::SampleIndex => return &[],
        };
        shards.get(partition as usize).map_or(&[], Vec::as_slice)
    }

    /// Whether a shard is absent.
    pub(crate) fn has(&self, id: FileId) -> bool {
        let shards = self.of(id.kind, id.partition);
        shards.binary_search(&id.ordinal).is_ok()
    }

    /// Whether any image shard of a partition is absent.
    pub(crate) fn lacks_images(&self, partition: u32) -> bool {
        !self.of(FileKind::ImageShard, partition).is_empty()
    }

    /// The largest of the shards that are absent.
    pub(crate) fn largest(&self, files: &CacheFiles) -> Option<CacheFile> {
        let kinds = [
            (FileKind::ImageShard, files.images(), &self.images),
            (FileKind::SampleShard, files.text(), &self.samples),
        ];
        let shards = kinds.into_iter().flat_map(|(kind, folder, absent)| {
            (0u32..).zip(absent).flat_map(move |(partition, ordinals)| {
                let plan = files.partition(partition).ok();
                let ordinals = ordinals.iter().copied();
                ordinals.filter_map(move |ordinal| {
                    let plan = plan.map(|plan| match kind {
                        FileKind::ImageShard => &plan.images,
                        _ => &plan.samples,
                    })?;
                    let entry = plan.shards.get(ordinal as usize).copied().flatten()?;
                    let name = FileName::Shard { partition, ordinal };
                    Some(CacheFile {
                        folder,
                        name,
                        entry,
                    })
                })
            })
        });
        shards.max_by_key(|file| file.entry.bytes)
    }
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
