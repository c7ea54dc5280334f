//! How fast samples are packed and the table is written: made-up lognormal lengths through the packer of `stoker pack`.
//!
//! `cargo run --release -p stoker-builder --example pack_speed -- [samples] [partitions] [max tokens] [threads] [file]`

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

use stoker_builder::pack::{PADDED_BATCH, WINDOW, write_table};
use stoker_formats::{
    ContentHash, Counts, PackEntry, PackOptions, PackOverlong, PackStrategy, PackTable, VERSION,
};

/// Mean of the lengths, in tokens.
const MEAN: f64 = 1500.0;
/// Spread of their logarithm.
const SIGMA: f64 = 0.8;

/// A number in `0..1` from a counter.
fn uniform(counter: u64) -> f64 {
    let mut mixed = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (((mixed ^ (mixed >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// What sample `number` holds: two of three have an image of up to half their tokens.
fn lengths(number: u64, max_tokens: u32) -> Counts {
    let normal = (-2.0 * uniform(3 * number).ln()).sqrt()
        * (std::f64::consts::TAU * uniform(3 * number + 1)).cos();
    let tokens = (MEAN.ln() - SIGMA * SIGMA / 2.0 + SIGMA * normal).exp();
    let tokens = (tokens as u32).clamp(8, max_tokens);
    let images = u32::from(!number.is_multiple_of(3));
    let patches = 4 * ((f64::from(tokens) * uniform(3 * number + 2) / 2.0) as u32).max(1);
    Counts {
        tokens,
        loss_tokens: tokens / 3,
        images,
        patches: images * patches,
    }
}

/// The largest memory that the process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        let text = arguments.get(place);
        text.map_or(Ok(default), |text| text.parse::<u64>())
    };
    let samples = number(0, 10_000_000)?;
    let partitions = u32::try_from(number(1, 960)?)?;
    let max_tokens = u32::try_from(number(2, 8192)?)?;
    let threads = usize::try_from(number(3, 2)?)?;
    let path = arguments
        .get(4)
        .map_or("pack_speed.parquet", String::as_str);
    let options = PackOptions {
        max_tokens,
        max_patches: None,
        max_samples: None,
        by_modality: false,
        strategy: PackStrategy::BestFit,
        seed: 0,
        window: WINDOW,
        overlong: PackOverlong::Reject,
    };
    let fingerprint = ContentHash::of(b"pack_speed");
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()?;
    let start = Instant::now();
    let out = BufWriter::new(File::create(path)?);
    let made = pool.install(|| {
        write_table(out, partitions, fingerprint, &options, |partition| {
            let first = samples * u64::from(partition) / u64::from(partitions);
            let end = samples * (u64::from(partition) + 1) / u64::from(partitions);
            Ok((first..end)
                .map(|number| lengths(number, max_tokens))
                .collect())
        })
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let entry = PackEntry {
        format_version: VERSION,
        created_by: "pack_speed".into(),
        fingerprint,
        name: "speed".parse()?,
        options,
        totals: made.totals,
        table: made.table,
        overlong: None,
        samples: made.samples,
        packs: made.packs,
    };
    println!(
        "{samples} samples, {partitions} partitions, {threads} threads: {seconds:.1} s, peak {} MiB",
        peak_mib()
    );
    println!(
        "{} packs of {max_tokens} tokens, fill rate {:.3} %, padding of padded batches of {PADDED_BATCH} {:.1} %, {} bytes",
        entry.table.rows,
        entry.fill_rate() * 100.0,
        (1.0 - entry.totals.tokens as f64 / made.padded_tokens as f64) * 100.0,
        entry.table.bytes
    );
    let bytes = entry.to_bytes()?;
    let start = Instant::now();
    let entry = PackEntry::parse(&bytes)?;
    let parsed = start.elapsed();
    let table = PackTable::open(File::open(path)?, &entry)?;
    println!(
        "open: entry of {} bytes {parsed:.1?}, with the table's footer {:.1?}",
        bytes.len(),
        start.elapsed()
    );
    let start = Instant::now();
    let counts = table.counts(partitions / 2)?;
    let counted = start.elapsed();
    let members = table.members(partitions / 2)?;
    println!(
        "one partition of {} packs: counts {counted:.1?}, members {:.1?}",
        counts.len(),
        start.elapsed() - counted
    );
    assert_eq!(counts.len(), members.len());
    std::fs::remove_file(path)?;
    Ok(())
}
