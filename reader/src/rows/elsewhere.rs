//! Rows whose shards this node lacks.
//!
//! Owns where a shard is read from, and the second try of one that came to harm here. Invariant: without a fallback nothing of
//! this costs a row more than a look at an option.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stoker_formats::SampleEntry;

use super::{Row, Rows};
use crate::error::Result;
use crate::index_store::path;
use crate::open_files::{FileId, FileKind};
use crate::remote_cache::RemoteCache;
use crate::units::Sample;

impl Rows {
    /// What brings shards that this node lacks, if it lacks any.
    pub(crate) fn remote(&self) -> Option<&RemoteCache> {
        self.remote.as_ref()
    }

    /// What brings a shard, if it is away.
    pub(super) fn brings(&self, id: FileId) -> Option<&RemoteCache> {
        self.remote().filter(|remote| remote.is_away(id))
    }

    /// Opens a shard that lies at `path`, as its rows are read.
    pub(crate) fn open_shard_at(&self, id: FileId, path: &Path) -> io::Result<File> {
        match id.kind {
            FileKind::ImageShard => self.backend.open(path),
            _ => File::open(path),
        }
    }

    /// Does `read`, which reads a row; once more if the shard was brought here and is damaged.
    pub(super) fn mended(&self, row: Row, mut read: impl FnMut() -> Result<()>) -> Result<()> {
        match read() {
            Err(error) if error.is_damage() => {
                let id = Self::id(row);
                let Some(remote) = self.brings(id) else {
                    return Err(error);
                };
                remote.discard(id)?;
                read()
            }
            done => done,
        }
    }

    /// The images of a sample, by row; from its shard, `brought` if that was away.
    pub(crate) fn images_of(
        &self,
        sample: Sample,
        entry: &SampleEntry,
        brought: Option<&File>,
    ) -> Result<Vec<u32>> {
        let row = Self::sample_row(sample, entry);
        // The index was held against the shard's size before: this is as much as the row says at most.
        let mut bytes = vec![0; entry.n_images as usize * 4];
        let read = match brought {
            Some(file) => file.read_exact_at(&mut bytes, entry.images),
            None => self
                .shard(row)?
                .file()
                .read_exact_at(&mut bytes, entry.images),
        };
        read.map_err(|error| self.read_fault(row, error))?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// What a read of a shard waits for.
    pub(crate) fn origin(&self, id: FileId) -> Option<PathBuf> {
        let brought = self.brings(id);
        brought.map_or_else(|| self.path_of(id), |remote| remote.origin(id))
    }

    /// Where a shard lies, or would.
    pub(crate) fn path_of(&self, id: FileId) -> Option<PathBuf> {
        if let Some(path) = self.brings(id).and_then(|remote| remote.path(id)) {
            return Some(path);
        }
        let source = self.source(id.cache).ok()?;
        Some(path(&source.files, id))
    }
}
