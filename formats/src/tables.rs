//! Parquet tables of a cache, for people and their tools; nothing in a cache needs them.
//!
//! Owns their columns. Invariant: rows are written as they come, in groups of a fixed number, so that memory is bounded
//! and the bytes depend on the rows only.

use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::error::{Error, Result};
use crate::manifest::FileEntry;
use crate::shard::Tee;

/// Rows of a row group: some 10 MB in memory.
const GROUP_ROWS: usize = 1 << 16;

/// Rows handed to the encoder at once.
const BATCH_ROWS: usize = 1 << 12;

/// Fixed, so that the bytes do not change with the version of a library.
pub(crate) const CREATED_BY: &str = "stoker";

/// Zstandard level: the tables are small, and written once.
pub(crate) const LEVEL: i32 = 3;

/// A sample, for the table `samples`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleTableRow {
    /// `file:line`.
    pub sample_id: String,
    /// The record's own id.
    pub record_id: Option<String>,
    /// The split's name.
    pub split: String,
    /// The partition.
    pub partition: u32,
    /// The row in the partition.
    pub row: u64,
    /// The input's name.
    pub file: String,
    /// The line in it, from 1.
    pub line: u64,
    /// The line's first byte in the uncompressed input.
    pub byte_offset: u64,
    /// Token ids.
    pub n_tokens: u32,
    /// Labels that take part in the loss.
    pub n_loss_tokens: u32,
    /// Images.
    pub n_images: u32,
    /// Patches of all images.
    pub n_patches: u32,
}

/// A reject, for the table `rejects`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectTableRow {
    /// `file:line`.
    pub sample_id: String,
    /// The input's name.
    pub file: String,
    /// The line in it, from 1.
    pub line: u64,
    /// The line's first byte in the uncompressed input.
    pub byte_offset: u64,
    /// Byte inside the line where the fault stands.
    pub column: Option<u64>,
    /// The stable reason code.
    pub reason: String,
    /// The image link to blame.
    pub link: Option<String>,
    /// What was wrong, for a person.
    pub message: String,
}

/// What a provenance row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProvenanceKind {
    /// An input file.
    Input,
    /// An image.
    Image,
}

/// Something that was read, for the table `provenance`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenanceRow {
    /// What it is.
    pub kind: ProvenanceKind,
    /// Where it was read, without credentials.
    pub uri: String,
    /// How many bytes.
    pub bytes: u64,
    /// The version that the server named.
    pub etag: Option<String>,
    /// The partition, of images.
    pub partition: Option<u32>,
    /// The image key in hex.
    pub key: Option<String>,
}

/// A sample that stands in no pack, for the table of over-long samples beside a pack table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlongTableRow {
    /// The partition.
    pub partition: u32,
    /// The row in the partition.
    pub row: u64,
    /// `file:line`.
    pub sample_id: String,
    /// Token ids.
    pub n_tokens: u32,
    /// Patches of all images.
    pub n_patches: u32,
}

/// A row of one of the tables.
pub trait TableRow: Sized {
    /// What the table is called in messages.
    const NAME: &'static str;

    /// Name, type and nullability of each column.
    const COLUMNS: &'static [(&'static str, DataType, bool)];

    /// The columns of `rows`, in the order of [`COLUMNS`](Self::COLUMNS).
    fn columns(rows: &[Self]) -> Vec<ArrayRef>;
}

fn text<'a>(values: impl Iterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn maybe_text<'a>(values: impl Iterator<Item = Option<&'a str>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

fn u32s(values: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(values))
}

fn u64s(values: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(values))
}

impl TableRow for SampleTableRow {
    const NAME: &'static str = "the table of samples";
    const COLUMNS: &'static [(&'static str, DataType, bool)] = &[
        ("sample_id", DataType::Utf8, false),
        ("record_id", DataType::Utf8, true),
        ("split", DataType::Utf8, false),
        ("partition", DataType::UInt32, false),
        ("row", DataType::UInt64, false),
        ("file", DataType::Utf8, false),
        ("line", DataType::UInt64, false),
        ("byte_offset", DataType::UInt64, false),
        ("n_tokens", DataType::UInt32, false),
        ("n_loss_tokens", DataType::UInt32, false),
        ("n_images", DataType::UInt32, false),
        ("n_patches", DataType::UInt32, false),
    ];

    fn columns(rows: &[Self]) -> Vec<ArrayRef> {
        vec![
            text(rows.iter().map(|row| row.sample_id.as_str())),
            maybe_text(rows.iter().map(|row| row.record_id.as_deref())),
            text(rows.iter().map(|row| row.split.as_str())),
            u32s(rows.iter().map(|row| row.partition)),
            u64s(rows.iter().map(|row| row.row)),
            text(rows.iter().map(|row| row.file.as_str())),
            u64s(rows.iter().map(|row| row.line)),
            u64s(rows.iter().map(|row| row.byte_offset)),
            u32s(rows.iter().map(|row| row.n_tokens)),
            u32s(rows.iter().map(|row| row.n_loss_tokens)),
            u32s(rows.iter().map(|row| row.n_images)),
            u32s(rows.iter().map(|row| row.n_patches)),
        ]
    }
}

impl TableRow for RejectTableRow {
    const NAME: &'static str = "the table of rejects";
    const COLUMNS: &'static [(&'static str, DataType, bool)] = &[
        ("sample_id", DataType::Utf8, false),
        ("file", DataType::Utf8, false),
        ("line", DataType::UInt64, false),
        ("byte_offset", DataType::UInt64, false),
        ("column", DataType::UInt64, true),
        ("reason", DataType::Utf8, false),
        ("link", DataType::Utf8, true),
        ("message", DataType::Utf8, false),
    ];

    fn columns(rows: &[Self]) -> Vec<ArrayRef> {
        vec![
            text(rows.iter().map(|row| row.sample_id.as_str())),
            text(rows.iter().map(|row| row.file.as_str())),
            u64s(rows.iter().map(|row| row.line)),
            u64s(rows.iter().map(|row| row.byte_offset)),
            Arc::new(rows.iter().map(|row| row.column).collect::<UInt64Array>()),
            text(rows.iter().map(|row| row.reason.as_str())),
            maybe_text(rows.iter().map(|row| row.link.as_deref())),
            text(rows.iter().map(|row| row.message.as_str())),
        ]
    }
}

impl TableRow for OverlongTableRow {
    const NAME: &'static str = "the table of over-long samples";
    const COLUMNS: &'static [(&'static str, DataType, bool)] = &[
        ("partition", DataType::UInt32, false),
        ("row", DataType::UInt64, false),
        ("sample_id", DataType::Utf8, false),
        ("n_tokens", DataType::UInt32, false),
        ("n_patches", DataType::UInt32, false),
    ];

    fn columns(rows: &[Self]) -> Vec<ArrayRef> {
        vec![
            u32s(rows.iter().map(|row| row.partition)),
            u64s(rows.iter().map(|row| row.row)),
            text(rows.iter().map(|row| row.sample_id.as_str())),
            u32s(rows.iter().map(|row| row.n_tokens)),
            u32s(rows.iter().map(|row| row.n_patches)),
        ]
    }
}

impl TableRow for ProvenanceRow {
    const NAME: &'static str = "the table of provenance";
    const COLUMNS: &'static [(&'static str, DataType, bool)] = &[
        ("kind", DataType::Utf8, false),
        ("uri", DataType::Utf8, false),
        ("bytes", DataType::UInt64, false),
        ("etag", DataType::Utf8, true),
        ("partition", DataType::UInt32, true),
        ("key", DataType::Utf8, true),
    ];

    fn columns(rows: &[Self]) -> Vec<ArrayRef> {
        let kind = |row: &Self| match row.kind {
            ProvenanceKind::Input => "input",
            ProvenanceKind::Image => "image",
        };
        vec![
            text(rows.iter().map(kind)),
            text(rows.iter().map(|row| row.uri.as_str())),
            u64s(rows.iter().map(|row| row.bytes)),
            maybe_text(rows.iter().map(|row| row.etag.as_deref())),
            Arc::new(
                rows.iter()
                    .map(|row| row.partition)
                    .collect::<UInt32Array>(),
            ),
            maybe_text(rows.iter().map(|row| row.key.as_deref())),
        ]
    }
}

/// Writes one table, row by row.
pub struct TableWriter<W: Write + Send, R: TableRow> {
    writer: ArrowWriter<Tee<W>>,
    schema: SchemaRef,
    pending: Vec<R>,
    rows: u64,
}

pub(crate) fn parquet(kind: &'static str) -> impl Fn(ParquetError) -> Error {
    move |source| Error::Encoder {
        kind,
        source: Box::new(source),
    }
}

impl<W: Write + Send, R: TableRow> TableWriter<W, R> {
    /// Begins a table.
    pub fn new(out: W) -> Result<Self> {
        let fields: Vec<Field> = R::COLUMNS
            .iter()
            .map(|(name, kind, nullable)| Field::new(*name, kind.clone(), *nullable))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let level = ZstdLevel::try_new(LEVEL).map_err(parquet(R::NAME))?;
        let properties = WriterProperties::builder()
            .set_created_by(CREATED_BY.into())
            .set_compression(Compression::ZSTD(level))
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Tee::new(out), schema.clone(), options)
            .map_err(parquet(R::NAME))?;
        Ok(Self {
            writer,
            schema,
            pending: Vec::new(),
            rows: 0,
        })
    }

    /// Adds a row.
    pub fn push(&mut self, row: R) -> Result<()> {
        self.pending.push(row);
        self.rows += 1;
        if self.pending.len() >= BATCH_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends the table; returns the writer, flushed, and what the manifest says of the file.
    pub fn finish(mut self) -> Result<(W, FileEntry)> {
        self.flush()?;
        // Writes the footer, too.
        let tee = self.writer.into_inner().map_err(parquet(R::NAME))?;
        let (bytes, hash) = tee.summary();
        let mut out = tee.into_inner();
        out.flush().map_err(Error::io("write a table"))?;
        let rows = self.rows;
        Ok((out, FileEntry { bytes, hash, rows }))
    }

    fn flush(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.pending);
        if rows.is_empty() {
            return Ok(());
        }
        let batch = RecordBatch::try_new(self.schema.clone(), R::columns(&rows))
            .map_err(Error::arrow(R::NAME))?;
        self.writer.write(&batch).map_err(parquet(R::NAME))
    }
}
