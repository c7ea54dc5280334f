//! The word that a sync leaves of what it brings: the folder `parts`, and in it the record of the share.
//!
//! Owns when that is written and when it goes. Invariant: it is there before the first shard of the share is, and before another
//! node's goes; that of the cache that is committed stays until another one is.

use std::fs;
use std::path::Path;

use stoker_formats::{PARTS_FOLDER, PartFile, ShareRecord, VERSION};

use crate::build::commit::CREATED_BY;
use crate::error::Result;
use crate::folder;
use crate::publish::{Publisher, TEMP_SUFFIX};
use crate::remote::Remote;

/// The mark of one share.
pub(super) struct Mark<'a> {
    publisher: &'a Publisher,
    /// The record's name, and its bytes.
    name: String,
    bytes: Vec<u8>,
    is_whole: bool,
}

impl<'a> Mark<'a> {
    pub(super) fn new(
        publisher: &'a Publisher,
        remote: &Remote,
        partitions: &[u32],
    ) -> Result<Self> {
        let manifest = remote.manifest();
        let record = ShareRecord {
            format_version: VERSION,
            created_by: CREATED_BY.into(),
            fingerprint: manifest.fingerprint,
            partitions: partitions.to_vec(),
        };
        Ok(Self {
            publisher,
            name: PartFile::Share(manifest.fingerprint).to_string(),
            bytes: record.to_bytes()?,
            is_whole: partitions.len() == manifest.partitions.len(),
        })
    }

    /// Bytes that [`set`](Self::set) will write.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        if self.is_missing() {
            self.bytes.len() as u64
        } else {
            0
        }
    }

    /// Marks the folder; one that is no share and gets everything needs no mark.
    pub(super) fn set(&self) -> Result<()> {
        if !self.is_missing() {
            return Ok(());
        }
        let parts = Path::new(PARTS_FOLDER);
        self.publisher.create_folder(parts)?;
        self.publisher.replace_bytes(parts, &self.name, &self.bytes)
    }

    /// Once the manifest is there: removes the records of other caches' shares and, off a folder that is whole now, the mark. Where
    /// parts were built their records stay, and with them the mark.
    pub(super) fn settle(&self) -> Result<()> {
        let parts = Path::new(PARTS_FOLDER);
        let root = self.publisher.root();
        let mut others = 0;
        for entry in folder::entries(&root.join(parts))? {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name == self.name {
                continue;
            }
            if is_share(&name) {
                self.publisher.remove(parts, &name)?;
            } else {
                others += 1;
            }
        }
        if self.is_whole && others == 0 {
            self.publisher.remove(parts, &self.name)?;
            if fs::remove_dir(root.join(parts)).is_ok() {
                self.publisher.sync(Path::new(""))?;
            }
        }
        Ok(())
    }

    /// Whether the folder needs the mark and does not have it.
    fn is_missing(&self) -> bool {
        let parts = self.publisher.root().join(PARTS_FOLDER);
        if self.is_whole && !parts.is_dir() {
            return false;
        }
        let there = folder::read_regular(&parts.join(&self.name), self.bytes.len());
        !there.is_ok_and(|there| there == self.bytes)
    }
}

/// Whether a file of this name is a share's record, finished or not.
fn is_share(name: &str) -> bool {
    let temp = name
        .strip_prefix('.')
        .and_then(|name| name.strip_suffix(TEMP_SUFFIX));
    matches!(
        PartFile::parse(temp.unwrap_or(name)),
        Ok(PartFile::Share(_))
    )
}
