//! Collects the records and image links of all input files, in order.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use stoker_formats::ImageKey;

use super::scan::{FileScan, Line, ScanOptions, scan_file};
use super::{PlannedFile, PlannedImage, stamp_of};
use crate::build::stop::Stop;
use crate::error::{Error, Result};
use crate::limits::LINE_BYTES_MAX;
use crate::record::{self, RecordOptions, Shape};
use crate::reject::Reason;
use crate::source::link::{Base, Policy};

/// The shape of a file is judged by its first lines: so many bytes, and the rest of the line in which they end.
const DETECT_BYTES: u64 = 1 << 20;

/// Inputs that stay open at most, and at most a quarter of what the process may open: records are read in random order. Those
/// beyond are opened for each look.
const OPEN_MAX: u64 = 256;

/// An input file whose plain text lies on a local disk.
#[derive(Debug)]
pub(crate) struct ToScan {
    pub(crate) name: String,
    pub(crate) uri: String,
    pub(crate) etag: Option<String>,
    pub(crate) base: Base,
    pub(crate) path: PathBuf,
}

/// What the deal works on, before any assignment.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) files: Vec<PlannedFile>,
    pub(crate) lines: Vec<Line>,
    pub(crate) link_starts: Vec<u32>,
    pub(crate) links: Vec<u32>,
    pub(crate) images: Vec<PlannedImage>,
    pub(crate) faulty: Vec<(u32, Reason)>,
}

/// Scans `files` in order. `shape` forces one record shape; otherwise each file's is detected.
///
/// # Errors
/// [`Error::Input`] for a file of no known shape, [`Error::Io`] for one that cannot be read.
pub(crate) fn collect(
    files: Vec<ToScan>,
    shape: Option<Shape>,
    record: &RecordOptions,
    policy: &Policy,
    stop: &Stop,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<Collected> {
    let mut collected = Collected {
        link_starts: vec![0],
        ..Collected::default()
    };
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_max = usize::try_from(OPEN_MAX.min(allowed / 4)).unwrap_or(0);
    let mut numbers = HashMap::new();
    for file in files {
        let shape = match shape {
            Some(shape) => shape,
            None => detect_shape(&file)?,
        };
        let options = ScanOptions {
            shape,
            record,
            base: &file.base,
            policy,
        };
        let text = File::open(&file.path).map_err(Error::io("open", &file.path))?;
        let stamp = stamp_of(&text, &file.path)?;
        let scanned = scan_file(&text, &file.path, options, stop, on_bytes)?;
        let first_record = u32::try_from(collected.lines.len()).unwrap_or(u32::MAX);
        let planned = PlannedFile {
            text: (collected.files.len() < open_max).then_some(text),
            stamp,
            first_record,
            records: u32::try_from(scanned.scan.lines.len()).unwrap_or(u32::MAX),
            bytes: scanned.bytes,
            hash: scanned.hash,
            shape,
            name: file.name,
            uri: file.uri,
            etag: file.etag,
            path: file.path,
            base: file.base,
        };
        collected
            .append(scanned.scan, &mut numbers)
            .ok_or_else(|| Error::Input {
                what: "more than 4294967294 records or image links in all".into(),
                uri: planned.uri.clone(),
                hint: "build the data set as several caches and mix them when reading".into(),
            })?;
        collected.files.push(planned);
    }
    Ok(collected)
}

fn detect_shape(file: &ToScan) -> Result<Shape> {
    let head = read_head(&file.path)?;
    if head.iter().all(u8::is_ascii_whitespace) && (head.len() as u64) < DETECT_BYTES {
        // No record, so any shape will do.
        return Ok(Shape::Messages);
    }
    let lines = head.split(|byte| *byte == b'\n');
    record::detect(lines).ok_or_else(|| Error::Input {
        what: "no record of a known shape near the start of the file".into(),
        uri: file.uri.clone(),
        hint: "name the shape with --schema messages, llava, swift, sharegpt or vqa".into(),
    })
}

fn read_head(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let mut reader = BufReader::new(file.take(LINE_BYTES_MAX as u64));
    let mut head = Vec::new();
    let read = reader
        .by_ref()
        .take(DETECT_BYTES)
        .read_to_end(&mut head)
        .and_then(|_| reader.read_until(b'\n', &mut head));
    read.map_err(Error::io("read", path))?;
    Ok(head)
}

impl Collected {
    /// The images of a record, in order of appearance, with repeats.
    pub(crate) fn record_images(&self, record: u32) -> &[u32] {
        let at = record as usize;
        &self.links[self.link_starts[at] as usize..self.link_starts[at + 1] as usize]
    }

    /// Appends the scan of the next file; `numbers` maps an image's key to its number. `None` if
    /// there are more records, links or images than 32 bits count.
    fn append(&mut self, scan: FileScan, numbers: &mut HashMap<ImageKey, u32>) -> Option<()> {
        let first = u32::try_from(self.lines.len()).ok()?;
        let mut links = scan.links.into_iter();
        for (record, count) in (first..).zip(&scan.link_counts) {
            for (position, key) in (0..*count).zip(links.by_ref()) {
                let next = u32::try_from(self.images.len()).ok()?;
                let number = *numbers.entry(key).or_insert(next);
                if number == next {
                    self.images.push(PlannedImage {
                        key,
                        record,
                        position,
                    });
                }
                self.links.push(number);
            }
            self.link_starts.push(u32::try_from(self.links.len()).ok()?);
        }
        let faulty = scan.faulty.into_iter();
        self.faulty
            .extend(faulty.map(|(at, reason)| (at + first, reason)));
        self.lines.extend(scan.lines);
        u32::try_from(self.lines.len())
            .ok()
            .filter(|records| *records < u32::MAX)?;
        Some(())
    }
}
