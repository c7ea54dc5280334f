//! What the threads of a reader do: plan micro-batches in order, and make them.
//!
//! Owns the way from a position to a batch. Invariant: after a fault nothing more is planned, so the fault is the last
//! thing that is delivered.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stoker_formats::Counts;

use crate::assemble::{Look, Maker, Scratch};
use crate::assign::Assignment;
use crate::batch::{Batch, Tensor, schema};
use crate::batch_plan::{BatchPlan, is_here};
use crate::buffer::{BufferPool, size_class};
use crate::cursor::Resume;
use crate::deal::deal;
use crate::dummy;
use crate::error::{Error, Result};
use crate::look_ahead::LookAhead;
use crate::model::Model;
use crate::open_files::FileId;
use crate::options::Dealing;
use crate::pipeline::Work;
use crate::placement::{Held, Placement};
use crate::remote_cache::{self, Run};
use crate::rows::Rows;
use crate::schedule::{GlobalBatch, Position, Schedule};
use crate::stats::SlowRead;
use crate::sync::unpoisoned;
use crate::unit::Unit;
use crate::world::World;

/// How long a read may take before it is named as hanging.
pub(crate) const SLOW: Duration = Duration::from_secs(30);

/// What never changes while a reader is open.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) schedule: Schedule,
    pub(crate) world: World,
    pub(crate) placement: Placement,
    pub(crate) dealing: Dealing,
    pub(crate) rows: Arc<Rows>,
    pub(crate) model: Model,
    pub(crate) look: Look,
    pub(crate) pool: Arc<BufferPool>,
}

/// A global batch, and who reads what of it.
pub(crate) struct Dealt {
    pub(crate) batch: GlobalBatch,
    pub(crate) assignment: Assignment,
    /// Tokens of the global batch that take part in the loss.
    n_loss_tokens: u64,
    /// Whether this rank's micro-batches get a dummy image; empty where none is wanted.
    dummies: Vec<bool>,
}

impl Plan {
    /// The same with another schedule.
    pub(crate) fn with(&self, schedule: Schedule) -> Self {
        Self {
            schedule,
            world: self.world.clone(),
            placement: self.placement.clone(),
            dealing: self.dealing,
            rows: Arc::clone(&self.rows),
            model: self.model.clone(),
            look: self.look,
            pool: Arc::clone(&self.pool),
        }
    }

    /// Deals the global batch at `at`.
    pub(crate) fn deal(&self, at: Position) -> Result<Dealt> {
        let batch = self.schedule.batch(at)?;
        let counts = batch.units.iter().map(|unit| match unit {
            Some(unit) => self.rows.counts(*unit),
            None => Ok(Counts::default()),
        });
        let counts = counts.collect::<Result<Vec<Counts>>>()?;
        let (world, placement) = (&self.world, &self.placement);
        let assignment = deal(&batch, &counts, world, placement, &self.dealing)?;
        let loss = counts.iter().map(|counts| u64::from(counts.loss_tokens));
        let dummies = if self.dealing.dummy_image {
            dummy::wanted(&batch, &counts, &assignment, world)
        } else {
            Vec::new()
        };
        Ok(Dealt {
            n_loss_tokens: loss.sum(),
            dummies,
            batch,
            assignment,
        })
    }
}

/// A micro-batch with where to go on after it.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) batch: Batch,
    pub(crate) after: Resume,
}

/// A micro-batch to make.
pub(crate) struct Job {
    plan: BatchPlan,
    tensors: Vec<Tensor>,
    bytes: usize,
    epoch: u64,
    position: u64,
    micro_batch: u32,
    n_loss_tokens: u64,
    after: Resume,
    /// Counted from the run's first.
    number: u64,
}

/// Where planning stands.
struct Ahead {
    at: Resume,
    /// The global batch at `at`, once it is needed.
    current: Option<Dealt>,
    /// Those after it, where files are brought.
    later: Option<LookAhead>,
    /// Micro-batches that were planned.
    planned: u64,
    failed: bool,
}

/// The work of one run of the pipeline.
pub(crate) struct BatchWork {
    plan: Arc<Plan>,
    ahead: Mutex<Ahead>,
    scratch: Vec<Mutex<Scratch>>,
    /// What each thread reads, and since when.
    reading: Vec<Mutex<Option<(FileId, Instant)>>>,
    /// What brings files.
    run: Option<Arc<Run>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A maker that panicked leaves scratch memory, which the next one writes before it reads.
    unpoisoned(mutex.lock())
}

impl BatchWork {
    /// Work that begins at `at`, with files that `run` brings.
    pub(crate) fn new(plan: Arc<Plan>, at: Resume, threads: usize, run: Option<Arc<Run>>) -> Self {
        Self {
            plan,
            ahead: Mutex::new(Ahead {
                at,
                current: None,
                later: run.clone().map(|run| LookAhead::new(run, at)),
                planned: 0,
                failed: false,
            }),
            run,
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
            reading: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    /// Reads that have taken `limit` or longer, those of indexes included.
    pub(crate) fn slow_reads(&self, limit: Duration) -> Vec<SlowRead> {
        let rows = &self.plan.rows;
        let shards = self.reading.iter().filter_map(|reading| {
            let (file, since) = (*lock(reading))?;
            Some((rows.origin(file)?, since.elapsed()))
        });
        let slow = shards
            .chain(rows.reading())
            .filter(|(_, elapsed)| *elapsed >= limit);
        slow.map(|(path, elapsed)| SlowRead {
            path,
            seconds: elapsed.as_secs_f64(),
        })
        .collect()
    }

    fn next_job(&self, ahead: &mut Ahead) -> Result<Job> {
        let plan = &*self.plan;
        if ahead.current.is_none() {
            let dealt = match &mut ahead.later {
                Some(later) => later.take(plan)?,
                None => plan.deal(ahead.at.at)?,
            };
            ahead.at.at = dealt.batch.at;
            check_local(plan, &dealt.assignment)?;
            ahead.current = Some(dealt);
        }
        let Some(dealt) = &ahead.current else {
            return Err(Error::Internal("a planned batch"));
        };
        let batch = &dealt.batch;
        let micro_batch = ahead.at.micro_batches_delivered;
        let size = plan.world.micro_batch_size() as usize;
        let units = dealt.assignment.rank(plan.world.rank());
        let units = units
            .get(micro_batch as usize * size..)
            .and_then(|units| units.get(..size))
            .ok_or(Error::Internal("a planned micro-batch"))?;
        let dummy = dealt.dummies.get(micro_batch as usize) == Some(&true);
        let made_of = BatchPlan::new(units, dummy, &plan.rows, &plan.model)?;
        let sizes = made_of.sizes(&plan.model);
        let (tensors, bytes) = schema(&sizes, plan.look.layout, plan.look.pixels);
        let whole = micro_batch + 1 == plan.world.micro_batches();
        let after = if whole {
            Resume {
                at: batch.next,
                micro_batches_delivered: 0,
            }
        } else {
            Resume {
                at: batch.at,
                micro_batches_delivered: micro_batch + 1,
            }
        };
        let job = Job {
            plan: made_of,
            tensors,
            bytes,
            epoch: batch.at.epoch,
            position: batch.at.position,
            micro_batch,
            n_loss_tokens: dealt.n_loss_tokens,
            after,
            number: ahead.planned,
        };
        ahead.planned += 1;
        ahead.at = after;
        if whole {
            ahead.current = None;
        }
        Ok(job)
    }

    fn make_batch(&self, job: Job, worker: usize) -> Result<Delivery> {
        let plan = &*self.plan;
        let started = Instant::now();
        let (Some(scratch), Some(slot)) = (self.scratch.get(worker), self.reading.get(worker))
        else {
            return Err(Error::Internal("a thread's memory"));
        };
        let mut scratch = lock(scratch);
        let mut buffer = plan.pool.take(job.bytes)?;
        let reading = |file: Option<FileId>| {
            *lock(slot) = file.map(|file| (file, Instant::now()));
        };
        scratch.read = Duration::ZERO;
        remote_cache::waited();
        let maker = Maker {
            rows: &plan.rows,
            model: &plan.model,
            look: plan.look,
            // The first of each thread: the consumer waits, and one more reads for the same disk.
            hurry: job.number < self.scratch.len() as u64,
            reading: &reading,
        };
        let made = maker.assemble(&job.plan, &job.tensors, &mut buffer, &mut scratch);
        reading(None);
        let sample_ids = made?;
        // Files that this node lacks are waited for inside of reads.
        let (waited, whole) = (remote_cache::waited(), started.elapsed());
        let of_rest = |time: Duration| time.saturating_sub(waited);
        plan.rows
            .counters
            .made(of_rest(scratch.read), of_rest(whole));
        Ok(Delivery {
            batch: Batch {
                tensors: job.tensors,
                buffer,
                epoch: job.epoch,
                position: job.position,
                micro_batch: job.micro_batch,
                micro_batches: plan.world.micro_batches(),
                n_loss_tokens: job.n_loss_tokens,
                tokens: job.plan.rows.iter().map(|row| row.filled).sum(),
                max_seqlen: job.plan.longest(),
                units: job.plan.units(),
                sample_ids,
            },
            after: job.after,
        })
    }
}

impl Work for BatchWork {
    type Job = Result<Job>;
    type Done = Result<Delivery>;

    fn plan(&self) -> Option<(Self::Job, u64)> {
        let mut ahead = lock(&self.ahead);
        if ahead.failed {
            return None;
        }
        let job = self.next_job(&mut ahead);
        ahead.failed = job.is_err();
        let bytes = job.as_ref().map_or(0, |job| size_class(job.bytes) as u64);
        Some((job, bytes))
    }

    fn make(&self, job: Self::Job, worker: usize) -> Self::Done {
        let job = job?;
        let number = job.number;
        let made = self.make_batch(job, worker);
        if let Some(run) = &self.run {
            run.made(number);
        }
        made
    }

    fn panicked(&self, message: String) -> Self::Done {
        Err(Error::Panicked { message })
    }

    fn waited(&self, budget: Duration, consumer: Duration) {
        self.plan.rows.counters.admission(budget);
        self.plan.rows.counters.idle(consumer);
    }
}

/// Fails if this rank would have to read units that neither the placement nor the disk has here, and nothing brings.
pub(crate) fn check_local(plan: &Plan, assignment: &Assignment) -> Result<()> {
    if assignment.remote() == 0 {
        return Ok(());
    }
    let node = plan.world.node_rank();
    let elsewhere = |unit: &Unit| {
        let held = Held {
            cache: unit.cache,
            partition: unit.partition,
        };
        let brought = plan.rows.remote();
        !brought.is_some_and(|remote| remote.reaches(unit.cache))
            && !plan.placement.holds(node, held)
            && !is_here(*unit, &plan.rows)
    };
    let units = assignment.rank(plan.world.rank());
    match units.iter().flatten().find(|unit| elsewhere(unit)) {
        None => Ok(()),
        Some(first) => Err(Error::Remote {
            remote: assignment.remote(),
            units: plan.world.global_batch_size() as usize,
            cache: first.cache,
            partition: first.partition,
        }),
    }
}
