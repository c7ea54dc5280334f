//! Units of one length together: `order=length`.
//!
//! Owns windows and buckets. Invariant: what is done to a window depends on the lengths in it and on its key only, so a seek
//! looks up one window of each partition, wherever it goes.

use std::fmt;

use stoker_formats::{Key, Permutation};

use crate::error::Result;
use crate::rows::Rows;
use crate::unit::Unit;

/// Units of all partitions in one window, about.
const WINDOW_UNITS: u64 = 1 << 16;

/// Buckets of a window.
const BUCKETS: usize = 16;

/// Knows how long units are.
pub trait Lengths: Send + Sync + fmt::Debug {
    /// The tokens of a unit.
    ///
    /// # Errors
    /// If the index that says so is missing or damaged.
    fn tokens(&self, unit: Unit) -> Result<u32>;
}

impl Lengths for Rows {
    fn tokens(&self, unit: Unit) -> Result<u32> {
        Ok(self.counts(unit)?.tokens)
    }
}

/// Turns of a partition in a window, if there are `partitions` in all caches together.
pub(crate) fn window(partitions: usize) -> u64 {
    (WINDOW_UNITS / partitions.max(1) as u64).clamp(64, 4096)
}

/// The turns of a window with these lengths in their new order: by buckets of about one length, in the order that `key` makes;
/// inside a bucket as they were.
pub(crate) fn order(lengths: &[u32], key: Key) -> Box<[u16]> {
    // At most 4,096 turns.
    let mut turns: Vec<u16> = (0..lengths.len() as u16).collect();
    turns.sort_by_key(|turn| lengths[usize::from(*turn)]);
    let buckets = Permutation::new(key, BUCKETS as u64);
    let mut ordered = Vec::with_capacity(turns.len());
    for place in 0..buckets.len() {
        let bucket = buckets.get(place) as usize;
        let ends = |bucket: usize| bucket * turns.len() / BUCKETS;
        let from = ordered.len();
        ordered.extend_from_slice(&turns[ends(bucket)..ends(bucket + 1)]);
        ordered[from..].sort_unstable();
    }
    ordered.into_boxed_slice()
}
