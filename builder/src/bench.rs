//! What a machine can read of a cache: memory, disk, link to the GPU, and the reader beside them; and what preparing costs.
//!
//! Owns the measurements behind `stoker bench`. Invariant: every rate is measured here and now, on the cache's own bytes
//! where it has enough; what cannot be measured is absent.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use stoker_formats::FileName;
use stoker_reader::device::{self, DeviceOptions};
use stoker_reader::{CacheFiles, PlainMemory, Reader, ReaderOptions, Step};

use crate::error::{Error, Result};
use crate::held;
use crate::image::Preparer;
use crate::verify::is_here;

/// Bytes of one copy, read or upload.
const PIECE: usize = 8 << 20;
/// Images that are prepared, again and again.
const PICTURES: usize = 64;

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
    /// A folder of images to prepare.
    pub images: Option<PathBuf>,
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
    /// Bytes of a sample in the shards, on average.
    pub sample_bytes: f64,
    /// Bytes of an encoded image, on average; none where no images were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_bytes: Option<f64>,
    /// Seconds in which one core decodes, resizes and patchifies one of them by the cache's recipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepare_seconds: Option<f64>,
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
        if let Some(seconds) = self.prepare_seconds {
            let (ms, images) = (seconds * 1e3, 1.0 / seconds);
            text.push_str(&format!(
                "preparing       {ms:.1} ms an image, {images:.0} images a second and core\n"
            ));
        }
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
    let elsewhere = held::elsewhere(&files)?;
    check_split(&files, &options.split, &elsewhere)?;
    let (reader_gb_s, reader_batches_s, first_batch_seconds, limit) =
        read(options, &elsewhere, time)?;
    let images = options.images.as_deref().map(pictures).transpose()?;
    let prepared = images
        .as_deref()
        .map(|images| prepare(&files, images, time));
    Ok(Report {
        memcpy_gb_s: memcpy(time)?,
        disk_gb_s: disk(&files, &elsewhere, time)?,
        gpu_link_gb_s: gpu_link(time),
        reader_gb_s,
        reader_batches_s,
        first_batch_seconds,
        limit,
        sample_bytes: sample_bytes(&files),
        source_bytes: images.as_deref().map(mean_bytes),
        prepare_seconds: prepared.transpose()?,
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

/// Fails for a split of which nothing is here.
fn check_split(files: &CacheFiles, split: &str, elsewhere: &[u32]) -> Result<()> {
    let mut splits = files.manifest().splits.iter();
    let Some(entry) = splits.find(|entry| entry.name == split) else {
        // The reader says which there are.
        return Ok(());
    };
    let mut partitions = entry.first_partition..entry.first_partition + entry.partitions;
    if entry.partitions == 0 || partitions.any(|number| elsewhere.binary_search(&number).is_err()) {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!(
            "all shards of split {split} are on other nodes: `{}`",
            files.root().display()
        ),
        hint: "measure on a node that holds some, give another --split, or bring some with `stoker sync`"
            .into(),
    })
}

/// Direct reads of the shards that are here, one after another.
fn disk(files: &CacheFiles, elsewhere: &[u32], time: Duration) -> Result<Option<f64>> {
    let mut shards = Vec::new();
    for file in files.expected().filter(|file| is_here(file, elsewhere)) {
        if let FileName::Shard { .. } = file.name {
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

fn sample_bytes(files: &CacheFiles) -> f64 {
    let shards = files.expected().filter_map(|file| match file.name {
        FileName::Shard { .. } => Some(file.entry.bytes),
        _ => None,
    });
    let samples: u64 = (files.manifest().splits.iter())
        .map(|split| split.samples)
        .sum();
    shards.sum::<u64>() as f64 / samples.max(1) as f64
}

/// Some of the files in `folder`, by name.
fn pictures(folder: &Path) -> Result<Vec<Vec<u8>>> {
    let listed = fs::read_dir(folder).map_err(Error::io("list", folder))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.truncate(PICTURES);
    if paths.is_empty() {
        return Err(Error::Usage {
            what: format!("no files in `{}`", folder.display()),
            hint: "give a folder with images of the data set".into(),
        });
    }
    let read = |path: &PathBuf| fs::read(path).map_err(Error::io("read", path));
    paths.iter().map(read).collect()
}

fn mean_bytes(pictures: &[Vec<u8>]) -> f64 {
    pictures.iter().map(Vec::len).sum::<usize>() as f64 / pictures.len() as f64
}

/// Seconds that one core needs to prepare one of `pictures` by the cache's recipe.
fn prepare(files: &CacheFiles, pictures: &[Vec<u8>], time: Duration) -> Result<f64> {
    let refused = |what: String| Error::Usage {
        what,
        hint: "give a folder that holds images of the data set and nothing else".into(),
    };
    let recipe = serde_json::from_value(files.manifest().recipe["image"].clone())
        .map_err(|error| refused(format!("the recipe cannot be followed: `{error}`")))?;
    let mut preparer = Preparer::new(recipe);
    let mut patches = Vec::new();
    let mut next = pictures.iter().cycle();
    let (mut done, started) = (0u32, Instant::now());
    while started.elapsed() < time || (done as usize) < pictures.len() {
        let Some(picture) = next.next() else { break };
        let prepared = preparer
            .prepare_into(picture, patches)
            .map_err(|reject| refused(format!("an image was rejected: `{}`", reject.message)))?;
        patches = prepared.patches;
        done += 1;
    }
    Ok(started.elapsed().as_secs_f64() / f64::from(done))
}

/// Of a share, what is here counts as all that there is.
fn read(
    options: &Options,
    elsewhere: &[u32],
    time: Duration,
) -> Result<(f64, f64, f64, &'static str)> {
    let mut reader_options = ReaderOptions::new(&options.cache, options.batch_size);
    for cache in &mut reader_options.caches {
        cache.without = elsewhere.to_vec();
    }
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
