//! The inside of a record batch: where each buffer of each column lies in the file.
//!
//! Owns the strict check of nodes and buffers. Invariant: buffers come in schema order, each at the next multiple of
//! 64 bytes, exactly as long as its column's lengths demand, with zeros between, and they fill the body.

use arrow_ipc::{MessageHeader, MetadataVersion};

use crate::columns::{Column, Kind};
use crate::error::{Error, Result};
use crate::frame::{Block, Frame, check_zero, fault, read_message, verifier};
use crate::limits::{ALIGNMENT, CHUNK_BYTES, MAX_BATCH_HEADER_BYTES};
use crate::read_at::ReadAt;

/// Where a column's bytes lie. Positions are bytes from the start of the file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Buffers {
    /// First byte of the null bitmap, where the column has nulls.
    pub(crate) nulls: Option<u64>,
    /// First byte of `rows + 1` 64-bit offsets (variable columns).
    pub(crate) offsets: u64,
    /// First byte of the values.
    pub(crate) values: u64,
    /// Elements that the offsets count: bytes of text, numbers of a list, triples of a list of triples.
    pub(crate) elements: u64,
}

/// A record batch whose layout is right.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) rows: u64,
    pub(crate) columns: Vec<Buffers>,
}

/// Rounds up to the alignment.
pub(crate) fn align(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

/// Walks nodes and buffers of one batch in order.
struct Walk<'a> {
    nodes: flatbuffers::Vector<'a, arrow_ipc::FieldNode>,
    buffers: flatbuffers::Vector<'a, arrow_ipc::Buffer>,
    next_node: usize,
    next_buffer: usize,
    /// End of the last buffer, inside the body.
    end: u64,
    body: Block,
    /// Ranges of the file that must be zero.
    padding: Vec<(u64, u64)>,
}

impl Walk<'_> {
    /// The next node's length and null count.
    fn node(&mut self) -> Result<(u64, u64), &'static str> {
        if self.next_node >= self.nodes.len() {
            return Err("too few column nodes");
        }
        let node = self.nodes.get(self.next_node);
        self.next_node += 1;
        match (
            u64::try_from(node.length()),
            u64::try_from(node.null_count()),
        ) {
            (Ok(length), Ok(nulls)) => Ok((length, nulls)),
            _ => Err("negative length"),
        }
    }

    /// A node of exactly `length` values without nulls, and its empty null bitmap.
    fn plain_node(&mut self, length: u64) -> Result<(), &'static str> {
        if self.node()? != (length, 0) {
            return Err("another column length, or nulls");
        }
        self.buffer(0).map(drop)
    }

    /// The next buffer, which must have `length` bytes; returns where it starts in the file.
    fn buffer(&mut self, length: u64) -> Result<u64, &'static str> {
        if self.next_buffer >= self.buffers.len() {
            return Err("too few buffers");
        }
        let buffer = self.buffers.get(self.next_buffer);
        self.next_buffer += 1;
        let start = align(self.end).ok_or("a buffer outside its batch")?;
        if u64::try_from(buffer.offset()) != Ok(start) {
            return Err("a buffer is not where it must be");
        }
        if u64::try_from(buffer.length()) != Ok(length) {
            return Err("a buffer has another length");
        }
        let body_start = self.body.offset + self.body.header_bytes;
        if self.end < start {
            self.padding
                .push((body_start + self.end, body_start + start));
        }
        self.end = start
            .checked_add(length)
            .filter(|end| *end <= self.body.body_bytes)
            .ok_or("a buffer outside its batch")?;
        Ok(body_start + start)
    }

    fn column(&mut self, column: &Column, rows: u64) -> Result<Buffers, &'static str> {
        let (length, nulls) = self.node()?;
        if length != rows || nulls > if column.nullable { rows } else { 0 } {
            return Err("another column length, or nulls");
        }
        let bitmap = self.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 })?;
        let mut found = Buffers {
            nulls: (nulls > 0).then_some(bitmap),
            ..Buffers::default()
        };
        let times = |count: u64, width: u64| count.checked_mul(width).ok_or("impossible length");
        match column.kind {
            Kind::Text | Kind::Bytes => {
                found.offsets = self.offsets(rows)?;
                found.elements = self.peek_length()?;
                found.values = self.buffer(found.elements)?;
            }
            Kind::List(number) => {
                found.offsets = self.offsets(rows)?;
                found.elements = self.child()?;
                found.values = self.buffer(times(found.elements, number.width())?)?;
            }
            Kind::ListOfFixed(width) => {
                found.offsets = self.offsets(rows)?;
                found.elements = self.child()?;
                let numbers = times(found.elements, width as u64)?;
                self.plain_node(numbers)?;
                found.values = self.buffer(times(numbers, 4)?)?;
            }
            Kind::Fixed(width) => {
                let numbers = times(rows, width as u64)?;
                self.plain_node(numbers)?;
                found.values = self.buffer(times(numbers, 4)?)?;
            }
            Kind::FixedBytes(width) => found.values = self.buffer(times(rows, width as u64)?)?,
            Kind::One(number) => found.values = self.buffer(times(rows, number.width())?)?,
        }
        Ok(found)
    }

    fn offsets(&mut self, rows: u64) -> Result<u64, &'static str> {
        let length = rows.checked_add(1).and_then(|count| count.checked_mul(8));
        self.buffer(length.ok_or("impossible length")?)
    }

    /// The length that the next buffer claims: text columns have no child node that says it.
    fn peek_length(&self) -> Result<u64, &'static str> {
        if self.next_buffer >= self.buffers.len() {
            return Err("too few buffers");
        }
        u64::try_from(self.buffers.get(self.next_buffer).length()).map_err(|_| "negative length")
    }

    /// The next node, of any length but without nulls, and its empty null bitmap.
    fn child(&mut self) -> Result<u64, &'static str> {
        let (length, nulls) = self.node()?;
        if nulls > 0 {
            return Err("nulls in a list");
        }
        self.buffer(0)?;
        Ok(length)
    }
}

impl<R: ReadAt + ?Sized> Frame<'_, R> {
    /// Checks the batch in `block`.
    pub(crate) fn batch(&self, block: Block) -> Result<Batch> {
        let fail = |what| fault(self.table, what, block.offset);
        let limit = block.header_bytes.min(MAX_BATCH_HEADER_BYTES as u64);
        let bytes = read_message(self.file, self.table, block.offset, limit)?;
        if bytes.len() as u64 + 8 != block.header_bytes {
            return Err(fail("the footer gives another message length"));
        }
        let message = arrow_ipc::root_as_message_with_opts(&verifier(bytes.len()), &bytes)
            .map_err(|_| fail("damaged batch header"))?;
        if message.version() != MetadataVersion::V5
            || message.header_type() != MessageHeader::RecordBatch
            || u64::try_from(message.bodyLength()) != Ok(block.body_bytes)
            || message
                .custom_metadata()
                .is_some_and(|list| !list.is_empty())
        {
            return Err(fail("not a record batch message of version 5"));
        }
        let record = message
            .header_as_record_batch()
            .ok_or_else(|| fail("no record batch"))?;
        if record.compression().is_some()
            || record
                .variadicBufferCounts()
                .is_some_and(|list| !list.is_empty())
        {
            return Err(fail("compressed or variadic buffers"));
        }
        let rows = u64::try_from(record.length()).map_err(|_| fail("negative length"))?;
        let (Some(nodes), Some(buffers)) = (record.nodes(), record.buffers()) else {
            return Err(fail("no buffers"));
        };
        let mut walk = Walk {
            nodes,
            buffers,
            next_node: 0,
            next_buffer: 0,
            end: 0,
            body: block,
            padding: Vec::new(),
        };
        let mut columns = Vec::with_capacity(self.table.columns.len());
        for column in self.table.columns {
            columns.push(walk.column(column, rows).map_err(fail)?);
        }
        let body_end = block.offset + block.header_bytes + block.body_bytes;
        if walk.next_node != nodes.len() || walk.next_buffer != buffers.len() {
            return Err(fail("too many buffers"));
        }
        if align(walk.end) != Some(block.body_bytes) {
            return Err(fail("bytes after the last buffer"));
        }
        walk.padding
            .push((body_end - block.body_bytes + walk.end, body_end));
        for (from, to) in walk.padding {
            check_zero(self.file, self.table, from, to)?;
        }
        Ok(Batch { rows, columns })
    }
}

/// Reads fixed-width values in order, a small chunk at a time.
pub(crate) struct Cursor<'a, R: ?Sized, const N: usize> {
    file: &'a R,
    at: u64,
    left: u64,
    chunk: Vec<u8>,
    used: usize,
}

impl<'a, R: ReadAt + ?Sized, const N: usize> Cursor<'a, R, N> {
    /// `count` values of `N` bytes from `at`; the range lies inside the file.
    pub(crate) fn new(file: &'a R, at: u64, count: u64) -> Self {
        Self {
            file,
            at,
            left: count,
            chunk: Vec::new(),
            used: 0,
        }
    }

    /// The next value; none after the last.
    pub(crate) fn next(&mut self) -> Result<Option<[u8; N]>> {
        if self.used == self.chunk.len() {
            let count = self.left.min((CHUNK_BYTES / 16 / N) as u64);
            if count == 0 {
                return Ok(None);
            }
            self.chunk.resize(count as usize * N, 0);
            self.file
                .read_exact_at(&mut self.chunk, self.at)
                .map_err(Error::io("read a cache file"))?;
            self.at += self.chunk.len() as u64;
            self.left -= count;
            self.used = 0;
        }
        let value = self
            .chunk
            .get(self.used..self.used + N)
            .and_then(|bytes| bytes.try_into().ok());
        self.used += N;
        Ok(value)
    }
}
