//! What a reader delivers on a GPU: every byte of an epoch against a reader on the host, and what a busy consumer waits.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use stoker_reader::device::Consumer;
use stoker_reader::{
    DeviceReader, DeviceStep, Last, Layout, Pixels, Reader, ReaderOptions, Result, Step, Tail,
    Tensor,
};

use crate::corpus::{self, Shape, Size};

/// Samples of a batch.
const BATCH: u32 = 4;

/// Writes a cache of about `batches` batches, each with about `bytes` bytes of patches.
pub(crate) fn make(cache: &Path, batches: u64, bytes: u64) {
    let shape = Shape {
        bytes: batches * bytes,
        partitions: 1,
        size: Size::Fixed(bytes / u64::from(BATCH)),
        shard_rows: 16,
    };
    corpus::make(cache, shape);
}

fn options(cache: &Path, pixels: Pixels, layout: Layout) -> ReaderOptions {
    let mut options = ReaderOptions::new(cache, BATCH);
    options.order.tail = Tail::All;
    options.order.last = Last::Pad;
    (options.pixels, options.layout) = (pixels, Some(layout));
    options
}

/// Tensors, and where they lie.
type Placed = Vec<(Tensor, Range<usize>)>;

/// Where each tensor of the next batch lies in the consumer's memory, once it is on its way there; none where the epoch ends.
fn deliver(
    reader: &mut DeviceReader,
    memory: &mut Option<(Consumer, usize)>,
) -> Result<Option<Placed>> {
    let tensors = match reader.next_batch(None)? {
        DeviceStep::Batch(batch) => batch.tensors().to_vec(),
        DeviceStep::EpochEnd | DeviceStep::TimedOut => return Ok(None),
    };
    let mut end = 0usize;
    let placed: Vec<_> = tensors
        .into_iter()
        .map(|tensor| {
            // As a GPU's allocator would place them.
            let from = end.next_multiple_of(256);
            end = from + tensor.bytes();
            (tensor, from..end)
        })
        .collect();
    let (consumer, _) = match memory.take() {
        Some((consumer, bytes)) if bytes >= end => memory.insert((consumer, bytes)),
        _ => memory.insert((Consumer::new(reader.device(), end)?, end)),
    };
    let ranges: Vec<_> = placed.iter().map(|(_, range)| range.clone()).collect();
    reader.deliver(consumer.targets(&ranges)?)?;
    Ok(Some(placed))
}

/// Bytes of an epoch, in each type and layout, and how many of them are not what a reader on the host has. Tensors that are
/// there on one side only count as wrong.
pub(crate) fn compare(ordinal: u32, cache: &Path) -> Result<(usize, usize)> {
    let (mut compared, mut wrong) = (0, 0);
    for pixels in [Pixels::U8, Pixels::F32, Pixels::BF16] {
        for layout in [Layout::Padded { multiple_of: 8 }, Layout::Packed] {
            let options = options(cache, pixels, layout);
            let mut host = Reader::open(options.clone())?;
            let mut reader = DeviceReader::open(options, ordinal)?;
            let mut memory = None;
            loop {
                let expected = match host.next_batch(None)? {
                    Step::Batch(batch) => Some(batch),
                    Step::EpochEnd | Step::TimedOut => None,
                };
                let placed = deliver(&mut reader, &mut memory)?;
                if expected.is_none() && placed.is_none() {
                    break;
                }
                let placed = placed.unwrap_or_default();
                let mut got = vec![0; placed.last().map_or(0, |(_, range)| range.end)];
                if let Some((consumer, _)) = &mut memory {
                    consumer.read(&mut got)?;
                    // What one batch leaves must not help the next one.
                    consumer.write(&vec![0xa5; got.len()])?;
                }
                let tensors = expected.iter().flat_map(|batch| batch.tensors());
                let named = tensors.clone().map(|tensor| (tensor.name, &tensor.shape));
                let alike = named.eq(placed
                    .iter()
                    .map(|(tensor, _)| (tensor.name, &tensor.shape)));
                for (tensor, (_, range)) in tensors.clone().zip(&placed) {
                    let right = expected.iter().flat_map(|batch| batch.bytes(tensor));
                    let differ = got[range.clone()].iter().zip(right).filter(|(a, b)| a != b);
                    wrong += differ.count();
                    compared += range.len();
                }
                if !alike {
                    wrong += tensors.map(Tensor::bytes).sum::<usize>().max(got.len());
                }
                if expected.is_none() || placed.is_empty() {
                    break;
                }
            }
        }
    }
    Ok((compared, wrong))
}

/// Time of `steps` steps, each on a batch that the reader has brought meanwhile, and the patches' bytes of one.
pub(crate) fn time(
    ordinal: u32,
    cache: &Path,
    steps: usize,
    mut step: impl FnMut(&mut Consumer) -> Result<()>,
) -> Result<(Duration, usize)> {
    let options = options(cache, Pixels::BF16, Layout::Packed);
    let mut reader = DeviceReader::open(options, ordinal)?;
    let mut memory = None;
    let (mut began, mut done, mut patches) = (Instant::now(), 0, 0);
    while done <= steps {
        let Some(placed) = deliver(&mut reader, &mut memory)? else {
            continue;
        };
        let values = placed
            .iter()
            .find(|(tensor, _)| tensor.name == "pixel_values");
        // Two bytes a value, and each frame twice.
        patches = values.map_or(0, |(tensor, _)| tensor.bytes() / 4);
        if let Some((consumer, _)) = &mut memory {
            step(consumer)?;
            if done == 0 {
                consumer.synchronize()?;
                began = Instant::now();
            }
        }
        done += 1;
    }
    if let Some((consumer, _)) = &memory {
        consumer.synchronize()?;
    }
    Ok((began.elapsed(), patches))
}
