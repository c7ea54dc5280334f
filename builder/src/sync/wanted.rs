//! What the folder shall hold, and what of it is not there.
//!
//! Invariant: a file counts as there only after its bytes were read and hashed: a kill, a disk or somebody may have left others.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stoker_formats::PackEntry;

use crate::error::Result;
use crate::folder::has_file;
use crate::remote::{Remote, RemoteFile, crew, files, pack_files};
use crate::verify::check_file;
use crate::verify::progress::Progress;

/// All files of a share but the manifest and the entries of pack tables.
pub(super) struct Wanted {
    files: Vec<RemoteFile>,
}

impl Wanted {
    pub(super) fn new(remote: &Remote, partitions: &[u32], packs: &[(PackEntry, Vec<u8>)]) -> Self {
        let own = remote.files().filter(|file| {
            files::shard_partition(file)
                .is_none_or(|partition| partitions.binary_search(&partition).is_ok())
        });
        let packs = pack_files(packs.iter().map(|(entry, _)| entry));
        Self {
            files: own
                .map(|file| RemoteFile::from(&file))
                .chain(packs)
                .collect(),
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.files.len() as u64
    }

    /// Bytes of those that seem to be there.
    pub(super) fn bytes_here(&self, root: &Path) -> u64 {
        let here = |file: &&RemoteFile| has_file(&root.join(&file.path), file.entry.bytes);
        self.files
            .iter()
            .filter(here)
            .map(|file| file.entry.bytes)
            .sum()
    }

    /// Those that are not there, or with other bytes, in order.
    pub(super) fn missing(
        &self,
        root: &Path,
        threads: usize,
        progress: &Progress,
    ) -> Result<Vec<RemoteFile>> {
        let found = Mutex::new(Vec::new());
        let numbered: Vec<(usize, &RemoteFile)> = self.files.iter().enumerate().collect();
        crew::each(threads, &numbered, |(number, file)| {
            let path = root.join(&file.path);
            let is_there = has_file(&path, file.entry.bytes)
                && check_file(&path, file.entry, progress).is_none();
            if !is_there {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                found.push((*number, (*file).clone()));
            }
            progress.check()
        })?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(number, _)| *number);
        Ok(found.into_iter().map(|(_, file)| file).collect())
    }
}

/// The sum of their bytes.
pub(super) fn bytes(files: &[RemoteFile]) -> u64 {
    files
        .iter()
        .fold(0, |sum, file| sum.saturating_add(file.entry.bytes))
}
