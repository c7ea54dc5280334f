//! The order of partitions: the images of one are made while the text of the one before it is.
//!
//! Owns the two threads and how a fault of one stops the other. Invariant: a partition's text begins when all
//! its images are accounted for, and the commit takes the partition from there, so that no receipt is read twice; a portion is
//! committed after the text of its last partition; what is reported is the first fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::commit::{Commit, Done, Making};
use super::context::Context;
use super::images::build_images;
use super::receipts::{ImageReceipts, SampleReceipts};
use super::rejects::Rejected;
use super::report::Committed;
use super::text::build_samples;
use crate::error::{Error, Result};

/// Partitions whose text waits: their image indexes lie in memory.
const AHEAD: usize = 1;

/// The first fault of a stage.
#[derive(Debug, Default)]
pub(crate) struct Halt {
    asked: AtomicBool,
    first: Mutex<Option<Error>>,
}

impl Halt {
    /// Whether some stage has failed, so that the others need not go on.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// What a stage has made. Its error is kept, if it is the first.
    fn note<T>(&self, outcome: Result<T>) -> Option<T> {
        match outcome {
            Ok(made) => Some(made),
            Err(error) => {
                self.first().get_or_insert(error);
                self.asked.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    fn first(&self) -> MutexGuard<'_, Option<Error>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A partition whose images are done.
struct Imaged {
    partition: u32,
    images: Arc<[u32]>,
    receipts: ImageReceipts,
    /// Whether this run has made any of them.
    made: bool,
}

/// Builds what is missing of the run's partitions, and commits each portion of them.
pub(super) fn run(
    context: &Arc<Context>,
    making: &Making<'_>,
    rejected: &Rejected,
) -> Result<Committed> {
    let share = &context.share;
    context
        .progress
        .phase("build", share.images + share.records);
    let (sender, imaged) = sync_channel(AHEAD);
    let committed = std::thread::scope(|scope| {
        let texts = scope.spawn(|| context.halt.note(texts(context, making, imaged, rejected)));
        context.halt.note(images(context, sender, rejected));
        texts.join()
    });
    let committed = committed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match (context.halt.first().take(), committed.flatten()) {
        (None, Some(committed)) => Ok(committed),
        (first, _) => Err(first.unwrap_or(Error::Interrupted { signal: 15 })),
    }
}

fn images(context: &Arc<Context>, done: SyncSender<Imaged>, rejected: &Rejected) -> Result<()> {
    for partition in context.share.partitions() {
        context.check()?;
        let images: Arc<[u32]> = context.plan.partition_images(partition).into();
        let items = images.len() as u64;
        let root = context.publisher.root();
        let mut receipts =
            ImageReceipts::load(root, &context.layout, partition, items, &context.damaged)?;
        let there = receipts.covered();
        context.progress.advance(receipts.done());
        build_images(context, partition, &images, &mut receipts, rejected)?;
        let imaged = Imaged {
            partition,
            images,
            receipts,
            made: there < items,
        };
        if done.send(imaged).is_err() {
            break;
        }
    }
    Ok(())
}

/// None if the images have failed, which is then the fault to report.
fn texts(
    context: &Context,
    making: &Making<'_>,
    imaged: Receiver<Imaged>,
    rejected: &Rejected,
) -> Result<Option<Committed>> {
    let portions = &context.share.portions;
    let mut committed = Committed {
        records: context.share.records,
        ..Committed::default()
    };
    for (number, portion) in (1..).zip(portions) {
        let mut commit = Commit::begin(context, portion.part)?;
        for _ in &portion.partitions {
            let Ok(ready) = imaged.recv() else {
                return Ok(None);
            };
            context.check()?;
            text(context, &mut commit, &ready, rejected)?;
        }
        // What the manifest or the part's record says of the inputs is still so.
        for file in &context.plan.files {
            file.check_unchanged()?;
        }
        if number == portions.len() {
            context.progress.phase("commit", 1);
        }
        committed.add(match portion.part {
            None => commit.finish(making),
            Some(part) => commit.finish_part(making, part),
        }?);
    }
    Ok(Some(committed))
}

/// Builds what is missing of a partition's text, and adds the partition to the commit.
fn text(
    context: &Context,
    commit: &mut Commit<'_>,
    ready: &Imaged,
    rejected: &Rejected,
) -> Result<()> {
    let partition = ready.partition;
    let records = context.plan.partition_records(partition);
    let items = records.len() as u64;
    let root = context.publisher.root();
    // Text is made of all images: what was there before some of them counts only if it is made again the same.
    let mut samples = if ready.made {
        SampleReceipts::default()
    } else {
        SampleReceipts::load(root, &context.layout, partition, items, &context.damaged)?
    };
    context.progress.advance(samples.done());
    if ready.receipts.is_given_up() && ready.receipts.covered() < ready.images.len() as u64 {
        // What is not known of the images cannot be told in the text.
        commit.leave_out();
        return Ok(());
    }
    build_samples(
        context,
        partition,
        &records,
        &ready.images,
        &ready.receipts,
        &mut samples,
        rejected,
    )?;
    if samples.is_given_up() && samples.covered() < items {
        commit.leave_out();
        return Ok(());
    }
    commit.add(&Done {
        partition,
        image_items: &ready.images,
        images: &ready.receipts,
        records: &records,
        samples: &samples,
    })
}
