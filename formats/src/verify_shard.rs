//! Reads a whole shard strictly and makes its index entries again from its payloads.
//!
//! Owns what rows must satisfy beyond the layout: monotonic offsets, UTF-8 ids, matching counts. Invariant: memory does
//! not grow with what the file claims; rows are visited one by one and payloads hashed in chunks.

use crate::IGNORED_LABEL;
use crate::checksum::RowHasher;
use crate::columns::{IMAGE_SHARD, SAMPLE_SHARD, Table};
use crate::error::{Error, Result};
use crate::frame::{Frame, fault};
use crate::layout::{Batch, Buffers, Cursor};
use crate::limits::{CHUNK_BYTES, MAX_ID_BYTES, MAX_IMAGES, MAX_TOKENS};
use crate::read_at::ReadAt;
use crate::row::{ImageEntry, ImageKey, SampleEntry, image_fault, patches_of};
use crate::shard::ShardHead;

/// Which of the two shard layouts a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardKind {
    /// Image rows.
    Images,
    /// Sample rows.
    Samples,
}

impl ShardKind {
    fn table(self) -> &'static Table {
        match self {
            Self::Images => &IMAGE_SHARD,
            Self::Samples => &SAMPLE_SHARD,
        }
    }
}

/// Checks the frame of a shard (schema, footer, where its batches lie) and returns its head. Reads a few kilobytes at both
/// ends, nothing of the batches.
pub fn read_shard_head(file: &(impl ReadAt + ?Sized), kind: ShardKind) -> Result<ShardHead> {
    ShardHead::from_metadata(kind.table(), Frame::open(file, kind.table())?.metadata)
}

/// Reads an image shard, payloads included; returns its head and the entries of all its rows.
pub fn read_image_shard(file: &(impl ReadAt + ?Sized)) -> Result<(ShardHead, Vec<ImageEntry>)> {
    let mut entries = Vec::new();
    let head = visit_image_shard(file, |_, entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok((head, entries))
}

/// Reads a sample shard, payloads included; returns its head and the entries of all its rows.
pub fn read_sample_shard(file: &(impl ReadAt + ?Sized)) -> Result<(ShardHead, Vec<SampleEntry>)> {
    let mut entries = Vec::new();
    let head = visit_sample_shard(file, |_, entry| {
        entries.push(entry);
        Ok(())
    })?;
    Ok((head, entries))
}

/// Like [`read_image_shard`], but hands out each row number in the partition with its entry, in order.
pub fn visit_image_shard(
    file: &(impl ReadAt + ?Sized),
    visit: impl FnMut(u64, ImageEntry) -> Result<()>,
) -> Result<ShardHead> {
    visit_shard(file, &IMAGE_SHARD, visit, image_batch)
}

/// Like [`read_sample_shard`], but hands out each row number in the partition with its entry, in order.
pub fn visit_sample_shard(
    file: &(impl ReadAt + ?Sized),
    visit: impl FnMut(u64, SampleEntry) -> Result<()>,
) -> Result<ShardHead> {
    visit_shard(file, &SAMPLE_SHARD, visit, sample_batch)
}

/// The number of a batch's first row, and where to hand its rows.
struct Rows<'a, E> {
    head: &'a ShardHead,
    next: u64,
    visit: &'a mut dyn FnMut(u64, E) -> Result<()>,
}

impl<E> Rows<'_, E> {
    fn give(&mut self, entry: E) -> Result<()> {
        (self.visit)(self.next, entry)?;
        self.next += 1;
        Ok(())
    }

    fn fault(&self, kind: &'static str, what: &'static str) -> Error {
        Error::Row {
            kind,
            partition: self.head.partition,
            shard: self.head.shard,
            row: self.next,
            what,
        }
    }
}

fn visit_shard<R: ReadAt + ?Sized, E>(
    file: &R,
    table: &'static Table,
    mut visit: impl FnMut(u64, E) -> Result<()>,
    read_batch: impl Fn(&Frame<'_, R>, &Batch, &mut Rows<'_, E>) -> Result<()>,
) -> Result<ShardHead> {
    let mut frame = Frame::open(file, table)?;
    let head = ShardHead::from_metadata(table, std::mem::take(&mut frame.metadata))?;
    let mut rows = Rows {
        head: &head,
        next: head.first_row,
        visit: &mut visit,
    };
    for block in &frame.blocks {
        let batch = frame.batch(*block)?;
        if batch.rows == 0 || rows.next.checked_add(batch.rows).is_none() {
            return Err(fault(
                table,
                "a batch without rows, or too many rows",
                block.offset,
            ));
        }
        read_batch(&frame, &batch, &mut rows)?;
    }
    if frame.blocks.is_empty() {
        return Err(fault(table, "no rows", 0));
    }
    Ok(head)
}

/// Offsets of one variable column, read in order: each row's first element and number of elements.
struct Offsets<'a, R: ?Sized> {
    cursor: Cursor<'a, R, 8>,
    last: u64,
    elements: u64,
}

impl<'a, R: ReadAt + ?Sized> Offsets<'a, R> {
    fn new(frame: &Frame<'a, R>, batch: &Batch, column: Buffers) -> Result<Self> {
        let mut offsets = Self {
            cursor: Cursor::new(frame.file, column.offsets, batch.rows + 1),
            last: 0,
            elements: column.elements,
        };
        match offsets.step()? {
            Some((0, 0)) => Ok(offsets),
            _ => Err(fault(
                frame.table,
                "offsets do not start at zero",
                column.offsets,
            )),
        }
    }

    /// Takes one offset; none if it goes back or beyond the elements.
    fn step(&mut self) -> Result<Option<(u64, u64)>> {
        let Some(bytes) = self.cursor.next()? else {
            return Ok(None);
        };
        let next = u64::from_le_bytes(bytes);
        if next < self.last || next > self.elements {
            return Ok(None);
        }
        let start = std::mem::replace(&mut self.last, next);
        Ok(Some((start, next - start)))
    }

    /// The next row's first element and number of elements.
    fn next<E>(&mut self, rows: &Rows<'_, E>, kind: &'static str) -> Result<(u64, u64)> {
        self.step()?
            .ok_or_else(|| rows.fault(kind, "offsets go back or out of range"))
    }

    /// Whether the last offset is the number of elements.
    fn is_complete(&self) -> bool {
        self.last == self.elements
    }
}

/// Feeds `length` bytes from `offset` to `each`, chunk by chunk; chunks are whole multiples of 12.
fn stream<R: ReadAt + ?Sized>(
    file: &R,
    mut offset: u64,
    mut length: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<()> {
    let mut chunk = vec![0; length.min((CHUNK_BYTES / 12 * 12) as u64) as usize];
    while length > 0 {
        let count = length.min(chunk.len() as u64);
        let part = &mut chunk[..count as usize];
        file.read_exact_at(part, offset)
            .map_err(Error::io("read a cache file"))?;
        each(part);
        offset += count;
        length -= count;
    }
    Ok(())
}

/// The columns of a batch, by position: the layout check has made them as many as the table's.
fn columns<const N: usize>(table: &'static Table, batch: &Batch) -> Result<[Buffers; N]> {
    batch
        .columns
        .as_slice()
        .try_into()
        .map_err(|_| fault(table, "another number of columns", 0))
}

fn next_array<R: ReadAt + ?Sized, const N: usize, const M: usize>(
    cursor: &mut Cursor<'_, R, N>,
    decode: impl Fn([u8; N]) -> [i32; M],
) -> Result<[i32; M]> {
    Ok(cursor.next()?.map_or([0; M], decode))
}

/// Little-endian numbers out of their bytes.
fn numbers<const N: usize, const M: usize>(bytes: [u8; N]) -> [i32; M] {
    let mut found = [0; M];
    for (number, word) in found.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = i32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
    found
}

fn image_batch<R: ReadAt + ?Sized>(
    frame: &Frame<'_, R>,
    batch: &Batch,
    rows: &mut Rows<'_, ImageEntry>,
) -> Result<()> {
    let [key, grid, size, patches] = columns(frame.table, batch)?;
    let mut keys = Cursor::<_, 16>::new(frame.file, key.values, batch.rows);
    let mut grids = Cursor::<_, 12>::new(frame.file, grid.values, batch.rows);
    let mut sizes = Cursor::<_, 8>::new(frame.file, size.values, batch.rows);
    let mut offsets = Offsets::new(frame, batch, patches)?;
    for _ in 0..batch.rows {
        let key = ImageKey(keys.next()?.unwrap_or_default());
        let grid_thw = next_array(&mut grids, numbers)?;
        let size = next_array(&mut sizes, numbers)?;
        let (start, length) = offsets.next(rows, "image")?;
        if let Some(what) = image_fault(grid_thw, size, length) {
            return Err(rows.fault("image", what));
        }
        let offset = patches.values + start;
        let mut hasher =
            RowHasher::image(rows.head.partition, rows.next, key, grid_thw, size, length);
        stream(frame.file, offset, length, |bytes| hasher.update(bytes))?;
        rows.give(ImageEntry {
            key,
            shard: rows.head.shard,
            offset,
            length,
            grid_thw,
            size,
            checksum: hasher.finish(),
        })?;
    }
    if !offsets.is_complete() {
        return Err(fault(
            frame.table,
            "bytes after the last row",
            patches.values,
        ));
    }
    Ok(())
}

/// The null bitmap of a column, read bit by bit.
struct Validity<'a, R: ?Sized> {
    cursor: Option<Cursor<'a, R, 1>>,
    byte: u8,
    bit: u8,
}

impl<R: ReadAt + ?Sized> Validity<'_, R> {
    fn next(&mut self) -> Result<bool> {
        let Some(cursor) = &mut self.cursor else {
            return Ok(true);
        };
        if self.bit == 0 {
            self.byte = cursor.next()?.map_or(0, |[byte]| byte);
        }
        let valid = self.byte >> self.bit & 1 == 1;
        self.bit = (self.bit + 1) % 8;
        Ok(valid)
    }
}

fn sample_batch<R: ReadAt + ?Sized>(
    frame: &Frame<'_, R>,
    batch: &Batch,
    rows: &mut Rows<'_, SampleEntry>,
) -> Result<()> {
    let all: [Buffers; 6] = columns(frame.table, batch)?;
    let mut offsets = Vec::with_capacity(all.len());
    for column in all {
        offsets.push(Offsets::new(frame, batch, column)?);
    }
    let mut validity = Validity {
        cursor: all[1]
            .nulls
            .map(|nulls| Cursor::new(frame.file, nulls, batch.rows.div_ceil(8))),
        byte: 0,
        bit: 0,
    };
    for _ in 0..batch.rows {
        let mut ranges = [(0, 0); 6];
        for (range, column) in ranges.iter_mut().zip(&mut offsets) {
            *range = column.next(rows, "sample")?;
        }
        let has_record_id = validity.next()?;
        let entry = sample_entry(frame.file, &all, ranges, has_record_id, rows)?;
        rows.give(entry)?;
    }
    if !offsets.iter().all(Offsets::is_complete) {
        return Err(fault(
            frame.table,
            "bytes after the last row",
            all[0].values,
        ));
    }
    Ok(())
}

fn sample_entry<R: ReadAt + ?Sized>(
    file: &R,
    all: &[Buffers; 6],
    ranges: [(u64, u64); 6],
    has_record_id: bool,
    rows: &Rows<'_, SampleEntry>,
) -> Result<SampleEntry> {
    let fail = |what| rows.fault("sample", what);
    let [sample_id, record_id, input_ids, labels, images, grids] = ranges;
    if sample_id.1 == 0 || sample_id.1.max(record_id.1) > MAX_ID_BYTES as u64 {
        return Err(fail("id empty or too long"));
    }
    if !has_record_id && record_id.1 > 0 {
        return Err(fail("a null record id has text"));
    }
    if labels.1 != input_ids.1 || grids.1 != images.1 {
        return Err(fail(
            "another number of labels than token ids, or of grids than images",
        ));
    }
    if input_ids.1 > MAX_TOKENS as u64 || images.1 > MAX_IMAGES as u64 {
        return Err(fail("too many tokens or images"));
    }
    // The limits above keep every count inside a u32.
    let small = |count: u64| count as u32;
    let record_id_bytes = has_record_id.then_some(small(record_id.1));
    let mut hasher = RowHasher::sample(
        rows.head.partition,
        rows.next,
        small(input_ids.1),
        small(images.1),
        small(sample_id.1),
        record_id_bytes,
    );
    for (column, (start, length)) in [(all[0], sample_id), (all[1], record_id)] {
        let id = crate::frame::read(file, column.values + start, length as usize)?;
        hasher.update(&id);
        std::str::from_utf8(&id).map_err(|_| fail("an id is not UTF-8"))?;
    }
    let at = |column: usize, width: u64| {
        (
            all[column].values + ranges[column].0 * width,
            ranges[column].1 * width,
        )
    };
    let (offset, length) = at(2, 4);
    stream(file, offset, length, |bytes| hasher.update(bytes))?;
    let (offset, length) = at(3, 4);
    let mut n_loss_tokens = 0;
    stream(file, offset, length, |bytes| {
        hasher.update(bytes);
        n_loss_tokens += bytes
            .chunks_exact(4)
            .filter(|label| **label != IGNORED_LABEL.to_le_bytes())
            .count() as u64;
    })?;
    let (offset, length) = at(4, 4);
    stream(file, offset, length, |bytes| hasher.update(bytes))?;
    let (offset, length) = at(5, 12);
    let mut n_patches = Some(0u64);
    stream(file, offset, length, |bytes| {
        hasher.update(bytes);
        for grid in bytes.as_chunks::<12>().0 {
            n_patches = n_patches.and_then(|sum| sum.checked_add(patches_of(numbers(*grid))?));
        }
    })?;
    let n_patches = n_patches
        .and_then(|count| u32::try_from(count).ok())
        .ok_or_else(|| fail("patch grid out of range"))?;
    Ok(SampleEntry {
        shard: rows.head.shard,
        input_ids: at(2, 4).0,
        labels: at(3, 4).0,
        images: at(4, 4).0,
        image_grid_thw: at(5, 12).0,
        sample_id: at(0, 1).0,
        record_id: at(1, 1).0,
        n_tokens: small(input_ids.1),
        n_loss_tokens: small(n_loss_tokens),
        n_images: small(images.1),
        n_patches,
        sample_id_bytes: small(sample_id.1),
        record_id_bytes,
        checksum: hasher.finish(),
    })
}
