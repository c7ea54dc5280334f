//! The reader: micro-batches of one rank, in order, prepared ahead.
//!
//! Owns opening, delivery and the cursor. Invariant: the cursor counts what was delivered, never what was prepared; a
//! reader that was opened in another process is never touched.

use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::assemble::Look;
use crate::batch::Batch;
use crate::budget::Budget;
use crate::buffer::{BufferPool, Source};
use crate::cursor::{Cursor, Resume};
use crate::error::{Error, Result};
use crate::fetch_plan::Planner;
use crate::index_check::IndexCheck;
use crate::index_store::KEPT_BYTES;
use crate::io::Backend;
use crate::memory;
use crate::model::Model;
use crate::opening::{self, Pages};
use crate::pipeline::{Next, Pipeline};
use crate::reader_options::ReaderOptions;
use crate::remote_cache::RemoteCache;
use crate::rows::{How, Rows};
use crate::schedule::{Position, Schedule};
use crate::stats::{Consumer, Counters, Stats};
use crate::unit::PartitionUnits;
use crate::units::Units;
use crate::work::{BatchWork, Plan, SLOW};
use crate::world::World;

/// How long a stopped reader waits for its threads. A thread inside a read that hangs is left to end by itself.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// What [`Reader::next_batch`] gives.
#[derive(Debug)]
pub enum Step {
    /// A micro-batch.
    Batch(Batch),
    /// The epoch is over; the next call begins the next one.
    EpochEnd,
    /// Nothing was ready in time; the next call goes on waiting.
    TimedOut,
}

/// Delivers the micro-batches of one rank.
pub struct Reader {
    opened_by: u32,
    plan: Arc<Plan>,
    options: ReaderOptions,
    budget_bytes: u64,
    counters: Arc<Counters>,
    consumer: Consumer,
    /// Threads run from the first batch on.
    pipeline: Option<Pipeline<BatchWork>>,
    index_check: Option<IndexCheck>,
    at: Resume,
    /// The epoch whose end is to be told next.
    ended: bool,
    waiting_since: Option<Instant>,
    first_fault: Option<String>,
    /// How long a read may take before it is named; shorter in tests.
    pub(crate) slow: Duration,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("at", &self.at)
            .field("world", &self.plan.world)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens the caches: reads their manifests and checks that every file that this node needs is there, or has a fallback that
    /// brings it; missing indexes are brought now. Starts no
    /// thread and costs nothing a row; with a placement, the first global batches are dealt, for which counts may be read.
    ///
    /// # Errors
    /// [`Error::NotACache`], [`Error::Missing`] with all missing files, [`Error::NoSplit`], [`Error::NoPack`],
    /// [`Error::OtherModel`],
    /// [`Error::Remote`], [`Error::Fallback`] if indexes do not come or a file is larger than `cache_disk`, or what is wrong with an
    /// option.
    pub fn open(options: ReaderOptions) -> Result<Self> {
        Self::open_in(options, KEPT_BYTES, |_| Ok(Source::Plain))
    }

    /// As [`open`](Self::open), with batches in memory of `source`, and at most `kept_bytes` of indexes.
    pub(crate) fn open_in(
        options: ReaderOptions,
        kept_bytes: u64,
        source: impl FnOnce(&Model) -> Result<Source>,
    ) -> Result<Self> {
        options.check()?;
        let world = World::new(options.world)?;
        let caches = opening::caches(&options.caches)?;
        let splits = caches
            .iter()
            .map(|files| opening::split(files, &options.split));
        let splits = splits.collect::<Result<Vec<_>>>()?;
        let made_of = Units::open(&caches, options.pack.as_deref())?;
        let mut units = made_of.of_splits(&caches, &splits);
        for (units, cache) in units.iter_mut().zip(&options.caches) {
            let is_read = |part: &PartitionUnits| !cache.without.contains(&part.partition);
            units.partitions.retain(is_read);
        }
        let weights: Option<Vec<f64>> = options.caches.iter().map(|cache| cache.weight).collect();
        let schedule = Schedule::new(
            &units,
            weights.as_deref(),
            &options.order,
            options.world.global_batch_size,
        )?;
        let elsewhere = opening::check_presence(&options, &world, &caches, &units)?;
        let memory = memory::limit();
        let model = Model::of_all(&caches)?;
        if let (true, None, Some(first)) = (
            options.dealing.dummy_image,
            model.vision_start,
            caches.first(),
        ) {
            return Err(Error::Recipe {
                root: first.root().to_path_buf(),
                field: "/text/special/vision_start",
            });
        }
        let counters = Arc::new(Counters::default());
        let remote = RemoteCache::open(elsewhere, &options.remote, Arc::clone(&counters))?;
        let shard_bytes = opening::shard_bytes(&caches, &units, |held| {
            options.placement.holds(world.node_rank(), held)
        });
        let pages = opening::pages(shard_bytes, memory, memory::available());
        let read = caches
            .into_iter()
            .zip(&units)
            .map(|(files, units)| {
                let read = units.partitions.iter().map(|part| part.partition);
                (files, read.collect())
            })
            .collect();
        let rows = Arc::new(Rows::new(
            read,
            made_of,
            How {
                backend: options.backend,
                verify: options.verify,
                drop_pages: pages == Pages::Given,
                fills: options.backend != Backend::Direct && pages == Pages::Filled,
                kept_bytes,
            },
            remote,
            Arc::clone(&counters),
        ));
        let schedule = schedule.with_lengths(Arc::<Rows>::clone(&rows));
        let budget_bytes = options.budget(memory);
        let plan = Arc::new(Plan {
            schedule,
            world,
            placement: options.placement.clone(),
            dealing: options.dealing,
            rows,
            pool: BufferPool::new(
                source(&model)?,
                usize::try_from(budget_bytes).unwrap_or(usize::MAX),
            ),
            model,
            look: Look {
                layout: options.layout(),
                pixels: options.pixels,
                position_pad: options.position_pad,
                sample_ids: options.sample_ids,
            },
        });
        opening::check_ahead(&plan)?;
        Ok(Self {
            opened_by: process::id(),
            plan,
            budget_bytes,
            counters,
            consumer: Consumer::open(Instant::now()),
            pipeline: None,
            index_check: None,
            at: Resume::default(),
            ended: false,
            waiting_since: None,
            first_fault: None,
            slow: SLOW,
            options,
        })
    }

    /// Fails in a fork of the process that opened the reader: its threads and locks are not there.
    pub(crate) fn check_process(&self) -> Result<()> {
        if process::id() == self.opened_by {
            return Ok(());
        }
        Err(Error::Forked {
            what: "the reader",
            pid: self.opened_by,
        })
    }

    /// The next micro-batch. Waits at most `timeout`, or without end.
    ///
    /// # Errors
    /// [`Error::Row`] or [`Error::Formats`] naming shard and row if one is damaged, [`Error::Forked`] in a fork. After an
    /// error only [`restore`](Self::restore) and [`seek`](Self::seek) go on.
    pub fn next_batch(&mut self, timeout: Option<Duration>) -> Result<Step> {
        self.check_process()?;
        if let Some(first) = &self.first_fault {
            return Err(Error::Stopped {
                first: first.clone(),
            });
        }
        if std::mem::take(&mut self.ended) {
            return Ok(Step::EpochEnd);
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let next = self.running()?.next(timeout);
        let result = match next {
            Next::TimedOut => return Ok(Step::TimedOut),
            Next::Done(delivery) => delivery,
            Next::Ended => Err(Error::Internal("a reader without an end has ended")),
        };
        self.waiting_since = None;
        let result = result.and_then(|delivery| self.check_indexes().map(|()| delivery));
        match result {
            Ok(delivery) => {
                self.consumer.delivered(since.elapsed());
                self.ended = delivery.after.at.epoch != delivery.batch.epoch;
                self.at = delivery.after;
                Ok(Step::Batch(delivery.batch))
            }
            Err(fault) => {
                self.first_fault = Some(fault.to_string());
                self.stop();
                Err(fault)
            }
        }
    }

    /// Fails if the check of the indexes has found damage, or cannot begin. That it does with the first batch, not before:
    /// somebody waits for that.
    fn check_indexes(&mut self) -> Result<()> {
        match &self.index_check {
            Some(check) => check.fault().map_or(Ok(()), Err),
            None => {
                self.index_check = Some(IndexCheck::start(&self.plan)?);
                Ok(())
            }
        }
    }

    fn running(&mut self) -> Result<&Pipeline<BatchWork>> {
        let pipeline = match self.pipeline.take() {
            Some(pipeline) => pipeline,
            // Those of the threads that have begun end.
            None => self.start().inspect_err(|_| self.stop())?,
        };
        Ok(self.pipeline.insert(pipeline))
    }

    fn start(&self) -> Result<Pipeline<BatchWork>> {
        let threads = self.options.threads;
        let run = RemoteCache::start(&self.plan)?;
        let work = BatchWork::new(Arc::clone(&self.plan), self.at, threads, run);
        let (depth, budget) = (
            self.options.prefetch_batches,
            Budget::new(self.budget_bytes),
        );
        let started = Pipeline::start(work, threads, depth, budget);
        started.map_err(|source| Error::Thread { source })
    }

    fn stop(&mut self) {
        let until = Instant::now() + STOP_LIMIT;
        let remote = self.plan.rows.remote();
        // First those that others wait for.
        remote.inspect(|remote| remote.end());
        if let Some(mut pipeline) = self.pipeline.take() {
            pipeline.stop(Some(STOP_LIMIT));
            self.counters.peak(pipeline.bytes().1);
        }
        remote.inspect(|remote| remote.wait(until));
        self.waiting_since = None;
    }

    /// Where the reader stands: after the last micro-batch that was delivered.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork.
    pub fn cursor(&self) -> Result<Cursor> {
        self.cursor_at(self.at)
    }

    pub(crate) fn cursor_at(&self, at: Resume) -> Result<Cursor> {
        self.check_process()?;
        let plan = &self.plan;
        Ok(Cursor::within(
            &plan.schedule,
            at,
            &plan.world,
            &plan.placement,
            &plan.dealing,
        ))
    }

    /// After the last micro-batch that was delivered.
    #[cfg(feature = "cuda")]
    pub(crate) fn at(&self) -> Resume {
        self.at
    }

    /// Whether [`next_batch`](Self::next_batch) has something to give now.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_next(&self) -> bool {
        let ready = || self.pipeline.as_ref().is_some_and(Pipeline::is_ready);
        self.first_fault.is_none() && (self.ended || ready())
    }

    /// Goes on at `cursor`, which may come from another number of ranks, nodes or batch size.
    ///
    /// # Errors
    /// [`Error::Order`] saying what differs; then nothing has changed.
    pub fn restore(&mut self, cursor: &Cursor) -> Result<()> {
        self.go_on(cursor, false)
    }

    /// The same, but the cursor may have been saved under other weights of the mixture, between two global batches: those that
    /// this reader was opened with apply from it on, and each cache goes on where it was.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restore_reweighted(&mut self, cursor: &Cursor) -> Result<()> {
        self.go_on(cursor, true)
    }

    fn go_on(&mut self, cursor: &Cursor, reweight: bool) -> Result<()> {
        self.check_process()?;
        let plan = self
            .plan
            .with(cursor.schedule(&self.plan.schedule, reweight)?);
        let at = cursor.resume(&plan.schedule, &plan.world, &plan.placement, &plan.dealing)?;
        self.go_to(at);
        self.plan = Arc::new(plan);
        Ok(())
    }

    /// Goes to the place after `consumed_samples` delivered samples (with packs, packs), counted over all ranks from the very
    /// first, in the order of the weights that the reader was opened with.
    ///
    /// # Errors
    /// [`Error::Order`] if there is no such place; then nothing has changed.
    pub fn seek(&mut self, consumed_samples: u64) -> Result<()> {
        self.check_process()?;
        let start = self.plan.schedule.going_on(Position::default(), None)?;
        let at = start.seek(consumed_samples)?;
        self.go_to(Resume {
            at,
            micro_batches_delivered: 0,
        });
        self.plan = Arc::new(self.plan.with(start));
        Ok(())
    }

    fn go_to(&mut self, at: Resume) {
        self.stop();
        // Damage that was found is looked for again: nothing goes on with an index that is known to be wrong.
        if self
            .index_check
            .as_ref()
            .is_some_and(IndexCheck::has_failed)
        {
            self.index_check = None;
        }
        self.at = at;
        self.ended = false;
        self.first_fault = None;
    }

    /// Micro-batches of this rank in an epoch.
    #[must_use]
    pub fn epoch_batches(&self) -> u64 {
        self.plan.schedule.epoch_batches() * u64::from(self.plan.world.micro_batches())
    }

    /// Counts what each node will have to bring for what is left of the epoch of the next batch: all of it where that is the first.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork.
    pub fn planner(&self) -> Result<Planner> {
        self.planner_at(self.at)
    }

    pub(crate) fn planner_at(&self, at: Resume) -> Result<Planner> {
        self.check_process()?;
        Ok(Planner {
            plan: Arc::clone(&self.plan),
            at: at.at,
            cache_disk: self.options.remote.cache_disk,
        })
    }

    /// The order of all ranks' batches.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.plan.schedule
    }

    /// What the caches were made for.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.plan.model
    }

    /// What the reader was opened with.
    #[must_use]
    pub fn options(&self) -> &ReaderOptions {
        &self.options
    }

    /// What was measured since the reader was opened.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork.
    pub fn stats(&self) -> Result<Stats> {
        self.check_process()?;
        let pipeline = self.pipeline.as_ref();
        Ok(Stats::new(
            &self.counters,
            &self.consumer,
            pipeline.map_or(0, Pipeline::queued),
            pipeline.map_or((0, 0), Pipeline::bytes),
            self.plan.rows.remote().map_or((0, 0), RemoteCache::bytes),
            pipeline.map_or_else(Vec::new, |pipeline| pipeline.work().slow_reads(self.slow)),
        ))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.stop();
        } else {
            // In a fork the threads are not there, and their locks may be held for ever: leave all as it is.
            std::mem::forget(self.pipeline.take());
            std::mem::forget(self.index_check.take());
            // And what they use: a fallback has threads, too.
            std::mem::forget(Arc::clone(&self.plan));
            std::mem::forget(self.options.clone());
        }
    }
}
