//! Which cache a position of a mixture takes its unit from.
//!
//! Owns the quotas and the block pattern. Invariant: in each epoch of the mixture every cache gets exactly its quota,
//! in each block its share to within one unit, and both are computed with integers only.

use std::cmp::Ordering;

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

/// A turn of a cache in a block, which is as far in it as `place` is in what `count` units take.
#[derive(Debug, Clone, Copy)]
struct Turn {
    place: u64,
    count: u64,
    cache: u64,
}

impl Turn {
    /// Turn `turn` of the `count` of one of `caches` caches. Those of one cache are evenly spaced, and each cache begins a
    /// little later than the one before.
    fn new(caches: u64, cache: u64, turn: u64, count: u64) -> Self {
        Self {
            place: turn * 2 * caches + 2 * cache + 1,
            count,
            cache,
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        let (left, right) = (self.place * other.count, other.place * self.count);
        left.cmp(&right).then(self.cache.cmp(&other.cache))
    }
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
        let caches = self.quotas.len() as u64;
        let before: Vec<u64> = (0..caches)
            .map(|cache| self.before(cache, number))
            .collect();
        let counts: Vec<u64> = (0..caches)
            .zip(&before)
            .map(|(cache, before)| self.before(cache, number + 1) - before)
            .collect();
        let units: u64 = counts.iter().sum();
        let inside = position - before.iter().sum::<u64>();
        // A cursor is saved often, so the block is not laid out. As turns are evenly spaced, each cache has had its share of what
        // comes before, to within a turn for each cache; the last of them are counted one by one.
        let share = |count: &u64| (count * inside.saturating_sub(caches) / units).saturating_sub(1);
        let mut turns: Vec<u64> = counts.iter().map(share).collect();
        for _ in turns.iter().sum::<u64>()..inside {
            let next = (0..caches as usize)
                .filter(|cache| turns[*cache] < counts[*cache])
                .map(|cache| Turn::new(caches, cache as u64, turns[cache], counts[cache]))
                .min_by(Turn::order);
            if let Some(next) = next {
                turns[next.cache as usize] += 1;
            }
        }
        before.iter().zip(turns).map(|(a, b)| a + b).collect()
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
                turns.push((Turn::new(caches, cache, turn, count), from + turn));
            }
        }
        turns.sort_unstable_by(|(one, _), (other, _)| one.order(other));
        Block {
            start: self.start(number),
            turns: turns
                .into_iter()
                .map(|(turn, unit)| (turn.cache as u32, unit))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_what_the_turns_before_say() {
        let many: Vec<u64> = (1..=60).map(|cache| cache * cache).collect();
        let mixtures: [(&[u64], Option<&[f64]>); 6] = [
            (&[5000], None),
            (&[1, 1, 1], None),
            (&[4000, 4000, 4000], None),
            (&[3000, 70, 1, 999], Some(&[1.0, 1e-3, 0.3, 7.0])),
            (&[900; 16], Some(&[1.0; 16])),
            (&many, None),
        ];
        for (lengths, weights) in mixtures {
            let mixture = Mixture::new(lengths, weights).unwrap();
            let mut given = vec![0; lengths.len()];
            let mut position = 0;
            while position < mixture.epoch_len() {
                let block = mixture.block_at(position);
                for (cache, unit) in block.turns {
                    assert_eq!(mixture.given(position), given, "{lengths:?} {position}");
                    assert_eq!(unit, given[cache as usize]);
                    given[cache as usize] += 1;
                    position += 1;
                }
            }
            assert_eq!(given, mixture.quotas());
        }
    }
}
