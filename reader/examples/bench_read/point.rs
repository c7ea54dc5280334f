//! One way of reading, measured: what it delivers, what it costs, and whether all of it was right.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stoker_reader::{
    Backend, Batch, CacheFiles, Layout, Pixels, Reader, ReaderOptions, Step, Tail, Verify, memory,
};

use crate::corpus;
use crate::limits::{BUFFERS, Measured, drop_pages, memcpy, ranges};

/// Bytes of the copies that a point is held against.
const COPIED: u64 = 1 << 30;

/// Batches between two looks at the process's memory.
const LOOK: usize = 32;

/// A way of reading.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) batch: u32,
    pub(crate) verify: Verify,
    pub(crate) backend: Backend,
    pub(crate) threads: usize,
    pub(crate) prefetch_batches: u64,
    pub(crate) prefetch_bytes: Option<u64>,
}

impl Way {
    pub(crate) fn open(&self, cache: &Path, sample_ids: bool) -> Reader {
        let mut options = ReaderOptions::new(cache, self.batch);
        options.order.tail = Tail::All;
        // A short last batch would be left out.
        options.order.last = stoker_reader::Last::Pad;
        options.pixels = Pixels::U8;
        options.layout = Some(Layout::Packed);
        (options.verify, options.backend, options.threads) =
            (self.verify, self.backend, self.threads);
        options.prefetch_batches = self.prefetch_batches;
        options.prefetch_bytes = self.prefetch_bytes;
        options.sample_ids = sample_ids;
        Reader::open(options).expect("a reader")
    }
}

/// The next batch, or none where an epoch ends.
pub(crate) fn next(reader: &mut Reader) -> Option<Batch> {
    match reader.next_batch(None).expect("a batch") {
        Step::Batch(batch) => Some(batch),
        Step::EpochEnd => None,
        Step::TimedOut => panic!("waits without end"),
    }
}

/// Bytes of a batch's patches, whose sampled bytes are right.
pub(crate) fn taken(batch: &Batch) -> u64 {
    let pixels = batch.bytes(batch.tensor("pixel_values").expect("a tensor"));
    assert!(corpus::trace(pixels), "wrong bytes");
    pixels.len() as u64
}

/// What was delivered so far.
#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    samples: usize,
    anonymous: u64,
    first_seconds: f64,
}

impl Seen {
    fn take(&mut self, batch: &Batch) {
        self.bytes += taken(batch);
        self.samples += batch.units.iter().flatten().count();
    }

    /// Opens a reader and takes the first batch.
    fn start(&mut self, cache: &Path, way: &Way) -> Reader {
        let opened = Instant::now();
        let mut reader = way.open(cache, false);
        let first = next(&mut reader).expect("a batch");
        self.first_seconds = opened.elapsed().as_secs_f64();
        self.take(&first);
        reader
    }

    /// Takes batches until `time` is over, or to the end of the epoch; gives the bytes of all.
    fn drain(&mut self, reader: &mut Reader, time: Option<Duration>) -> u64 {
        let started = Instant::now();
        for number in 0.. {
            if number % LOOK == 0 {
                let (anonymous, _) = memory::resident().expect("/proc");
                self.anonymous = self.anonymous.max(anonymous);
            }
            match next(reader) {
                Some(batch) => self.take(&batch),
                None if time.is_none() => break,
                None => {}
            }
            if time.is_some_and(|time| started.elapsed() >= time) {
                break;
            }
        }
        self.bytes
    }
}

/// Reads for `seconds`; or one epoch of a cold cache, opening included. Gives the figures.
pub(crate) fn measure(cache: &Path, way: &Way, cold: bool, seconds: f64) -> Value {
    let mut ranges = ranges(cache);
    let mut seen = Seen::default();
    let (measured, checked, disk_bytes);
    if cold {
        drop_pages(&ranges);
        let before = from_disk();
        measured = Measured::of(|| {
            let mut reader = seen.start(cache, way);
            seen.drain(&mut reader, None)
        });
        disk_bytes = from_disk() - before;
        checked = check(cache, way);
    } else {
        // This also brings the pages in as the reader does.
        checked = check(cache, way);
        let before = from_disk();
        let mut reader = seen.start(cache, way);
        // The first batches make the buffers that all others use again.
        for _ in 0..4 * BUFFERS {
            next(&mut reader);
        }
        (seen.bytes, seen.samples) = (0, 0);
        let time = Some(Duration::from_secs_f64(seconds));
        measured = Measured::of(|| seen.drain(&mut reader, time));
        disk_bytes = from_disk() - before;
    }
    let mut room = COPIED;
    ranges.retain(|(_, _, length)| {
        room = room.saturating_sub(*length);
        room > 0
    });
    let copied = memcpy(&ranges, way.batch as usize, 1);
    json!({
        "bytes": measured.bytes, "wall": measured.wall, "cpu": measured.cpu, "samples": seen.samples,
        "first_seconds": seen.first_seconds, "anonymous_bytes": seen.anonymous, "disk_bytes": disk_bytes,
        "checked": checked,
        "memcpy_bytes": copied.bytes, "memcpy_wall": copied.wall, "memcpy_cpu": copied.cpu,
    })
}

/// Reads one epoch and holds everything against what was written; gives the number of samples.
fn check(cache: &Path, way: &Way) -> usize {
    let mut reader = way.open(cache, true);
    let (mut lines, mut tokens) = (Vec::new(), 0);
    while let Some(batch) = next(&mut reader) {
        tokens += batch.tokens as u64;
        lines.extend(corpus::check(&batch));
    }
    let delivered = lines.len();
    lines.sort_unstable();
    lines.dedup();
    let files = CacheFiles::open(cache).expect("a cache");
    let split = files.manifest().splits.first().expect("a split");
    assert_eq!(lines.len(), delivered, "samples came twice");
    assert_eq!(
        (delivered as u64, tokens),
        (split.samples, split.tokens),
        "samples or tokens are missing"
    );
    delivered
}

/// Bytes that this process had from disks so far.
fn from_disk() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").expect("/proc");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).expect("a number")
}
