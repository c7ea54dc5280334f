//! What a remote holds already.
//!
//! Owns when a file there counts as whole. Invariant: a shard does by the hash at its end, which only a push writes that has read
//! the shard through; any other file by its content, or because the manifest, which comes last, is there.

use std::collections::BTreeSet;

use crate::error::Result;
use crate::remote::{Listing, Remote, RemoteFile, files};

/// The files of a remote.
pub(super) struct There {
    listing: Listing,
    /// Whether the manifest of this cache is there.
    is_committed: bool,
}

impl There {
    pub(super) fn look(remote: &Remote, is_committed: bool) -> Result<Self> {
        Ok(Self {
            listing: remote.store().list()?,
            is_committed,
        })
    }

    /// Whether `file` is there, whole.
    pub(super) fn holds(&self, remote: &Remote, file: &RemoteFile) -> Result<bool> {
        if !self.has_name(remote, file)? {
            return Ok(false);
        }
        if !file.is_shard && self.is_committed {
            return Ok(true);
        }
        remote.holds(file)
    }

    /// Whether something of its name is there that could be `file`.
    fn has_name(&self, remote: &Remote, file: &RemoteFile) -> Result<bool> {
        let store = remote.store();
        if file.is_shard && self.listing.size(store, &file.packed())?.is_some() {
            return Ok(true);
        }
        Ok(self.listing.size(store, &file.path)? == Some(file.entry.bytes))
    }

    /// Which of `partitions` have a shard that is not there.
    pub(super) fn lacking(&self, remote: &Remote, partitions: &[u32]) -> Result<Vec<u32>> {
        let mut lacking = BTreeSet::new();
        for file in remote.files() {
            if let Some(partition) = files::shard_partition(&file)
                && partitions.binary_search(&partition).is_ok()
                && !lacking.contains(&partition)
                && !self.has_name(remote, &RemoteFile::from(&file))?
            {
                lacking.insert(partition);
            }
        }
        Ok(lacking.into_iter().collect())
    }
}
