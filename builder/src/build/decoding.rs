//! Whose turn it is to decode: the first ready picture in plan order, as memory allows.
//!
//! The writer takes pictures in plan order. One that was fetched late and then waited behind hundreds that came early would hold
//! it up while all of those are made, and fill memory that is still in nobody's cache. Invariant: nothing is granted before
//! what stands earlier in the plan and waits, so every turn comes; the turns in hand stay within the limits, but for one that
//! is larger than all memory and comes alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Bounds the memory and the number of pictures that decoders have in hand.
#[derive(Debug)]
pub(crate) struct Decoding {
    bytes_max: u64,
    turns_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    bytes: u64,
    turns: usize,
    /// By the item's place in the plan: what it needs, and where its turn goes.
    waiting: BTreeMap<usize, (u64, oneshot::Sender<Turn>)>,
}

impl Decoding {
    /// For `threads` decoders, each of which has the next picture at hand when one is done, and `bytes_max` bytes.
    pub(crate) fn new(threads: usize, bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            turns_max: 2 * threads,
            state: Mutex::default(),
        })
    }

    /// Waits until item `item`, which needs `bytes` of memory, may be decoded. `None` never happens: turns are not dropped
    /// while somebody waits for them.
    pub(crate) async fn turn(self: &Arc<Self>, item: usize, bytes: u64) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        self.state().waiting.insert(item, (bytes, sender));
        self.grant();
        turn.await.ok()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out what turns there are. One whose waiter has gone comes back here as it is dropped, so no lock is held then.
    fn grant(self: &Arc<Self>) {
        while let Some((sender, turn)) = self.next() {
            let _ = sender.send(turn);
        }
    }

    fn next(self: &Arc<Self>) -> Option<(oneshot::Sender<Turn>, Turn)> {
        let mut state = self.state();
        let (_, (bytes, _)) = state.waiting.first_key_value()?;
        let bytes = *bytes.min(&self.bytes_max);
        let fits = state.turns == 0 || state.bytes + bytes <= self.bytes_max;
        if !fits || state.turns >= self.turns_max {
            return None;
        }
        let (_, (_, sender)) = state.waiting.pop_first()?;
        state.bytes += bytes;
        state.turns += 1;
        let of = Arc::clone(self);
        Some((sender, Turn { of, bytes }))
    }
}

/// The right to decode one picture; dropping it lets the next one come.
#[derive(Debug)]
pub(crate) struct Turn {
    of: Arc<Decoding>,
    bytes: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.bytes -= self.bytes;
        state.turns -= 1;
        drop(state);
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// Items in the order in which they get their turns, one after the other.
    async fn order(decoding: &Arc<Decoding>, items: &[(usize, u64)]) -> Vec<usize> {
        let first = decoding.turn(0, 1).await;
        let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
        for (item, bytes) in items.iter().copied() {
            let (decoding, done) = (Arc::clone(decoding), done.clone());
            tokio::spawn(async move {
                let _turn = decoding.turn(item, bytes).await;
                let _ = done.send(item);
            });
            tokio::task::yield_now().await;
        }
        drop((first, done));
        let mut found = Vec::new();
        while let Some(item) = seen.recv().await {
            found.push(item);
        }
        found
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn the_first_in_the_plan_comes_first_however_late_it_is_ready() {
        run(async {
            let decoding = Arc::new(Decoding {
                turns_max: 1,
                ..Arc::into_inner(Decoding::new(1, 100)).unwrap()
            });
            let order = order(&decoding, &[(7, 1), (9, 100), (3, 1), (5, 1000)]).await;
            assert_eq!(order, [3, 5, 7, 9]);
        });
    }

    #[test]
    fn memory_and_number_are_bounded_and_what_is_larger_comes_alone() {
        run(async {
            let decoding = Decoding::new(1, 100);
            let small = decoding.turn(1, 30).await;
            let mut large = Box::pin(decoding.turn(2, 1000));
            let mut later = Box::pin(decoding.turn(3, 1));
            let mut look = Context::from_waker(Waker::noop());
            assert!(large.as_mut().poll(&mut look).is_pending());
            // It would fit, but not before its elder.
            assert!(later.as_mut().poll(&mut look).is_pending());
            drop(small);
            let large = large.await;
            assert!(later.as_mut().poll(&mut look).is_pending());
            drop(large);
            let (_two, _at_once) = (later.await, decoding.turn(4, 1).await);
            let mut third = Box::pin(decoding.turn(5, 1));
            assert!(third.as_mut().poll(&mut look).is_pending());
        });
    }

    #[test]
    fn a_turn_that_nobody_takes_goes_to_the_next() {
        run(async {
            let decoding = Decoding::new(1, 100);
            let held = decoding.turn(1, 100).await;
            let mut gone = Box::pin(decoding.turn(2, 100));
            let mut next = Box::pin(decoding.turn(3, 100));
            let mut look = Context::from_waker(Waker::noop());
            assert!(gone.as_mut().poll(&mut look).is_pending());
            assert!(next.as_mut().poll(&mut look).is_pending());
            drop(gone);
            drop(held);
            next.await.unwrap();
        });
    }
}
