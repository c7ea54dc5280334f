//! Which index is being read for planning, and since when.
//!
//! Owns two numbers. Invariant: telling takes no lock and no system call, as a planner reads an index entry for every sample. One
//! thread plans at a time; where another one reads too (it counts what will have to be brought), the later read is told.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The read of an index that is going on, if there is one.
#[derive(Debug)]
pub(crate) struct Reading {
    opened: Instant,
    partition: AtomicU32,
    /// When it began, in nanoseconds after `opened`, and one more; 0 while nothing is read.
    since: AtomicU64,
}

impl Reading {
    pub(crate) fn new() -> Self {
        Self {
            opened: Instant::now(),
            partition: AtomicU32::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// Does `read`, which reads the index of `partition`.
    pub(crate) fn tell<T>(&self, partition: u32, read: impl FnOnce() -> T) -> T {
        let now = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.partition.store(partition, Ordering::Relaxed);
        self.since.store(now.saturating_add(1), Ordering::Release);
        let done = read();
        self.since.store(0, Ordering::Release);
        done
    }

    /// The partition whose index is being read, and for how long by now.
    pub(crate) fn now(&self) -> Option<(u32, Duration)> {
        let since = self.since.load(Ordering::Acquire).checked_sub(1)?;
        let elapsed = self.opened.elapsed();
        let elapsed = elapsed.saturating_sub(Duration::from_nanos(since));
        Some((self.partition.load(Ordering::Relaxed), elapsed))
    }
}
