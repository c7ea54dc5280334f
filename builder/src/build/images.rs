//! The image stage of one partition: fetch, decode, write, in plan order.
//!
//! A dispatcher starts items in plan order as the budget allows; each is fetched on the runtime and
//! decoded on the pool, the first ready one next; this thread takes the results in plan order and
//! writes them. So the bytes of a shard do not depend on threads or latency.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use stoker_formats::{RejectEntry, SourceEntry};
use tokio::sync::{mpsc, oneshot};

use super::budget::Permit;
use super::context::Context;
use super::gate::OpenAtEnd;
use super::progress::{Counters, Stage};
use super::receipts::{ImageReceipts, Rest};
use super::rejects::Rejected;
use super::sink::{Images, OwnedImage, Sink};
use crate::error::{Error, Result};
use crate::image::{Prepared, probe};
use crate::reject::{Reason, Reject};
use crate::source::FetchError;

/// Items started and not yet written, whatever their size: bounds tasks and open files.
const ITEMS_MAX: usize = 512;

/// Between two looks at the stop request while waiting for an item.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// One image's way through the pipeline, ended.
struct Done {
    outcome: Result<Prepared, Reject>,
    source: Option<SourceEntry>,
    /// Frees the budget when the row is written.
    _permit: Permit,
}

type Waiting = oneshot::Receiver<Result<Done>>;

/// Builds what is missing of the partition's images; `receipts` then covers all of them, unless a repair gives some up.
pub(crate) fn build_images(
    context: &Arc<Context>,
    partition: u32,
    images: &Arc<[u32]>,
    receipts: &mut ImageReceipts,
    rejected: &Rejected,
) -> Result<()> {
    let mut blame = Blame {
        context,
        partition,
        records_of: None,
        rejected,
    };
    for receipt in receipts.all() {
        for reject in &receipt.rejects {
            let image = images[usize::try_from(reject.item).unwrap_or(0)];
            blame.image(image, &reject.reason)?;
        }
    }
    for rest in receipts.to_make(images.len() as u64) {
        let ordinal = rest.ordinal;
        let filled = fill(context, partition, images, rest, receipts, &mut blame);
        if context.mending.made(filled)?.is_none() {
            receipts.give_up(ordinal);
        }
    }
    Ok(())
}

/// Counts a rejected image as a reject of all its records in the partition.
struct Blame<'a> {
    context: &'a Context,
    partition: u32,
    /// Made at the first reject.
    records_of: Option<HashMap<u32, Vec<u32>>>,
    rejected: &'a Rejected,
}

impl Blame<'_> {
    fn image(&mut self, image: u32, reason: &str) -> Result<()> {
        let records_of = self.records_of.get_or_insert_with(|| {
            let mut records_of: HashMap<u32, Vec<u32>> = HashMap::new();
            for record in self.context.plan.partition_records(self.partition) {
                for image in self.context.plan.record_images(record) {
                    records_of.entry(*image).or_default().push(record);
                }
            }
            records_of
        });
        for record in records_of.get(&image).into_iter().flatten() {
            self.rejected.add(*record, reason);
        }
        self.context.progress.set_rejects(self.rejected.count());
        self.rejected.check(&self.context.plan)
    }
}

fn fill(
    context: &Arc<Context>,
    partition: u32,
    images: &Arc<[u32]>,
    rest: Rest,
    receipts: &mut ImageReceipts,
    blame: &mut Blame<'_>,
) -> Result<()> {
    let (sender, mut started) = mpsc::channel(ITEMS_MAX);
    let items = usize_range(&rest.items);
    context.handle.spawn(dispatch(
        Arc::clone(context),
        Arc::clone(images),
        items,
        sender,
    ));
    let counters = context.progress.counters();
    let mut sink = Sink::<Images>::new(context, partition, rest.clone());
    let _open = OpenAtEnd(&context.gate);
    for item in rest.items.clone() {
        let waiting = started.blocking_recv().ok_or_else(lost)?;
        let done = wait(context, waiting)?;
        Counters::add(&counters.images, 1);
        context.progress.advance(1);
        let image = images[usize::try_from(item).unwrap_or(0)];
        let source = done.source.map(|source| SourceEntry { item, ..source });
        match done.outcome {
            Ok(prepared) => {
                let row = OwnedImage {
                    key: context.plan.images[image as usize].key,
                    grid_thw: prepared.grid_thw,
                    size: prepared.size,
                    patches: prepared.patches,
                };
                let bytes = row.patches.len() as u64;
                let used = counters.timed(Stage::Write, || {
                    // First: the shard that ends here knows nothing of this item.
                    sink.make_room(item, &row, receipts)?;
                    sink.read(source);
                    context.gate.close();
                    sink.push(item, row)
                })?;
                context.buffers.give(used);
                context.gate.written(bytes);
            }
            Err(reject) => {
                blame.image(image, reject.reason.code())?;
                sink.read(source);
                sink.reject(RejectEntry {
                    item,
                    reason: reject.reason.code().to_owned(),
                    message: reject.message,
                    link: reject.link,
                    column: None,
                });
            }
        }
    }
    counters.timed(Stage::Write, || sink.finish(receipts))
}

/// Waits for one item, looking at the stop request all the time.
fn wait(context: &Context, mut waiting: Waiting) -> Result<Done> {
    if let Ok(done) = waiting.try_recv() {
        context.check()?;
        return done;
    }
    context.gate.open();
    loop {
        context.check()?;
        let next = context
            .handle
            .block_on(async { tokio::time::timeout(STOP_CHECK, &mut waiting).await });
        match next {
            Ok(Ok(done)) => return done,
            Ok(Err(_)) => return Err(lost()),
            Err(_) => {}
        }
    }
}

fn lost() -> Error {
    Error::Usage {
        what: "a worker of the image stage ended without a result".into(),
        hint: "this is a fault of stoker; run again to go on".into(),
    }
}

fn usize_range(range: &Range<u64>) -> Range<usize> {
    let narrow = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    narrow(range.start)..narrow(range.end)
}

/// Starts items in plan order. Ends when all are started or the writer is gone.
async fn dispatch(
    context: Arc<Context>,
    images: Arc<[u32]>,
    items: Range<usize>,
    sender: mpsc::Sender<Waiting>,
) {
    for item in items {
        let permit = context.budget.acquire().await;
        let (done, waiting) = oneshot::channel();
        if sender.send(waiting).await.is_err() {
            return;
        }
        let context = Arc::clone(&context);
        let image = images[item];
        tokio::spawn(async move {
            let outcome = prepare(context, item, image, permit).await;
            let _ = done.send(outcome);
        });
    }
}

/// Fetches and decodes one image, item `item` of its partition.
async fn prepare(
    context: Arc<Context>,
    item: usize,
    image: u32,
    mut permit: Permit,
) -> Result<Done> {
    let key = context.plan.images[image as usize].key;
    let (raw, link) = context.plan.image_link(image)?;
    let rejected = |reject: Reject, source, permit| Done {
        outcome: Err(if reject.link.is_none() {
            reject.with_link(&raw)
        } else {
            reject
        }),
        source,
        _permit: permit,
    };
    let fetched = match context.early.take(image) {
        Some(answer) => answer.map_err(FetchError::Reject),
        None => context.source.fetch(&link).await,
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(FetchError::Reject(reject)) => return Ok(rejected(reject, None, permit)),
        Err(FetchError::Stop(error)) => return Err(error),
    };
    let bytes = fetched.bytes;
    Counters::add(&context.progress.counters().bytes_in, bytes.len() as u64);
    let source = Some(SourceEntry {
        item: 0,
        uri: fetched.uri,
        bytes: bytes.len() as u64,
        etag: fetched.etag,
    });
    if context.crashers.contains(&key) {
        let message = "the image took the decoding process down";
        let reject = Reject::new(Reason::DecoderCrash, message);
        return Ok(rejected(reject, source, permit));
    }
    let probed = {
        let _note = context.in_flight.note(key);
        probe(&bytes, &context.image_recipe)
    };
    let probed = match probed {
        Ok(probed) => probed,
        Err(reject) => return Ok(rejected(reject, source, permit)),
    };
    let patches_bytes = probed.patches_bytes();
    permit.resize(bytes.len() as u64 + patches_bytes);
    let turn = context.decoding.turn(item, probed.scratch_bytes).await;
    let (send, outcome) = oneshot::channel();
    let worker = Arc::clone(&context);
    context.pool.spawn(move || {
        worker.gate.pass(patches_bytes);
        let note = worker.in_flight.note(key);
        let counters = worker.progress.counters();
        let prepared = counters.timed(Stage::Decode, || {
            let patches = worker.buffers.take(patches_bytes);
            worker
                .preparers
                .with(|preparer| preparer.prepare_into(&bytes, patches))
        });
        // Before the result is known: what a receipt holds is no suspect of a later run.
        drop((note, bytes, turn));
        if let Ok(prepared) = &prepared {
            worker.gate.add(prepared.patches.len() as u64);
        }
        let _ = send.send(prepared);
    });
    match outcome.await {
        Ok(Ok(prepared)) => Ok(Done {
            outcome: Ok(prepared),
            source,
            _permit: permit,
        }),
        Ok(Err(reject)) => Ok(rejected(reject, source, permit)),
        Err(_) => Err(Error::Usage {
            what: "a decoding thread ended without a result".into(),
            hint: "this is a fault of stoker; run again to go on".into(),
        }),
    }
}
