//! Indexes: one fixed-width row for each image or sample of a partition, in one record batch.
//!
//! Owns writing them and looking rows up. Invariant: opening checks the layout and costs nothing a row; a row is decoded
//! from the kept bytes, or read from the file, when it is asked for.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray, UInt32Array, UInt64Array};
use arrow_buffer::Buffer;

use crate::checksum::{ContentHash, NULL_LENGTH};
use crate::columns::{IMAGE_INDEX, SAMPLE_INDEX, Table};
use crate::error::{Error, Result};
use crate::frame::{Frame, fault, read};
use crate::layout::Buffers;
use crate::read_at::ReadAt;
use crate::row::{Counts, ImageEntry, ImageKey, SampleEntry};
use crate::shard::{ArrowFile, file_metadata, take_file_metadata};
use crate::shard_image::fixed_list;

/// A file that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its bytes.
    pub bytes: u64,
    /// Their hash.
    pub hash: ContentHash,
}

fn write(
    out: impl Write,
    table: &'static Table,
    partition: u32,
    columns: Vec<ArrayRef>,
) -> Result<Written> {
    let mut file = ArrowFile::new(out, table, &file_metadata(table, partition))?;
    file.write(columns, &[])?;
    let (_, bytes, hash) = file.finish()?;
    Ok(Written { bytes, hash })
}

fn u32s(numbers: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(numbers))
}

fn u64s(numbers: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(numbers))
}

/// Writes the image index of `partition` to `out`; row `i` is `entries[i]`.
pub fn write_image_index(
    out: impl Write,
    partition: u32,
    entries: &[ImageEntry],
) -> Result<Written> {
    let encode = Error::arrow(IMAGE_INDEX.name);
    let keys = entries
        .iter()
        .flat_map(|entry| entry.key.0)
        .collect::<Vec<u8>>();
    let keys = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(keys), None).map_err(&encode)?;
    let grids = entries.iter().flat_map(|entry| entry.grid_thw).collect();
    let sizes = entries.iter().flat_map(|entry| entry.size).collect();
    let columns = vec![
        Arc::new(keys),
        u32s(entries.iter().map(|entry| entry.shard)),
        u64s(entries.iter().map(|entry| entry.offset)),
        u64s(entries.iter().map(|entry| entry.length)),
        fixed_list(3, grids).map_err(&encode)?,
        fixed_list(2, sizes).map_err(&encode)?,
        u64s(entries.iter().map(|entry| entry.checksum)),
    ];
    write(out, &IMAGE_INDEX, partition, columns)
}

/// Writes the sample index of `partition` to `out`; row `i` is `entries[i]`.
pub fn write_sample_index(
    out: impl Write,
    partition: u32,
    entries: &[SampleEntry],
) -> Result<Written> {
    let small = |field: fn(&SampleEntry) -> u32| u32s(entries.iter().map(field));
    let large = |field: fn(&SampleEntry) -> u64| u64s(entries.iter().map(field));
    let columns = vec![
        small(|entry| entry.shard),
        large(|entry| entry.input_ids),
        large(|entry| entry.labels),
        large(|entry| entry.images),
        large(|entry| entry.image_grid_thw),
        large(|entry| entry.sample_id),
        large(|entry| entry.record_id),
        small(|entry| entry.n_tokens),
        small(|entry| entry.n_loss_tokens),
        small(|entry| entry.n_images),
        small(|entry| entry.n_patches),
        small(|entry| entry.sample_id_bytes),
        small(|entry| entry.record_id_bytes.unwrap_or(NULL_LENGTH)),
        large(|entry| entry.checksum),
    ];
    write(out, &SAMPLE_INDEX, partition, columns)
}

/// Bytes at each end of an index that are read at once: more than all that is not a column.
const END_BYTES: u64 = 4 << 10;

/// A file whose two ends were read: opening looks at some twenty places there.
struct Ends<'a, S> {
    source: &'a S,
    size: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl<'a, S: ReadAt> Ends<'a, S> {
    fn read(source: &'a S) -> Result<Self> {
        let size = source.size().map_err(Error::io("read a cache file"))?;
        let bytes = size.min(END_BYTES);
        Ok(Self {
            source,
            size,
            head: read(source, 0, bytes as usize)?,
            tail: read(source, size - bytes, bytes as usize)?,
        })
    }
}

impl<S: ReadAt> ReadAt for Ends<'_, S> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.size)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let tail = self.size - self.tail.len() as u64;
        match offset.checked_sub(tail) {
            Some(offset) => self.tail.read_exact_at(buf, offset),
            None if offset + buf.len() as u64 <= self.head.len() as u64 => {
                self.head.read_exact_at(buf, offset)
            }
            None => self.source.read_exact_at(buf, offset),
        }
    }
}

/// The bytes of an index, in memory or in a file, and where its columns lie in them.
#[derive(Debug)]
struct Opened<S, const COLUMNS: usize> {
    source: S,
    partition: u32,
    rows: u64,
    starts: [u64; COLUMNS],
}

impl<S: ReadAt, const COLUMNS: usize> Opened<S, COLUMNS> {
    fn open(source: S, table: &'static Table) -> Result<Self> {
        let ends = Ends::read(&source)?;
        let mut frame = Frame::open(&ends, table)?;
        let partition = take_file_metadata(table, &mut frame.metadata)?;
        let [block] = frame.blocks[..] else {
            return Err(fault(table, "not exactly one batch", 0));
        };
        let batch = frame.batch(block)?;
        let starts: Vec<u64> = batch
            .columns
            .iter()
            .map(|column: &Buffers| column.values)
            .collect();
        let starts = starts
            .try_into()
            .map_err(|_| fault(table, "another number of columns", 0))?;
        if !frame.metadata.is_empty() {
            return Err(fault(table, "unknown metadata", 0));
        }
        Ok(Self {
            partition,
            rows: batch.rows,
            starts,
            source,
        })
    }

    /// Value `row` of a column of `N` bytes a row. The layout check has put all rows inside the bytes.
    fn value<const N: usize>(&self, column: usize, row: u64) -> io::Result<[u8; N]> {
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let start = self.starts.get(column).ok_or_else(outside)?;
        let at = row
            .checked_mul(N as u64)
            .and_then(|bytes| start.checked_add(bytes))
            .ok_or_else(outside)?;
        let mut value = [0; N];
        self.source.read_exact_at(&mut value, at)?;
        Ok(value)
    }

    fn u32(&self, column: usize, row: u64) -> io::Result<u32> {
        self.value(column, row).map(u32::from_le_bytes)
    }

    fn u64(&self, column: usize, row: u64) -> io::Result<u64> {
        self.value(column, row).map(u64::from_le_bytes)
    }
}

fn i32s<const N: usize, const BYTES: usize>(bytes: [u8; BYTES]) -> [i32; N] {
    let mut numbers = [0; N];
    let (words, _) = bytes.as_chunks::<4>();
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = i32::from_le_bytes(*word);
    }
    numbers
}

/// The image index of one partition: in memory, or read from its file row by row.
#[derive(Debug)]
pub struct ImageIndex<S = Vec<u8>>(Opened<S, 7>);

impl ImageIndex {
    /// Opens an index from the bytes of its file, whose hash the caller has checked.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        Self::open(bytes)
    }

    /// The entry of row `row`; none beyond the last.
    #[must_use]
    pub fn get(&self, row: u64) -> Option<ImageEntry> {
        self.read(row).ok().flatten()
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = ImageEntry> + '_ {
        (0..self.len()).map_while(|row| self.get(row))
    }
}

impl<S: ReadAt> ImageIndex<S> {
    /// Opens an index that is read where it lies: only its frame is checked now, and no row costs anything.
    pub fn open(source: S) -> Result<Self> {
        Opened::open(source, &IMAGE_INDEX).map(Self)
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> u32 {
        self.0.partition
    }

    /// Image rows of the partition.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.rows
    }

    /// Whether the partition has no images.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.rows == 0
    }

    /// Where the bytes are.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Reads the entry of row `row`; none beyond the last.
    pub fn read(&self, row: u64) -> io::Result<Option<ImageEntry>> {
        if row >= self.0.rows {
            return Ok(None);
        }
        Ok(Some(ImageEntry {
            key: ImageKey(self.0.value(0, row)?),
            shard: self.0.u32(1, row)?,
            offset: self.0.u64(2, row)?,
            length: self.0.u64(3, row)?,
            grid_thw: i32s::<3, 12>(self.0.value(4, row)?),
            size: i32s::<2, 8>(self.0.value(5, row)?),
            checksum: self.0.u64(6, row)?,
        }))
    }
}

/// The sample index of one partition: in memory, or read from its file row by row.
#[derive(Debug)]
pub struct SampleIndex<S = Vec<u8>>(Opened<S, 14>);

impl SampleIndex {
    /// Opens an index from the bytes of its file, whose hash the caller has checked.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        Self::open(bytes)
    }

    /// The entry of row `row`; none beyond the last.
    #[must_use]
    pub fn get(&self, row: u64) -> Option<SampleEntry> {
        self.read(row).ok().flatten()
    }

    /// What row `row` holds; none beyond the last.
    #[must_use]
    pub fn counts(&self, row: u64) -> Option<Counts> {
        self.read_counts(row).ok().flatten()
    }

    /// All entries in order.
    pub fn iter(&self) -> impl Iterator<Item = SampleEntry> + '_ {
        (0..self.len()).map_while(|row| self.get(row))
    }
}

impl<S: ReadAt> SampleIndex<S> {
    /// Opens an index that is read where it lies: only its frame is checked now, and no row costs anything.
    pub fn open(source: S) -> Result<Self> {
        Opened::open(source, &SAMPLE_INDEX).map(Self)
    }

    /// The partition.
    #[must_use]
    pub fn partition(&self) -> u32 {
        self.0.partition
    }

    /// Sample rows of the partition.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.rows
    }

    /// Whether the partition has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.rows == 0
    }

    /// Where the bytes are.
    pub fn source(&self) -> &S {
        &self.0.source
    }

    /// Reads what row `row` holds, without where it lies; none beyond the last row.
    pub fn read_counts(&self, row: u64) -> io::Result<Option<Counts>> {
        if row >= self.0.rows {
            return Ok(None);
        }
        Ok(Some(Counts {
            tokens: self.0.u32(7, row)?,
            loss_tokens: self.0.u32(8, row)?,
            images: self.0.u32(9, row)?,
            patches: self.0.u32(10, row)?,
        }))
    }

    /// Reads the entry of row `row`; none beyond the last.
    pub fn read(&self, row: u64) -> io::Result<Option<SampleEntry>> {
        if row >= self.0.rows {
            return Ok(None);
        }
        Ok(Some(SampleEntry {
            shard: self.0.u32(0, row)?,
            input_ids: self.0.u64(1, row)?,
            labels: self.0.u64(2, row)?,
            images: self.0.u64(3, row)?,
            image_grid_thw: self.0.u64(4, row)?,
            sample_id: self.0.u64(5, row)?,
            record_id: self.0.u64(6, row)?,
            n_tokens: self.0.u32(7, row)?,
            n_loss_tokens: self.0.u32(8, row)?,
            n_images: self.0.u32(9, row)?,
            n_patches: self.0.u32(10, row)?,
            sample_id_bytes: self.0.u32(11, row)?,
            record_id_bytes: Some(self.0.u32(12, row)?).filter(|bytes| *bytes != NULL_LENGTH),
            checksum: self.0.u64(13, row)?,
        }))
    }
}
