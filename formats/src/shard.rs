//! What both shard writers share: the head, the counted and hashed output, one batch after another.
//!
//! Owns where a buffer comes to lie in the file. Invariant: the bytes depend on rows and head only; Arrow's encoder
//! sorts the metadata, so no map order reaches them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::SchemaRef;

use crate::VERSION;
use crate::checksum::{ContentHash, ContentHasher};
use crate::columns::{self, Table};
use crate::error::{Error, Result};
use crate::layout::align;
use crate::limits::{ALIGNMENT, MAX_METADATA_BYTES, MAX_METADATA_PAIRS};
use crate::manifest::Version;

const FORMAT_KEY: &str = "stoker.format";
const KIND_KEY: &str = "stoker.kind";
const PARTITION_KEY: &str = "stoker.partition";
const SHARD_KEY: &str = "stoker.shard";
const FIRST_ROW_KEY: &str = "stoker.first_row";

/// Bytes of metadata kept for the keys of this crate.
const OWN_METADATA_BYTES: usize = 1 << 10;

/// What a shard says about itself in its schema metadata.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardHead {
    /// The partition.
    pub partition: u32,
    /// The shard's ordinal in the partition.
    pub shard: u32,
    /// The number in the partition of the shard's first row.
    pub first_row: u64,
    /// Whatever else the builder wants to say (recipe, float table). Keys must not begin with `stoker.`.
    pub metadata: BTreeMap<String, String>,
}

/// A finished shard.
#[derive(Debug)]
pub struct Finished<W, E> {
    /// The writer, flushed.
    pub out: W,
    /// Bytes written.
    pub bytes: u64,
    /// Hash of all of them.
    pub hash: ContentHash,
    /// The index entries of the rows, in order.
    pub entries: Vec<E>,
}

impl ShardHead {
    /// The metadata pairs of a shard of `table`, or why there are none.
    fn to_metadata(&self, table: &'static Table) -> Result<BTreeMap<String, String>> {
        let fail = |what| Error::Unwritable {
            kind: table.name,
            what,
            row: self.first_row,
        };
        let mut pairs = self.metadata.clone();
        if pairs.keys().any(|key| key.starts_with("stoker.")) {
            return Err(fail("metadata keys beginning with stoker. are reserved"));
        }
        let bytes: usize = pairs
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if bytes > MAX_METADATA_BYTES - OWN_METADATA_BYTES || pairs.len() + 5 > MAX_METADATA_PAIRS {
            return Err(fail("too much metadata"));
        }
        pairs.extend(file_metadata(table, self.partition));
        pairs.insert(SHARD_KEY.into(), self.shard.to_string());
        pairs.insert(FIRST_ROW_KEY.into(), self.first_row.to_string());
        Ok(pairs)
    }

    /// The head that `pairs` say.
    pub(crate) fn from_metadata(
        table: &'static Table,
        mut pairs: BTreeMap<String, String>,
    ) -> Result<Self> {
        let partition = take_file_metadata(table, &mut pairs)?;
        let shard = take_number(table, &mut pairs, SHARD_KEY)?;
        let first_row = take_number(table, &mut pairs, FIRST_ROW_KEY)?;
        let Ok(shard) = u32::try_from(shard) else {
            return Err(metadata_fault(table));
        };
        Ok(Self {
            partition,
            shard,
            first_row,
            metadata: pairs,
        })
    }
}

fn metadata_fault(table: &'static Table) -> Error {
    Error::Layout {
        kind: table.name,
        what: "schema metadata lacks a key or has a wrong value",
        at: ALIGNMENT,
    }
}

/// The pairs that every Arrow file of a cache has.
pub(crate) fn file_metadata(table: &Table, partition: u32) -> BTreeMap<String, String> {
    [
        (FORMAT_KEY, format!("{}.{}", VERSION.major, VERSION.minor)),
        (KIND_KEY, table.code.to_owned()),
        (PARTITION_KEY, partition.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

/// Takes the pairs of [`file_metadata`] out and checks them; returns the partition.
pub(crate) fn take_file_metadata(
    table: &'static Table,
    pairs: &mut BTreeMap<String, String>,
) -> Result<u32> {
    let version = pairs
        .remove(FORMAT_KEY)
        .ok_or_else(|| metadata_fault(table))?;
    let (major, minor) = version
        .split_once('.')
        .ok_or_else(|| metadata_fault(table))?;
    let (Some(major), Some(minor)) = (decimal(major), decimal(minor)) else {
        return Err(metadata_fault(table));
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Version {
        major: small(major),
        minor: small(minor),
    }
    .check(table.name)?;
    if pairs.remove(KIND_KEY).as_deref() != Some(table.code) {
        return Err(metadata_fault(table));
    }
    let partition = take_number(table, pairs, PARTITION_KEY)?;
    u32::try_from(partition).map_err(|_| metadata_fault(table))
}

fn take_number(
    table: &'static Table,
    pairs: &mut BTreeMap<String, String>,
    key: &str,
) -> Result<u64> {
    pairs
        .remove(key)
        .and_then(|value| decimal(&value))
        .ok_or_else(|| metadata_fault(table))
}

/// A decimal number as this crate writes it: no sign, no leading zero.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    text.parse()
        .ok()
        .filter(|number: &u64| number.to_string() == text)
}

/// Counts and hashes what passes.
pub(crate) struct Tee<W> {
    out: W,
    bytes: u64,
    hasher: ContentHasher,
}

impl<W: Write> Write for Tee<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let count = self.out.write(buf)?;
        self.hasher.update(&buf[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W: Write> Tee<W> {
    pub(crate) fn new(out: W) -> Self {
        Self {
            out,
            bytes: 0,
            hasher: ContentHasher::new(),
        }
    }

    /// Bytes so far and their hash.
    pub(crate) fn summary(&self) -> (u64, ContentHash) {
        (self.bytes, self.hasher.finish())
    }

    pub(crate) fn into_inner(self) -> W {
        self.out
    }
}

/// An Arrow file that is being written.
pub(crate) struct ArrowFile<W: Write> {
    writer: FileWriter<Tee<W>>,
    schema: SchemaRef,
    table: &'static Table,
}

impl<W: Write> ArrowFile<W> {
    pub(crate) fn new(
        out: W,
        table: &'static Table,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let schema = columns::schema(table, metadata);
        let options = IpcWriteOptions::try_new(ALIGNMENT as usize, false, MetadataVersion::V5)
            .map_err(Error::arrow(table.name))?;
        let writer = FileWriter::try_new_with_options(Tee::new(out), &schema, options)
            .map_err(Error::arrow(table.name))?;
        Ok(Self {
            writer,
            schema,
            table,
        })
    }

    /// A shard's file.
    pub(crate) fn shard(out: W, table: &'static Table, head: &ShardHead) -> Result<Self> {
        Self::new(out, table, &head.to_metadata(table)?)
    }

    /// Writes one batch whose buffers have `lengths` bytes, in schema order, null bitmaps of lists left out.
    /// Returns where each of them lies in the file.
    pub(crate) fn write(&mut self, columns: Vec<ArrayRef>, lengths: &[u64]) -> Result<Vec<u64>> {
        let batch = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(Error::arrow(self.table.name))?;
        self.writer
            .write(&batch)
            .map_err(Error::arrow(self.table.name))?;
        let mut starts = Vec::with_capacity(lengths.len());
        let mut end = 0;
        for length in lengths {
            starts.push(end);
            end = align(end + length).unwrap_or(u64::MAX);
        }
        let body = self
            .writer
            .get_ref()
            .bytes
            .checked_sub(end)
            .filter(|body| body % ALIGNMENT == 0)
            .ok_or(Error::Unwritable {
                kind: self.table.name,
                what: "the encoder laid a batch out otherwise",
                row: 0,
            })?;
        Ok(starts.into_iter().map(|start| body + start).collect())
    }

    /// Writes the footer; returns the writer, the bytes written and their hash.
    pub(crate) fn finish(mut self) -> Result<(W, u64, ContentHash)> {
        self.writer
            .finish()
            .map_err(Error::arrow(self.table.name))?;
        let tee = self
            .writer
            .into_inner()
            .map_err(Error::arrow(self.table.name))?;
        let (bytes, hash) = tee.summary();
        Ok((tee.into_inner(), bytes, hash))
    }
}
