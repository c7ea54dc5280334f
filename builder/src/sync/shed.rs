//! Removes shards of the cache that the placement puts elsewhere, and the part records that speak of them.
//!
//! Invariant: a shard goes only after the remote's copy of it, which is another file, was read through and found right, and while
//! nobody else may remove that one; names that are no shards of this cache are not looked at.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stoker_formats::PartEntry;

use crate::build::named::plan_ids;
use crate::error::{Error, Result};
use crate::plan::PlanIds;
use crate::publish::Publisher;
use crate::records;
use crate::remote::{Remote, RemoteFile, crew, files};

/// What goes, and what has gone.
pub(super) struct Shed<'a> {
    remote: &'a Remote,
    publisher: &'a Publisher,
    partitions: &'a [u32],
    pub(super) removed: u64,
    pub(super) removed_bytes: u64,
    /// Files that stay, because the remote does not hold them.
    pub(super) not_removed: Vec<String>,
}

impl<'a> Shed<'a> {
    pub(super) fn new(remote: &'a Remote, publisher: &'a Publisher, partitions: &'a [u32]) -> Self {
        Self {
            remote,
            publisher,
            partitions,
            removed: 0,
            removed_bytes: 0,
            not_removed: Vec::new(),
        }
    }

    /// Removes the shards of other partitions. They are read from the remote first, by so many threads.
    pub(super) fn shards(&mut self, threads: usize) -> Result<()> {
        let root = self.publisher.root();
        let foreign: Vec<RemoteFile> = self
            .remote
            .files()
            .filter(|file| {
                files::shard_partition(file)
                    .is_some_and(|partition| self.partitions.binary_search(&partition).is_err())
            })
            .map(|file| RemoteFile::from(&file))
            .filter(|file| is_file(&root.join(&file.path)))
            .collect();
        let ids = plan_ids(self.remote.manifest());
        if foreign.is_empty() && !self.has_stale_record(ids)? {
            return Ok(());
        }
        let verdicts = Mutex::new(Vec::new());
        crew::each(threads, &foreign, |file| {
            let is_held = match self.remote.bring(file, &mut |_| Ok(())) {
                Ok(_) => !self.remote.is_same_file(file, &root.join(&file.path)),
                Err(Error::Remote { .. }) => false,
                Err(error) => return Err(error),
            };
            let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
            verdicts.push((file, is_held));
            Ok(())
        })?;
        // They say that this folder holds what it has built.
        records::remove(self.publisher, None, |of| of == Some(ids))?;
        let verdicts = verdicts
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        for (file, is_held) in verdicts {
            if is_held {
                let (folder, name) = file.place();
                self.publisher.remove(Path::new(folder), name)?;
                self.removed += 1;
                self.removed_bytes += file.entry.bytes;
            } else {
                self.not_removed.push(file.path.clone());
            }
        }
        self.not_removed.sort();
        Ok(())
    }

    /// Whether the record of a part says that a partition is here which the placement puts elsewhere: its shards may have gone
    /// without it, and would be missed for ever.
    fn has_stale_record(&self, ids: PlanIds) -> Result<bool> {
        let is_elsewhere =
            |entry: &PartEntry| self.partitions.binary_search(&entry.partition).is_err();
        let records = records::find(self.publisher.root())?;
        // What cannot be read says nothing, and is not removed either.
        let mut read = records.iter().filter_map(|found| found.read().ok());
        Ok(read.any(|record| {
            records::ids(&record) == ids && record.partitions.iter().any(is_elsewhere)
        }))
    }
}

/// Whether a file is there, whatever its size: a damaged shard of another node goes, too.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
}
