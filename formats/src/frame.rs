//! The frame of an Arrow IPC file: magic, schema message, contiguous record batches, end mark, footer.
//!
//! Owns the strict check of it over verified flatbuffers; what is inside a batch is `layout.rs`. Invariant: every byte
//! of the file belongs to exactly one part, and nothing larger than the file is ever allocated.

use std::collections::BTreeMap;

use arrow_ipc::{MessageHeader, MetadataVersion};
use flatbuffers::VerifierOptions;

use crate::columns::{self, Table};
use crate::error::{Error, Result};
use crate::limits::{ALIGNMENT, MAX_SCHEMA_BYTES};
use crate::read_at::ReadAt;

pub(crate) const MAGIC: &[u8; 6] = b"ARROW1";
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes after the footer: its length and the magic.
const TAIL_BYTES: u64 = 10;

/// Bytes of the mark that ends the batches.
const END_BYTES: u64 = 8;

/// One record batch in the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    pub(crate) header_bytes: u64,
    pub(crate) body_bytes: u64,
}

/// A file whose frame is right.
pub(crate) struct Frame<'a, R: ?Sized> {
    pub(crate) file: &'a R,
    pub(crate) table: &'static Table,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) blocks: Vec<Block>,
}

/// A maker of layout errors of one table.
pub(crate) fn fault(table: &'static Table, what: &'static str, at: u64) -> Error {
    Error::Layout {
        kind: table.name,
        what,
        at,
    }
}

/// `count` bytes at `offset`. The caller has bounded `count`.
pub(crate) fn read<R: ReadAt + ?Sized>(file: &R, offset: u64, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    file.read_exact_at(&mut bytes, offset)
        .map_err(Error::io("read a cache file"))?;
    Ok(bytes)
}

/// Fails unless the bytes of `from..to` are zero; the range is shorter than [`ALIGNMENT`].
pub(crate) fn check_zero<R: ReadAt + ?Sized>(
    file: &R,
    table: &'static Table,
    from: u64,
    to: u64,
) -> Result<()> {
    let mut bytes = [0; ALIGNMENT as usize];
    let padding = usize::try_from(to.saturating_sub(from))
        .ok()
        .and_then(|count| bytes.get_mut(..count))
        .ok_or_else(|| fault(table, "too much padding", from))?;
    file.read_exact_at(padding, from)
        .map_err(Error::io("read a cache file"))?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err(fault(table, "padding is not zero", from));
    }
    Ok(())
}

/// Limits for the flatbuffer verifier: no message may unfold to more than a small multiple of its bytes.
pub(crate) fn verifier(bytes: usize) -> VerifierOptions {
    VerifierOptions {
        max_depth: 16,
        max_tables: bytes / 8 + 1,
        max_apparent_size: bytes * 4 + 1024,
        ignore_missing_null_terminator: false,
    }
}

impl<'a, R: ReadAt + ?Sized> Frame<'a, R> {
    /// Checks the frame of `file`, which must be a `table`.
    pub(crate) fn open(file: &'a R, table: &'static Table) -> Result<Self> {
        let size = file.size().map_err(Error::io("read a cache file"))?;
        if size < ALIGNMENT + END_BYTES + TAIL_BYTES {
            return Err(fault(table, "file too short", size));
        }
        let head = read(file, 0, MAGIC.len())?;
        if head != MAGIC {
            return Err(fault(table, "no Arrow magic", 0));
        }
        check_zero(file, table, MAGIC.len() as u64, ALIGNMENT)?;
        let (footer_start, footer) = read_footer(file, table, size)?;
        let parsed = arrow_ipc::root_as_footer_with_opts(&verifier(footer.len()), &footer)
            .map_err(|_| fault(table, "damaged footer", footer_start))?;
        let at_footer = |what| fault(table, what, footer_start);
        if parsed.version() != MetadataVersion::V5 {
            return Err(at_footer("not metadata version 5"));
        }
        if parsed.dictionaries().is_some_and(|list| !list.is_empty())
            || parsed
                .custom_metadata()
                .is_some_and(|list| !list.is_empty())
        {
            return Err(at_footer("dictionaries or metadata in the footer"));
        }
        let schema = parsed
            .schema()
            .ok_or_else(|| at_footer("no schema in the footer"))?;
        let metadata = columns::check(table, schema).map_err(at_footer)?;
        let (first, same) = read_schema(file, table, footer_start)?;
        if same != metadata {
            return Err(at_footer("schema and footer differ in metadata"));
        }

        let batches = parsed.recordBatches();
        let mut blocks = Vec::with_capacity(
            batches
                .map_or(0, |list| list.len())
                .min((size / ALIGNMENT) as usize),
        );
        let mut at = first;
        for found in batches.iter().flatten() {
            let block = check_block(found, at)
                .ok_or_else(|| fault(table, "batches are not contiguous", at))?;
            at = end_of(block)
                .filter(|end| *end <= footer_start)
                .ok_or_else(|| fault(table, "a batch ends outside the file", at))?;
            blocks.push(block);
        }
        if at.checked_add(END_BYTES) != Some(footer_start)
            || read(file, at, END_BYTES as usize)? != [CONTINUATION, [0; 4]].concat()
        {
            return Err(fault(
                table,
                "bytes between the last batch and the footer",
                at,
            ));
        }
        Ok(Self {
            file,
            table,
            metadata,
            blocks,
        })
    }
}

fn end_of(block: Block) -> Option<u64> {
    block
        .offset
        .checked_add(block.header_bytes)?
        .checked_add(block.body_bytes)
}

fn check_block(found: &arrow_ipc::Block, at: u64) -> Option<Block> {
    let block = Block {
        offset: u64::try_from(found.offset()).ok()?,
        header_bytes: u64::try_from(found.metaDataLength()).ok()?,
        body_bytes: u64::try_from(found.bodyLength()).ok()?,
    };
    let aligned =
        block.header_bytes.is_multiple_of(ALIGNMENT) && block.body_bytes.is_multiple_of(ALIGNMENT);
    (block.offset == at && block.header_bytes > 0 && aligned).then_some(block)
}

fn read_footer<R: ReadAt + ?Sized>(
    file: &R,
    table: &'static Table,
    size: u64,
) -> Result<(u64, Vec<u8>)> {
    let tail_start = size - TAIL_BYTES;
    let tail = read(file, tail_start, TAIL_BYTES as usize)?;
    let (length, magic) = tail.split_at(4);
    if magic != MAGIC {
        return Err(fault(table, "no Arrow magic", tail_start + 4));
    }
    let length = length
        .try_into()
        .ok()
        .and_then(|bytes| u64::try_from(i32::from_le_bytes(bytes)).ok())
        .filter(|length| *length > 0 && *length <= tail_start - ALIGNMENT - END_BYTES)
        .ok_or_else(|| fault(table, "impossible footer length", tail_start))?;
    let start = tail_start - length;
    Ok((start, read(file, start, length as usize)?))
}

/// Reads a message header of at most `limit` bytes at `at`, prefix included; returns the flatbuffer.
pub(crate) fn read_message<R: ReadAt + ?Sized>(
    file: &R,
    table: &'static Table,
    at: u64,
    limit: u64,
) -> Result<Vec<u8>> {
    let prefix = read(file, at, 8)?;
    let length = prefix
        .strip_prefix(&CONTINUATION)
        .and_then(|bytes| bytes.try_into().ok())
        .and_then(|bytes| u64::try_from(i32::from_le_bytes(bytes)).ok())
        .filter(|length| *length > 0 && *length + 8 <= limit && (*length + 8) % ALIGNMENT == 0)
        .ok_or_else(|| fault(table, "impossible message length", at))?;
    read(file, at + 8, length as usize)
}

/// Checks the schema message; returns where it ends, and its metadata.
fn read_schema<R: ReadAt + ?Sized>(
    file: &R,
    table: &'static Table,
    footer_start: u64,
) -> Result<(u64, BTreeMap<String, String>)> {
    let room = footer_start
        .saturating_sub(ALIGNMENT)
        .min(MAX_SCHEMA_BYTES as u64);
    let bytes = read_message(file, table, ALIGNMENT, room)?;
    let fail = |what| fault(table, what, ALIGNMENT);
    let message = arrow_ipc::root_as_message_with_opts(&verifier(bytes.len()), &bytes)
        .map_err(|_| fail("damaged schema message"))?;
    if message.version() != MetadataVersion::V5
        || message.header_type() != MessageHeader::Schema
        || message.bodyLength() != 0
        || message
            .custom_metadata()
            .is_some_and(|list| !list.is_empty())
    {
        return Err(fail("not a schema message of version 5"));
    }
    let schema = message
        .header_as_schema()
        .ok_or_else(|| fail("no schema"))?;
    let metadata = columns::check(table, schema).map_err(fail)?;
    Ok((ALIGNMENT + 8 + bytes.len() as u64, metadata))
}
