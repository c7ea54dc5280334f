//! Measures the reader against this machine's limits; `scripts/bench-read` and `scripts/bench/run scale` build and run it.
//!
//! usage: bench_read FOLDER [--gigabytes N] [--rounds N]
//!        bench_read make CACHE --megabytes N --sample-bytes B --shard-bytes S
//!        bench_read point CACHE [--cold 1] [--seconds S] [--batch N] [--verify V] [--backend B] [--threads N]
//!                               [--prefetch-batches N] [--prefetch-bytes N]
//!
//! The first form makes a cache of made-up samples in FOLDER (once), then reads it in each way, in turn, and prints one
//! JSON line a measurement and a table of medians. The others make one cache, and measure one way of reading as a JSON
//! object. Every batch is held against what its bytes must be.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

#[path = "bench_read/corpus.rs"]
mod corpus;
#[path = "bench_read/limits.rs"]
mod limits;
#[path = "bench_read/point.rs"]
mod point;
#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use stoker_reader::{Backend, Verify, Views};

use corpus::{Shape, Size};
use limits::{
    AHEAD, BUFFERS, Measured, Range, drop_pages, memcpy, pread, ranges, raw_direct, total, warm,
};
use point::{Way, next, taken};

/// Samples of a batch of the table.
const BATCH: u32 = 4;

/// Partitions of a cache for the points: their shards reach from small ones to one a partition.
const PARTITIONS: u64 = 2;

const USAGE: &str = "usage: bench_read [make|point] FOLDER [--NAME VALUE]...";

/// The options after the folder.
struct Given(BTreeMap<String, String>);

impl Given {
    fn new(mut arguments: impl Iterator<Item = String>) -> Self {
        let mut given = BTreeMap::new();
        while let Some(name) = arguments.next() {
            given.insert(name, arguments.next().expect(USAGE));
        }
        Self(given)
    }

    fn get<T: FromStr>(&self, name: &str) -> Option<T> {
        let text = self.0.get(name)?;
        let value = text.parse().ok();
        Some(value.unwrap_or_else(|| panic!("{name} cannot be `{text}`")))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().expect(USAGE);
    if first != "make" && first != "point" {
        let given = Given::new(arguments);
        let gigabytes: f64 = given.get("--gigabytes").unwrap_or(4.0);
        return table(
            Path::new(&first),
            (gigabytes * 1e9) as u64,
            given.get("--rounds").unwrap_or(3),
        );
    }
    let cache = PathBuf::from(arguments.next().expect(USAGE));
    let given = Given::new(arguments);
    if first == "make" {
        make(&cache, &given);
    } else {
        println!("{}", measure(&cache, &given));
    }
}

fn make(cache: &Path, given: &Given) {
    let number = |name| given.get::<u64>(name).expect(USAGE);
    let sample = number("--sample-bytes");
    let shape = Shape {
        bytes: number("--megabytes") << 20,
        partitions: PARTITIONS,
        size: Size::Fixed(sample),
        shard_rows: (number("--shard-bytes") / sample).max(1) as usize,
    };
    corpus::make(cache, shape);
    // So that the first reader brings the pages in, as it does where a cache was built with Stoker.
    drop_pages(&ranges(cache));
}

fn measure(cache: &Path, given: &Given) -> serde_json::Value {
    let defaults = stoker_reader::ReaderOptions::new(cache, BATCH);
    let way = Way {
        batch: given.get("--batch").unwrap_or(BATCH),
        verify: given.get("--verify").unwrap_or(defaults.verify),
        backend: given.get("--backend").unwrap_or(defaults.backend),
        threads: given.get("--threads").unwrap_or(defaults.threads),
        prefetch_batches: (given.get("--prefetch-batches")).unwrap_or(defaults.prefetch_batches),
        prefetch_bytes: given.get("--prefetch-bytes"),
    };
    let cold = given.get::<u8>("--cold").is_some_and(|cold| cold != 0);
    point::measure(cache, &way, cold, given.get("--seconds").unwrap_or(2.0))
}

/// Measures everything in turn, some times, and prints the medians.
fn table(folder: &Path, bytes: u64, rounds: usize) {
    let cache = folder.join("cache");
    if !cache.join("manifest.json").exists() {
        println!("making {:.1} GB of samples", bytes as f64 / 1e9);
        let shape = Shape {
            bytes,
            partitions: 8,
            size: Size::Mixed,
            shard_rows: 128,
        };
        corpus::make(&cache, shape);
    }
    let ranges = ranges(&cache);
    println!(
        "{} images, {:.2} GB of patches",
        ranges.len(),
        total(&ranges) as f64 / 1e9
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
        each_way(&cache, &ranges, &mut add);
    }
    report(&table);
}

/// One round of the table.
fn each_way(cache: &Path, ranges: &[Range], add: &mut impl FnMut(&'static str, Measured)) {
    let batch = BATCH as usize;
    add("memcpy", memcpy(ranges, batch, 1));
    add("memcpy, 2 threads", memcpy(ranges, batch, 2));
    add("pread alone", pread(ranges, batch));
    for (name, verify, threads) in [
        ("reader, off", Verify::Off, 1),
        ("reader, checksum", Verify::Always, 1),
        ("reader, off, 2 threads", Verify::Off, 2),
        ("reader, checksum, 2 threads", Verify::Always, 2),
    ] {
        add(name, read(cache, verify, Backend::Pread, threads));
    }
    add(
        "reader, mmap, off",
        read(cache, Verify::Off, Backend::Mmap, 1),
    );
    add("views", views(cache));
    drop_pages(ranges);
    add("cold, raw direct reads", raw_direct(ranges));
    drop_pages(ranges);
    add(
        "cold, reader, direct",
        read(cache, Verify::FirstRead, Backend::Direct, 2),
    );
    drop_pages(ranges);
    warm(ranges);
    add("small pages: pread alone", pread(ranges, batch));
    add(
        "small pages: reader, off",
        read(cache, Verify::Off, Backend::Pread, 1),
    );
    drop_pages(ranges);
    // Leaves the pages as the next round finds them.
    add(
        "cold, reader, pread",
        read(cache, Verify::FirstRead, Backend::Pread, 2),
    );
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

/// One shuffled epoch, but for the first batches, which make the buffers that all others use again. Every image is held
/// against its first and last bytes.
fn read(cache: &Path, verify: Verify, backend: Backend, threads: usize) -> Measured {
    let way = Way {
        batch: BATCH,
        verify,
        backend,
        threads,
        prefetch_batches: AHEAD as u64,
        prefetch_bytes: None,
    };
    let mut reader = way.open(cache, false);
    for _ in 0..4 * BUFFERS {
        assert!(next(&mut reader).is_some(), "too few samples");
    }
    Measured::of(|| {
        std::iter::from_fn(|| next(&mut reader))
            .map(|batch| taken(&batch))
            .sum()
    })
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
