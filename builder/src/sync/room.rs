//! How much may be written.
//!
//! Owns the quota and the reserve of the disk. Invariant: before a byte of a file is written, all of its bytes are counted; what it
//! replaces counts until it is gone.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::folder;
use crate::publish::{Publisher, free_bytes};
use crate::remote::RemoteFile;

/// What is left free on the disk: a full one stops everybody else who writes there. Of a small disk a share of what is free.
const RESERVE_BYTES: u64 = 1 << 30;
const RESERVE_SHARE: u64 = 20;

/// Deepest folder that is counted: a cache has three levels.
const DEPTH_MAX: u32 = 16;

/// The room in a folder.
pub(super) struct Room<'a> {
    publisher: &'a Publisher,
    max_disk: Option<u64>,
    /// Bytes free on the disk at the start.
    pub(super) free: u64,
    reserve: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of all files in the folder, those on their way in full.
    used: u64,
    /// Of those on their way, what is not written yet.
    unwritten: u64,
}

/// The room of one file on its way; what is not published gives it back.
pub(super) struct Taken<'a> {
    room: &'a Room<'a>,
    bytes: u64,
    unwritten: u64,
    /// Bytes of the file that it replaces.
    replaced: u64,
    is_published: bool,
}

impl<'a> Room<'a> {
    /// Refuses to begin what would not fit: so many bytes are to be written.
    pub(super) fn new(
        publisher: &'a Publisher,
        max_disk: Option<u64>,
        needed: u64,
    ) -> Result<Self> {
        let root = publisher.root();
        let used = folder_bytes(root, 0)?;
        if let Some(allowed) = max_disk
            && used.saturating_add(needed) > allowed
        {
            return Err(over_quota(root, needed, used, allowed));
        }
        let free = free_bytes(root)?;
        let reserve = RESERVE_BYTES.min(free / RESERVE_SHARE);
        if needed.saturating_add(reserve) > free {
            return Err(Error::DiskFull {
                path: root.to_path_buf(),
                needed: needed.saturating_add(reserve),
                free,
            });
        }
        publisher.set_remaining_bytes(needed);
        Ok(Self {
            publisher,
            max_disk,
            free,
            reserve,
            state: Mutex::new(State { used, unwritten: 0 }),
        })
    }

    /// Takes the room of a file.
    pub(super) fn take(&'a self, file: &RemoteFile) -> Result<Taken<'a>> {
        let root = self.publisher.root();
        let bytes = file.entry.bytes;
        let there = fs::symlink_metadata(root.join(&file.path));
        let replaced = there.map_or(0, |there| there.len());
        let mut state = self.state();
        if let Some(allowed) = self.max_disk
            && state.used.saturating_add(bytes) > allowed
        {
            return Err(over_quota(root, bytes, state.used, allowed));
        }
        let free = free_bytes(root)?;
        let needed = bytes
            .saturating_add(state.unwritten)
            .saturating_add(self.reserve);
        if needed > free {
            return Err(Error::DiskFull {
                path: root.to_path_buf(),
                needed,
                free,
            });
        }
        state.used += bytes;
        state.unwritten += bytes;
        Ok(Taken {
            room: self,
            bytes,
            unwritten: bytes,
            replaced,
            is_published: false,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// Counts bytes that were written.
    pub(super) fn written(&mut self, bytes: u64) {
        let bytes = bytes.min(self.unwritten);
        self.unwritten -= bytes;
        self.room.state().unwritten -= bytes;
    }

    /// The file has its name.
    pub(super) fn published(mut self) {
        self.is_published = true;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.room.state();
        state.unwritten -= self.unwritten;
        let gone = if self.is_published {
            self.replaced
        } else {
            self.bytes
        };
        state.used = state.used.saturating_sub(gone);
    }
}

fn over_quota(root: &Path, needed: u64, used: u64, allowed: u64) -> Error {
    Error::Usage {
        what: format!(
            "{needed} bytes are to be brought to {used} that are there, more than --max-disk: `{allowed}` for `{}`",
            root.display()
        ),
        hint: "raise --max-disk, place the cache on more nodes, or say --prune, which removes shards that belong elsewhere; nothing was brought"
            .into(),
    }
}

/// Bytes of all files below `path`; links are not followed.
fn folder_bytes(path: &Path, depth: u32) -> Result<u64> {
    let mut sum = 0u64;
    for entry in folder::entries(path)? {
        let Ok(found) = entry.metadata() else {
            // Gone meanwhile.
            continue;
        };
        let bytes = if found.is_dir() && depth < DEPTH_MAX {
            folder_bytes(&entry.path(), depth + 1)?
        } else if found.is_file() {
            found.len()
        } else {
            0
        };
        sum = sum.saturating_add(bytes);
    }
    Ok(sum)
}
