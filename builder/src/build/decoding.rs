//! Whose turn it is to decode: the first ready picture in plan order, as memory allows.
//!
//! The writer takes pictures in plan order. One that was fetched late and then waited behind hundreds that came early would hold
//! it up while all of those are made, and fill memory that is still in nobody's cache. Each decoder has a share of the memory
//! for its own, which it may keep from picture to picture; what a picture needs beyond comes from what is common to all.
//! Invariant: nothing is granted before what stands earlier in the plan and waits, so every turn comes; the turns in hand stay
//! within the limits, but for one that needs more than there is and finds nobody else at the common memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;

use super::progress::{Counters, Progress};

/// Bounds the memory and the number of pictures that decoders have in hand.
#[derive(Debug)]
pub(crate) struct Decoding {
    threads: usize,
    share_bytes: u64,
    common_bytes: u64,
    progress: Progress,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the common memory.
    bytes: u64,
    turns: usize,
    /// Since when a decoder has nothing to do for want of memory.
    short: Option<Instant>,
    /// By the item's place in the plan: what it needs of the common memory, and where its turn goes.
    waiting: BTreeMap<usize, (u64, oneshot::Sender<Turn>)>,
}

impl Decoding {
    /// For `threads` decoders, each of which has the next picture at hand when one is done, and `bytes` of memory: three
    /// quarters of it are theirs in equal shares. `progress` hears how long decoders do nothing for want of memory.
    pub(crate) fn new(threads: usize, bytes: u64, progress: Progress) -> Arc<Self> {
        Arc::new(Self {
            threads,
            share_bytes: bytes / 4 * 3 / threads.max(1) as u64,
            common_bytes: bytes / 4,
            progress,
            state: Mutex::default(),
        })
    }

    /// Memory that each decoder has for its own, in bytes.
    pub(crate) fn share_bytes(&self) -> u64 {
        self.share_bytes
    }

    /// Waits until item `item`, which needs `bytes` of memory, may be decoded. `None` never happens: turns are not dropped
    /// while somebody waits for them.
    pub(crate) async fn turn(self: &Arc<Self>, item: usize, bytes: u64) -> Option<Turn> {
        let (sender, turn) = oneshot::channel();
        let beyond = bytes.saturating_sub(self.share_bytes);
        self.state().waiting.insert(item, (beyond, sender));
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
        let wanted = state.waiting.first_key_value();
        let wanted = wanted.map(|(_, (bytes, _))| *bytes.min(&self.common_bytes));
        let fits = |bytes: &u64| state.bytes + bytes <= self.common_bytes;
        let is_short = state.turns < self.threads && !wanted.as_ref().is_none_or(fits);
        let bytes = wanted.filter(|bytes| fits(bytes) && state.turns < 2 * self.threads);
        self.note(&mut state, is_short);
        let bytes = bytes?;
        let (_, (_, sender)) = state.waiting.pop_first()?;
        state.bytes += bytes;
        state.turns += 1;
        let of = Arc::clone(self);
        Some((sender, Turn { of, bytes }))
    }

    /// Counts the time until now if there was too little memory, and from now on if there is.
    fn note(&self, state: &mut State, is_short: bool) {
        let now = is_short.then(Instant::now);
        if let Some(since) = std::mem::replace(&mut state.short, now) {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            Counters::add(&self.progress.counters().short_of_memory, nanos);
        }
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
    use std::sync::atomic::Ordering;
    use std::task::{Context, Waker};

    use super::*;

    /// Items in the order in which they get their turns once `held` is given back.
    async fn order(
        decoding: &Arc<Decoding>,
        items: &[(usize, u64)],
        held: Option<Turn>,
    ) -> Vec<usize> {
        let (done, mut seen) = tokio::sync::mpsc::unbounded_channel();
        for (item, bytes) in items.iter().copied() {
            let (decoding, done) = (Arc::clone(decoding), done.clone());
            tokio::spawn(async move {
                let _turn = decoding.turn(item, bytes).await;
                let _ = done.send(item);
            });
            tokio::task::yield_now().await;
        }
        drop((held, done));
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

    /// For that many decoders without a share, and as many common bytes.
    fn common(threads: usize, bytes: u64) -> Arc<Decoding> {
        Arc::new(Decoding {
            share_bytes: 0,
            ..Arc::into_inner(Decoding::new(threads, 4 * bytes, Progress::silent(threads))).unwrap()
        })
    }

    fn short(decoding: &Decoding) -> u64 {
        let counters = decoding.progress.counters();
        counters.short_of_memory.load(Ordering::Relaxed)
    }

    #[test]
    fn the_first_in_the_plan_comes_first_however_late_it_is_ready() {
        run(async {
            let decoding = common(1, 100);
            // Nothing else fits beside it.
            let held = decoding.turn(1, 100).await;
            let order = order(&decoding, &[(7, 1), (9, 100), (3, 1), (5, 1000)], held).await;
            assert_eq!(order, [3, 5, 7, 9]);
        });
    }

    #[test]
    fn memory_and_number_are_bounded_and_what_is_larger_comes_alone() {
        run(async {
            let decoding = common(1, 100);
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
            // Its one decoder had something to do all the time.
            assert_eq!(short(&decoding), 0);
        });
    }

    #[test]
    fn within_their_shares_decoders_never_wait_for_memory() {
        run(async {
            let decoding = Decoding::new(2, 800, Progress::silent(2));
            assert_eq!((decoding.share_bytes, decoding.common_bytes), (300, 200));
            let _two = (decoding.turn(1, 300).await, decoding.turn(2, 300).await);
            // Beyond the shares there is room for one such picture.
            let large = decoding.turn(3, 500).await;
            let mut look = Context::from_waker(Waker::noop());
            let mut second = Box::pin(decoding.turn(4, 301));
            assert!(second.as_mut().poll(&mut look).is_pending());
            drop(large);
            second.await.unwrap();
        });
    }

    #[test]
    fn a_decoder_that_memory_keeps_idle_is_counted() {
        run(async {
            let decoding = common(2, 100);
            let one = decoding.turn(1, 60).await;
            let mut look = Context::from_waker(Waker::noop());
            let mut second = Box::pin(decoding.turn(2, 60));
            assert!(second.as_mut().poll(&mut look).is_pending());
            assert_eq!(short(&decoding), 0);
            drop(one);
            let _two = second.await;
            assert!(short(&decoding) > 0);
        });
    }

    #[test]
    fn a_turn_that_nobody_takes_goes_to_the_next() {
        run(async {
            let decoding = common(1, 100);
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
