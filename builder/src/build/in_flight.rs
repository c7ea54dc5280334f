//! Which images were being prepared when the process died, and which of them killed it.
//!
//! Each thread that looks into an image, header or pixels, notes it in a slot of `in-flight` before it
//! starts and clears the slot after. The page cache outlives the process, so no fsync is needed: only a dead process leaves
//! notes, and a power cut is nobody's fault. The next run tries the noted images in a child process
//! and keeps the guilty ones in `crashers.json` until the build is committed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stoker_formats::ImageKey;

use crate::error::{Error, Result};
use crate::publish::{NO_FOLLOW, Publisher};

/// Slots: one an image in preparation.
pub(crate) const IN_FLIGHT_NAME: &str = "in-flight";
/// Keys of images that took a process down.
pub(crate) const CRASHERS_NAME: &str = "crashers.json";

/// A slot holds one image key; all zero is free.
const SLOT_BYTES: usize = 16;
/// More slots than any machine has decoding threads would mean a damaged file.
const SLOTS_MAX: usize = 4096;

/// The notes of this run.
#[derive(Debug)]
pub(crate) struct InFlight {
    file: File,
    free: Mutex<Vec<usize>>,
}

impl InFlight {
    /// Starts with no image noted, for at most `slots` at once.
    pub(crate) fn start(output: &Path, slots: usize) -> Result<Self> {
        let path = output.join(IN_FLIGHT_NAME);
        let slots = slots.min(SLOTS_MAX);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(NO_FOLLOW)
            .open(&path)
            .map_err(Error::io("create", &path))?;
        file.set_len((slots * SLOT_BYTES) as u64)
            .map_err(Error::io("size", &path))?;
        Ok(Self {
            file,
            free: Mutex::new((0..slots).collect()),
        })
    }

    /// Notes `key` until the note is dropped. A note that cannot be written is no reason to stop.
    pub(crate) fn note(&self, key: ImageKey) -> Note<'_> {
        let slot = self.slots().pop();
        if let Some(slot) = slot {
            let _ = self.file.write_all_at(&key.0, (slot * SLOT_BYTES) as u64);
        }
        Note { owner: self, slot }
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One noted image.
pub(crate) struct Note<'a> {
    owner: &'a InFlight,
    slot: Option<usize>,
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let _ = self
                .owner
                .file
                .write_all_at(&[0; SLOT_BYTES], (slot * SLOT_BYTES) as u64);
            self.owner.slots().push(slot);
        }
    }
}

/// The images a dead run left noted.
pub(crate) fn left_behind(output: &Path) -> Result<BTreeSet<ImageKey>> {
    let path = output.join(IN_FLIGHT_NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let (slots, _) = bytes.as_chunks::<SLOT_BYTES>();
    Ok(slots
        .iter()
        .take(SLOTS_MAX)
        .filter(|slot| **slot != [0; SLOT_BYTES])
        .map(|slot| ImageKey(*slot))
        .collect())
}

/// The images already known to take a process down.
pub(crate) fn crashers(output: &Path) -> Result<BTreeSet<ImageKey>> {
    let path = output.join(CRASHERS_NAME);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let keys: Vec<[u8; SLOT_BYTES]> = serde_json::from_str(&text)
        .map_err(|error| Error::io("parse", &path)(std::io::Error::other(error)))?;
    Ok(keys.into_iter().map(ImageKey).collect())
}

/// Keeps the guilty images for the following runs.
pub(crate) fn keep_crashers(publisher: &Publisher, keys: &BTreeSet<ImageKey>) -> Result<()> {
    let keys: Vec<[u8; SLOT_BYTES]> = keys.iter().map(|key| key.0).collect();
    let text = serde_json::to_vec(&keys).unwrap_or_default();
    publisher.replace_bytes(Path::new(""), CRASHERS_NAME, &text)
}
