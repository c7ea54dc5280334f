//! Writing a pack table.
//!
//! Owns its columns and the settings by which a part of it can be read alone. Invariant: the bytes depend on the packs
//! only; memory holds one row group, whatever the table's size.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::{ArrayRef, ListArray, RecordBatch, UInt32Array};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use crate::checksum::block_checksum;
use crate::error::{Error, Result};
use crate::limits::PACK_BLOCK_BYTES;
use crate::pack_entry::PackTableEntry;
use crate::pack_table::Members;
use crate::row::Counts;
use crate::shard::Tee;
use crate::tables::{CREATED_BY, LEVEL, parquet};

pub(crate) const KIND: &str = "a pack table";

/// Packs of a row group: some hundred groups for 10^8 samples, so that the footer stays small.
pub(crate) const GROUP_ROWS: usize = 1 << 16;

/// Packs of a data page: what is decoded at least to read one partition.
const PAGE_ROWS: usize = 1 << 12;

/// Columns in order; the last one is a list.
pub(crate) const COLUMNS: [&str; 6] = [
    "partition",
    "tokens",
    "loss_tokens",
    "images",
    "patches",
    "rows.list.element",
];

fn schema() -> (SchemaRef, FieldRef) {
    let element = Arc::new(Field::new("element", DataType::UInt32, false));
    let mut fields: Vec<Field> = COLUMNS[..5]
        .iter()
        .map(|name| Field::new(*name, DataType::UInt32, false))
        .collect();
    fields.push(Field::new("rows", DataType::List(element.clone()), false));
    (Arc::new(Schema::new(fields)), element)
}

/// Passes bytes on, and takes the checksum of each block.
struct BlockSums<W> {
    out: W,
    block: Vec<u8>,
    checksums: Vec<u64>,
}

impl<W> BlockSums<W> {
    fn end_block(&mut self) {
        if !self.block.is_empty() {
            self.checksums.push(block_checksum(&self.block));
            self.block.clear();
        }
    }
}

impl<W: Write> Write for BlockSums<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let room = PACK_BLOCK_BYTES as usize - self.block.len();
        let count = self.out.write(&buf[..buf.len().min(room)])?;
        self.block.extend_from_slice(&buf[..count]);
        if self.block.len() as u64 == PACK_BLOCK_BYTES {
            self.end_block();
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Writes a pack table, partition by partition.
pub struct PackTableWriter<W: Write + Send> {
    writer: ArrowWriter<Tee<BlockSums<W>>>,
    schema: SchemaRef,
    element: FieldRef,
    packs: u64,
    next_partition: u32,
}

impl<W: Write + Send> PackTableWriter<W> {
    /// Begins a table.
    pub fn new(out: W) -> Result<Self> {
        let (schema, element) = schema();
        let level = ZstdLevel::try_new(LEVEL).map_err(parquet(KIND))?;
        let properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.into())
            .set_compression(Compression::ZSTD(level))
            // A dictionary would have to be read with every page, and row numbers are mostly different.
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::DELTA_BINARY_PACKED)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_statistics_enabled(EnabledStatistics::None)
            // For tools that look for one partition.
            .set_column_statistics_enabled(ColumnPath::from(COLUMNS[0]), EnabledStatistics::Page)
            .build();
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let out = Tee::new(BlockSums {
            out,
            block: Vec::new(),
            checksums: Vec::new(),
        });
        let writer = ArrowWriter::try_new_with_options(out, schema.clone(), options)
            .map_err(parquet(KIND))?;
        Ok(Self {
            writer,
            schema,
            element,
            packs: 0,
            next_partition: 0,
        })
    }

    /// Adds the packs of a partition, which must come after all before it.
    pub fn write(&mut self, partition: u32, counts: &[Counts], members: &Members) -> Result<()> {
        let unfit = |what| Error::Unwritable {
            kind: KIND,
            what,
            row: self.packs,
        };
        if partition < self.next_partition {
            return Err(unfit("partitions are not in order"));
        }
        if counts.len() != members.len() {
            return Err(unfit("not one count a pack"));
        }
        self.next_partition = partition.saturating_add(1);
        for from in (0..counts.len()).step_by(PAGE_ROWS) {
            let part = &counts[from..counts.len().min(from + PAGE_ROWS)];
            let batch = self.batch(partition, part, members, from)?;
            self.writer.write(&batch).map_err(parquet(KIND))?;
        }
        self.packs += counts.len() as u64;
        Ok(())
    }

    /// Some packs of a partition, from number `from` on.
    fn batch(
        &self,
        partition: u32,
        counts: &[Counts],
        members: &Members,
        from: usize,
    ) -> Result<RecordBatch> {
        let column = |field: fn(&Counts) -> u32| -> ArrayRef {
            Arc::new(UInt32Array::from_iter_values(counts.iter().map(field)))
        };
        let mut offsets = vec![0i32];
        let mut rows = Vec::new();
        for pack in from..from + counts.len() {
            rows.extend_from_slice(members.rows(pack as u64));
            offsets.push(i32::try_from(rows.len()).map_err(|_| Error::Unwritable {
                kind: KIND,
                what: "too many samples in a pack",
                row: self.packs + pack as u64,
            })?);
        }
        let list = ListArray::try_new(
            self.element.clone(),
            OffsetBuffer::new(ScalarBuffer::from(offsets)),
            Arc::new(UInt32Array::from(rows)),
            None,
        )
        .map_err(Error::arrow(KIND))?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_value(partition, counts.len())),
            column(|counts| counts.tokens),
            column(|counts| counts.loss_tokens),
            column(|counts| counts.images),
            column(|counts| counts.patches),
            Arc::new(list),
        ];
        RecordBatch::try_new(self.schema.clone(), columns).map_err(Error::arrow(KIND))
    }

    /// Ends the table; returns the writer, flushed, and what the entry says of the file.
    pub fn finish(self) -> Result<(W, PackTableEntry)> {
        let rows = self.packs;
        // Writes the footer, too.
        let tee = self.writer.into_inner().map_err(parquet(KIND))?;
        let (bytes, hash) = tee.summary();
        let mut sums = tee.into_inner();
        sums.end_block();
        sums.out.flush().map_err(Error::io("write a pack table"))?;
        let entry = PackTableEntry {
            bytes,
            hash,
            rows,
            blocks: sums.checksums,
        };
        Ok((sums.out, entry))
    }
}
