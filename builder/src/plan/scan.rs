//! The scan of one JSONL file: where its records stand, which images they name, what it holds.
//!
//! Reads the file once, block by block on all threads. Memory is a few words a record; no text is
//! kept. Invariant: the result depends on the file's bytes alone, not on blocks, threads or place.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rayon::prelude::*;
use stoker_formats::{ContentHash, ImageKey};

use crate::build::stop::Stop;
use crate::error::{Error, Result};
use crate::limits::LINE_BYTES_MAX;
use crate::record::{self, RecordOptions, Shape};
use crate::reject::Reason;
use crate::source::link::{self, Base, Policy};

/// A block is large enough to hide the cost of its edges and small enough for every thread to hold one.
const BLOCK_BYTES: u64 = 8 << 20;

/// Blocks scanned between two looks at the stop request; bounds what a wave holds in memory.
const WAVE_BLOCKS: usize = 32;

/// How far a line that leaves its block is read at a time.
const EXTENSION_BYTES: usize = 64 << 10;

/// A UTF-8 byte order mark at the start of a file is no part of its first record.
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Where a record's line stands in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// First byte of the line.
    pub offset: u64,
    /// Bytes without the line break; [`Line::TOO_LONG`] for a line above the limit.
    pub bytes: u32,
    /// Number of the line, from 1.
    pub number: u32,
}

impl Line {
    /// Marks a line above [`LINE_BYTES_MAX`](LINE_BYTES_MAX), which is never read whole.
    pub const TOO_LONG: u32 = u32::MAX;
}

/// What a scan found. `links` holds the image keys of all records one after the other,
/// `link_counts` how many each record has.
#[derive(Debug, Default)]
pub(crate) struct FileScan {
    pub(crate) lines: Vec<Line>,
    pub(crate) link_counts: Vec<u16>,
    pub(crate) links: Vec<ImageKey>,
    /// Records, by number in this file, that cannot be used whatever their images are, and why.
    pub(crate) faulty: Vec<(u32, Reason)>,
}

/// A file's scan, size and hash: that of the hashes of its blocks.
#[derive(Debug)]
pub(crate) struct ScannedFile {
    pub(crate) scan: FileScan,
    pub(crate) bytes: u64,
    pub(crate) hash: ContentHash,
}

/// How records are read and links resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScanOptions<'a> {
    pub(crate) shape: Shape,
    pub(crate) record: &'a RecordOptions,
    pub(crate) base: &'a Base,
    pub(crate) policy: &'a Policy,
}

struct BlockScan {
    hash: blake3::Hash,
    newlines: u64,
    /// Line numbers here count from the block's start.
    scan: FileScan,
}

/// Scans the plain JSONL file `file`, which `path` names.
pub(crate) fn scan_file(
    file: &File,
    path: &Path,
    options: ScanOptions<'_>,
    stop: &Stop,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<ScannedFile> {
    let size = file.metadata().map_err(Error::io("read", path))?.len();
    let blocks: Vec<u64> = (0..size.div_ceil(BLOCK_BYTES)).collect();
    let mut whole = FileScan::default();
    // The hash of the block hashes, so that blocks can be hashed side by side.
    let mut hasher = blake3::Hasher::new();
    let mut newlines = 0u64;
    for wave in blocks.chunks(WAVE_BLOCKS) {
        stop.check()?;
        let scans = wave
            .par_iter()
            .map(|block| {
                let scan = scan_block(file, block * BLOCK_BYTES, size, options);
                on_bytes(BLOCK_BYTES.min(size - block * BLOCK_BYTES));
                scan.map_err(Error::io("read", path))
            })
            .collect::<Result<Vec<_>>>()?;
        for block in scans {
            hasher.update(block.hash.as_bytes());
            whole
                .append(block.scan, newlines)
                .ok_or_else(|| too_many_lines(path))?;
            newlines += block.newlines;
        }
    }
    Ok(ScannedFile {
        scan: whole,
        bytes: size,
        hash: ContentHash(*hasher.finalize().as_bytes()),
    })
}

fn too_many_lines(path: &Path) -> Error {
    Error::Input {
        what: "more than 4294967294 lines in one file".into(),
        uri: path.display().to_string(),
        hint: "split the file".into(),
    }
}

impl FileScan {
    /// Appends the scan of the next block, before which `newlines` lines ended.
    fn append(&mut self, block: Self, newlines: u64) -> Option<()> {
        let first = u32::try_from(self.lines.len()).ok()?;
        let newlines = u32::try_from(newlines).ok()?;
        for mut line in block.lines {
            line.number = line.number.checked_add(newlines)?;
            self.lines.push(line);
        }
        self.link_counts.extend(block.link_counts);
        self.links.extend(block.links);
        let faulty = block.faulty.into_iter();
        self.faulty
            .extend(faulty.map(|(at, reason)| (at + first, reason)));
        Some(())
    }

    fn push(&mut self, line: Line, text: &[u8], options: ScanOptions<'_>) {
        let links = if line.bytes == Line::TOO_LONG {
            Err(Reason::LineTooLong)
        } else {
            record::scan_links(text, options.shape, options.record).map_err(|reject| reject.reason)
        };
        let before = self.links.len();
        let mut fault = links.as_ref().err().copied();
        for raw in links.unwrap_or_default() {
            // A forbidden link is no image; its record is rejected when its text is prepared.
            match link::resolve(&raw, options.base, options.policy) {
                Ok(link) => self.links.push(ImageKey(link.key())),
                Err(reject) => fault = fault.or(Some(reject.reason)),
            }
        }
        if let Some(reason) = fault {
            let record = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
            self.faulty.push((record, reason));
        }
        let count = self.links.len() - before;
        self.link_counts
            .push(u16::try_from(count).unwrap_or(u16::MAX));
        self.links.truncate(before + usize::from(u16::MAX));
        self.lines.push(line);
    }
}

/// Scans the lines that start in the block at `start`.
fn scan_block(
    file: &File,
    start: u64,
    size: u64,
    options: ScanOptions<'_>,
) -> std::io::Result<BlockScan> {
    let end = size.min(start + BLOCK_BYTES);
    // One byte more in front tells whether the block starts with a line.
    let lead = u64::from(start > 0);
    let mut buffer = vec![0; usize::try_from(end - start + lead).unwrap_or(0)];
    file.read_exact_at(&mut buffer, start - lead)?;
    let lead = usize::from(lead > 0);
    let mut block = BlockScan {
        hash: blake3::hash(&buffer[lead..]),
        newlines: 0,
        scan: FileScan::default(),
    };
    let mut at;
    if start == 0 {
        at = if buffer.starts_with(BYTE_ORDER_MARK) {
            BYTE_ORDER_MARK.len()
        } else {
            0
        };
    } else if buffer[0] == b'\n' {
        at = 1;
    } else {
        match find_newline(&buffer[lead..]) {
            Some(found) => {
                block.newlines = 1;
                at = lead + found + 1;
            }
            None => at = buffer.len(),
        }
    }
    while at < buffer.len() {
        let offset = start + (at - lead) as u64;
        let number = u32::try_from(block.newlines + 1).unwrap_or(u32::MAX);
        if let Some(length) = find_newline(&buffer[at..]) {
            take_line(
                &mut block.scan,
                offset,
                number,
                &buffer[at..at + length],
                options,
            );
            block.newlines += 1;
            at += length + 1;
        } else {
            let mut line = buffer.split_off(at);
            let complete = extend_line(file, &mut line, end, size)?;
            if complete {
                take_line(&mut block.scan, offset, number, &line, options);
            } else {
                let bytes = Line::TOO_LONG;
                let line = Line {
                    offset,
                    bytes,
                    number,
                };
                block.scan.push(line, &[], options);
            }
            break;
        }
    }
    Ok(block)
}

/// Reads on from `end` until the line ends. `false` if it is longer than the limit.
fn extend_line(file: &File, line: &mut Vec<u8>, end: u64, size: u64) -> std::io::Result<bool> {
    let mut at = end;
    while at < size && line.len() <= LINE_BYTES_MAX {
        let known = line.len();
        let more = EXTENSION_BYTES.min(usize::try_from(size - at).unwrap_or(EXTENSION_BYTES));
        line.resize(known + more, 0);
        file.read_exact_at(&mut line[known..], at)?;
        if let Some(found) = find_newline(&line[known..]) {
            line.truncate(known + found);
            break;
        }
        at += more as u64;
    }
    Ok(line.len() <= LINE_BYTES_MAX)
}

fn take_line(scan: &mut FileScan, offset: u64, number: u32, text: &[u8], options: ScanOptions<'_>) {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.iter().all(u8::is_ascii_whitespace) {
        return;
    }
    let bytes = if text.len() > LINE_BYTES_MAX {
        Line::TOO_LONG
    } else {
        u32::try_from(text.len()).unwrap_or(Line::TOO_LONG)
    };
    let line = Line {
        offset,
        bytes,
        number,
    };
    scan.push(line, text, options);
}

fn find_newline(bytes: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', bytes)
}
