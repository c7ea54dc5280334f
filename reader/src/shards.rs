//! The shards of one partition and kind: opened when first needed, then kept.
//!
//! Owns the check that an open file is the shard that the manifest means. Invariant: a file that is handed out has the
//! manifest's size, and its head names this partition, ordinal, first row and number of rows.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::OnceLock;

use stoker_formats::{FileName, Folder, PartitionFiles, ShardKind, read_shard_head};

use crate::error::{Error, Result};
use crate::files::{CacheFiles, check_size};

/// What the manifest says of a shard.
#[derive(Debug, Clone, Copy)]
struct Known {
    bytes: u64,
    rows: u64,
    first_row: u64,
}

#[derive(Debug)]
struct Shard {
    /// None where every item of the receipt was rejected.
    known: Option<Known>,
    file: OnceLock<File>,
}

/// The shards of one partition and kind.
#[derive(Debug)]
pub(crate) struct Shards {
    folder: Folder,
    partition: u32,
    kind: ShardKind,
    shards: Vec<Shard>,
}

impl Shards {
    /// Nothing is opened yet.
    pub(crate) fn new(files: &PartitionFiles, folder: Folder, partition: u32) -> Self {
        let mut first_row = 0;
        let shards = files
            .shards
            .iter()
            .map(|entry| {
                let known = entry.map(|entry| Known {
                    bytes: entry.bytes,
                    rows: entry.rows,
                    first_row,
                });
                first_row += entry.map_or(0, |entry| entry.rows);
                Shard {
                    known,
                    file: OnceLock::new(),
                }
            })
            .collect();
        Self {
            folder,
            partition,
            kind: match folder {
                Folder::Images(_) => ShardKind::Images,
                Folder::Text(_) => ShardKind::Samples,
            },
            shards,
        }
    }

    /// Where shard `ordinal` lies.
    pub(crate) fn path(&self, files: &CacheFiles, ordinal: u32) -> PathBuf {
        let partition = self.partition;
        files.path(self.folder, FileName::Shard { partition, ordinal })
    }

    /// The file of shard `ordinal`, opened and checked on the first call.
    pub(crate) fn file(&self, files: &CacheFiles, ordinal: u32) -> Result<&File> {
        let path = self.path(files, ordinal);
        let damaged = |what: &str| Error::Damaged {
            path: path.clone(),
            what: what.to_owned(),
        };
        let shard = self
            .shards
            .get(ordinal as usize)
            .ok_or_else(|| damaged("the index names a shard that the manifest does not"))?;
        if let Some(file) = shard.file.get() {
            return Ok(file);
        }
        let known = shard
            .known
            .ok_or_else(|| damaged("the index names a shard that the manifest does not"))?;
        let metadata = fs::metadata(&path).map_err(Error::io("open", &path))?;
        check_size(&path, &metadata, known.bytes)?;
        let file = File::open(&path).map_err(Error::io("open", &path))?;
        let (head, rows) = read_shard_head(&file, self.kind).map_err(Error::formats(&path))?;
        if (head.partition, head.shard, head.first_row, rows)
            != (self.partition, ordinal, known.first_row, known.rows)
        {
            return Err(damaged("another shard stands in this place"));
        }
        // Another thread may have been faster; its file is as good.
        Ok(shard.file.get_or_init(|| file))
    }
}
