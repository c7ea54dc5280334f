//! Measures the reader against this machine's limits; `scripts/bench-read` and `scripts/bench/run scale` build and run it.
//!
//! usage: bench_read FOLDER [--gigabytes N] [--rounds N]
//!        bench_read make CACHE --megabytes N --sample-bytes B --shard-bytes S
//!        bench_read point CACHE [--cold 1] [--seconds S] [--batch N] [--verify V] [--backend B] [--threads N]
//!                               [--prefetch-batches N] [--prefetch-bytes N]
//!
//! The first form makes a cache of made-up samples in FOLDER (once), then reads it in each way, in turn, and prints one
//! JSON line a measurement and a table of medians. A share of a limit is of that limit's measurement just before. The others make one cache, and measure one way of reading as a JSON
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
#[path = "bench_read/trainer.rs"]
mod trainer;

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
    assert!(!first.starts_with('-'), "{USAGE}");
    if first != "make" && first != "point" {
        let given = Given::new(arguments);
        let gigabytes: f64 = given.get("--gigabytes").unwrap_or(4.0);
        return table(
            Path::new(&first),
            (gigabytes * 1e9) as u64,
            given.get("--rounds").unwrap_or(5),
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

    let mut table = Table::default();
    for _ in 0..rounds {
        each_way(&cache, &ranges, &mut |name, measured| {
            table.add(name, &measured)
        });
    }
    table.report();
    beside_a_trainer(&cache, rounds);
}

/// The wait beside a trainer with small, larger and large batches.
fn beside_a_trainer(cache: &Path, rounds: usize) {
    println!("\n| samples of a batch | step, ms | waiting, % | least to most |\n|---|---|---|---|");
    for batch in [4, 16, 64] {
        let seen: Vec<_> = (0..rounds).map(|_| trainer::beside(cache, batch)).collect();
        let shares = || seen.iter().map(|one| 100.0 * one.waiting);
        println!(
            "| {batch} | {:.1} | {:.2} | {:.2} to {:.2} |",
            1000.0 * median(seen.iter().map(|one| one.step.as_secs_f64())),
            median(shares()),
            shares().fold(f64::INFINITY, f64::min),
            shares().fold(0.0, f64::max)
        );
    }
}

/// One round of the table.
fn each_way(cache: &Path, ranges: &[Range], add: &mut impl FnMut(&'static str, Measured)) {
    let batch = BATCH as usize;
    add("memcpy, 2 threads", memcpy(ranges, batch, 2));
    add("memcpy", memcpy(ranges, batch, 1));
    add("pread alone", pread(ranges, batch));
    for (name, verify, threads) in [
        ("reader, off", Verify::Off, 1),
        ("reader, checksum", Verify::Always, 1),
        ("reader, off, 2 threads", Verify::Off, 2),
        ("reader, checksum, 2 threads", Verify::Always, 2),
    ] {
        // How fast memory is changes within seconds where others share it.
        add("memcpy", memcpy(ranges, batch, 1));
        add(name, read(cache, verify, Backend::Pread, threads));
    }
    add("memcpy", memcpy(ranges, batch, 1));
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

/// GB a second of wall and of CPU time, and the share of the limit that was measured last before it.
struct Row {
    wall: f64,
    cpu: f64,
    of_limit: f64,
}

/// All measurements by what was measured.
#[derive(Default)]
struct Table {
    rows: BTreeMap<&'static str, Vec<Row>>,
    memcpy: f64,
    direct: f64,
}

impl Table {
    fn add(&mut self, name: &'static str, measured: &Measured) {
        println!(
            "{{\"what\":\"{name}\",\"bytes\":{},\"wall\":{:.4},\"cpu\":{:.4}}}",
            measured.bytes, measured.wall, measured.cpu
        );
        let gigabytes = measured.bytes as f64 / 1e9;
        let (wall, cpu) = (gigabytes / measured.wall, gigabytes / measured.cpu);
        match name {
            "memcpy" => self.memcpy = cpu,
            "cold, raw direct reads" => self.direct = wall,
            _ => {}
        }
        let of_limit = if name.starts_with("cold") {
            wall / self.direct
        } else {
            cpu / self.memcpy
        };
        let row = Row {
            wall,
            cpu,
            of_limit,
        };
        self.rows.entry(name).or_default().push(row);
    }

    fn report(&self) {
        let middle = |name: &str, of: fn(&Row) -> f64| {
            median(self.rows.get(name).into_iter().flatten().map(of))
        };
        println!("\n| what | GB/s | GB per CPU-second | of its limit |\n|---|---|---|---|");
        for name in self.rows.keys() {
            let (wall, cpu) = (middle(name, |row| row.wall), middle(name, |row| row.cpu));
            let of_limit = middle(name, |row| row.of_limit);
            println!("| {name} | {wall:.2} | {cpu:.2} | {of_limit:.2} |");
        }
        for name in ["memcpy", "reader, off", "reader, checksum"] {
            let two = middle(&format!("{name}, 2 threads"), |row| row.wall);
            let scaling = two / middle(name, |row| row.wall);
            println!("\n{name}: with two threads {scaling:.2} times the rate of one");
        }
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
