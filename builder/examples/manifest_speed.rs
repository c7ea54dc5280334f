//! How fast a manifest of a million shards is opened, and its partitions are placed on 1,024 nodes.
//!
//! `cargo run --release -p stoker-builder --example manifest_speed -- FOLDER`

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use stoker_builder::place::place;
use stoker_formats::{
    ContentHash, FileEntry, MANIFEST_NAME, Manifest, Partition, PartitionFiles, PlanId, SplitEntry,
    Tables, VERSION, fingerprint,
};
use stoker_reader::CacheFiles;

const PARTITIONS: u32 = 10_000;
/// Of each kind in a partition: a million in all.
const SHARDS: u64 = 50;
const ROWS: u64 = 200;
const NODES: u32 = 1024;
const ROUNDS: usize = 9;

fn entry(number: u64, rows: u64) -> FileEntry {
    FileEntry {
        // Full shards are of about one size.
        bytes: (512 << 20) - number * 7919 % (3 << 20),
        hash: ContentHash::of(&number.to_le_bytes()),
        rows,
    }
}

fn files(seed: u64) -> PartitionFiles {
    let shards = (0..SHARDS).map(|at| entry(seed * 1000 + at, ROWS));
    PartitionFiles {
        shards: shards.clone().map(Some).collect(),
        receipts: shards.collect(),
        index: entry(seed * 1000 + 999, ROWS * SHARDS),
    }
}

fn manifest() -> Manifest {
    let partition = |number: u64| Partition {
        images: files(2 * number),
        samples: files(2 * number + 1),
    };
    let partitions: Vec<Partition> = (0..u64::from(PARTITIONS)).map(partition).collect();
    let recipe = serde_json::json!({"made": "up"});
    let rows = u64::from(PARTITIONS) * SHARDS * ROWS;
    Manifest {
        format_version: VERSION,
        created_by: "manifest_speed".into(),
        fingerprint: fingerprint(&recipe, &partitions),
        image_plan_id: PlanId([1; 16]),
        text_plan_id: PlanId([2; 16]),
        recipe,
        splits: vec![SplitEntry {
            name: "train".into(),
            first_partition: 0,
            partitions: PARTITIONS,
            samples: rows,
            tokens: rows * 1000,
            loss_tokens: rows * 100,
            images: rows,
        }],
        partitions,
        tables: Tables {
            samples: entry(1, rows),
            rejects: entry(2, 0),
            provenance: entry(3, 0),
        },
        tokenizer: entry(4, 1000),
        inputs: Vec::new(),
    }
}

/// The most memory that the process has had, in KiB, without pages of files: those are the system's to take back.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
        number.unwrap_or(0u64)
    };
    kib("VmHWM:").saturating_sub(kib("RssFile:"))
}

/// Milliseconds to open, KiB of memory then, milliseconds to open and place.
fn child(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let files = CacheFiles::open(folder)?;
    let opened = start.elapsed().as_secs_f64() * 1e3;
    let kib = peak_kib();
    drop(files);
    let start = Instant::now();
    let report = place(folder, NODES, None)?;
    let placed = start.elapsed().as_secs_f64() * 1e3;
    let grown = place(folder, NODES + 128, Some(&report.placement))?;
    println!(
        "{opened} {kib} {placed} {}",
        grown.moved_bytes as f64 / grown.bytes.iter().sum::<u64>() as f64
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("usage: manifest_speed FOLDER")?;
    if folder == "child" {
        return child(Path::new(&arguments.next().ok_or("a folder")?));
    }
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let bytes = manifest().to_bytes()?;
    std::fs::write(folder.join(MANIFEST_NAME), &bytes)?;
    let mut measured: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let mut command = Command::new(std::env::current_exe()?);
        let output = command.arg("child").arg(folder).output()?;
        let text = String::from_utf8(output.stdout)?;
        for (column, number) in measured.iter_mut().zip(text.split_whitespace()) {
            column.push(number.parse()?);
        }
    }
    let median = |column: &mut Vec<f64>| {
        column.sort_by(f64::total_cmp);
        column.get(column.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let [open, kib, place, moved] = measured.each_mut().map(median);
    println!(
        "manifest of {} shards, {} MiB, {PARTITIONS} partitions",
        2 * SHARDS * u64::from(PARTITIONS),
        bytes.len() >> 20
    );
    println!("open: {open:.0} ms, {:.0} MiB of memory", kib / 1024.0);
    println!("open and place on {NODES} nodes: {place:.0} ms");
    println!(
        "moved by {} more nodes: {:.1} % of all bytes",
        128,
        moved * 100.0
    );
    Ok(())
}
