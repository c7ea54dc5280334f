//! What a build will write, judged from a seeded sample of its records and the headers of their images.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use stoker_formats::{ImageEntry, ImageKey};
use tokio::runtime::Handle;

use super::Plan;
use crate::build::early::{Answer, Early};
use crate::build::in_flight::InFlight;
use crate::build::receipts::{Damaged, ImageReceipts, Layout, SampleReceipts};
use crate::build::share::Share;
use crate::error::Result;
use crate::image::{ImageRecipe, Preparer, probe};
use crate::record;
use crate::remote::crew;
use crate::source::{FetchError, Fetched, Source};
use crate::text::TextPreparer;

/// Records looked at; their images are fetched whole.
const SAMPLE_RECORDS: usize = 48;

/// Images fetched at once: few enough that what is kept of them stays within its bound, or nearly so.
const FETCHES_MAX: usize = 8;

/// Room for indexes, receipts, tables and the spread of the sample.
const SAFETY_PERCENT: u64 = 10;

/// Bytes a row costs outside its payload: index, receipt, tables, offsets.
const ROW_OVERHEAD_BYTES: u64 = 400;

/// The expected size of a cache and the work behind it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    /// Bytes of all image shards.
    pub image_bytes: u64,
    /// Bytes of everything that is not pixels.
    pub text_bytes: u64,
    /// Bytes that are free again by then, as shards are written anew in the place of others.
    pub replaced_bytes: u64,
    /// Largest file of an image that was seen, with its patches.
    pub largest_image_bytes: u64,
    /// Processor time to prepare all images on one thread; zero unless asked for.
    pub image_time: Duration,
    /// Processor time to prepare all text on one thread.
    pub text_time: Duration,
}

impl Estimate {
    /// Bytes that will be written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.image_bytes + self.text_bytes
    }

    /// Bytes of disk that this takes.
    #[must_use]
    pub fn space_bytes(&self) -> u64 {
        self.bytes().saturating_sub(self.replaced_bytes)
    }
}

/// What the estimate looks with.
pub(crate) struct Tools<'a> {
    pub(crate) source: &'a Source,
    pub(crate) handle: &'a Handle,
    pub(crate) image_recipe: &'a ImageRecipe,
    pub(crate) text: &'a TextPreparer,
    pub(crate) layout: &'a Layout,
    /// The output folder, where receipts may already stand.
    pub(crate) output: &'a Path,
    /// Images that nobody may look into.
    pub(crate) crashers: &'a BTreeSet<ImageKey>,
    pub(crate) in_flight: &'a InFlight,
    /// Files that will be made again.
    pub(crate) damaged: &'a Damaged,
    /// Keeps what is fetched here for the image stage.
    pub(crate) early: &'a Early,
}

#[derive(Default)]
struct Sums {
    images: u64,
    patch_bytes: u64,
    largest_image_bytes: u64,
    image_time: Duration,
    records: u64,
    sample_bytes: u64,
    text_time: Duration,
}

/// What earlier runs have left to do.
#[derive(Default)]
struct Rest {
    images: u64,
    records: u64,
    replaced_bytes: u64,
    /// Images of the run's first partition, by number in the plan; none for a rejected one.
    known: HashMap<u32, Option<ImageEntry>>,
}

/// Looks at the first records of the run's first partition: the deal made them a random sample. Images that
/// a receipt knows are not fetched. With `timed`, the others are decoded too, to measure the time.
pub(crate) fn estimate(
    plan: &Plan,
    share: &Share,
    tools: &Tools<'_>,
    timed: bool,
) -> Result<Estimate> {
    let Some(first) = share.partitions().next() else {
        return Ok(Estimate::default());
    };
    let Rest {
        images,
        records,
        replaced_bytes,
        mut known,
    } = rest(plan, share, first, tools)?;
    if records == 0 && images == 0 {
        return Ok(Estimate::default());
    }
    if timed && images > 0 {
        // The time of an image is only known by decoding it.
        known.clear();
    }
    let mut preparer = timed.then(|| Preparer::new(tools.image_recipe.clone()));
    let mut sums = Sums::default();
    let mut sample = plan.partition_records(first);
    sample.truncate(SAMPLE_RECORDS);
    fetch_all(plan, &sample, tools, &known)?;
    for record in sample {
        look(plan, record, tools, &known, preparer.as_mut(), &mut sums)?;
    }
    let scaled = |sum: u64, seen: u64, all: u64| {
        let whole = u128::from(sum) * u128::from(all) / u128::from(seen.max(1));
        u64::try_from(whole * u128::from(100 + SAFETY_PERCENT) / 100).unwrap_or(u64::MAX)
    };
    Ok(Estimate {
        image_bytes: scaled(sums.patch_bytes, sums.images, images),
        text_bytes: scaled(sums.sample_bytes, sums.records, records)
            + ROW_OVERHEAD_BYTES * (images + records),
        replaced_bytes,
        largest_image_bytes: sums.largest_image_bytes,
        image_time: times(sums.image_time, sums.images, images),
        text_time: times(sums.text_time, sums.records, records),
    })
}

fn rest(plan: &Plan, share: &Share, first: u32, tools: &Tools<'_>) -> Result<Rest> {
    let (root, layout) = (tools.output, tools.layout);
    let mut rest = Rest {
        records: share.records,
        ..Rest::default()
    };
    let mut replaced = [Vec::new(), Vec::new()];
    for partition in share.partitions() {
        let images = plan.partition_images(partition);
        let items = images.len() as u64;
        let found = ImageReceipts::load(root, layout, partition, items, tools.damaged)?;
        rest.images += items - found.done();
        replaced[0].extend(found.replaced(root, layout, partition));
        if partition == first {
            rest.known = known(&images, &found);
        }
        let found = if found.covered() < items {
            // Their text is made again, too.
            SampleReceipts::default()
        } else {
            SampleReceipts::load(root, layout, partition, u64::MAX, tools.damaged)?
        };
        rest.records = rest.records.saturating_sub(found.done());
        replaced[1].extend(found.replaced(root, layout, partition));
    }
    for bytes in &replaced {
        // Old and new stand side by side until the new one is whole.
        let largest = bytes.iter().max().copied().unwrap_or(0);
        rest.replaced_bytes += bytes.iter().sum::<u64>() - largest;
    }
    Ok(rest)
}

/// The images that receipts know, by number in the plan.
fn known(images: &[u32], found: &ImageReceipts) -> HashMap<u32, Option<ImageEntry>> {
    let number = |item: u64| usize::try_from(item).ok().and_then(|at| images.get(at));
    let rows = found.all().iter().flat_map(|receipt| {
        let rows = receipt.items.iter().zip(&receipt.entries);
        let rows = rows.map(|(item, entry)| (*item, Some(*entry)));
        let rejects = receipt.rejects.iter().map(|reject| (reject.item, None));
        rows.chain(rejects)
    });
    rows.filter_map(|(item, entry)| Some((*number(item)?, entry)))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn times(sum: Duration, seen: u64, all: u64) -> Duration {
    sum.mul_f64(all as f64 / seen.max(1) as f64)
}

/// Fetches the images of `records` that have to be looked at, some at once: one after another they would take as many round trips.
fn fetch_all(
    plan: &Plan,
    records: &[u32],
    tools: &Tools<'_>,
    known: &HashMap<u32, Option<ImageEntry>>,
) -> Result<()> {
    let is_asked = |image: &u32| {
        let key = plan.images[*image as usize].key;
        !known.contains_key(image) && !tools.crashers.contains(&key)
    };
    let images = records
        .iter()
        .flat_map(|record| plan.record_images(*record));
    let images: BTreeSet<u32> = images.copied().filter(is_asked).collect();
    crew::each(FETCHES_MAX, &Vec::from_iter(images), |image| {
        if tools.early.has_room() {
            // Kept by `early`, whatever it says.
            let _ = fetch(plan, *image, tools)?;
        }
        Ok(())
    })
}

/// What the source says of an image, asked at most once.
fn fetch(plan: &Plan, image: u32, tools: &Tools<'_>) -> Result<Answer> {
    if let Some(answer) = tools.early.get(image) {
        return Ok(answer);
    }
    let (_, link) = plan.image_link(image)?;
    let answer = match tools.handle.block_on(tools.source.fetch(&link)) {
        Ok(fetched) => Ok(fetched),
        Err(FetchError::Reject(reject)) => Err(reject),
        Err(FetchError::Stop(error)) => return Err(error),
    };
    tools.early.keep(image, &answer);
    Ok(answer)
}

/// Looks at one record. Whatever would be rejected adds nothing.
fn look(
    plan: &Plan,
    record: u32,
    tools: &Tools<'_>,
    known: &HashMap<u32, Option<ImageEntry>>,
    mut preparer: Option<&mut Preparer>,
    sums: &mut Sums,
) -> Result<()> {
    let mut line = Vec::new();
    if plan.read_line(record, &mut line)?.is_err() {
        return Ok(());
    }
    let shape = plan.file_of(record).shape;
    let Ok(parsed) = record::parse(&line, shape, plan.record_options()) else {
        return Ok(());
    };
    let mut grids = Vec::new();
    for image in plan.record_images(record) {
        if let Some(known) = known.get(image) {
            if let Some(entry) = known {
                sums.images += 1;
                sums.patch_bytes += entry.length;
                grids.push(entry.grid_thw);
            }
            continue;
        }
        let key = plan.images[*image as usize].key;
        if tools.crashers.contains(&key) {
            continue;
        }
        let Ok(Fetched { bytes, .. }) = fetch(plan, *image, tools)? else {
            continue;
        };
        let _note = tools.in_flight.note(key);
        let Ok(probed) = probe(&bytes, tools.image_recipe) else {
            continue;
        };
        if let Some(preparer) = preparer.as_deref_mut() {
            let start = Instant::now();
            let _ = preparer.prepare(&bytes);
            sums.image_time += start.elapsed();
        }
        sums.images += 1;
        sums.patch_bytes += probed.patches_bytes();
        let all = bytes.len() as u64 + probed.patches_bytes();
        sums.largest_image_bytes = sums.largest_image_bytes.max(all);
        grids.push(probed.grid_thw);
    }
    let start = Instant::now();
    if grids.len() == parsed.links.len()
        && let Ok(prepared) = tools.text.prepare(&parsed, &grids)
    {
        sums.text_time += start.elapsed();
        sums.records += 1;
        sums.sample_bytes += 8 * prepared.input_ids.len() as u64;
    }
    Ok(())
}
