//! Where the caches of a mixture stand if its weights have changed on the way.
//!
//! Owns the difference between what each cache gave and what its weight comes to. Invariant: a cache goes on exactly where it
//! was, so no unit of its epoch is lost or comes twice.

use crate::order_error::OrderError;
use crate::schedule::Position;

/// Caches at most whose units a cursor counts, so that it stays small.
pub(crate) const MAX_COUNTED_CACHES: usize = 16;

/// How far each cache is ahead of what the weights come to, from a position on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// Where the weights began to apply; before it they say nothing.
    pub(crate) from: Position,
    ahead: Vec<i64>,
}

impl Offsets {
    /// The offsets of caches that gave `given` units where they should have given `due`; none if that is the same.
    pub(crate) fn new(
        from: Position,
        given: &[u64],
        due: &[u64],
    ) -> Result<Option<Self>, OrderError> {
        let sum = |counts: &[u64]| counts.iter().map(|count| u128::from(*count)).sum::<u128>();
        if given.len() != due.len() || sum(given) != sum(due) {
            return Err(OrderError::DamagedCursor {
                what: "the units that it counts are not those before it",
            });
        }
        if given == due {
            return Ok(None);
        }
        // Positions that are counted are below 2^62, and so is each part of them.
        let pairs = given.iter().zip(due);
        let ahead = pairs.map(|(given, due)| *given as i64 - *due as i64);
        Ok(Some(Self {
            from,
            ahead: ahead.collect(),
        }))
    }

    /// How many units a cache gave that should have given `due`.
    pub(crate) fn apply(&self, cache: usize, due: u64) -> u64 {
        // Not below what it gave at `from`.
        (due as i64 + self.ahead[cache]) as u64
    }
}
