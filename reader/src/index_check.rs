//! Hashes the index files of large caches while batches are read already.
//!
//! Owns one thread. Invariant: a damaged index file is reported with the first batch after it was found; a reader that
//! is dropped does not wait for the rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::error::{Error, Result};
use crate::sync::unpoisoned;
use crate::work::Plan;

/// The check of all index files of a reader.
#[derive(Debug)]
pub(crate) struct IndexCheck(Arc<State>);

#[derive(Debug, Default)]
struct State {
    stop: AtomicBool,
    failed: AtomicBool,
    fault: Mutex<Option<Error>>,
}

impl IndexCheck {
    /// Starts the check, if there is something to check.
    pub(crate) fn start(plan: &Arc<Plan>) -> Result<Self> {
        let state = Arc::new(State::default());
        if plan.rows.unchecked_indexes().next().is_some() {
            let (plan, state) = (Arc::clone(plan), Arc::clone(&state));
            let builder = thread::Builder::new().name("stoker-index".to_owned());
            // Nobody waits for it: it looks at `stop` after every piece, and a read that hangs must not hang a drop.
            builder
                .spawn(move || run(&plan, &state))
                .map_err(|source| Error::Thread { source })?;
        }
        Ok(Self(state))
    }

    /// Whether a fault was found.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.failed.load(Ordering::Acquire)
    }

    /// The fault that was found, once.
    pub(crate) fn fault(&self) -> Option<Error> {
        if !self.has_failed() {
            return None;
        }
        let mut fault = unpoisoned(self.0.fault.lock());
        fault.take()
    }
}

impl Drop for IndexCheck {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

fn run(plan: &Plan, state: &State) {
    let stop = || state.stop.load(Ordering::Relaxed);
    for (index, partition) in plan.rows.unchecked_indexes() {
        if stop() {
            return;
        }
        if let Err(fault) = index.check(partition, &stop) {
            *unpoisoned(state.fault.lock()) = Some(fault);
            state.failed.store(true, Ordering::Release);
            return;
        }
    }
}
