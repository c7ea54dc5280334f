//! Several threads over one list.
//!
//! Owns who takes what. Invariant: an error ends the work: nobody begins anything after it, and of several the first in the list is
//! reported.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use crate::error::{Error, GO_ON, Result};

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
    let run = || -> Result<(), (usize, Error)> {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                break;
            };
            if let Err(error) = work(item) {
                failed.store(true, Ordering::Relaxed);
                return Err((at, error));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let count = threads.clamp(1, items.len().max(1));
        let crew: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
        let died = |_| {
            let error = Error::Usage {
                what: "a thread died: `panic`".into(),
                hint: GO_ON.into(),
            };
            Err((usize::MAX, error))
        };
        let outcomes = crew
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(died));
        let first = outcomes.filter_map(Result::err).min_by_key(|(at, _)| *at);
        first.map_or(Ok(()), |(_, error)| Err(error))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn of_several_errors_the_first_in_the_list_is_reported() {
        const THREADS: usize = 4;
        for _ in 0..20 {
            let together = Barrier::new(THREADS);
            let items: Vec<usize> = (0..THREADS * 2).collect();
            let error = each(THREADS, &items, |item| {
                together.wait();
                Err(Error::Usage {
                    what: item.to_string(),
                    hint: String::new(),
                })
            });
            assert_eq!(error.unwrap_err().to_string(), "0");
        }
    }
}
