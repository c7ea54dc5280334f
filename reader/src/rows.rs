//! Reads the rows of a reader's caches into memory that it is given.
//!
//! Owns the checks of a row on the way: bounds, checksum, counts. Invariant: with `verify` on, what arrives is what was
//! written; without, at least nothing outside the file is read and the counts fit each other.

use std::sync::Arc;

use stoker_formats::{
    Counts, IGNORED_LABEL, ImageEntry, RowHasher, SampleEntry, ShardKind, read_shard_head,
};

use crate::error::{Error, Result};
use crate::files::CacheFiles;
use crate::index_store::{IndexStore, path};
use crate::io::{Backend, ReadShard};
use crate::open_files::{FileId, FileKind, OpenFile, OpenFiles, open_sized};
use crate::sample_text::SampleText;
use crate::stats::Counters;
use crate::unit::Unit;
use crate::verify::{Checked, Verify};

/// One cache of a reader.
#[derive(Debug)]
struct Source {
    files: Arc<CacheFiles>,
    index: IndexStore,
    /// The partitions that are read.
    read: Vec<u32>,
    /// Of each partition: sample rows, image rows.
    checked: Vec<(Checked, Checked)>,
}

/// Everything that rows are read from.
#[derive(Debug)]
pub(crate) struct Rows {
    caches: Vec<Source>,
    open: Arc<OpenFiles>,
    backend: Box<dyn ReadShard>,
    verify: Verify,
    /// Whether pages are given back to the system once they were copied.
    drop_pages: bool,
    pub(crate) counters: Arc<Counters>,
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
        open: Arc<OpenFiles>,
        backend: Backend,
        verify: Verify,
        drop_pages: bool,
        counters: Arc<Counters>,
    ) -> Self {
        let caches = (0u32..)
            .zip(caches)
            .map(|(number, (files, read))| Source {
                read,
                index: IndexStore::new(number, Arc::clone(&files), Arc::clone(&open)),
                checked: (0..files.partitions())
                    .map(|_| Default::default())
                    .collect(),
                files,
            })
            .collect();
        Self {
            caches,
            open,
            backend: backend.make(),
            verify,
            drop_pages,
            counters,
        }
    }

    fn source(&self, cache: u32) -> Result<&Source> {
        self.caches.get(cache as usize).ok_or(Error::NoPartition {
            partition: cache,
            partitions: 0,
        })
    }

    /// The partitions whose index files should be hashed in the background.
    pub(crate) fn unchecked_indexes(&self) -> impl Iterator<Item = (&IndexStore, u32)> {
        self.caches
            .iter()
            .filter(|source| self.verify != Verify::Off && source.index.is_filed())
            .flat_map(|source| source.read.iter().map(|number| (&source.index, *number)))
    }

    /// The index entry of a unit's sample.
    pub(crate) fn entry(&self, unit: Unit) -> Result<SampleEntry> {
        let entry = self
            .source(unit.cache)?
            .index
            .sample(unit.partition, unit.number)?;
        let fault = match entry.fault() {
            None => self.outside(unit, &entry)?,
            fault => fault,
        };
        match fault {
            None => Ok(entry),
            Some(what) => Err(self.sample_fault(unit, &entry, what)),
        }
    }

    /// Why the entry cannot be right beside the manifest. Batches are sized by entries before any row is read, so a damaged one
    /// must not ask for more than its shard could hold.
    fn outside(&self, unit: Unit, entry: &SampleEntry) -> Result<Option<&'static str>> {
        let partition = self.source(unit.cache)?.files.partition(unit.partition)?;
        let shard = partition.samples.shards.get(entry.shard as usize);
        let Some(shard) = shard.copied().flatten() else {
            return Ok(Some("the index names a shard that the manifest does not"));
        };
        let (tokens, images) = (u64::from(entry.n_tokens), u64::from(entry.n_images));
        let parts = [
            (entry.input_ids, tokens * 4),
            (entry.labels, tokens * 4),
            (entry.images, images * 4),
            (entry.image_grid_thw, images * 12),
        ];
        let inside = parts.iter().all(|(offset, bytes)| {
            offset
                .checked_add(*bytes)
                .is_some_and(|end| end <= shard.bytes)
        });
        Ok((!inside).then_some("the shard ends before the row"))
    }

    /// A fault of a unit's sample.
    pub(crate) fn sample_fault(
        &self,
        unit: Unit,
        entry: &SampleEntry,
        what: &'static str,
    ) -> Error {
        let row = Row {
            cache: unit.cache,
            kind: "sample",
            partition: unit.partition,
            shard: entry.shard,
            row: unit.number,
        };
        self.fault(row, what)
    }

    /// What a unit holds.
    pub(crate) fn counts(&self, unit: Unit) -> Result<Counts> {
        self.source(unit.cache)?
            .index
            .counts(unit.partition, unit.number)
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
        match self.source(row.cache) {
            Ok(source) => Error::formats(&path(&source.files, Self::id(row)))(error),
            Err(error) => error,
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
        let files = &self.source(row.cache)?.files;
        let id = Self::id(row);
        let path = path(files, id);
        let damaged = |what: &str| Error::Damaged {
            path: path.clone(),
            what: what.to_owned(),
        };
        let partition = files.partition(row.partition)?;
        let (shards, kind) = if row.kind == "image" {
            (&partition.images.shards, ShardKind::Images)
        } else {
            (&partition.samples.shards, ShardKind::Samples)
        };
        let entry = shards
            .get(row.shard as usize)
            .copied()
            .flatten()
            .ok_or_else(|| damaged("the index names a shard that the manifest does not"))?;
        // Through a handle of its own: the backend's may take aligned reads only.
        let check = || {
            let plain = std::fs::File::open(&path).map_err(Error::io("open", &path))?;
            let (head, rows) = read_shard_head(&plain, kind).map_err(Error::formats(&path))?;
            if (head.partition, head.shard, rows) == (row.partition, row.shard, entry.rows) {
                Ok(())
            } else {
                Err(damaged("another shard stands in this place"))
            }
        };
        self.open.get(
            id,
            || {
                open_sized(&path, entry.bytes, |path| match kind {
                    ShardKind::Images => self.backend.open(path),
                    ShardKind::Samples => std::fs::File::open(path),
                })
            },
            check,
        )
    }

    fn must_check(&self, checked: &Checked, rows: u64, row: u64) -> bool {
        match self.verify {
            Verify::Off => false,
            Verify::Always => true,
            Verify::FirstRead => !checked.get(rows, row),
        }
    }

    /// Reads a unit's sample; ids that nobody asked for are left out where nothing is checked.
    pub(crate) fn sample(
        &self,
        unit: Unit,
        entry: &SampleEntry,
        with_id: bool,
        text: &mut SampleText,
    ) -> Result<()> {
        let row = Row {
            cache: unit.cache,
            kind: "sample",
            partition: unit.partition,
            shard: entry.shard,
            row: unit.number,
        };
        self.sample_at(row, entry, with_id, text)
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
        let (tokens, images) = (u64::from(entry.n_tokens), u64::from(entry.n_images));
        let ids = if check || with_id {
            [
                u64::from(entry.sample_id_bytes),
                u64::from(entry.record_id_bytes.unwrap_or(0)),
            ]
        } else {
            [0, 0]
        };
        let parts = [
            (entry.sample_id, ids[0]),
            (entry.record_id, ids[1]),
            (entry.input_ids, tokens * 4),
            (entry.labels, tokens * 4),
            (entry.images, images * 4),
            (entry.image_grid_thw, images * 12),
        ];
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
        match self.source(row.cache) {
            Ok(source) => Error::io("read", &path(&source.files, Self::id(row)))(error),
            Err(error) => error,
        }
    }

    /// The index entry of an image of a unit.
    pub(crate) fn image_entry(&self, unit: Unit, image: u32) -> Result<ImageEntry> {
        let number = u64::from(image);
        let entry = self
            .source(unit.cache)?
            .index
            .image(unit.partition, number)?;
        match entry.fault() {
            None => Ok(entry),
            Some(what) => Err(self.fault(Self::image_row(unit, number, &entry), what)),
        }
    }

    fn image_row(unit: Unit, row: u64, entry: &ImageEntry) -> Row {
        Row {
            cache: unit.cache,
            kind: "image",
            partition: unit.partition,
            shard: entry.shard,
            row,
        }
    }

    /// Reads the patches of an image of a unit; `into` has the entry's length.
    pub(crate) fn image(
        &self,
        unit: Unit,
        image: u32,
        entry: &ImageEntry,
        into: &mut [u8],
    ) -> Result<()> {
        let row = Self::image_row(unit, u64::from(image), entry);
        self.image_at(row, entry, into).map_err(Self::at_row(row))
    }

    fn image_at(&self, row: Row, entry: &ImageEntry, into: &mut [u8]) -> Result<()> {
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
        let mut hasher = check.then(|| RowHasher::of_image(row.partition, row.row, entry));
        self.backend
            .read(&file, entry.offset, into, &mut |piece| {
                if let Some(hasher) = &mut hasher {
                    hasher.update(piece);
                }
            })
            .map_err(|error| self.read_fault(row, error))?;
        self.counters.image_bytes(entry.length);
        if self.drop_pages {
            // Only advice: pages that stay cost memory, not correctness.
            let length = std::num::NonZeroU64::new(entry.length);
            let _ = rustix::fs::fadvise(
                file.file(),
                entry.offset,
                length,
                rustix::fs::Advice::DontNeed,
            );
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
    pub(crate) fn mapped_image(&self, unit: Unit, row: u64) -> Result<(Arc<OpenFile>, u64, u64)> {
        let number = u32::try_from(row).map_err(|_| Error::Internal("an image number"))?;
        let entry = self.image_entry(unit, number)?;
        let row = Self::image_row(unit, row, &entry);
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
    pub(crate) fn other_grid(&self, unit: Unit, image: u32, entry: &ImageEntry) -> Error {
        let row = Self::image_row(unit, u64::from(image), entry);
        self.fault(row, "another grid or patch size than its sample needs")
    }

    /// Whether the sample shard of a unit can be opened here. Its images lie in the same partition.
    pub(crate) fn is_here(&self, unit: Unit) -> bool {
        self.entry(unit).is_ok_and(|entry| {
            let path = self.path_of(Self::sample_shard(unit, &entry));
            path.is_some_and(|path| path.exists())
        })
    }

    /// The shard that an image is read from.
    pub(crate) fn image_shard(unit: Unit, entry: &ImageEntry) -> FileId {
        Self::id(Self::image_row(unit, 0, entry))
    }

    /// The shard that a unit's sample is read from.
    pub(crate) fn sample_shard(unit: Unit, entry: &SampleEntry) -> FileId {
        FileId {
            cache: unit.cache,
            kind: FileKind::SampleShard,
            partition: unit.partition,
            ordinal: entry.shard,
        }
    }

    /// Where a file lies.
    pub(crate) fn path_of(&self, id: FileId) -> Option<std::path::PathBuf> {
        let source = self.source(id.cache).ok()?;
        Some(path(&source.files, id))
    }
}
