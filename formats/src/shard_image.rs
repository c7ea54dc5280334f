//! Writes image shards.
//!
//! Owns batching of image rows. Invariant: one image's patches are one contiguous range of the file.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, LargeBinaryArray,
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::DataType;

use crate::checksum::image_checksum;
use crate::columns::{IMAGE_SHARD, item};
use crate::error::{Error, Result};
use crate::limits::BATCH_BYTES;
use crate::row::{ImageEntry, ImageKey, ImageRow, image_fault};
use crate::shard::{ArrowFile, Finished, ShardHead};

/// Bytes of an image row beside its patches: key, grid, size, offset.
const ROW_BYTES: u64 = 16 + 12 + 8 + 8;

/// Writes one image shard, row by row.
pub struct ImageShardWriter<W: Write> {
    file: ArrowFile<W>,
    partition: u32,
    shard: u32,
    first_row: u64,
    payload_bytes: u64,
    entries: Vec<ImageEntry>,
    pending: Pending,
}

/// The rows of the batch in hand, column by column.
struct Pending {
    keys: Vec<u8>,
    grids: Vec<i32>,
    sizes: Vec<i32>,
    offsets: Vec<i64>,
    patches: Vec<u8>,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            grids: Vec::new(),
            sizes: Vec::new(),
            offsets: vec![0],
            patches: Vec::new(),
        }
    }
}

impl Pending {
    fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    fn bytes(&self) -> u64 {
        self.patches.len() as u64 + self.rows() as u64 * ROW_BYTES
    }
}

/// A column of `width` Int32 a row.
pub(crate) fn fixed_list(
    width: i32,
    numbers: Vec<i32>,
) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let numbers: ArrayRef = Arc::new(Int32Array::from(numbers));
    let list = FixedSizeListArray::try_new(item(DataType::Int32), width, numbers, None)?;
    Ok(Arc::new(list))
}

impl<W: Write> ImageShardWriter<W> {
    /// Begins a shard. Fails if `head` has too much metadata, a reserved key, or `out` fails.
    pub fn new(out: W, head: &ShardHead) -> Result<Self> {
        Ok(Self {
            file: ArrowFile::shard(out, &IMAGE_SHARD, head)?,
            partition: head.partition,
            shard: head.shard,
            first_row: head.first_row,
            payload_bytes: 0,
            entries: Vec::new(),
            pending: Pending::default(),
        })
    }

    /// Adds a row. Fails, with the shard as it was, if the row's parts do not fit each other.
    pub fn push(&mut self, row: &ImageRow<'_>) -> Result<()> {
        let length = self.check(row)?;
        if length + ROW_BYTES > BATCH_BYTES {
            return self.write_alone(row, row.patches.to_vec()).map(drop);
        }
        self.append(row, length)
    }

    /// As [`ImageShardWriter::push`], with patches that are given away: a whole batch of them is written from where
    /// they lie. Returns their memory.
    pub fn push_owned(
        &mut self,
        key: ImageKey,
        grid_thw: [i32; 3],
        size: [i32; 2],
        patches: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let row = ImageRow {
            key,
            grid_thw,
            size,
            patches: &patches,
        };
        let length = self.check(&row)?;
        if length + ROW_BYTES > BATCH_BYTES {
            let row = ImageRow {
                patches: &[],
                ..row
            };
            return self.write_alone(&row, patches);
        }
        self.append(&row, length)?;
        Ok(patches)
    }

    /// The length of the row's patches, if its parts fit each other.
    fn check(&self, row: &ImageRow<'_>) -> Result<u64> {
        let length = row.patches.len() as u64;
        match image_fault(row.grid_thw, row.size, length) {
            None => Ok(length),
            Some(what) => Err(Error::Unwritable {
                kind: "image",
                what,
                row: self.first_row + self.rows(),
            }),
        }
    }

    /// Adds a row to the batch in hand.
    fn append(&mut self, row: &ImageRow<'_>, length: u64) -> Result<()> {
        if self.pending.rows() > 0 && self.pending.bytes() + length + ROW_BYTES > BATCH_BYTES {
            self.flush()?;
        }
        self.note(row, row.patches);
        let pending = &mut self.pending;
        pending.patches.extend_from_slice(row.patches);
        pending.offsets.push(pending.patches.len() as i64);
        Ok(())
    }

    /// Writes a batch of one row, which is as large as a batch may be or larger. Returns the memory of `patches`, which
    /// take the place of the row's own.
    fn write_alone(&mut self, row: &ImageRow<'_>, patches: Vec<u8>) -> Result<Vec<u8>> {
        self.flush()?;
        self.note(row, &patches);
        let mut pending = std::mem::take(&mut self.pending);
        pending.offsets.push(patches.len() as i64);
        pending.patches = patches;
        self.write(pending)
    }

    /// Notes a row's entry and all its columns but the patches, which begin where those in hand end.
    fn note(&mut self, row: &ImageRow<'_>, patches: &[u8]) {
        let length = patches.len() as u64;
        let number = self.first_row + self.rows();
        let (key, grid_thw, size) = (row.key, row.grid_thw, row.size);
        self.entries.push(ImageEntry {
            key,
            shard: self.shard,
            // Relative to the batch's patches until the batch is written.
            offset: self.pending.patches.len() as u64,
            length,
            grid_thw,
            size,
            checksum: image_checksum(self.partition, number, key, grid_thw, size, patches),
        });
        self.pending.keys.extend_from_slice(&key.0);
        self.pending.grids.extend_from_slice(&grid_thw);
        self.pending.sizes.extend_from_slice(&size);
        self.payload_bytes += length + ROW_BYTES;
    }

    /// Rows so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Bytes of all rows so far, headers and padding left out.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Ends the shard. A shard without rows is an error: it has no place in a cache.
    pub fn finish(mut self) -> Result<Finished<W, ImageEntry>> {
        if self.entries.is_empty() {
            return Err(Error::Unwritable {
                kind: IMAGE_SHARD.name,
                what: "it has no rows",
                row: self.first_row,
            });
        }
        self.flush()?;
        let (out, bytes, hash) = self.file.finish()?;
        Ok(Finished {
            out,
            bytes,
            hash,
            entries: self.entries,
        })
    }

    /// Writes the batch in hand, if there is one. The memory of its patches is kept for the next.
    fn flush(&mut self) -> Result<()> {
        if self.pending.rows() > 0 {
            let pending = std::mem::take(&mut self.pending);
            self.pending.patches = self.write(pending)?;
            self.pending.patches.clear();
        }
        Ok(())
    }

    /// Writes a batch. Returns the memory of its patches.
    fn write(&mut self, mut pending: Pending) -> Result<Vec<u8>> {
        let rows = pending.rows();
        let count = rows as u64;
        let lengths = [
            0,
            count * 16,
            0,
            0,
            count * 12,
            0,
            0,
            count * 8,
            0,
            (count + 1) * 8,
            pending.patches.len() as u64,
        ];
        let patches = Buffer::from_vec(std::mem::take(&mut pending.patches));
        let columns = arrays(pending, patches.clone()).map_err(Error::arrow(IMAGE_SHARD.name))?;
        let starts = self.file.write(columns, &lengths)?;
        let start = starts.last().copied().unwrap_or_default();
        let first = self.entries.len() - rows;
        for entry in &mut self.entries[first..] {
            entry.offset += start;
        }
        Ok(patches.into_vec().unwrap_or_default())
    }
}

fn arrays(pending: Pending, patches: Buffer) -> Result<Vec<ArrayRef>, arrow_schema::ArrowError> {
    let keys = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(pending.keys), None)?;
    let offsets = OffsetBuffer::new(ScalarBuffer::from(pending.offsets));
    let patches = LargeBinaryArray::try_new(offsets, patches, None)?;
    Ok(vec![
        Arc::new(keys),
        fixed_list(3, pending.grids)?,
        fixed_list(2, pending.sizes)?,
        Arc::new(patches),
    ])
}
