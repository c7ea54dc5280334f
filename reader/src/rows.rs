//! Reads the rows of a reader's caches into memory that it is given.
//!
//! Owns the checks of a row on the way: bounds, checksum, counts. Invariant: with `verify` on, what arrives is what was
//! written; without, at least nothing outside the file is read and the counts fit each other.

mod ahead;
mod elsewhere;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stoker_formats::{Counts, IGNORED_LABEL, ImageEntry, RowHasher, SampleEntry};

use crate::bits::Bits;
use crate::error::{Error, Result};
use crate::files::CacheFiles;
use crate::index_store::{IndexStore, kept};
use crate::io::{Backend, ReadShard};
use crate::open_files::{FileId, FileKind, OpenFile, OpenFiles};
use crate::open_shard::{check_head, open_shard};
use crate::remote_cache::RemoteCache;
use crate::sample_text::{SampleText, parts};
use crate::stats::Counters;
use crate::unit::Unit;
use crate::units::{Sample, Units};
use crate::verify::Verify;

/// One cache of a reader.
#[derive(Debug)]
struct Source {
    files: Arc<CacheFiles>,
    index: IndexStore,
    /// The partitions that are read.
    read: Vec<u32>,
    /// Of each partition the sample rows and the image rows that were held against their checksums.
    checked: Vec<(Bits, Bits)>,
    /// Of each partition the sample rows that the system was asked for.
    asked: Vec<Bits>,
}

/// Everything that rows are read from.
#[derive(Debug)]
pub(crate) struct Rows {
    caches: Vec<Source>,
    units: Units,
    open: Arc<OpenFiles>,
    remote: Option<RemoteCache>,
    backend: Box<dyn ReadShard>,
    verify: Verify,
    drop_pages: bool,
    fills: bool,
    pub(crate) counters: Arc<Counters>,
}

/// How rows are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) backend: Backend,
    pub(crate) verify: Verify,
    /// Whether pages are given back to the system once they were copied.
    pub(crate) drop_pages: bool,
    /// Whether more than is asked for is brought into the page cache, where it will be wanted.
    pub(crate) fills: bool,
    /// Bytes of all caches' indexes that are kept in memory.
    pub(crate) kept_bytes: u64,
}

/// A row that is read, for messages.
#[derive(Debug, Clone, Copy)]
struct Row {
    cache: u32,
    kind: &'static str,
    partition: u32,
    shard: u32,
    row: u64,
}

impl Rows {
    pub(crate) fn new(
        caches: Vec<(Arc<CacheFiles>, Vec<u32>)>,
        units: Units,
        how: How,
        remote: Option<RemoteCache>,
        counters: Arc<Counters>,
    ) -> Self {
        let open = Arc::new(OpenFiles::new());
        let kept = kept(caches.iter().map(|(files, _)| &**files), how.kept_bytes);
        let caches = (0u32..)
            .zip(caches.into_iter().zip(kept))
            .map(|(number, ((files, read), kept))| Source {
                read,
                index: IndexStore::new(number, Arc::clone(&files), Arc::clone(&open), kept),
                checked: (0..files.partitions())
                    .map(|_| Default::default())
                    .collect(),
                asked: (0..files.partitions()).map(|_| Bits::default()).collect(),
                files,
            })
            .collect();
        Self {
            caches,
            units,
            open,
            remote,
            backend: how.backend.make(),
            verify: how.verify,
            drop_pages: how.drop_pages,
            fills: how.fills,
            counters,
        }
    }

    fn source(&self, cache: u32) -> Result<&Source> {
        self.caches.get(cache as usize).ok_or(Error::NoPartition {
            partition: cache,
            partitions: 0,
        })
    }

    /// The files of a cache.
    pub(crate) fn files(&self, cache: u32) -> Result<&CacheFiles> {
        Ok(&self.source(cache)?.files)
    }

    /// The partitions whose index files should be hashed in the background.
    pub(crate) fn unchecked_indexes(&self) -> impl Iterator<Item = (&IndexStore, u32)> {
        self.caches
            .iter()
            .filter(|source| self.verify != Verify::Off && source.index.is_filed())
            .flat_map(|source| source.read.iter().map(|number| (&source.index, *number)))
    }

    /// The index files that are being read for planning, and for how long by now.
    pub(crate) fn reading(&self) -> impl Iterator<Item = (PathBuf, Duration)> {
        self.caches
            .iter()
            .filter_map(|source| source.index.reading())
    }

    /// What units are made of.
    pub(crate) fn units(&self) -> &Units {
        &self.units
    }

    /// The index entry of a sample.
    pub(crate) fn entry(&self, sample: Sample) -> Result<SampleEntry> {
        let entry = self
            .source(sample.cache)?
            .index
            .sample(sample.partition, sample.row)?;
        let fault = match entry.fault() {
            None => self.outside(sample, &entry)?,
            fault => fault,
        };
        match fault {
            None => Ok(entry),
            Some(what) => Err(self.sample_fault(sample, &entry, what)),
        }
    }

    /// Why the entry cannot be right beside the manifest. Batches are sized by entries before any row is read, so a damaged one
    /// must not ask for more than its shard could hold.
    fn outside(&self, sample: Sample, entry: &SampleEntry) -> Result<Option<&'static str>> {
        let partition = self
            .source(sample.cache)?
            .files
            .partition(sample.partition)?;
        let shard = partition.samples.shards.get(entry.shard as usize);
        let Some(shard) = shard.copied().flatten() else {
            return Ok(Some("the index names a shard that the manifest does not"));
        };
        let [_, _, parts @ ..] = parts(entry);
        let inside = parts.iter().all(|(offset, bytes)| {
            offset
                .checked_add(*bytes)
                .is_some_and(|end| end <= shard.bytes)
        });
        Ok((!inside).then_some("the shard ends before the row"))
    }

    /// A fault of a sample.
    pub(crate) fn sample_fault(
        &self,
        sample: Sample,
        entry: &SampleEntry,
        what: &'static str,
    ) -> Error {
        self.fault(Self::sample_row(sample, entry), what)
    }

    fn sample_row(sample: Sample, entry: &SampleEntry) -> Row {
        Row {
            cache: sample.cache,
            kind: "sample",
            partition: sample.partition,
            shard: entry.shard,
            row: sample.row,
        }
    }

    /// What a unit holds.
    pub(crate) fn counts(&self, unit: Unit) -> Result<Counts> {
        let index = &self.source(unit.cache)?.index;
        self.units.counts(index, unit)
    }

    fn id(row: Row) -> FileId {
        FileId {
            cache: row.cache,
            kind: if row.kind == "image" {
                FileKind::ImageShard
            } else {
                FileKind::SampleShard
            },
            partition: row.partition,
            ordinal: row.shard,
        }
    }

    fn fault(&self, row: Row, what: &'static str) -> Error {
        let error = stoker_formats::Error::Row {
            kind: row.kind,
            partition: row.partition,
            shard: row.shard,
            row: row.row,
            what,
        };
        match self.path_of(Self::id(row)) {
            Some(path) => Error::formats(&path)(error),
            None => Error::Internal("a row's cache"),
        }
    }

    fn at_row(row: Row) -> impl FnOnce(Error) -> Error {
        move |error| match error {
            named @ Error::Formats {
                error: stoker_formats::Error::Row { .. },
                ..
            } => named,
            error => Error::Row {
                kind: row.kind,
                partition: row.partition,
                shard: row.shard,
                row: row.row,
                error: Box::new(error),
            },
        }
    }

    /// The open shard of a row.
    fn shard(&self, row: Row) -> Result<Arc<OpenFile>> {
        let id = Self::id(row);
        let open = |path: &std::path::Path| self.open_shard_at(id, path);
        let files = &self.source(row.cache)?.files;
        if let Some(remote) = self.brings(id) {
            let shard = remote.shard(id, &open)?;
            remote.check_once(id, |path| check_head(files, id, path))?;
            return Ok(shard);
        }
        open_shard(files, &self.open, id, open)
    }

    fn must_check(&self, checked: &Bits, rows: u64, row: u64) -> bool {
        match self.verify {
            Verify::Off => false,
            Verify::Always => true,
            Verify::FirstRead => !checked.get(rows, row),
        }
    }

    /// Reads a sample; ids that nobody asked for are left out where nothing is checked.
    pub(crate) fn sample(
        &self,
        sample: Sample,
        entry: &SampleEntry,
        with_id: bool,
        text: &mut SampleText,
    ) -> Result<()> {
        let row = Self::sample_row(sample, entry);
        self.mended(row, || self.sample_at(row, entry, with_id, text))
            .map_err(Self::at_row(row))
    }

    fn sample_at(
        &self,
        row: Row,
        entry: &SampleEntry,
        with_id: bool,
        text: &mut SampleText,
    ) -> Result<()> {
        let source = self.source(row.cache)?;
        let rows = source.files.partition(row.partition)?.samples.index.rows;
        let checked = source.checked.get(row.partition as usize);
        let check = checked.is_none_or(|(checked, _)| self.must_check(checked, rows, row.row));
        let file = self.shard(row)?;
        let mut parts = parts(entry);
        if !check && !with_id {
            (parts[0].1, parts[1].1) = (0, 0);
        }
        let mut end = 0usize;
        for (part, (offset, bytes)) in text.ends.iter_mut().zip(parts) {
            let inside = offset
                .checked_add(bytes)
                .is_some_and(|end| end <= file.size());
            let Some(length) = usize::try_from(bytes).ok().filter(|_| inside) else {
                return Err(self.fault(row, "the shard ends before the row"));
            };
            end += length;
            *part = end;
        }
        if text.bytes.len() < end {
            text.bytes.resize(end, 0);
        }
        let mut start = 0;
        for (part, (offset, _)) in text.ends.iter().zip(parts) {
            self.exact(row, &file, offset, &mut text.bytes[start..*part])?;
            start = *part;
        }
        self.counters.sample_bytes(end as u64);
        if check {
            let mut hasher = RowHasher::of_sample(row.partition, row.row, entry);
            hasher.update(&text.bytes[..end]);
            if hasher.finish() != entry.checksum {
                return Err(self.fault(row, "checksum differs"));
            }
        }
        let loss = text
            .labels()
            .filter(|label| *label != IGNORED_LABEL)
            .count();
        let patches = text.grids().try_fold(0u64, |sum, grid| {
            let [t, h, w] = grid.map(u64::try_from);
            sum.checked_add(t.ok()?.checked_mul(h.ok()?)?.checked_mul(w.ok()?)?)
        });
        if loss as u64 != u64::from(entry.n_loss_tokens)
            || patches != Some(u64::from(entry.n_patches))
        {
            return Err(self.fault(row, "the index counts other patches or loss tokens"));
        }
        if let Some((checked, _)) = checked.filter(|_| check) {
            checked.set(rows, row.row);
        }
        Ok(())
    }

    fn exact(&self, row: Row, file: &OpenFile, offset: u64, into: &mut [u8]) -> Result<()> {
        use std::os::unix::fs::FileExt;
        file.file()
            .read_exact_at(into, offset)
            .map_err(|error| self.read_fault(row, error))
    }

    fn read_fault(&self, row: Row, error: std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return self.fault(row, "the shard ends before the row");
        }
        match self.path_of(Self::id(row)) {
            Some(path) => Error::io("read", &path)(error),
            None => Error::Internal("a row's cache"),
        }
    }

    /// The index entry of an image of a sample.
    pub(crate) fn image_entry(&self, sample: Sample, image: u32) -> Result<ImageEntry> {
        let number = u64::from(image);
        let entry = self
            .source(sample.cache)?
            .index
            .image(sample.partition, number)?;
        match entry.fault() {
            None => Ok(entry),
            Some(what) => Err(self.fault(Self::image_row(sample, number, &entry), what)),
        }
    }

    fn image_row(sample: Sample, row: u64, entry: &ImageEntry) -> Row {
        Row {
            cache: sample.cache,
            kind: "image",
            partition: sample.partition,
            shard: entry.shard,
            row,
        }
    }

    /// Reads the patches of an image of a sample; `into` has the entry's length. In a `hurry` no more than it is read.
    pub(crate) fn image(
        &self,
        sample: Sample,
        image: u32,
        entry: &ImageEntry,
        into: &mut [u8],
        hurry: bool,
    ) -> Result<()> {
        let row = Self::image_row(sample, u64::from(image), entry);
        self.mended(row, || self.image_at(row, entry, into, hurry))
            .map_err(Self::at_row(row))
    }

    fn image_at(&self, row: Row, entry: &ImageEntry, into: &mut [u8], hurry: bool) -> Result<()> {
        let source = self.source(row.cache)?;
        let rows = source.files.partition(row.partition)?.images.index.rows;
        let checked = source.checked.get(row.partition as usize);
        let check = checked.is_none_or(|(_, checked)| self.must_check(checked, rows, row.row));
        let file = self.shard(row)?;
        let inside = entry
            .offset
            .checked_add(entry.length)
            .is_some_and(|end| end <= file.size());
        if !inside || into.len() as u64 != entry.length {
            return Err(self.fault(row, "the shard ends before the row"));
        }
        self.bring(&file, entry, hurry);
        let mut hasher = check.then(|| RowHasher::of_image(row.partition, row.row, entry));
        let mut update = hasher
            .as_mut()
            .map(|hasher| |piece: &[u8]| hasher.update(piece));
        let seen = update
            .as_mut()
            .map(|update| update as &mut dyn FnMut(&[u8]));
        self.backend
            .read(&file, entry.offset, into, seen)
            .map_err(|error| self.read_fault(row, error))?;
        self.counters.image_bytes(entry.length);
        if self.drop_pages {
            file.forget(entry.offset, entry.length);
        }
        if let Some(hasher) = hasher {
            if hasher.finish() != entry.checksum {
                return Err(self.fault(row, "checksum differs"));
            }
            if let Some((_, checked)) = checked {
                checked.set(rows, row.row);
            }
        }
        Ok(())
    }

    /// The mapped shard of an image, and where the image lies in it.
    pub(crate) fn mapped_image(
        &self,
        sample: Sample,
        row: u64,
    ) -> Result<(Arc<OpenFile>, u64, u64)> {
        let number = u32::try_from(row).map_err(|_| Error::Internal("an image number"))?;
        let entry = self.image_entry(sample, number)?;
        let row = Self::image_row(sample, row, &entry);
        let mapped = || {
            let file = self.shard(row)?;
            file.mapping()
                .and_then(|mapping| mapping.bytes(entry.offset, entry.length).map(drop))
                .map_err(|error| self.read_fault(row, error))?;
            Ok(file)
        };
        let file = mapped().map_err(Self::at_row(row))?;
        Ok((file, entry.offset, entry.length))
    }

    /// The fault of an image that has another grid than its sample says, or patches of another size.
    pub(crate) fn other_grid(&self, sample: Sample, image: u32, entry: &ImageEntry) -> Error {
        let row = Self::image_row(sample, u64::from(image), entry);
        self.fault(row, "another grid or patch size than its sample needs")
    }

    /// The shard that an image is read from.
    pub(crate) fn image_shard(sample: Sample, entry: &ImageEntry) -> FileId {
        Self::id(Self::image_row(sample, 0, entry))
    }

    /// The shard that a sample is read from.
    pub(crate) fn sample_shard(sample: Sample, entry: &SampleEntry) -> FileId {
        Self::id(Self::sample_row(sample, entry))
    }
}
