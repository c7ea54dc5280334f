//! The order of partitions: the images of one are made while the text of the one before it is.
//!
//! Owns the two threads and how a fault of one stops the other. Invariant: a partition's text begins when all
//! its images are accounted for; what is reported is the first fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::context::Context;
use super::images::build_images;
use super::receipts::{ImageReceipts, SampleReceipts};
use super::rejects::Rejected;
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

    /// Keeps the error of a stage, if it is the first.
    fn note(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    fn outcome(&self) -> Result<()> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.take().map_or(Ok(()), Err)
    }
}

/// A partition whose images are done.
struct Imaged {
    partition: u32,
    images: Arc<[u32]>,
    receipts: ImageReceipts,
}

/// Builds what is missing of all partitions.
pub(super) fn run(context: &Arc<Context>, rejected: &Rejected) -> Result<()> {
    let plan = &context.plan;
    context
        .progress
        .phase("build", plan.images.len() as u64 + plan.records());
    let (sender, imaged) = sync_channel(AHEAD);
    std::thread::scope(|scope| {
        scope.spawn(|| context.halt.note(texts(context, imaged, rejected)));
        context.halt.note(images(context, sender, rejected));
    });
    context.halt.outcome()
}

fn images(context: &Arc<Context>, done: SyncSender<Imaged>, rejected: &Rejected) -> Result<()> {
    for partition in 0..context.plan.deal.partitions() {
        context.check()?;
        let images: Arc<[u32]> = context.plan.partition_images(partition).into();
        let mut receipts =
            ImageReceipts::load(context.publisher.root(), &context.layout, partition)?;
        context.progress.advance(receipts.covered());
        build_images(context, partition, &images, &mut receipts, rejected)?;
        let imaged = Imaged {
            partition,
            images,
            receipts,
        };
        if done.send(imaged).is_err() {
            break;
        }
    }
    Ok(())
}

fn texts(context: &Context, imaged: Receiver<Imaged>, rejected: &Rejected) -> Result<()> {
    for ready in imaged {
        context.check()?;
        let mut receipts =
            SampleReceipts::load(context.publisher.root(), &context.layout, ready.partition)?;
        context.progress.advance(receipts.covered());
        build_samples(
            context,
            ready.partition,
            &ready.images,
            &ready.receipts,
            &mut receipts,
            rejected,
        )?;
    }
    Ok(())
}
