//! What a machine can read of a cache: memory, disk, link to the GPU, and the reader beside them.
//!
//! Owns the measurements behind `stoker bench`. Invariant: every rate is measured here and now, on the cache's own bytes
//! where it has enough; what cannot be measured is absent.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use stoker_reader::device::{self, DeviceOptions};
use stoker_reader::{CacheFiles, PlainMemory, Reader, ReaderOptions, Step};

use crate::error::Result;

/// Bytes of one copy, read or upload.
const PIECE: usize = 8 << 20;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// The cache's folder.
    pub cache: PathBuf,
    /// The split to read.
    pub split: String,
    /// Samples of a micro-batch.
    pub batch_size: u32,
    /// Seconds of one training step.
    pub step: Option<f64>,
    /// Seconds of each measurement.
    pub seconds: f64,
}

/// What was measured. Rates are in GB (10^9 bytes) a second.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// One thread's copies in memory.
    pub memcpy_gb_s: f64,
    /// Direct reads of the cache's shards; none where the file system has no such reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_gb_s: Option<f64>,
    /// Uploads to the first GPU; none where there is no GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_link_gb_s: Option<f64>,
    /// What the reader delivers, opening not included.
    pub reader_gb_s: f64,
    /// Micro-batches a second.
    pub reader_batches_s: f64,
    /// Seconds from opening to the first batch.
    pub first_batch_seconds: f64,
    /// The stage that held the reader back.
    pub limit: &'static str,
    /// Samples of a micro-batch.
    pub batch_size: u32,
    /// Seconds of a step, as given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_seconds: Option<f64>,
    /// Whether such a step would wait for data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starves: Option<bool>,
}

impl Report {
    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let optional = |rate: Option<f64>, without: &str| {
            rate.map_or_else(|| without.to_owned(), |rate| format!("{rate:.2} GB/s"))
        };
        let mut text = format!(
            "memory copies   {:.2} GB/s\ndisk            {}\nlink to the GPU {}\nreader          {:.2} GB/s, {:.1} micro-batches of {} a second\nfirst batch     {:.3} s\nheld back by    {}\n",
            self.memcpy_gb_s,
            optional(self.disk_gb_s, "no direct reads on this file system"),
            optional(self.gpu_link_gb_s, "no GPU here"),
            self.reader_gb_s,
            self.reader_batches_s,
            self.batch_size,
            self.first_batch_seconds,
            self.limit,
        );
        if let (Some(step), Some(starves)) = (self.step_seconds, self.starves) {
            let verdict = if starves {
                "would wait"
            } else {
                "would not wait"
            };
            let needed = 1.0 / step;
            text.push_str(&format!(
                "a step of {step} s needs {needed:.1} micro-batches a second: it {verdict}\n"
            ));
        }
        text
    }
}

/// Measures.
///
/// # Errors
/// If the cache cannot be read.
pub fn run(options: &Options) -> Result<Report> {
    let time = Duration::from_secs_f64(options.seconds);
    let files = CacheFiles::open(&options.cache)?;
    let (reader_gb_s, reader_batches_s, first_batch_seconds, limit) = read(options, time)?;
    Ok(Report {
        memcpy_gb_s: memcpy(time)?,
        disk_gb_s: disk(&files, time)?,
        gpu_link_gb_s: gpu_link(time),
        reader_gb_s,
        reader_batches_s,
        first_batch_seconds,
        limit,
        batch_size: options.batch_size,
        step_seconds: options.step,
        starves: options.step.map(|step| reader_batches_s * step < 1.0),
    })
}

/// GB a second of `work`, which moves and returns bytes, over `time`.
fn rate<E>(time: Duration, mut work: impl FnMut() -> Result<u64, E>) -> Result<f64, E> {
    let started = Instant::now();
    let mut bytes = 0;
    while started.elapsed() < time {
        bytes += work()?;
    }
    Ok(bytes as f64 / 1e9 / started.elapsed().as_secs_f64())
}

fn memcpy(time: Duration) -> Result<f64> {
    // Larger than the caches of the CPU.
    let mut source = PlainMemory::new(PIECE * 32)?;
    source.fill(7);
    let mut target = PlainMemory::new(PIECE)?;
    let mut pieces = (0..32).cycle();
    rate(time, || {
        let at = pieces.next().unwrap_or(0) * PIECE;
        target[..PIECE].copy_from_slice(&source[at..at + PIECE]);
        black_box(&target[PIECE / 2]);
        Ok(PIECE as u64)
    })
}

/// Direct reads of the image shards one after another.
fn disk(files: &CacheFiles, time: Duration) -> Result<Option<f64>> {
    let mut shards = Vec::new();
    for file in files.expected() {
        if let stoker_formats::FileName::Shard { .. } = file.name {
            let path = files.path(file.folder, file.name);
            let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            let open = OpenOptions::new()
                .read(true)
                .custom_flags(flags)
                .open(&path);
            match open {
                Ok(open) => shards.push((open, file.entry.bytes)),
                Err(_) => return Ok(None),
            }
            // Enough for any disk, and few descriptors.
            if shards.len() == 64 {
                break;
            }
        }
    }
    let mut buffer = PlainMemory::new(PIECE)?;
    let mut pieces = shards
        .iter()
        .flat_map(|(file, bytes)| (0..bytes.div_ceil(PIECE as u64)).map(move |piece| (file, piece)))
        .cycle();
    let read: io::Result<f64> = rate(time, || {
        let (file, piece): (&File, u64) = pieces.next().ok_or(io::ErrorKind::NotFound)?;
        Ok(file.read_at(&mut buffer, piece * PIECE as u64)? as u64)
    });
    // A file system may take the flag and refuse the read.
    Ok(read.ok())
}

/// Uploads from page-locked memory.
fn gpu_link(time: Duration) -> Option<f64> {
    let device = device::open("cuda:0", &DeviceOptions::default()).ok()?;
    rate(time, || {
        let mut staged = device.stage(PIECE)?;
        staged[0] = 1;
        // The slot is free again once the copy is over: the ring makes the next round wait for it.
        device.upload(staged).map(|upload| upload.bytes() as u64)
    })
    .ok()
}

fn read(options: &Options, time: Duration) -> Result<(f64, f64, f64, &'static str)> {
    let mut reader_options = ReaderOptions::new(&options.cache, options.batch_size);
    reader_options.split.clone_from(&options.split);
    let mut reader = Reader::open(reader_options)?;
    let (mut bytes, mut batches) = (0usize, 0u64);
    // The first batch has a figure of its own.
    while !matches!(reader.next_batch(None)?, Step::Batch(_)) {}
    let started = Instant::now();
    while started.elapsed() < time {
        if let Step::Batch(batch) = reader.next_batch(None)? {
            bytes += batch
                .tensors()
                .iter()
                .map(|tensor| tensor.bytes())
                .sum::<usize>();
            batches += 1;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let stats = reader.stats()?;
    Ok((
        bytes as f64 / 1e9 / seconds,
        batches as f64 / seconds,
        stats.first_batch_seconds.unwrap_or(0.0),
        stats.limit.name(),
    ))
}
