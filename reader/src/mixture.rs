//! Which cache a position of a mixture takes its unit from.
//!
//! Owns the quotas and the block pattern. Invariant: in each epoch of the mixture every cache gets exactly its quota,
//! in each block its share to within one unit, and both are computed with integers only.

use crate::order_error::OrderError;

/// Units of a block, about: short enough to be laid out in no time, long enough to hold every cache.
const BLOCK_UNITS: u64 = 1024;

/// The largest weight becomes this integer.
const WEIGHT_ONE: f64 = (1u64 << 40) as f64;

/// 2^32 divided by the golden ratio: its multiples modulo 2^32 are the most evenly spread.
const GOLDEN: u64 = 0x9e37_79b9;

/// The mixture of one epoch.
#[derive(Debug, Clone)]
pub(crate) struct Mixture {
    /// Units of each cache in an epoch.
    quotas: Vec<u64>,
    epoch_len: u64,
    blocks: u64,
}

/// One block of the pattern.
#[derive(Debug)]
pub(crate) struct Block {
    /// The position in the epoch that it begins with.
    pub(crate) start: u64,
    /// For each of its positions the cache, and which of that cache's units in this epoch.
    pub(crate) turns: Vec<(u32, u64)>,
}

impl Mixture {
    /// The mixture of caches with epochs of `lengths`; without weights each by its size.
    pub(crate) fn new(lengths: &[u64], weights: Option<&[f64]>) -> Result<Self, OrderError> {
        let epoch_len: u64 = lengths.iter().sum();
        let quotas = match weights {
            None => lengths.to_vec(),
            Some(weights) => quotas(epoch_len, lengths.len(), weights)?,
        };
        let block = BLOCK_UNITS.max(4 * quotas.len() as u64);
        Ok(Self {
            blocks: (epoch_len / block).max(1),
            quotas,
            epoch_len,
        })
    }

    /// Positions of an epoch.
    pub(crate) fn epoch_len(&self) -> u64 {
        self.epoch_len
    }

    /// Units of each cache in an epoch.
    pub(crate) fn quotas(&self) -> &[u64] {
        &self.quotas
    }

    /// Units of a cache before block `block`. Caches of one size get their odd units in different blocks, and in one
    /// block not neighbours, so that blocks are about equally long and evenly mixed.
    fn before(&self, cache: u64, block: u64) -> u64 {
        let blocks = u128::from(self.blocks);
        let ahead = (blocks * u128::from((cache * GOLDEN) as u32)) >> 32;
        let quota = u128::from(self.quotas[cache as usize]);
        // At most the quota: `block` is at most `blocks`, and `ahead` is less than that.
        ((quota * u128::from(block) + ahead) / blocks) as u64
    }

    fn start(&self, block: u64) -> u64 {
        let caches = 0..self.quotas.len() as u64;
        caches.map(|cache| self.before(cache, block)).sum()
    }

    /// Units of each cache in the positions of an epoch before `position`.
    pub(crate) fn given(&self, position: u64) -> Vec<u64> {
        let number = self.number_at(position);
        let caches = 0..self.quotas.len() as u64;
        let mut given: Vec<u64> = caches.map(|cache| self.before(cache, number)).collect();
        let block = self.block(number);
        for (cache, _) in &block.turns[..(position - block.start) as usize] {
            given[*cache as usize] += 1;
        }
        given
    }

    /// The block that `position` is in.
    pub(crate) fn block_at(&self, position: u64) -> Block {
        self.block(self.number_at(position))
    }

    fn number_at(&self, position: u64) -> u64 {
        let guess = u128::from(position) * u128::from(self.blocks) / u128::from(self.epoch_len);
        let mut number = guess as u64;
        // A block begins less than a unit a cache from its due place, which is less than a block: it is this one or a neighbour.
        while self.start(number) > position {
            number -= 1;
        }
        while self.start(number + 1) <= position {
            number += 1;
        }
        number
    }

    fn block(&self, number: u64) -> Block {
        let caches = self.quotas.len() as u64;
        let mut turns = Vec::new();
        for cache in 0..caches {
            let from = self.before(cache, number);
            let count = self.before(cache, number + 1) - from;
            for turn in 0..count {
                // Turns of one cache are evenly spaced, and each cache begins a little later than the one before.
                let place = turn * 2 * caches + 2 * cache + 1;
                turns.push((place, count, cache, from + turn));
            }
        }
        turns.sort_unstable_by(|a, b| {
            let (left, right) = (a.0 * b.1, b.0 * a.1);
            left.cmp(&right).then(a.2.cmp(&b.2))
        });
        Block {
            start: self.start(number),
            turns: turns
                .into_iter()
                .map(|(_, _, cache, unit)| (cache as u32, unit))
                .collect(),
        }
    }
}

/// Integers in the proportion of `weights` that add up to `epoch_len`, by largest remainder.
fn quotas(epoch_len: u64, caches: usize, weights: &[f64]) -> Result<Vec<u64>, OrderError> {
    if weights.len() != caches {
        return Err(OrderError::WeightCount {
            caches,
            weights: weights.len(),
        });
    }
    for (cache, weight) in weights.iter().enumerate() {
        if !(weight.is_finite() && *weight > 0.0) {
            return Err(OrderError::Weight {
                cache,
                weight: *weight,
            });
        }
    }
    let most = weights.iter().copied().fold(0.0, f64::max);
    let scaled: Vec<u128> = weights
        .iter()
        .map(|weight| (weight / most * WEIGHT_ONE).round() as u128)
        .collect();
    let sum: u128 = scaled.iter().sum();
    let exact = |weight: &u128| weight * u128::from(epoch_len);
    let mut quotas: Vec<u64> = scaled
        .iter()
        .map(|weight| (exact(weight) / sum) as u64)
        .collect();
    let left = epoch_len - quotas.iter().sum::<u64>();
    let mut by_remainder: Vec<usize> = (0..caches).collect();
    by_remainder.sort_by_key(|cache| std::cmp::Reverse(exact(&scaled[*cache]) % sum));
    for cache in by_remainder.into_iter().take(left as usize) {
        quotas[cache] += 1;
    }
    match quotas.iter().position(|quota| *quota == 0) {
        None => Ok(quotas),
        Some(cache) => Err(OrderError::WeightTooSmall {
            cache,
            epoch: epoch_len,
            weight: weights[cache],
        }),
    }
}
