//! The bytes that may be prepared ahead.
//!
//! Owns admission. Invariant: permits are given in the order in which they are asked for (the caller asks under a lock of
//! its own), and a batch that finds nothing else in flight is admitted whatever its size: so the batch that the consumer
//! waits for always gets its permit once those before it are delivered, at any budget.

use std::sync::Arc;

use crate::sync::{Condvar, Mutex, MutexGuard, unpoisoned};

/// A number of bytes that permits are cut from.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    peak: u64,
    closed: bool,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is three plain numbers, right after every statement.
        unpoisoned(self.state.lock())
    }

    /// Waits until `bytes` are free, or nothing is in flight; none once closed.
    pub(crate) fn acquire(self: &Arc<Self>, bytes: u64) -> Option<Permit> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let sum = state.used.saturating_add(bytes);
            if state.used == 0 || sum <= self.limit {
                state.used = sum;
                state.peak = state.peak.max(sum);
                return Some(Permit {
                    budget: Arc::clone(self),
                    bytes,
                });
            }
            state = unpoisoned(self.changed.wait(state));
        }
    }

    /// Ends all waiting, now and later.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Bytes in flight now, and at most so far.
    pub(crate) fn used(&self) -> (u64, u64) {
        let state = self.lock();
        (state.used, state.peak)
    }
}

/// Bytes of the budget; dropped, they are free again.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        state.used = state.used.saturating_sub(self.bytes);
        drop(state);
        self.budget.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_larger_than_the_budget_passes_alone() {
        let budget = Budget::new(1);
        let big = budget.acquire(1 << 40).unwrap();
        assert_eq!(budget.used(), (1 << 40, 1 << 40));
        let waiting = {
            let budget = Arc::clone(&budget);
            std::thread::spawn(move || budget.acquire(5).map(|_| ()))
        };
        drop(big);
        assert_eq!(waiting.join().unwrap(), Some(()));
        assert_eq!(budget.used().0, 0);
    }

    #[test]
    fn closing_ends_the_waiting() {
        let budget = Budget::new(10);
        let held = budget.acquire(10).unwrap();
        let waiting = {
            let budget = Arc::clone(&budget);
            std::thread::spawn(move || budget.acquire(1).is_none())
        };
        budget.close();
        assert!(waiting.join().unwrap());
        drop(held);
        assert!(budget.acquire(1).is_none());
    }
}
