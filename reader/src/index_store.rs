//! The indexes of a cache, as the reader uses them.
//!
//! Owns where index rows come from: small indexes are kept in memory, hash checked; those of large caches are read row by
//! row from their files, and hashed in the background meanwhile. Invariants: opening costs nothing a row, and what is kept of all
//! caches of a reader together is bounded.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stoker_formats::{
    Counts, FileEntry, FileName, Folder, ImageEntry, ImageIndex, ReadAt, SampleEntry, SampleIndex,
};

use crate::error::{Error, Result};
use crate::files::{CacheFile, CacheFiles, check_index};
use crate::open_files::{FileId, FileKind, OpenFile, OpenFiles, open_sized};
use crate::reading::Reading;

/// Index bytes that a reader keeps in memory, of all its caches together.
pub(crate) const KEPT_BYTES: u64 = 24 << 20;

/// Of which caches the indexes are kept: of the smallest ones, as many as `most` bytes have room for.
pub(crate) fn kept<'a>(caches: impl Iterator<Item = &'a CacheFiles>, most: u64) -> Vec<bool> {
    let bytes: Vec<u64> = caches
        .map(|files| {
            let partitions = files.manifest().partitions.iter();
            partitions
                .map(|partition| partition.images.index.bytes + partition.samples.index.bytes)
                .sum()
        })
        .collect();
    let mut kept = vec![false; bytes.len()];
    let mut by_size: Vec<usize> = (0..bytes.len()).collect();
    by_size.sort_by_key(|cache| bytes[*cache]);
    let mut left = most;
    for cache in by_size {
        let Some(rest) = left.checked_sub(bytes[cache]) else {
            break;
        };
        left = rest;
        kept[cache] = true;
    }
    kept
}

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
    /// The open file; none of what is kept.
    fn file(&self) -> Result<Option<Arc<OpenFile>>> {
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
        file.map(Some)
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
            // The error goes along, for `read_fault`.
            Self::Filed { .. } => match self.file().map_err(io::Error::other)? {
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
    /// What is read for planning.
    reading: Reading,
    samples: Vec<OnceLock<SampleIndex<Source>>>,
    images: Vec<OnceLock<ImageIndex<Source>>>,
}

impl IndexStore {
    /// Reads nothing yet. Indexes that are not `kept` stay in their files.
    pub(crate) fn new(
        cache: u32,
        files: Arc<CacheFiles>,
        open: Arc<OpenFiles>,
        kept: bool,
    ) -> Self {
        let partitions = files.partitions() as usize;
        Self {
            cache,
            files,
            open,
            kept,
            reading: Reading::new(),
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
            let filed = Source::Filed {
                files: Arc::clone(&self.files),
                open: Arc::clone(&self.open),
                id: self.id(kind, partition),
                entry,
            };
            filed.file()?;
            return Ok(filed);
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

    /// Why the row of an index that was opened could not be read.
    fn read_fault(&self, kind: FileKind, partition: u32, error: io::Error) -> Error {
        let path = path(&self.files, self.id(kind, partition));
        match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Error::Damaged {
                path,
                what: "the index ends before the row".into(),
            },
            Err(error) => Error::io("read", &path)(error),
        }
    }

    /// Looks into the sample index of a partition, and tells so if that may be a read of a file.
    fn look<T>(&self, partition: u32, look: impl FnOnce(&SampleIndex<Source>) -> T) -> Result<T> {
        let read = || self.sample_index(partition).map(look);
        let slot = self.samples.get(partition as usize);
        if self.kept && slot.is_some_and(|slot| slot.get().is_some()) {
            return read();
        }
        self.reading.tell(partition, read)
    }

    /// The sample index that is being read, and for how long by now.
    pub(crate) fn reading(&self) -> Option<(PathBuf, Duration)> {
        let (partition, elapsed) = self.reading.now()?;
        let id = self.id(FileKind::SampleIndex, partition);
        Some((path(&self.files, id), elapsed))
    }

    fn row<T>(
        &self,
        kind: FileKind,
        partition: u32,
        row: u64,
        found: io::Result<Option<T>>,
    ) -> Result<T> {
        let found = found.map_err(|error| self.read_fault(kind, partition, error))?;
        found.ok_or(Error::NoRow {
            kind: kind.rows(),
            partition,
            row,
            rows: self.entry(kind, partition)?.rows,
        })
    }

    /// The entry of a sample row.
    pub(crate) fn sample(&self, partition: u32, row: u64) -> Result<SampleEntry> {
        let found = self.look(partition, |index| index.read(row))?;
        self.row(FileKind::SampleIndex, partition, row, found)
    }

    /// What a sample row holds.
    pub(crate) fn counts(&self, partition: u32, row: u64) -> Result<Counts> {
        let found = self.look(partition, |index| index.read_counts(row))?;
        self.row(FileKind::SampleIndex, partition, row, found)
    }

    /// The entry of an image row.
    pub(crate) fn image(&self, partition: u32, row: u64) -> Result<ImageEntry> {
        let found = self.image_index(partition)?.read(row);
        self.row(FileKind::ImageIndex, partition, row, found)
    }
}
