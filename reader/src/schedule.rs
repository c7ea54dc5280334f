//! From a position to the units of a global batch.
//!
//! Owns epochs and global batches of a mixture. Invariant: what is in a global batch depends on data, order options,
//! weights, epoch, position and batch size only; never on ranks, nodes, or what was read before.
//!
//! An epoch of the schedule has as many positions as one epoch of every cache together, and ends there: with one cache,
//! or without weights, each epoch is one epoch of each cache. With weights each cache has its quota of an epoch and goes
//! through its own epochs without a break: a small one begins again while a large one goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use stoker_formats::ContentHash;

use crate::error::Result;
use crate::identity::{data_hash, weights_hash};
use crate::length::{self, Lengths};
use crate::memo::{MEMO_BYTES, Memo};
use crate::mixture::{Block, Mixture};
use crate::offsets::Offsets;
use crate::options::{Curriculum, Last, OrderOptions};
use crate::order::{MAX_UNITS, Order};
use crate::order_error::OrderError;
use crate::sync::unpoisoned;
use crate::unit::{CacheUnits, PackId, Unit};
use crate::world::check_batch_size;

/// Positions from the start of the first epoch that can be counted.
const MAX_COUNTED: u64 = 1 << 62;

/// A place in the order: the next unit to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The position in the epoch, from 0.
    pub position: u64,
}

/// The units of one optimiser step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalBatch {
    /// Where it begins.
    pub at: Position,
    /// As many as the global batch size, in position order; none stands for a padding row.
    pub units: Vec<Option<Unit>>,
    /// Where the next one begins.
    pub next: Position,
}

/// The schedule of one or more caches.
#[derive(Debug)]
pub struct Schedule {
    orders: Arc<[Order]>,
    mixture: Mixture,
    /// If the weights were others before.
    offsets: Option<Offsets>,
    /// Where a cursor went on that counts what each cache gave.
    began: Option<Position>,
    options: OrderOptions,
    global_batch_size: u32,
    pack: Option<PackId>,
    data: ContentHash,
    weights: ContentHash,
    /// Needed with `order=length`.
    lengths: Option<Arc<dyn Lengths>>,
    window: u64,
    work: Mutex<Work>,
}

/// What is kept between batches; nothing depends on it.
#[derive(Debug)]
struct Work {
    memo: Memo,
    block: Block,
}

impl Work {
    fn new(orders: &[Order], mixture: &Mixture) -> Mutex<Self> {
        let partitions = orders.iter().map(Order::partitions).sum();
        Mutex::new(Self {
            memo: Memo::new(MEMO_BYTES, partitions),
            block: mixture.block_at(0),
        })
    }
}

impl Schedule {
    /// The schedule of `caches` with `weights`; without weights each counts by its size.
    ///
    /// # Errors
    /// If there is nothing to order, a weight is no weight, or an epoch gives no global batch under `options.last`.
    pub fn new(
        caches: &[CacheUnits],
        weights: Option<&[f64]>,
        options: &OrderOptions,
        global_batch_size: u32,
    ) -> Result<Self, OrderError> {
        check_batch_size("global batch size", global_batch_size)?;
        let orders = orders(caches, options)?;
        let lengths: Vec<u64> = orders.iter().map(Order::epoch_len).collect();
        let units = lengths
            .iter()
            .try_fold(0u64, |sum, len| sum.checked_add(*len));
        if units.is_none_or(|units| units > MAX_UNITS) {
            return Err(OrderError::TooLargeMixture {
                caches: caches.len(),
            });
        }
        let mixture = Mixture::new(&lengths, weights)?;
        let partitions = orders.iter().map(Order::partitions).sum();
        let schedule = Self {
            work: Work::new(&orders, &mixture),
            offsets: None,
            began: None,
            pack: caches.first().and_then(|cache| cache.pack.clone()),
            data: data_hash(caches),
            weights: weights_hash(mixture.quotas()),
            options: *options,
            global_batch_size,
            orders: orders.into(),
            mixture,
            lengths: None,
            window: length::window(partitions),
        };
        schedule.check_epoch()?;
        Ok(schedule)
    }

    /// The schedule, with what `order=length` looks lengths up in.
    #[must_use]
    pub fn with_lengths(mut self, lengths: Arc<dyn Lengths>) -> Self {
        self.lengths = Some(lengths);
        self
    }

    /// The same with its weights applying from `at` on, where the caches have given `given` units; without that, from the start.
    pub(crate) fn going_on(&self, at: Position, given: Option<&[u64]>) -> Result<Self, OrderError> {
        let offsets = match given {
            None => None,
            Some(given) => Offsets::new(at, given, &self.due(at))?,
        };
        Ok(Self {
            orders: Arc::clone(&self.orders),
            mixture: self.mixture.clone(),
            offsets,
            began: given.map(|_| at),
            options: self.options,
            global_batch_size: self.global_batch_size,
            pack: self.pack.clone(),
            data: self.data,
            weights: self.weights,
            lengths: self.lengths.clone(),
            window: self.window,
            work: Work::new(&self.orders, &self.mixture),
        })
    }

    /// Units that each cache should have given before `at` by the weights.
    fn due(&self, at: Position) -> Vec<u64> {
        let quotas = self.mixture.quotas().iter();
        let before = self.mixture.given(at.position);
        quotas
            .zip(before)
            .map(|(quota, before)| at.epoch * quota + before)
            .collect()
    }

    /// Units that each cache has given before `at`, a position of the schedule.
    pub(crate) fn given(&self, at: Position) -> Vec<u64> {
        let due = self.due(at).into_iter().enumerate();
        due.map(|(cache, due)| self.applied(cache, due)).collect()
    }

    /// Whether it was made to go on at `at`, whatever the weights were before.
    pub(crate) fn began_at(&self, at: Position) -> bool {
        self.began == Some(at)
    }

    fn applied(&self, cache: usize, due: u64) -> u64 {
        let offsets = self.offsets.as_ref();
        offsets.map_or(due, |offsets| offsets.apply(cache, due))
    }

    /// Positions of an epoch.
    #[must_use]
    pub fn epoch_len(&self) -> u64 {
        self.mixture.epoch_len()
    }

    /// Global batches of an epoch, from its beginning.
    #[must_use]
    pub fn epoch_batches(&self) -> u64 {
        let size = u64::from(self.global_batch_size);
        match self.options.last {
            Last::Drop | Last::Error => self.epoch_len() / size,
            Last::Pad => self.epoch_len().div_ceil(size),
        }
    }

    /// The orders of the caches.
    #[must_use]
    pub fn orders(&self) -> &[Order] {
        &self.orders
    }

    /// Units of each cache in an epoch of the schedule.
    #[must_use]
    pub fn quotas(&self) -> &[u64] {
        self.mixture.quotas()
    }

    /// The order options.
    #[must_use]
    pub fn options(&self) -> &OrderOptions {
        &self.options
    }

    /// Units of a global batch.
    #[must_use]
    pub fn global_batch_size(&self) -> u32 {
        self.global_batch_size
    }

    /// The first cache's pack table, if units are packs.
    pub(crate) fn pack(&self) -> Option<&PackId> {
        self.pack.as_ref()
    }

    /// Identifies caches, splits and pack tables, in order.
    #[must_use]
    pub fn data_hash(&self) -> ContentHash {
        self.data
    }

    /// Identifies what the weights come to. Weights in the same proportion have the same hash.
    #[must_use]
    pub fn weights_hash(&self) -> ContentHash {
        self.weights
    }

    /// The global batch at `at`. With `last=drop`, a place with too few units left stands for the next epoch.
    ///
    /// # Errors
    /// [`OrderError::NoPosition`]; [`OrderError::ShortBatch`] with `last=error`; with `order=length`
    /// [`OrderError::NoLengths`], or what is wrong with an index.
    pub fn batch(&self, at: Position) -> Result<GlobalBatch> {
        self.batch_of(at, |work, epoch, position| self.unit(work, epoch, position))
    }

    /// The same, but every row is 0: all that an assignment needs, without looking into partitions.
    pub(crate) fn outline(&self, at: Position) -> Result<GlobalBatch, OrderError> {
        self.batch_of(at, |work, epoch, position| {
            let (cache, turn) = self.turn(work, epoch, position);
            let order = &self.orders[cache as usize];
            Ok(Unit {
                cache,
                partition: order.partition_at(turn % order.epoch_len()),
                number: 0,
            })
        })
    }

    fn batch_of<E: From<OrderError>>(
        &self,
        at: Position,
        unit: impl Fn(&mut Work, u64, u64) -> Result<Unit, E>,
    ) -> Result<GlobalBatch, E> {
        let at = self.settle(at)?;
        let size = u64::from(self.global_batch_size);
        let count = size.min(self.epoch_len() - at.position);
        let mut units = Vec::with_capacity(self.global_batch_size as usize);
        {
            let mut work = self.lock();
            let positions = at.position..at.position + count;
            for position in positions {
                units.push(Some(unit(&mut work, at.epoch, position)?));
            }
        }
        units.resize(self.global_batch_size as usize, None);
        Ok(GlobalBatch {
            next: self.after(at, count),
            at,
            units,
        })
    }

    /// The unit at `at`.
    ///
    /// # Errors
    /// [`OrderError::NoPosition`]; as [`batch`](Self::batch) with `order=length`.
    pub fn unit_at(&self, at: Position) -> Result<Unit> {
        self.check(at)?;
        self.unit(&mut self.lock(), at.epoch, at.position)
    }

    /// The place after `consumed` delivered samples, for trainers that only keep a counter.
    ///
    /// It counts what trainers count: a global batch a step, so with `last=pad` padding rows too, with `last=drop` nothing
    /// for what is dropped. It is exact for a run in which the global batch size was the same from the start.
    ///
    /// # Errors
    /// [`OrderError::NoPosition`] if it is beyond all positions.
    pub fn seek(&self, consumed: u64) -> Result<Position, OrderError> {
        let rows = self.epoch_batches() * u64::from(self.global_batch_size);
        let at = Position {
            epoch: consumed / rows,
            position: consumed % rows,
        };
        // Inside the padding of the last batch there is nothing left of the epoch.
        let at = if at.position >= self.epoch_len() {
            next_epoch(at)
        } else {
            at
        };
        self.check(at)?;
        Ok(at)
    }

    /// Fails unless `at` is a position of the schedule.
    pub(crate) fn check(&self, at: Position) -> Result<(), OrderError> {
        let start = at.epoch.checked_mul(self.epoch_len());
        let counted = start.is_some_and(|start| start < MAX_COUNTED);
        let from = self.offsets.as_ref().map(|offsets| offsets.from);
        if counted && at.position < self.epoch_len() && from.is_none_or(|from| from <= at) {
            return Ok(());
        }
        Err(OrderError::NoPosition {
            epoch: at.epoch,
            position: at.position,
        })
    }

    /// Where the batch that is due at `at` begins.
    pub(crate) fn settle(&self, at: Position) -> Result<Position, OrderError> {
        self.check(at)?;
        let left = self.epoch_len() - at.position;
        if left >= u64::from(self.global_batch_size) {
            return Ok(at);
        }
        match self.options.last {
            Last::Pad => Ok(at),
            Last::Drop => {
                let next = next_epoch(at);
                self.check(next)?;
                Ok(next)
            }
            Last::Error => Err(self.short(left)),
        }
    }

    /// Where a run that resumes at `at` goes on; fails now if it could not end the epoch.
    pub(crate) fn resume_at(&self, at: Position) -> Result<Position, OrderError> {
        let at = self.settle(at)?;
        let left = (self.epoch_len() - at.position) % u64::from(self.global_batch_size);
        match self.options.last {
            Last::Error if left > 0 => Err(self.short(left)),
            _ => Ok(at),
        }
    }

    /// Where the batch after one of `count` units at `at` begins.
    fn after(&self, at: Position, count: u64) -> Position {
        let position = at.position + count;
        let left = self.epoch_len() - position;
        let dropped = self.options.last == Last::Drop && left < u64::from(self.global_batch_size);
        if left == 0 || dropped {
            next_epoch(at)
        } else {
            Position { position, ..at }
        }
    }

    fn unit(&self, work: &mut Work, epoch: u64, position: u64) -> Result<Unit> {
        let (cache, turn) = self.turn(work, epoch, position);
        let order = &self.orders[cache as usize];
        let (epoch, position) = (turn / order.epoch_len(), turn % order.epoch_len());
        let unit = |partition, number| Unit {
            cache,
            partition,
            number,
        };
        let memo = &mut work.memo;
        let (partition, number) = match self.options.order {
            Curriculum::Random => order.unit_at(memo, epoch, position),
            Curriculum::Length => {
                let lengths = self.lengths.as_ref().ok_or(OrderError::NoLengths)?;
                let tokens = |partition, number| lengths.tokens(unit(partition, number));
                order.unit_by_length(memo, (epoch, position), self.window, tokens)?
            }
        };
        Ok(unit(partition, number))
    }

    /// The cache whose turn it is, and how many it had before, over all epochs.
    fn turn(&self, work: &mut Work, epoch: u64, position: u64) -> (u32, u64) {
        let (cache, turn) = if self.orders.len() == 1 {
            (0, position)
        } else {
            let inside = |block: &Block| {
                let offset = position.checked_sub(block.start)?;
                block.turns.get(usize::try_from(offset).ok()?).copied()
            };
            inside(&work.block).unwrap_or_else(|| {
                work.block = self.mixture.block_at(position);
                work.block.turns[(position - work.block.start) as usize]
            })
        };
        // `check` keeps the sum over all caches inside a u64.
        let due = epoch * self.mixture.quotas()[cache as usize] + turn;
        (cache, self.applied(cache as usize, due))
    }

    fn check_epoch(&self) -> Result<(), OrderError> {
        let size = u64::from(self.global_batch_size);
        if self.epoch_batches() == 0 {
            return Err(OrderError::ShortEpoch {
                units: self.epoch_len(),
                global_batch_size: self.global_batch_size,
            });
        }
        match self.epoch_len() % size {
            left @ 1.. if self.options.last == Last::Error => Err(self.short(left)),
            _ => Ok(()),
        }
    }

    fn short(&self, left: u64) -> OrderError {
        OrderError::ShortBatch {
            global_batch_size: self.global_batch_size,
            left,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        // A panic in between can only lose what was kept.
        unpoisoned(self.work.lock())
    }
}

fn next_epoch(at: Position) -> Position {
    Position {
        epoch: at.epoch + 1,
        position: 0,
    }
}

fn orders(caches: &[CacheUnits], options: &OrderOptions) -> Result<Vec<Order>, OrderError> {
    if caches.is_empty() {
        return Err(OrderError::NoUnits);
    }
    let mut copies = HashMap::new();
    let mut lane = 0u32;
    let mut orders = Vec::with_capacity(caches.len());
    for cache in caches {
        let copy = copies.entry(cache.fingerprint).or_insert(0u64);
        let order = Order::among(options, cache, *copy, lane)?;
        *copy += 1;
        let lanes = u32::try_from(order.partitions()).ok();
        lane =
            lanes
                .and_then(|lanes| lane.checked_add(lanes))
                .ok_or(OrderError::TooLargeMixture {
                    caches: caches.len(),
                })?;
        orders.push(order);
    }
    Ok(orders)
}
