//! Measures the reader against this machine's limits; `scripts/bench-read` builds and runs it.
//!
//! usage: bench_read FOLDER [--gigabytes N] [--rounds N]
//!
//! Makes a cache of made-up samples in FOLDER (once), then reads it in each way, in turn, and prints one JSON line a
//! measurement and a table of medians. Every batch is held against what its bytes must be.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

#[path = "bench_read/corpus.rs"]
mod corpus;
#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use stoker_reader::{
    Backend, CacheFiles, Layout, Pixels, PlainMemory, Reader, ReaderOptions, Step, Verify, Views,
};

/// Samples of a batch.
const BATCH: u32 = 4;

/// Batches that are prepared ahead.
const AHEAD: usize = 4;

/// Buffers that a reader then goes round: those ahead, the one in hand and the one that is being filled.
const BUFFERS: usize = AHEAD + 2;

struct Measured {
    bytes: u64,
    wall: f64,
    cpu: f64,
}

impl Measured {
    fn of(work: impl FnOnce() -> u64) -> Self {
        let (cpu, wall) = (cpu_time(), Instant::now());
        let bytes = work();
        Self {
            bytes,
            wall: wall.elapsed().as_secs_f64(),
            cpu: (cpu_time() - cpu).as_secs_f64(),
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut folder = None;
    let (mut gigabytes, mut rounds) = (4.0, 3);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next().and_then(|text| text.parse::<f64>().ok());
            value.unwrap_or_else(|| panic!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--gigabytes" => gigabytes = value(),
            "--rounds" => rounds = value() as usize,
            _ => folder = Some(PathBuf::from(argument)),
        }
    }
    let folder = folder.expect("usage: bench_read FOLDER [--gigabytes N] [--rounds N]");
    let cache = folder.join("cache");
    if !cache.join("manifest.json").exists() {
        println!("making {gigabytes} GB of samples");
        corpus::make(&cache, (gigabytes * 1e9) as u64);
    }
    let ranges = ranges(&cache);
    let total: u64 = ranges.iter().map(|(_, _, length)| length).sum();
    println!(
        "{} images, {:.2} GB of patches",
        ranges.len(),
        total as f64 / 1e9
    );
    drop_pages(&ranges);
    read(&cache, Verify::Always, Backend::Pread, 2);

    let mut table: BTreeMap<&str, Vec<Measured>> = BTreeMap::new();
    for _ in 0..rounds {
        let mut add = |name, measured: Measured| {
            println!(
                "{{\"what\":\"{name}\",\"bytes\":{},\"wall\":{:.4},\"cpu\":{:.4}}}",
                measured.bytes, measured.wall, measured.cpu
            );
            table.entry(name).or_default().push(measured);
        };
        add("memcpy", memcpy(&ranges, 1));
        add("memcpy, 2 threads", memcpy(&ranges, 2));
        add("pread alone", pread(&ranges));
        add("reader, off", read(&cache, Verify::Off, Backend::Pread, 1));
        add(
            "reader, checksum",
            read(&cache, Verify::Always, Backend::Pread, 1),
        );
        add(
            "reader, off, 2 threads",
            read(&cache, Verify::Off, Backend::Pread, 2),
        );
        add(
            "reader, checksum, 2 threads",
            read(&cache, Verify::Always, Backend::Pread, 2),
        );
        add(
            "reader, mmap, off",
            read(&cache, Verify::Off, Backend::Mmap, 1),
        );
        add("views", views(&cache));
        drop_pages(&ranges);
        add("cold, raw direct reads", raw_direct(&ranges));
        drop_pages(&ranges);
        add(
            "cold, reader, direct",
            read(&cache, Verify::FirstRead, Backend::Direct, 2),
        );
        drop_pages(&ranges);
        warm(&ranges);
        add("small pages: pread alone", pread(&ranges));
        add(
            "small pages: reader, off",
            read(&cache, Verify::Off, Backend::Pread, 1),
        );
        drop_pages(&ranges);
        // Leaves the pages as the next round finds them.
        add(
            "cold, reader, pread",
            read(&cache, Verify::FirstRead, Backend::Pread, 2),
        );
    }
    report(&table);
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report(table: &BTreeMap<&str, Vec<Measured>>) {
    let rate = |name: &str, cpu: bool| {
        let measured = table.get(name).into_iter().flatten();
        median(measured.map(|one| one.bytes as f64 / 1e9 / if cpu { one.cpu } else { one.wall }))
    };
    let (memcpy, direct) = (rate("memcpy", true), rate("cold, raw direct reads", false));
    println!("\n| what | GB/s | GB per CPU-second | of its limit |\n|---|---|---|---|");
    for name in table.keys() {
        let limit = if name.starts_with("cold") {
            rate(name, false) / direct
        } else {
            rate(name, true) / memcpy
        };
        println!(
            "| {name} | {:.2} | {:.2} | {limit:.2} |",
            rate(name, false),
            rate(name, true)
        );
    }
    for name in ["memcpy", "reader, off", "reader, checksum"] {
        let scaling = rate(&format!("{name}, 2 threads"), false) / rate(name, false);
        println!("\n{name}: with two threads {scaling:.2} times the rate of one");
    }
}

/// Every image: its file, and where it lies. In a shuffled order, the same each time.
fn ranges(cache: &Path) -> Vec<(PathBuf, u64, u64)> {
    let files = CacheFiles::open(cache).expect("a cache");
    let views = Views::open(cache).expect("a cache");
    let mut ranges = Vec::new();
    for partition in 0..files.partitions() {
        for row in 0..views.images(partition).expect("a partition") {
            ranges.push(views.range(partition, row).expect("a row"));
        }
    }
    let mut state = 1u64;
    for last in (1..ranges.len()).rev() {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ranges.swap(last, (state >> 33) as usize % (last + 1));
    }
    ranges
}

/// Fills the page cache by plain reads, as another program would.
fn warm(ranges: &[(PathBuf, u64, u64)]) {
    let mut buffer = vec![0; 16 << 20];
    for (path, offset, length) in ranges {
        let file = File::open(path).expect("a shard");
        file.read_exact_at(&mut buffer[..*length as usize], *offset)
            .expect("a read");
    }
}

/// Takes the shards out of the page cache.
fn drop_pages(ranges: &[(PathBuf, u64, u64)]) {
    let mut paths: Vec<&PathBuf> = ranges.iter().map(|(path, ..)| path).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let file = File::open(path).expect("a shard");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    }
    // A virtual machine may hand free memory back to its host, and getting it again would be measured as reading: have it
    // back first.
    let total: u64 = ranges.iter().map(|(_, _, length)| length).sum();
    drop(PlainMemory::new(total as usize).expect("memory"));
}

/// Memory like the reader's: whole batches, one image after the other, in as many buffers as it has.
struct Buffers {
    all: Vec<PlainMemory>,
    filled: usize,
}

impl Buffers {
    fn new() -> Self {
        let buffer = || PlainMemory::new(16 << 20).expect("memory");
        Self {
            all: (0..BUFFERS).map(|_| buffer()).collect(),
            filled: 0,
        }
    }

    /// Where image `number` of all goes.
    fn next(&mut self, number: usize, length: usize) -> &mut [u8] {
        if number.is_multiple_of(BATCH as usize) {
            self.filled = 0;
        }
        let from = self.filled;
        self.filled += length;
        &mut self.all[number / BATCH as usize % BUFFERS][from..from + length]
    }
}

/// Copies as many bytes in pieces of the same sizes from ordinary memory into batch buffers that are used again.
fn memcpy(ranges: &[(PathBuf, u64, u64)], threads: usize) -> Measured {
    let source = vec![7u8; 1 << 30];
    let shares: Vec<_> = ranges.chunks(ranges.len().div_ceil(threads)).collect();
    let mut buffers: Vec<Buffers> = shares.iter().map(|_| Buffers::new()).collect();
    Measured::of(|| {
        std::thread::scope(|scope| {
            let copies = shares.iter().zip(&mut buffers);
            let threads: Vec<_> = copies
                .map(|(share, buffers)| scope.spawn(|| copy(share, &source, buffers)))
                .collect();
            let copied = threads.into_iter().map(|thread| thread.join());
            copied.map(|bytes| bytes.expect("a thread")).sum()
        })
    })
}

fn copy(ranges: &[(PathBuf, u64, u64)], source: &[u8], buffers: &mut Buffers) -> u64 {
    let mut state = 1u64;
    let mut total = 0;
    for (number, (_, _, length)) in ranges.iter().enumerate() {
        let length = *length as usize;
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let at = (state >> 20) as usize % (source.len() - length);
        let into = buffers.next(number, length);
        into.copy_from_slice(&source[at..at + length]);
        std::hint::black_box(&into[length / 2]);
        total += length as u64;
    }
    total
}

/// Reads the same ranges from the page cache into buffers that are used again: what no reader with `pread` can pass.
fn pread(ranges: &[(PathBuf, u64, u64)]) -> Measured {
    let mut buffers = Buffers::new();
    let mut files = BTreeMap::new();
    for (path, ..) in ranges {
        files
            .entry(path)
            .or_insert_with(|| File::open(path).expect("a shard"));
    }
    Measured::of(|| {
        for (number, (path, offset, length)) in ranges.iter().enumerate() {
            let into = buffers.next(number, *length as usize);
            files[path].read_exact_at(into, *offset).expect("a read");
        }
        ranges.iter().map(|(_, _, length)| length).sum()
    })
}

fn options(cache: &Path, verify: Verify, backend: Backend, threads: usize) -> ReaderOptions {
    let mut options = ReaderOptions::new(cache, BATCH);
    options.order.tail = stoker_reader::Tail::All;
    options.pixels = Pixels::U8;
    options.layout = Some(Layout::Packed);
    (options.verify, options.backend, options.threads) = (verify, backend, threads);
    options.prefetch_batches = AHEAD as u64;
    options
}

/// One shuffled epoch, but for the first batches, which make the buffers that all others use again. Every image is held
/// against its first and last bytes.
fn read(cache: &Path, verify: Verify, backend: Backend, threads: usize) -> Measured {
    let mut images = Vec::new();
    let mut reader = Reader::open(options(cache, verify, backend, threads)).expect("a reader");
    for _ in 0..4 * BUFFERS {
        let step = reader.next_batch(None).expect("a batch");
        assert!(matches!(step, Step::Batch(_)), "too few samples");
    }
    let measured = Measured::of(|| {
        let mut total = 0;
        loop {
            match reader.next_batch(None).expect("a batch") {
                Step::Batch(batch) => {
                    let pixels = batch.bytes(batch.tensor("pixel_values").expect("a tensor"));
                    total += pixels.len() as u64;
                    images.push(corpus::trace(pixels));
                }
                Step::EpochEnd => return total,
                Step::TimedOut => panic!("waits without end"),
            }
        }
    });
    assert!(images.iter().all(|right| *right), "wrong bytes");
    measured
}

/// One pass over all images as views, every 4096th byte touched.
fn views(cache: &Path) -> Measured {
    Measured::of(|| {
        let views = Views::open(cache).expect("views");
        let mut total = 0;
        for partition in 0..views.partitions() {
            for row in 0..views.images(partition).expect("a partition") {
                let view = views.image(partition, row).expect("a view");
                total += view.len() as u64;
                std::hint::black_box(view.first());
            }
        }
        total
    })
}

/// Reads the same ranges with aligned direct reads on two threads.
fn raw_direct(ranges: &[(PathBuf, u64, u64)]) -> Measured {
    Measured::of(|| {
        let next = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut buffer = vec![0u8; (16 << 20) + 4096];
                    let start = buffer.as_ptr().align_offset(4096);
                    while let Some((path, offset, length)) =
                        ranges.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                    {
                        let file = OpenOptions::new()
                            .read(true)
                            .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
                            .open(path)
                            .expect("a shard");
                        let from = offset / 4096 * 4096;
                        let whole = (offset + length - from).next_multiple_of(4096) as usize;
                        let mut filled = 0;
                        while (filled as u64) < offset + length - from {
                            let into = &mut buffer[start + filled..start + whole];
                            filled += file.read_at(into, from + filled as u64).expect("a read");
                        }
                    }
                });
            }
        });
        ranges.iter().map(|(_, _, length)| length).sum()
    })
}
