//! The indexes of a cache, as the reader uses them.
//!
//! Owns where index rows come from: small indexes are kept in memory, hash checked; those of a large cache are read row by
//! row from their files, and hashed in the background meanwhile. Invariant: opening costs nothing a row.

use std::io;
use std::sync::{Arc, OnceLock};

use stoker_formats::{
    Counts, FileEntry, FileName, Folder, ImageEntry, ImageIndex, ReadAt, SampleEntry, SampleIndex,
};

use crate::error::{Error, Result};
use crate::files::{CacheFile, CacheFiles, check_index};
use crate::open_files::{FileId, FileKind, OpenFile, OpenFiles, open_sized};

/// Index bytes of one cache up to which they are kept in memory.
pub(crate) const KEPT_BYTES: u64 = 24 << 20;

/// The bytes of an index: kept, or in a file that is opened when needed.
#[derive(Debug)]
pub(crate) enum Source {
    Kept(Vec<u8>),
    Filed {
        files: Arc<CacheFiles>,
        open: Arc<OpenFiles>,
        id: FileId,
        entry: FileEntry,
    },
}

impl Source {
    fn file(&self) -> io::Result<Option<Arc<OpenFile>>> {
        let Self::Filed {
            files,
            open,
            id,
            entry,
        } = self
        else {
            return Ok(None);
        };
        let file = open.get(
            *id,
            || {
                open_sized(&path(files, *id), entry.bytes, |path| {
                    std::fs::File::open(path)
                })
            },
            || Ok(()),
        );
        // Only the text of the error survives here; it names the file.
        file.map(Some)
            .map_err(|error| io::Error::other(error.to_string()))
    }
}

impl ReadAt for Source {
    fn size(&self) -> io::Result<u64> {
        match self {
            Self::Kept(bytes) => bytes.size(),
            Self::Filed { entry, .. } => Ok(entry.bytes),
        }
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Kept(bytes) => bytes.read_exact_at(buf, offset),
            Self::Filed { .. } => match self.file()? {
                Some(file) => file.file().read_exact_at(buf, offset),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }
}

fn folder(files: &CacheFiles, kind: FileKind) -> Folder {
    match kind {
        FileKind::ImageShard | FileKind::ImageIndex => files.images(),
        FileKind::SampleShard | FileKind::SampleIndex => files.text(),
    }
}

/// Where a file lies.
pub(crate) fn path(files: &CacheFiles, id: FileId) -> std::path::PathBuf {
    let FileId {
        partition, ordinal, ..
    } = id;
    let name = match id.kind {
        FileKind::ImageShard | FileKind::SampleShard => FileName::Shard { partition, ordinal },
        FileKind::ImageIndex | FileKind::SampleIndex => FileName::Index { partition },
    };
    files.path(folder(files, id.kind), name)
}

/// Both indexes of every partition of one cache.
#[derive(Debug)]
pub(crate) struct IndexStore {
    cache: u32,
    files: Arc<CacheFiles>,
    open: Arc<OpenFiles>,
    kept: bool,
    samples: Vec<OnceLock<SampleIndex<Source>>>,
    images: Vec<OnceLock<ImageIndex<Source>>>,
}

impl IndexStore {
    /// Reads nothing yet. Indexes of more than `kept_bytes` together stay in their files.
    pub(crate) fn new(
        cache: u32,
        files: Arc<CacheFiles>,
        open: Arc<OpenFiles>,
        kept_bytes: u64,
    ) -> Self {
        let bytes: u64 = files
            .manifest()
            .partitions
            .iter()
            .map(|partition| partition.images.index.bytes + partition.samples.index.bytes)
            .sum();
        let partitions = files.partitions() as usize;
        Self {
            cache,
            files,
            open,
            kept: bytes <= kept_bytes,
            samples: (0..partitions).map(|_| OnceLock::new()).collect(),
            images: (0..partitions).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Whether the indexes are read from their files, so that somebody should hash them.
    pub(crate) fn is_filed(&self) -> bool {
        !self.kept
    }

    /// Hashes the index files of a partition against the manifest.
    pub(crate) fn check(&self, partition: u32, stop: &dyn Fn() -> bool) -> Result<()> {
        for kind in [FileKind::SampleIndex, FileKind::ImageIndex] {
            let entry = self.entry(kind, partition)?;
            let path = path(&self.files, self.id(kind, partition));
            // Another node's image index need not be here; opening has seen to what must.
            if kind == FileKind::SampleIndex || path.exists() {
                self.files.check_hash(&path, entry, stop)?;
            }
        }
        Ok(())
    }

    fn id(&self, kind: FileKind, partition: u32) -> FileId {
        FileId {
            cache: self.cache,
            kind,
            partition,
            ordinal: 0,
        }
    }

    fn entry(&self, kind: FileKind, partition: u32) -> Result<FileEntry> {
        let partition = self.files.partition(partition)?;
        Ok(match kind {
            FileKind::ImageShard | FileKind::ImageIndex => partition.images.index,
            FileKind::SampleShard | FileKind::SampleIndex => partition.samples.index,
        })
    }

    fn source(&self, kind: FileKind, partition: u32) -> Result<Source> {
        let entry = self.entry(kind, partition)?;
        if !self.kept {
            return Ok(Source::Filed {
                files: Arc::clone(&self.files),
                open: Arc::clone(&self.open),
                id: self.id(kind, partition),
                entry,
            });
        }
        let name = FileName::Index { partition };
        let folder = folder(&self.files, kind);
        self.files
            .read(&CacheFile {
                folder,
                name,
                entry,
            })
            .map(Source::Kept)
    }

    /// Fails unless an index is the one that the manifest means.
    fn check_same(&self, kind: FileKind, partition: u32, found: (u32, u64)) -> Result<()> {
        let path = path(&self.files, self.id(kind, partition));
        let rows = self.entry(kind, partition)?.rows;
        check_index(path, found, (partition, rows))
    }

    /// A fault of an index, told with its file.
    fn fault(&self, kind: FileKind, partition: u32, error: stoker_formats::Error) -> Error {
        Error::formats(&path(&self.files, self.id(kind, partition)))(error)
    }

    fn sample_index(&self, partition: u32) -> Result<&SampleIndex<Source>> {
        let slot = self.slot(&self.samples, partition)?;
        if let Some(index) = slot.get() {
            return Ok(index);
        }
        let kind = FileKind::SampleIndex;
        let index = SampleIndex::open(self.source(kind, partition)?)
            .map_err(|error| self.fault(kind, partition, error))?;
        self.check_same(kind, partition, (index.partition(), index.len()))?;
        Ok(slot.get_or_init(|| index))
    }

    fn image_index(&self, partition: u32) -> Result<&ImageIndex<Source>> {
        let slot = self.slot(&self.images, partition)?;
        if let Some(index) = slot.get() {
            return Ok(index);
        }
        let kind = FileKind::ImageIndex;
        let index = ImageIndex::open(self.source(kind, partition)?)
            .map_err(|error| self.fault(kind, partition, error))?;
        self.check_same(kind, partition, (index.partition(), index.len()))?;
        Ok(slot.get_or_init(|| index))
    }

    fn slot<'a, T>(&self, slots: &'a [OnceLock<T>], partition: u32) -> Result<&'a OnceLock<T>> {
        slots.get(partition as usize).ok_or(Error::NoPartition {
            partition,
            partitions: self.files.partitions(),
        })
    }

    fn row<T>(
        &self,
        kind: FileKind,
        partition: u32,
        row: u64,
        found: io::Result<Option<T>>,
    ) -> Result<T> {
        let found = found.map_err(|error| {
            Error::io("read", &path(&self.files, self.id(kind, partition)))(error)
        })?;
        found.ok_or(Error::NoRow {
            kind: kind.rows(),
            partition,
            row,
            rows: self.entry(kind, partition)?.rows,
        })
    }

    /// The entry of a sample row.
    pub(crate) fn sample(&self, partition: u32, row: u64) -> Result<SampleEntry> {
        let found = self.sample_index(partition)?.read(row);
        self.row(FileKind::SampleIndex, partition, row, found)
    }

    /// What a sample row holds.
    pub(crate) fn counts(&self, partition: u32, row: u64) -> Result<Counts> {
        let found = self.sample_index(partition)?.read_counts(row);
        self.row(FileKind::SampleIndex, partition, row, found)
    }

    /// The entry of an image row.
    pub(crate) fn image(&self, partition: u32, row: u64) -> Result<ImageEntry> {
        let found = self.image_index(partition)?.read(row);
        self.row(FileKind::ImageIndex, partition, row, found)
    }
}
