//! The byte budget: bounds what is in flight between the fetch of an image and its write.
//!
//! Permits are taken in plan order by one dispatcher, so the oldest item always holds its own and
//! the in-order writer can always go on: the budget cannot deadlock, whatever its size. Sizes are
//! guessed before a fetch and corrected after it; the guess follows the largest recent item.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// What an item is taken to need before the first one is known.
const FIRST_GUESS_BYTES: u64 = 8 << 20;

/// The guess loses one part in this many an item, so that one huge image does not throttle for long.
const GUESS_DECAY: u64 = 64;

#[derive(Debug)]
struct State {
    in_flight_bytes: u64,
    guess_bytes: u64,
}

/// A bound on bytes in flight.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: u64,
    state: Mutex<State>,
    freed: Notify,
}

impl Budget {
    /// A budget of `limit_bytes`, where an item of `seen_bytes` was seen already. An item larger than all of it passes alone.
    pub(crate) fn new(limit_bytes: u64, seen_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            state: Mutex::new(State {
                in_flight_bytes: 0,
                guess_bytes: FIRST_GUESS_BYTES.max(seen_bytes).min(limit_bytes),
            }),
            freed: Notify::new(),
        })
    }

    /// Waits for room for one more item of unknown size.
    pub(crate) async fn acquire(self: &Arc<Self>) -> Permit {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Registered before the look at the state, so that no release is missed.
            freed.as_mut().enable();
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            freed.await;
        }
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = state.guess_bytes;
        if state.in_flight_bytes > 0 && state.in_flight_bytes + bytes > self.limit_bytes {
            return None;
        }
        state.in_flight_bytes += bytes;
        Some(Permit {
            budget: Arc::clone(self),
            bytes,
        })
    }
}

/// A reservation; dropping it frees its bytes.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Permit {
    /// Corrects the reservation to what the item really needs, and the next guess with it.
    pub(crate) fn resize(&mut self, bytes: u64) {
        let mut state = self
            .budget
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.in_flight_bytes = state.in_flight_bytes - self.bytes + bytes;
        self.bytes = bytes;
        state.guess_bytes = bytes
            .max(state.guess_bytes - state.guess_bytes / GUESS_DECAY)
            .max(1);
        drop(state);
        self.budget.freed.notify_one();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self
            .budget
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.in_flight_bytes -= self.bytes;
        drop(state);
        self.budget.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    }

    #[test]
    fn an_item_larger_than_the_budget_passes_alone() {
        runtime().block_on(async {
            let budget = Budget::new(10, 0);
            let mut first = budget.acquire().await;
            first.resize(1000);
            assert!(budget.try_acquire().is_none());
            drop(first);
            assert!(budget.try_acquire().is_some());
        });
    }

    #[test]
    fn a_release_wakes_the_waiter() {
        runtime().block_on(async {
            let budget = Budget::new(1, 0);
            let held = budget.acquire().await;
            let waiter = tokio::spawn({
                let budget = Arc::clone(&budget);
                async move { budget.acquire().await.bytes }
            });
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
            drop(held);
            assert!(waiter.await.unwrap() >= 1);
        });
    }

    #[test]
    fn what_was_seen_bounds_the_first_wave() {
        runtime().block_on(async {
            let budget = Budget::new(100 << 20, 60 << 20);
            let first = budget.acquire().await;
            assert_eq!(first.bytes, 60 << 20);
            assert!(budget.try_acquire().is_none());
        });
    }

    #[test]
    fn the_guess_follows_the_largest_recent_item() {
        runtime().block_on(async {
            let budget = Budget::new(1 << 40, 0);
            let mut permit = budget.acquire().await;
            permit.resize(64 << 20);
            assert_eq!(budget.acquire().await.bytes, 64 << 20);
            for _ in 0..1000 {
                budget.acquire().await.resize(1000);
            }
            assert!(budget.acquire().await.bytes < 10_000);
        });
    }
}
