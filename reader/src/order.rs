//! The order of one split of one cache: a pure function from (seed, epoch, position) to a unit.
//!
//! Owns everything random in the reader; `ORDER.md` is its specification. Invariant: seeking costs the same everywhere,
//! and memory depends on partitions and shards, never on units or on the epoch.

use stoker_formats::limits::MAX_POSITIONS;
use stoker_formats::{Key, Permutation};

use crate::error::Result;
use crate::length;
use crate::memo::{BY_LENGTH, Blocks, Memo, TableId, WHOLE};
use crate::options::{OrderOptions, Shuffle, Tail};
use crate::order_error::OrderError;
use crate::unit::{CacheUnits, PartitionUnits};

/// Units of all partitions together: sums over many caches stay inside a u64.
pub(crate) const MAX_UNITS: u64 = 1 << 56;

/// A partition that has units.
#[derive(Debug)]
struct Part {
    partition: u32,
    units: u64,
    /// Where each shard that has units begins; only for `shuffle=shard`.
    starts: Vec<u64>,
}

/// A run of positions in which the same partitions take turns.
#[derive(Debug)]
struct Stretch {
    position: u64,
    /// The round, which is the position within each partition, that it begins with.
    round: u64,
    /// The partitions that take part are those of `by_size` from here on.
    from: usize,
}

/// The order of one split of one cache.
#[derive(Debug)]
pub struct Order {
    seed: u64,
    shuffle: Shuffle,
    /// What keys are derived from: fingerprint, and the cache's number among equal ones.
    identity: [u64; 5],
    first_lane: u32,
    parts: Vec<Part>,
    /// Rounds in which all partitions take part: the units of the smallest.
    rounds: u64,
    by_size: Vec<usize>,
    tail: Vec<Stretch>,
    epoch_len: u64,
    left_out: u64,
}

impl Order {
    /// The order of `units` under `options`.
    ///
    /// # Errors
    /// If there are no units or too many, or the partitions do not ascend, or their shards do not.
    pub fn new(options: &OrderOptions, units: &CacheUnits) -> Result<Self, OrderError> {
        Self::among(options, units, 0, 0)
    }

    /// The same in a schedule: the cache is copy number `copy` of equal ones, its partitions count from `first_lane`.
    pub(crate) fn among(
        options: &OrderOptions,
        units: &CacheUnits,
        copy: u64,
        first_lane: u32,
    ) -> Result<Self, OrderError> {
        if let (Shuffle::Shard, Some(pack)) = (options.shuffle, &units.pack) {
            return Err(OrderError::ShardsOfPacks {
                pack: pack.name.clone(),
            });
        }
        let parts = parts(options.shuffle, &units.partitions)?;
        let rounds = parts.iter().map(|part| part.units).min();
        let rounds = rounds.ok_or(OrderError::NoUnits)?;
        let all: u64 = parts.iter().map(|part| part.units).sum();
        let even = rounds * parts.len() as u64;
        let epoch_len = match options.tail {
            Tail::Even => even,
            Tail::All => all,
        };
        let mut by_size: Vec<usize> = (0..parts.len()).collect();
        by_size.sort_by_key(|part| parts[*part].units);
        let mut identity = [copy; 5];
        for (word, bytes) in identity.iter_mut().zip(units.fingerprint.0.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(Self {
            seed: options.seed,
            shuffle: options.shuffle,
            identity,
            first_lane,
            tail: stretches(&parts, &by_size, rounds),
            parts,
            rounds,
            by_size,
            epoch_len,
            left_out: all - epoch_len,
        })
    }

    /// Positions of an epoch.
    #[must_use]
    pub fn epoch_len(&self) -> u64 {
        self.epoch_len
    }

    /// Units that an epoch leaves out: none with `tail=all`.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Partitions that have units.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.parts.len()
    }

    /// The partition and the row of the unit at `position` of `epoch`.
    ///
    /// # Panics
    /// If `position` is not below [`epoch_len`](Self::epoch_len).
    pub fn unit_at(&self, memo: &mut Memo, epoch: u64, position: u64) -> (u32, u64) {
        let len = self.epoch_len;
        assert!(position < len, "position {position} of {len}");
        let (index, round) = self.turn(position);
        let part = &self.parts[index];
        let row = self.row(memo, part, self.id(index, epoch), round);
        (part.partition, row)
    }

    /// The same with `order=length`: the partition's turns are ordered anew in windows of `window`, by the tokens of their
    /// rows, which `tokens` looks up.
    pub(crate) fn unit_by_length(
        &self,
        memo: &mut Memo,
        (epoch, position): (u64, u64),
        window: u64,
        tokens: impl Fn(u32, u64) -> Result<u32>,
    ) -> Result<(u32, u64)> {
        let (index, round) = self.turn(position);
        let part = &self.parts[index];
        let id = self.id(index, epoch);
        // Where nothing is left out, a partition has a turn for each of its units.
        let rounds = if self.left_out == 0 {
            part.units
        } else {
            self.rounds
        };
        let number = round / window;
        let begins = number * window;
        let turns = begins..rounds.min(begins + window);
        let name = TableId {
            block: BY_LENGTH,
            ..id
        };
        let find = |memo: &mut Memo| {
            let each = turns.map(|turn| {
                let row = self.row(memo, part, id, turn);
                tokens(part.partition, row)
            });
            let each = each.collect::<Result<Vec<u32>>>()?;
            let key = Key::derive(self.seed, "order length", &[epoch, number]);
            Ok(length::order(&each, key))
        };
        let found = memo.turns((name, number), find)?[(round - begins) as usize];
        let row = self.row(memo, part, id, begins + u64::from(found));
        Ok((part.partition, row))
    }

    fn id(&self, index: usize, epoch: u64) -> TableId {
        TableId {
            // A cache has at most 2^20 partitions.
            lane: self.first_lane + index as u32,
            block: WHOLE,
            epoch,
        }
    }

    /// The row of a partition's turn number `round`, as it is shuffled.
    fn row(&self, memo: &mut Memo, part: &Part, id: TableId, round: u64) -> u64 {
        match self.shuffle {
            Shuffle::None => round,
            Shuffle::Full => {
                let key = || self.key("order full", &[u64::from(part.partition), id.epoch]);
                memo.draw(id, part.units, round, key)
            }
            Shuffle::Shard => self.row_by_shards(memo, part, id, round),
        }
    }

    /// The partition of the unit at `position`, in every epoch the same.
    pub(crate) fn partition_at(&self, position: u64) -> u32 {
        self.parts[self.turn(position).0].partition
    }

    /// Whose turn `position` is, and which turn of that partition.
    fn turn(&self, position: u64) -> (usize, u64) {
        let parts = self.parts.len() as u64;
        if position / parts < self.rounds {
            return ((position % parts) as usize, position / parts);
        }
        let after = self
            .tail
            .partition_point(|stretch| stretch.position <= position);
        let stretch = &self.tail[after - 1];
        let taking = &self.by_size[stretch.from..];
        let offset = position - stretch.position;
        let taken = taking.len() as u64;
        (
            taking[(offset % taken) as usize],
            stretch.round + offset / taken,
        )
    }

    fn row_by_shards(&self, memo: &mut Memo, part: &Part, id: TableId, round: u64) -> u64 {
        let numbers = [u64::from(part.partition), id.epoch];
        let blocks = memo.blocks(id, || part.blocks(self.key("order shards", &numbers)));
        let after = blocks.partition_point(|(first, _)| *first <= round);
        let (first, shard) = blocks[after - 1];
        let (start, len) = part.shard(shard);
        let id = TableId { block: shard, ..id };
        let key = || {
            let [partition, epoch] = numbers;
            self.key("order in shard", &[partition, epoch, u64::from(shard)])
        };
        start + memo.draw(id, len, round - first, key)
    }

    fn key(&self, purpose: &str, numbers: &[u64]) -> Key {
        let numbers = [&self.identity, numbers].concat();
        Key::derive(self.seed, purpose, &numbers)
    }
}

impl Part {
    /// Start and length of shard `shard`.
    fn shard(&self, shard: u32) -> (u64, u64) {
        let shard = shard as usize;
        let start = self.starts[shard];
        let end = self.starts.get(shard + 1).copied().unwrap_or(self.units);
        (start, end - start)
    }

    fn blocks(&self, key: Key) -> Blocks {
        let shards = Permutation::new(key, self.starts.len() as u64);
        let mut first = 0;
        (0..shards.len())
            .map(|position| {
                // `parts` has checked that the number fits.
                let shard = shards.get(position) as u32;
                let begins = first;
                first += self.shard(shard).1;
                (begins, shard)
            })
            .collect()
    }
}

/// The partitions that have units, checked.
fn parts(shuffle: Shuffle, partitions: &[PartitionUnits]) -> Result<Vec<Part>, OrderError> {
    let mut parts = Vec::new();
    let mut before = None;
    let mut all = 0u64;
    for counts in partitions {
        let (partition, units) = (counts.partition, counts.units);
        if before.is_some_and(|before| before >= partition) {
            return Err(OrderError::Partitions { partition });
        }
        before = Some(partition);
        all = all.saturating_add(units);
        if units > MAX_POSITIONS || all > MAX_UNITS {
            return Err(OrderError::TooManyUnits { partition, units });
        }
        if units == 0 {
            continue;
        }
        let mut starts = Vec::new();
        if shuffle == Shuffle::Shard {
            let given = &counts.shard_starts;
            let fits = given.first() == Some(&0)
                && given.is_sorted()
                && given.last() <= Some(&units)
                && u32::try_from(given.len()).is_ok_and(|shards| shards < BY_LENGTH);
            if !fits {
                return Err(OrderError::ShardStarts { partition });
            }
            // Of shards that begin at the same unit only the last has any.
            let nexts = given.iter().skip(1).chain([&units]);
            let pairs = given.iter().zip(nexts);
            starts.extend(
                pairs
                    .filter(|(start, next)| start < next)
                    .map(|(start, _)| start),
            );
        }
        parts.push(Part {
            partition,
            units,
            starts,
        });
    }
    Ok(parts)
}

/// The stretches after the rounds in which all take part: one for each size that some partition exceeds.
fn stretches(parts: &[Part], by_size: &[usize], rounds: u64) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::new();
    let (mut position, mut round) = (rounds * parts.len() as u64, rounds);
    for (from, part) in by_size.iter().enumerate() {
        let units = parts[*part].units;
        if units > round {
            stretches.push(Stretch {
                position,
                round,
                from,
            });
            position += (units - round) * (by_size.len() - from) as u64;
            round = units;
        }
    }
    stretches
}
