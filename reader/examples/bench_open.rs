//! Measures opening a large cache; `scripts/bench-open` builds and runs it.
//!
//! usage: bench_open FOLDER [--rounds N] [--samples N] [--pack NAME]
//!
//! Makes a cache of 10^7 text samples in 10^4 shards in FOLDER (once), then opens it again and again in processes of
//! their own, at the start and at places of a cursor, and prints medians: time to the first batch, and memory. No rounds
//! only make the cache.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use stoker_formats::{IGNORED_LABEL, SampleData};
use stoker_reader::{Cursor, Reader, ReaderOptions, Step};

const SAMPLES: u64 = 10_000_000;
const PARTITION_ROWS: u64 = 10_000;
const SHARD_ROWS: usize = 1000;

/// One of 64 ranks, with batches as in training.
const RANKS: u32 = 64;
const GLOBAL_BATCH: u32 = 256;

fn partition(number: u64, rows: u64) -> synthetic::Content {
    let sample = |row: u64| {
        let line = number * PARTITION_ROWS + row + 1;
        let tokens = 4 + (line % 5) as usize;
        let mut labels = vec![IGNORED_LABEL; tokens];
        labels[tokens - 1] = 11;
        SampleData {
            sample_id: format!("train.jsonl:{line}"),
            record_id: None,
            input_ids: vec![11; tokens],
            labels,
            images: Vec::new(),
            image_grid_thw: Vec::new(),
        }
    };
    synthetic::Content {
        images: Vec::new(),
        samples: (0..rows).map(sample).collect(),
    }
}

fn make(cache: &Path, samples: u64) {
    let partitions = samples / PARTITION_ROWS;
    let train = (0..partitions).map(|number| partition(number, PARTITION_ROWS));
    let val = std::iter::once_with(move || partition(partitions, 10));
    synthetic::write_each(
        cache,
        train.chain(val),
        &synthetic::opaque_tables(),
        synthetic::recipe(),
        SHARD_ROWS,
    );
}

fn options(cache: &Path, pack: Option<&str>) -> ReaderOptions {
    let mut options = ReaderOptions::new(cache, GLOBAL_BATCH);
    options.pack = pack.map(str::to_owned);
    options.world.world_size = RANKS;
    options.world.rank = 7;
    options.world.micro_batch_size = GLOBAL_BATCH / RANKS;
    options
}

/// Opens, goes to `consumed` samples by a cursor, and takes a batch; prints milliseconds, and KiB of memory.
fn child(cache: &Path, pack: Option<&str>, cursor: Option<&str>) {
    let started = Instant::now();
    let mut reader = Reader::open(options(cache, pack)).expect("a reader");
    if let Some(cursor) = cursor {
        let cursor = Cursor::from_json(cursor).expect("a cursor");
        reader.restore(&cursor).expect("a place");
    }
    assert!(matches!(reader.next_batch(None), Ok(Step::Batch(_))));
    let elapsed = started.elapsed().as_secs_f64() * 1e3;
    println!("{elapsed} {}", anonymous_kib());
}

/// The most memory so far that is no file's, in KiB: pages of files are the system's to take back.
fn anonymous_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words.and_then(|kib| kib.parse().ok()).expect("a number")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().expect("a folder");
    if first == "child" {
        let mut given = || arguments.next().filter(|text| !text.is_empty());
        let (cache, pack, cursor) = (given().expect("a cache"), given(), given());
        return child(Path::new(&cache), pack.as_deref(), cursor.as_deref());
    }
    let (mut rounds, mut samples, mut pack) = (15, SAMPLES, None);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().expect("a value");
        match argument.as_str() {
            "--rounds" => rounds = value.parse().expect("a number"),
            "--samples" => samples = value.parse().expect("a number"),
            "--pack" => pack = Some(value),
            _ => panic!("usage: bench_open FOLDER [--rounds N] [--samples N] [--pack NAME]"),
        }
    }
    let cache = PathBuf::from(first).join("cache");
    if !cache.join("manifest.json").exists() {
        println!("making {samples} samples");
        make(&cache, samples);
    }
    if rounds == 0 {
        return;
    }
    let mut reader = Reader::open(options(&cache, pack.as_deref())).expect("a reader");
    println!("| the first batch | ms | anonymous MiB |");
    println!("|---|---|---|");
    let units = reader.schedule().epoch_len();
    for (name, consumed) in [
        ("at the start", None),
        ("after a cursor in the middle", Some(units / 2)),
        ("after a cursor near the end", Some(units / 1000 * 999)),
        ("after a cursor in epoch 9", Some(units * 9 + units / 3)),
    ] {
        let cursor = consumed.map(|consumed| {
            let whole = consumed / u64::from(GLOBAL_BATCH) * u64::from(GLOBAL_BATCH);
            reader.seek(whole).expect("a place");
            reader.cursor().expect("a cursor").to_json()
        });
        let measured: Vec<[f64; 2]> = (0..rounds)
            .map(|_| {
                let program = std::env::current_exe().expect("this program");
                let output = Command::new(program)
                    .arg("child")
                    .arg(&cache)
                    .args([pack.as_deref(), cursor.as_deref()].map(Option::unwrap_or_default))
                    .output()
                    .expect("a process");
                let text = String::from_utf8_lossy(&output.stdout);
                let mut numbers = text
                    .split_whitespace()
                    .map(|n| n.parse().expect("a number"));
                let mut next = || numbers.next().expect("two numbers");
                [next(), next() / 1024.0]
            })
            .collect();
        let column = |at: usize| median(measured.iter().map(|one| one[at]).collect());
        println!("| {name} | {:.1} | {:.1} |", column(0), column(1));
    }
}
