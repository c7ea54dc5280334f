//! Writes sample shards.
//!
//! Owns batching of sample rows. Invariant: `labels` are as many as `input_ids`, `image_grid_thw` as many as `images`.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, ArrowPrimitiveType, LargeListArray, LargeStringArray, PrimitiveArray,
    types::{Int32Type, UInt32Type},
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType};

use crate::checksum::sample_checksum;
use crate::columns::{SAMPLE_SHARD, item};
use crate::error::{Error, Result};
use crate::limits::BATCH_BYTES;
use crate::row::{SampleEntry, SampleRow, sample_counts};
use crate::shard::{ArrowFile, Finished, ShardHead};
use crate::shard_image::fixed_list;

/// Bytes of a sample row beside its values: six offsets.
const ROW_BYTES: u64 = 6 * 8;

/// Writes one sample shard, row by row.
pub struct SampleShardWriter<W: Write> {
    file: ArrowFile<W>,
    partition: u32,
    shard: u32,
    first_row: u64,
    payload_bytes: u64,
    entries: Vec<SampleEntry>,
    pending: Pending,
}

/// One variable column of the batch in hand.
struct Lists<T> {
    offsets: Vec<i64>,
    values: Vec<T>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Self {
            offsets: vec![0],
            values: Vec::new(),
        }
    }
}

impl<T: Copy> Lists<T> {
    /// Adds a list; returns the byte at which it begins in the values.
    fn push(&mut self, list: &[T]) -> u64 {
        let start = size_of_val(self.values.as_slice()) as u64;
        self.values.extend_from_slice(list);
        self.offsets.push(self.values.len() as i64);
        start
    }

    fn value_bytes(&self) -> u64 {
        size_of_val(self.values.as_slice()) as u64
    }

    fn into_parts(self) -> (OffsetBuffer<i64>, Vec<T>) {
        (
            OffsetBuffer::new(ScalarBuffer::from(self.offsets)),
            self.values,
        )
    }
}

/// The rows of the batch in hand, column by column.
#[derive(Default)]
struct Pending {
    bytes: u64,
    sample_ids: Lists<u8>,
    record_ids: Lists<u8>,
    has_record_id: Vec<bool>,
    input_ids: Lists<i32>,
    labels: Lists<i32>,
    images: Lists<u32>,
    grids: Lists<[i32; 3]>,
}

impl<W: Write> SampleShardWriter<W> {
    /// Begins a shard. Fails if `head` has too much metadata, a reserved key, or `out` fails.
    pub fn new(out: W, head: &ShardHead) -> Result<Self> {
        Ok(Self {
            file: ArrowFile::shard(out, &SAMPLE_SHARD, head)?,
            partition: head.partition,
            shard: head.shard,
            first_row: head.first_row,
            payload_bytes: 0,
            entries: Vec::new(),
            pending: Pending::default(),
        })
    }

    /// Adds a row. Fails, with the shard as it was, if the row's parts do not fit each other.
    pub fn push(&mut self, row: &SampleRow<'_>) -> Result<()> {
        let number = self.first_row + self.rows();
        let counts = sample_counts(row).map_err(|what| Error::Unwritable {
            kind: "sample",
            what,
            row: number,
        })?;
        let record_id = row.record_id.unwrap_or_default();
        let bytes = ROW_BYTES
            + (row.sample_id.len() + record_id.len()) as u64
            + u64::from(counts.tokens) * 8
            + u64::from(counts.images) * 16;
        if self.pending.bytes > 0 && self.pending.bytes + bytes > BATCH_BYTES {
            self.flush()?;
        }
        let pending = &mut self.pending;
        // Offsets are relative to their columns until the batch is written.
        self.entries.push(SampleEntry {
            shard: self.shard,
            input_ids: pending.input_ids.push(row.input_ids),
            labels: pending.labels.push(row.labels),
            images: pending.images.push(row.images),
            image_grid_thw: pending.grids.push(row.image_grid_thw),
            sample_id: pending.sample_ids.push(row.sample_id.as_bytes()),
            record_id: pending.record_ids.push(record_id.as_bytes()),
            n_tokens: counts.tokens,
            n_loss_tokens: counts.loss_tokens,
            n_images: counts.images,
            n_patches: counts.patches,
            sample_id_bytes: row.sample_id.len() as u32,
            record_id_bytes: row.record_id.map(|id| id.len() as u32),
            checksum: sample_checksum(self.partition, number, row),
        });
        pending.has_record_id.push(row.record_id.is_some());
        pending.bytes += bytes;
        self.payload_bytes += bytes;
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
    pub fn finish(mut self) -> Result<Finished<W, SampleEntry>> {
        if self.entries.is_empty() {
            return Err(Error::Unwritable {
                kind: SAMPLE_SHARD.name,
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
        let rows = pending.has_record_id.len();
        let offsets = (rows as u64 + 1) * 8;
        let has_nulls = pending.has_record_id.contains(&false);
        let bitmap = if has_nulls {
            (rows as u64).div_ceil(8)
        } else {
            0
        };
        let ids = |lists: &Lists<u8>, nulls| [nulls, offsets, lists.value_bytes()];
        let list = |bytes| [0, offsets, 0, bytes];
        let lengths = [
            &ids(&pending.sample_ids, 0)[..],
            &ids(&pending.record_ids, bitmap)[..],
            &list(pending.input_ids.value_bytes())[..],
            &list(pending.labels.value_bytes())[..],
            &list(pending.images.value_bytes())[..],
            &[0, offsets, 0, 0, pending.grids.value_bytes()][..],
        ]
        .concat();
        let columns = arrays(pending).map_err(Error::arrow(SAMPLE_SHARD.name))?;
        let starts = self.file.write(columns, &lengths)?;
        // Where the values of each column stand among the buffers above.
        let [sample_id, record_id, input_ids, labels, images, grids] =
            [2, 5, 9, 13, 17, 22].map(|buffer| starts.get(buffer).copied().unwrap_or_default());
        let first = self.entries.len() - rows;
        for entry in &mut self.entries[first..] {
            entry.sample_id += sample_id;
            entry.record_id += record_id;
            entry.input_ids += input_ids;
            entry.labels += labels;
            entry.images += images;
            entry.image_grid_thw += grids;
        }
        Ok(())
    }
}

fn text(lists: Lists<u8>, nulls: Option<NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let (offsets, values) = lists.into_parts();
    let array = LargeStringArray::try_new(offsets, Buffer::from_vec(values), nulls)?;
    Ok(Arc::new(array))
}

fn numbers<T: ArrowPrimitiveType>(lists: Lists<T::Native>) -> Result<ArrayRef, ArrowError>
where
    T::Native: Copy,
{
    let (offsets, values) = lists.into_parts();
    let values = Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(values), None));
    Ok(Arc::new(LargeListArray::try_new(
        item(T::DATA_TYPE),
        offsets,
        values,
        None,
    )?))
}

fn arrays(pending: Pending) -> Result<Vec<ArrayRef>, ArrowError> {
    let nulls = NullBuffer::new(BooleanBuffer::from(pending.has_record_id));
    let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
    let (grid_offsets, grids) = pending.grids.into_parts();
    let grids = fixed_list(3, grids.into_flattened())?;
    let grid_type = DataType::FixedSizeList(item(DataType::Int32), 3);
    Ok(vec![
        text(pending.sample_ids, None)?,
        text(pending.record_ids, nulls)?,
        numbers::<Int32Type>(pending.input_ids)?,
        numbers::<Int32Type>(pending.labels)?,
        numbers::<UInt32Type>(pending.images)?,
        Arc::new(LargeListArray::try_new(
            item(grid_type),
            grid_offsets,
            grids,
            None,
        )?),
    ])
}
