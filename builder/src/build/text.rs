//! The text stage of one partition: parse, render, tokenise, write, in plan order.
//!
//! Needs no picture, only the image index: number and grid of every prepared image, and why the
//! others were rejected.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{SyncSender, sync_channel};

use rayon::prelude::*;
use stoker_formats::{RejectEntry, SampleRow};

use super::context::Context;
use super::progress::{Counters, Stage};
use super::receipts::{ImageReceipts, Rest, SampleReceipts};
use super::rejects::Rejected;
use super::sink::{Samples, Sink};
use crate::error::Result;
use crate::plan::Line;
use crate::quiet::caught;
use crate::record;
use crate::reject::{Reason, Reject, kept};
use crate::source::link;

/// A chunk is prepared in parallel and then written; its text is bounded.
const CHUNK_BYTES: u64 = 4 << 20;
/// So are its records, and the ids and labels of their image tokens.
const CHUNK_RECORDS: usize = 1024;
const CHUNK_IMAGE_TOKEN_BYTES: u64 = 64 << 20;
/// Bytes of an id and its label.
const TOKEN_BYTES: u64 = 8;
/// Chunks prepared ahead of the writer.
const CHUNKS_AHEAD: usize = 2;

/// What became of an image of this partition.
#[derive(Debug, Clone)]
enum Image {
    /// Its number in the partition and its grid.
    Prepared(u32, [i32; 3]),
    /// Why it is absent.
    Rejected(String, String),
}

/// One prepared sample.
struct Sample {
    record_id: Option<String>,
    input_ids: Vec<i32>,
    labels: Vec<i32>,
    images: Vec<u32>,
    grids: Vec<[i32; 3]>,
}

/// A reject of the text stage: its code is a text because an image's reject passes it on.
struct Refusal {
    reason: String,
    message: String,
    link: Option<String>,
    column: Option<u64>,
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Self {
        Self {
            reason: reject.reason.code().to_owned(),
            message: reject.message,
            link: reject.link,
            column: reject.column,
        }
    }
}

type Outcome = Result<Sample, Refusal>;

/// Builds what is missing of the partition's samples; `receipts` then covers all of them, unless a repair gives some up.
pub(crate) fn build_samples(
    context: &Context,
    partition: u32,
    records: &[u32],
    images: &[u32],
    image_receipts: &ImageReceipts,
    receipts: &mut SampleReceipts,
    rejected: &Rejected,
) -> Result<()> {
    for receipt in receipts.all() {
        for reject in &receipt.rejects {
            let record = records[usize::try_from(reject.item).unwrap_or(0)];
            rejected.add(record, &reject.reason);
        }
    }
    rejected.check(&context.plan)?;
    let to_make = receipts.to_make(records.len() as u64);
    if to_make.is_empty() {
        return Ok(());
    }
    let images = image_map(images, image_receipts);
    for rest in to_make {
        let ordinal = rest.ordinal;
        let filled = fill(
            context, partition, records, &images, rest, receipts, rejected,
        );
        if context.mending.made(filled)?.is_none() {
            receipts.give_up(ordinal);
        }
    }
    Ok(())
}

/// What became of every image of the partition, by its number in the plan.
fn image_map(images: &[u32], receipts: &ImageReceipts) -> HashMap<u32, Image> {
    let mut map = HashMap::with_capacity(images.len());
    let mut number = 0;
    for receipt in receipts.all() {
        let mut rejects = receipt.rejects.iter().peekable();
        let mut entries = receipt.entries.iter();
        for item in receipt.plan_range[0]..receipt.plan_range[1] {
            let image = images[usize::try_from(item).unwrap_or(0)];
            if let Some(reject) = rejects.next_if(|reject| reject.item == item) {
                let rejected = Image::Rejected(reject.reason.clone(), reject.message.clone());
                map.insert(image, rejected);
            } else if let Some(entry) = entries.next() {
                map.insert(image, Image::Prepared(number, entry.grid_thw));
                number += 1;
            }
        }
    }
    map
}

fn fill(
    context: &Context,
    partition: u32,
    records: &[u32],
    images: &HashMap<u32, Image>,
    rest: Rest,
    receipts: &mut SampleReceipts,
    rejected: &Rejected,
) -> Result<()> {
    let counters = context.progress.counters();
    let mut sink = Sink::<Samples>::new(context, partition, rest.clone());
    std::thread::scope(|scope| {
        let (sender, prepared) = sync_channel(CHUNKS_AHEAD);
        scope.spawn(|| prepare_chunks(context, records, images, rest.items.clone(), sender));
        let mut items = rest.items.clone();
        for chunk in prepared {
            context.check()?;
            let chunk: Vec<Outcome> = chunk?;
            // What was read for it was read before.
            let from = usize::try_from(items.start).unwrap_or(0);
            let to = from + chunk.len();
            context.plan.check_unchanged(&records[from..to])?;
            let count = chunk.len() as u64;
            for (outcome, item) in chunk.into_iter().zip(items.by_ref()) {
                let record = records[usize::try_from(item).unwrap_or(0)];
                match outcome {
                    Ok(sample) => {
                        let sample_id = context.plan.sample_id(record);
                        let row = SampleRow {
                            sample_id: &sample_id,
                            record_id: sample.record_id.as_deref(),
                            input_ids: &sample.input_ids,
                            labels: &sample.labels,
                            images: &sample.images,
                            image_grid_thw: &sample.grids,
                        };
                        counters.timed(Stage::Write, || {
                            sink.make_room(item, &row, receipts)?;
                            sink.push(item, row)
                        })?;
                    }
                    Err(refusal) => {
                        rejected.add(record, &refusal.reason);
                        sink.reject(RejectEntry {
                            item,
                            reason: refusal.reason,
                            message: refusal.message,
                            link: refusal.link,
                            column: refusal.column,
                        });
                    }
                }
            }
            Counters::add(&counters.records, count);
            context.progress.advance(count);
            context.progress.set_rejects(rejected.count());
            rejected.check(&context.plan)?;
        }
        counters.timed(Stage::Write, || sink.finish(receipts))
    })
}

/// Prepares the gap chunk by chunk, ahead of the writer, until done or the writer is gone.
fn prepare_chunks(
    context: &Context,
    records: &[u32],
    images: &HashMap<u32, Image>,
    items: Range<u64>,
    sender: SyncSender<Result<Vec<Outcome>>>,
) {
    let narrow = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let mut rest = &records[narrow(items.start)..narrow(items.end)];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(chunk_length(context, rest, images));
        rest = after;
        let outcomes = context.pool.install(|| {
            chunk
                .par_iter()
                .map_init(Vec::new, |buffer, record| {
                    context.progress.counters().timed(Stage::Tokenise, || {
                        guarded(context, *record, images, buffer)
                    })
                })
                .collect::<Result<Vec<_>>>()
        });
        let failed = outcomes.is_err();
        if sender.send(outcomes).is_err() || failed {
            return;
        }
    }
}

fn chunk_length(context: &Context, records: &[u32], images: &HashMap<u32, Image>) -> usize {
    let (mut bytes, mut image_tokens) = (0, 0);
    let merged = u64::from(context.image_recipe.merge_size).pow(2);
    let tokens = |image: &u32| match images.get(image) {
        Some(Image::Prepared(_, grid)) => {
            grid.iter()
                .map(|side| u64::from(side.unsigned_abs()))
                .product::<u64>()
                / merged
        }
        _ => 0,
    };
    let fits = records.iter().take(CHUNK_RECORDS).take_while(|record| {
        let line = context.plan.lines[**record as usize];
        if line.bytes != Line::TOO_LONG {
            bytes += u64::from(line.bytes);
        }
        image_tokens += context
            .plan
            .record_images(**record)
            .iter()
            .map(tokens)
            .sum::<u64>();
        bytes <= CHUNK_BYTES && image_tokens * TOKEN_BYTES <= CHUNK_IMAGE_TOKEN_BYTES
    });
    fits.count().max(1)
}

/// Prepares one record; a panic costs the record.
fn guarded(
    context: &Context,
    record: u32,
    images: &HashMap<u32, Image>,
    buffer: &mut Vec<u8>,
) -> Result<Outcome> {
    caught(|| prepare(context, record, images, buffer)).unwrap_or_else(|said| {
        let message = format!("preparing the text of this record panicked: `{said}`");
        Ok(Err(Reject::new(Reason::TextCrash, message).into()))
    })
}

/// Prepares one record. An error stops the build; a refusal costs the record.
fn prepare(
    context: &Context,
    record: u32,
    images: &HashMap<u32, Image>,
    buffer: &mut Vec<u8>,
) -> Result<Outcome> {
    let plan = &context.plan;
    if let Err(reject) = plan.read_line(record, buffer)? {
        return Ok(Err(reject.into()));
    }
    let file = plan.file_of(record);
    let parsed = match record::parse(buffer, file.shape, plan.record_options()) {
        Ok(parsed) => parsed,
        Err(reject) => return Ok(Err(reject.into())),
    };
    let numbers = plan.record_images(record);
    for raw in &parsed.links {
        if let Err(reject) = link::resolve(raw, &file.base, &plan.policy) {
            return Ok(Err(reject.into()));
        }
    }
    if numbers.len() != parsed.links.len() {
        return Err(file.changed());
    }
    let mut sample = Sample {
        record_id: parsed.id.clone(),
        input_ids: Vec::new(),
        labels: Vec::new(),
        images: Vec::with_capacity(numbers.len()),
        grids: Vec::with_capacity(numbers.len()),
    };
    for (number, raw) in numbers.iter().zip(&parsed.links) {
        match images.get(number) {
            Some(Image::Prepared(row, grid)) => {
                sample.images.push(*row);
                sample.grids.push(*grid);
            }
            Some(Image::Rejected(reason, message)) => {
                return Ok(Err(Refusal {
                    reason: reason.clone(),
                    message: message.clone(),
                    link: Some(kept(raw)),
                    column: None,
                }));
            }
            None => {
                return Ok(Err(Reject::new(
                    Reason::MissingImage,
                    "image is not in the plan",
                )
                .with_link(raw)
                .into()));
            }
        }
    }
    let prepared = match context.text.prepare(&parsed, &sample.grids) {
        Ok(prepared) => prepared,
        Err(reject) => return Ok(Err(reject.into())),
    };
    sample.images.truncate(prepared.images);
    sample.grids.truncate(prepared.images);
    sample.input_ids = prepared.input_ids;
    sample.labels = prepared.labels;
    Ok(Ok(sample))
}
