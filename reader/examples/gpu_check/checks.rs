//! What is checked and measured on a GPU.

use std::path::Path;
use std::time::{Duration, Instant};

use stoker_reader::device::{Consumer, CudaDevice, Device, DeviceOptions, Patches, Upload};
use stoker_reader::{Pixels, Result, expand_bytes};

use crate::fed;
use crate::transfers::{Random, table, transfers};

/// How much of the link's speed an upload must reach.
const LINK_FLOOR: f64 = 0.90;
/// How much of its time a busy consumer may wait.
const WAIT_CEILING: f64 = 0.01;

/// How much is done.
pub(crate) struct Sizes {
    transfers: usize,
    transfer_bytes: usize,
    /// Factor on the number of patches of the comparison.
    patches: usize,
    upload_bytes: usize,
    uploads: usize,
    expansions: usize,
    /// Batches of the cache that readers deliver.
    pub(crate) batches: u64,
    /// Bytes of patches in each.
    pub(crate) batch_bytes: u64,
    steps: usize,
    step: Duration,
    rounds: usize,
}

impl Sizes {
    /// For a GPU; about a minute.
    pub(crate) fn full() -> Self {
        Self {
            transfers: 100_000,
            transfer_bytes: 16_000,
            patches: 200,
            upload_bytes: 16 << 20,
            uploads: 400,
            expansions: 100,
            batches: 16,
            batch_bytes: 16 << 20,
            steps: 100,
            step: Duration::from_millis(20),
            rounds: 3,
        }
    }

    /// For the stub, which computes on the host.
    pub(crate) fn small() -> Self {
        Self {
            transfers: 500,
            transfer_bytes: 400,
            patches: 1,
            upload_bytes: 3 << 12,
            uploads: 10,
            expansions: 2,
            batches: 3,
            batch_bytes: 40 << 10,
            steps: 3,
            step: Duration::from_micros(100),
            rounds: 1,
        }
    }
}

/// Compares expansions of all types with the host's, at sizes that end in the middle of a block, several blocks, several
/// planes in a block. Gives the number of wrong bytes.
pub(crate) fn expansions(device: &CudaDevice, factor: usize) -> Result<usize> {
    let mut random = Random(77);
    let mut wrong = 0;
    let shapes = [
        (256, 3, 2),
        (196, 7, 2),
        (4, 1, 1),
        (4, 300, 3),
        (1024, 1, 2),
        (12, 100, 1),
        (8, 200, 2),
    ];
    for (area, count, temporal) in shapes {
        let count = count * factor;
        for pixels in [Pixels::U8, Pixels::F32, Pixels::BF16] {
            let offset = 4 * random.below(9);
            let patches = Patches {
                offset,
                count,
                area,
                temporal,
                pixels,
            };
            let source = offset..offset + count * 3 * area;
            let mut staging = device.stage(source.end + 5)?;
            random.fill(&mut staging);
            let bytes = patches.target_bytes().unwrap_or_default();
            // Nothing around the target may be touched.
            let mut expected = vec![0x5a; bytes + 64];
            let inner = &mut expected[32..32 + bytes];
            expand_bytes(&table(), pixels, &staging[source], area, temporal, inner);
            let mut upload = device.upload(staging)?;
            let mut consumer = Consumer::new(device, bytes + 64)?;
            consumer.write(&vec![0x5a; bytes + 64])?;
            let target = consumer.target(32..32 + bytes)?;
            upload.expand(&patches, target)?;
            let mut got = vec![0; bytes + 64];
            consumer.read(&mut got)?;
            wrong += got.iter().zip(&expected).filter(|(a, b)| a != b).count();
        }
    }
    Ok(wrong)
}

fn per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Uploads of bytes that are there already, to the end of the last.
fn time_uploads(device: &CudaDevice, bytes: usize, uploads: usize) -> Result<Duration> {
    let mut consumer = Consumer::new(device, 4)?;
    let began = Instant::now();
    for left in (0..uploads).rev() {
        let mut upload = device.upload(device.stage(bytes)?)?;
        if left == 0 {
            let target = consumer.target(0..4)?;
            upload.copy_out(0..4, target)?;
        }
    }
    consumer.synchronize()?;
    Ok(began.elapsed())
}

/// Patches that take up an upload.
fn whole(bytes: usize, pixels: Pixels) -> Patches {
    Patches {
        offset: 0,
        count: bytes / 768,
        area: 256,
        temporal: 2,
        pixels,
    }
}

fn time_kernel(device: &CudaDevice, sizes: &Sizes, pixels: Pixels) -> Result<f64> {
    let patches = whole(sizes.upload_bytes, pixels);
    let bytes = patches.target_bytes().unwrap_or_default();
    let mut consumer = Consumer::new(device, bytes)?;
    let mut upload = device.upload(device.stage(sizes.upload_bytes)?)?;
    let mut began = Instant::now();
    for run in 0..=sizes.expansions {
        let target = consumer.target(0..bytes)?;
        upload.expand(&patches, target)?;
        if run == 0 {
            consumer.synchronize()?;
            began = Instant::now();
        }
    }
    consumer.synchronize()?;
    let moved = (bytes + patches.count * 768) * sizes.expansions;
    Ok(per_second(moved, began.elapsed()))
}

/// Rounds of arithmetic that take about `step`.
fn calibrate(consumer: &mut Consumer, step: Duration) -> Result<u32> {
    let mut rounds = 100;
    loop {
        let began = Instant::now();
        consumer.busy(BLOCKS, rounds)?;
        consumer.synchronize()?;
        let took = began.elapsed();
        if took * 4 > step || rounds > u32::MAX / 8 {
            let more = step.as_secs_f64() / took.as_secs_f64();
            return Ok((f64::from(rounds) * more).max(1.0) as u32);
        }
        rounds *= 4;
    }
}

/// Blocks of the arithmetic that plays the training step: enough to fill any device.
const BLOCKS: u32 = 2048;

/// A training step: an expansion and arithmetic.
fn step(upload: &mut dyn Upload, consumer: &mut Consumer, bytes: usize, rounds: u32) -> Result<()> {
    let patches = whole(bytes, Pixels::BF16);
    let results = patches.target_bytes().unwrap_or_default();
    let target = consumer.target(0..results)?;
    upload.expand(&patches, target)?;
    consumer.busy(BLOCKS, rounds)
}

/// Time of all steps on one upload of `bytes`.
fn time_alone(
    device: &CudaDevice,
    consumer: &mut Consumer,
    bytes: usize,
    sizes: &Sizes,
    rounds: u32,
) -> Result<Duration> {
    let mut upload = device.upload(device.stage(bytes)?)?;
    step(&mut *upload, consumer, bytes, rounds)?;
    consumer.synchronize()?;
    let began = Instant::now();
    for _ in 0..sizes.steps {
        step(&mut *upload, consumer, bytes, rounds)?;
    }
    consumer.synchronize()?;
    Ok(began.elapsed())
}

/// Runs everything, with a cache that [`fed::make`] made, and says whether all of it is as it should be.
pub(crate) fn run(
    ordinal: u32,
    cache: &Path,
    sizes: &Sizes,
    say: &mut dyn FnMut(String),
) -> Result<bool> {
    let options = DeviceOptions {
        staging: 3,
        slots: 3,
        bytes: sizes.upload_bytes,
        table: Some(table()),
    };
    let device = CudaDevice::open(ordinal, &options)?;
    let mut good = true;
    let mut verdict = |fine: bool| {
        good &= fine;
        if fine { "ok" } else { "NOT OK" }
    };

    let wrong = expansions(&device, sizes.patches)?;
    let judged = verdict(wrong == 0);
    say(format!(
        "expansion, all types: {wrong} wrong bytes: {judged}"
    ));
    let wrong = transfers(ordinal, sizes.transfers, 3, sizes.transfer_bytes)?;
    let judged = verdict(wrong == 0);
    let count = sizes.transfers;
    say(format!(
        "{count} transfers on two streams: {wrong} wrong bytes: {judged}"
    ));

    let (compared, wrong) = fed::compare(ordinal, cache)?;
    let judged = verdict(wrong == 0 && compared > 0);
    say(format!(
        "{compared} bytes of a reader's batches, all types and layouts: {wrong} wrong bytes: {judged}"
    ));

    // Alternating, so that a change of clocks meets both.
    let (bytes, uploads) = (sizes.upload_bytes, sizes.uploads);
    let mut shares = Vec::new();
    let mut speeds = Vec::new();
    for _ in 0..sizes.rounds {
        let ceiling = per_second(bytes * uploads, device.time_copies(bytes, uploads)?);
        let reached = per_second(bytes * uploads, time_uploads(&device, bytes, uploads)?);
        shares.push(reached / ceiling);
        speeds.push(reached);
    }
    let (share, speed) = (median(shares), median(speeds));
    let judged = verdict(share >= LINK_FLOOR);
    say(format!(
        "H2D: {speed:.1} GB/s, {:.1} % of page-locked copies alone (floor {:.0} %): {judged}",
        share * 100.0,
        LINK_FLOOR * 100.0
    ));
    for pixels in [Pixels::F32, Pixels::BF16] {
        let speed = time_kernel(&device, sizes, pixels)?;
        say(format!(
            "expansion to {pixels}: {speed:.0} GB/s read and written"
        ));
    }

    let mut consumer = Consumer::new(&device, sizes.batch_bytes as usize * 4)?;
    let rounds = calibrate(&mut consumer, sizes.step)?;
    let mut waits = Vec::new();
    for _ in 0..sizes.rounds {
        let busy = |consumer: &mut Consumer| consumer.busy(BLOCKS, rounds);
        let (fed, bytes) = fed::time(ordinal, cache, sizes.steps, busy)?;
        let alone = time_alone(&device, &mut consumer, bytes, sizes, rounds)?;
        waits.push(1.0 - alone.as_secs_f64() / fed.as_secs_f64());
    }
    let waited = median(waits);
    let judged = verdict(waited < WAIT_CEILING);
    say(format!(
        "steps of {:?} of arithmetic on a reader's batches: waited {:.2} % (ceiling {:.0} %): {judged}",
        sizes.step,
        waited * 100.0,
        WAIT_CEILING * 100.0
    ));
    Ok(good)
}
