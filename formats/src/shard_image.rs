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
use crate::row::{ImageEntry, ImageRow, image_fault};
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
        let length = row.patches.len() as u64;
        let number = self.first_row + self.rows();
        if let Some(what) = image_fault(row.grid_thw, row.size, length) {
            return Err(Error::Unwritable {
                kind: "image",
                what,
                row: number,
            });
        }
        if self.pending.rows() > 0 && self.pending.bytes() + length + ROW_BYTES > BATCH_BYTES {
            self.flush()?;
        }
        let pending = &mut self.pending;
        self.entries.push(ImageEntry {
            key: row.key,
            shard: self.shard,
            // Relative to the batch's patches until the batch is written.
            offset: pending.patches.len() as u64,
            length,
            grid_thw: row.grid_thw,
            size: row.size,
            checksum: image_checksum(
                self.partition,
                number,
                row.key,
                row.grid_thw,
                row.size,
                row.patches,
            ),
        });
        pending.keys.extend_from_slice(&row.key.0);
        pending.grids.extend_from_slice(&row.grid_thw);
        pending.sizes.extend_from_slice(&row.size);
        pending.patches.extend_from_slice(row.patches);
        pending.offsets.push(pending.patches.len() as i64);
        self.payload_bytes += length + ROW_BYTES;
        Ok(())
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

    fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let rows = pending.rows();
        if rows == 0 {
            return Ok(());
        }
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
        let columns = arrays(pending).map_err(Error::arrow(IMAGE_SHARD.name))?;
        let starts = self.file.write(columns, &lengths)?;
        let patches = starts.last().copied().unwrap_or_default();
        let first = self.entries.len() - rows;
        for entry in &mut self.entries[first..] {
            entry.offset += patches;
        }
        Ok(())
    }
}

fn arrays(pending: Pending) -> Result<Vec<ArrayRef>, arrow_schema::ArrowError> {
    let keys = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(pending.keys), None)?;
    let patches = LargeBinaryArray::try_new(
        OffsetBuffer::new(ScalarBuffer::from(pending.offsets)),
        Buffer::from_vec(pending.patches),
        None,
    )?;
    Ok(vec![
        Arc::new(keys),
        fixed_list(3, pending.grids)?,
        fixed_list(2, pending.sizes)?,
        Arc::new(patches),
    ])
}
