//! Several threads over one list.
//!
//! Owns who takes what. Invariant: the first error ends the work: nobody begins anything after it.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use crate::error::{Error, Result};

/// Files on their way at once, if nobody says otherwise: one a core computes, the others wait.
const THREADS_MIN: usize = 4;

/// How many threads work on files if nobody says.
pub(crate) fn threads(asked: Option<u16>) -> usize {
    let cores = || available_parallelism().map_or(1, NonZero::get);
    asked.map_or_else(|| cores().max(THREADS_MIN), usize::from)
}

/// Calls `work` for each of `items` on `threads` threads, which take them in order.
pub(crate) fn each<'a, T: Sync>(
    threads: usize,
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let run = || -> Result<()> {
        while !failed.load(Ordering::Relaxed) {
            let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            if let Err(error) = work(item) {
                failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let count = threads.clamp(1, items.len().max(1));
        let crew: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
        let mut first = Ok(());
        for thread in crew {
            let outcome = thread.join().unwrap_or_else(|_| {
                Err(Error::Usage {
                    what: "a thread died: `panic`".into(),
                    hint: "what is done stays; run the same command again to go on".into(),
                })
            });
            first = first.and(outcome);
        }
        first
    })
}
