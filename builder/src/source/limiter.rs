//! The operation budget: how many requests may be in flight, adapted to what the servers bear.
//!
//! Additive increase, multiplicative decrease, as TCP does it. Knows nothing of requests or retries.
//! Invariant: free permits + held permits - debt = the current limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Requests in flight at the start: enough to hide 30 ms of latency behind small images.
const LIMIT_START: usize = 64;
/// Fewest requests in flight under throttling: still some progress in every stream.
const LIMIT_MIN: usize = 4;
/// Most requests in flight: beyond it one host gains nothing and servers begin to refuse.
const LIMIT_MAX: usize = 256;
/// One storm of refusals, all of requests sent under the old limit, may cut the limit once only.
const CUT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    limit: usize,
    /// Permits that were cut while they were held: they vanish when they come back.
    debt: usize,
    successes: usize,
    proven: bool,
    last_cut: Option<Instant>,
}

/// A budget of requests in flight.
#[derive(Debug)]
pub(super) struct Limiter {
    permits: Semaphore,
    state: Mutex<State>,
}

/// The right to have one request in flight.
#[derive(Debug)]
pub(super) struct Permit(Arc<Limiter>);

impl Limiter {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            permits: Semaphore::new(LIMIT_START),
            state: Mutex::new(State {
                limit: LIMIT_START,
                debt: 0,
                successes: 0,
                proven: false,
                last_cut: None,
            }),
        })
    }

    /// Waits for a permit, first come first served.
    pub(super) async fn acquire(self: &Arc<Self>) -> Permit {
        if let Ok(permit) = self.permits.acquire().await {
            permit.forget();
        }
        // The semaphore is never closed, so there was a permit.
        Permit(Arc::clone(self))
    }

    /// Notes a request that went well: after as many as may be in flight, one more may be.
    pub(super) fn succeeded(&self) {
        let mut state = self.state();
        state.successes += 1;
        state.proven = true;
        if state.successes >= state.limit && state.limit < LIMIT_MAX {
            state.successes = 0;
            state.limit += 1;
            self.give(&mut state);
        }
    }

    /// Whether any request ever went well.
    pub(super) fn is_proven(&self) -> bool {
        self.state().proven
    }

    /// Notes that a server asked to slow down: halves the limit, at most once a second.
    pub(super) fn throttled(&self) {
        let mut state = self.state();
        let now = Instant::now();
        state.successes = 0;
        if state.last_cut.is_some_and(|last| now - last < CUT_PAUSE) {
            return;
        }
        state.last_cut = Some(now);
        let limit = (state.limit / 2).max(LIMIT_MIN);
        let cut = state.limit - limit;
        state.limit = limit;
        state.debt += cut - self.permits.forget_permits(cut);
    }

    fn give(&self, state: &mut State) {
        if state.debt > 0 {
            state.debt -= 1;
        } else {
            self.permits.add_permits(1);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give(&mut self.0.state());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn hold_all(limiter: &Arc<Limiter>) -> Vec<Permit> {
        let mut held = Vec::new();
        while let Ok(permit) =
            tokio::time::timeout(Duration::from_millis(1), limiter.acquire()).await
        {
            held.push(permit);
        }
        held
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn halves_once_a_second_and_climbs_back() {
        runtime().block_on(async {
            let limiter = Limiter::new();
            let held = hold_all(&limiter).await;
            assert_eq!(held.len(), LIMIT_START);
            limiter.throttled();
            limiter.throttled();
            assert_eq!(limiter.state().limit, LIMIT_START / 2);
            // Cut while all were held: the debt is paid as they come back.
            drop(held);
            assert_eq!(hold_all(&limiter).await.len(), LIMIT_START / 2);
            for _ in 0..LIMIT_START / 2 {
                limiter.succeeded();
            }
            assert_eq!(hold_all(&limiter).await.len(), LIMIT_START / 2 + 1);
        });
    }

    #[test]
    fn stays_between_its_bounds() {
        runtime().block_on(async {
            let limiter = Limiter::new();
            for _ in 0..8 {
                limiter.state().last_cut = None;
                limiter.throttled();
            }
            assert_eq!(hold_all(&limiter).await.len(), LIMIT_MIN);
            for _ in 0..100_000 {
                limiter.succeeded();
            }
            assert_eq!(hold_all(&limiter).await.len(), LIMIT_MAX);
        });
    }

    #[test]
    fn a_dropped_wait_loses_no_permit() {
        runtime().block_on(async {
            let limiter = Limiter::new();
            let held = hold_all(&limiter).await;
            for _ in 0..100 {
                let wait = limiter.acquire();
                assert!(
                    tokio::time::timeout(Duration::from_micros(10), wait)
                        .await
                        .is_err()
                );
            }
            drop(held);
            assert_eq!(hold_all(&limiter).await.len(), LIMIT_START);
        });
    }
}
