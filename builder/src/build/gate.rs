//! Holds decoders back while the writer has enough to write.
//!
//! A picture that is written soon after it was made is still in the processor's cache; one that waited behind
//! hundreds of others is not, and its memory is fresh as well. Invariant: the gate is closed only while rows are
//! ready and the writer is at work on them, so it opens however few there are.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that may wait for the writer in any case: a few pictures.
const READY_BYTES: u64 = 16 << 20;

/// The gate of one build.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Pictures that may wait for the writer, if they are as large as the next one.
    pictures: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Made and not yet written.
    ready_bytes: u64,
    closed: bool,
}

impl Gate {
    /// An open gate for that many decoders.
    pub(crate) fn new(decoders: usize) -> Self {
        let state = State {
            ready_bytes: 0,
            closed: false,
        };
        Self {
            pictures: decoders as u64,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Waits until the writer can do with more, before a picture of `bytes` is made.
    pub(crate) fn pass(&self, bytes: u64) {
        let enough = READY_BYTES.max(self.pictures.saturating_mul(bytes));
        let mut state = self.state();
        while state.closed && state.ready_bytes >= enough {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes a picture of `bytes` that waits for the writer.
    pub(crate) fn add(&self, bytes: u64) {
        self.state().ready_bytes += bytes;
    }

    /// Notes that it was written.
    pub(crate) fn written(&self, bytes: u64) {
        let mut state = self.state();
        state.ready_bytes = state.ready_bytes.saturating_sub(bytes);
        drop(state);
        self.changed.notify_all();
    }

    /// The writer has a row in hand.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    /// The writer waits: for a row, or for the disk.
    pub(crate) fn open(&self) {
        self.state().closed = false;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the gate for good when the writer is done, whether it failed or not.
pub(crate) struct OpenAtEnd<'a>(pub(crate) &'a Gate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_open_gate_lets_all_pass_and_a_closed_one_a_few() {
        let gate = Gate::new(2);
        gate.add(READY_BYTES);
        gate.pass(1);
        gate.close();
        // Two of this size may be ready.
        gate.pass(READY_BYTES);
        gate.written(READY_BYTES);
        gate.pass(1);
    }

    #[test]
    fn who_waits_goes_on_when_a_row_is_written_or_the_writer_is_gone() {
        let gate = Gate::new(1);
        for end in [Gate::open, |gate: &Gate| gate.written(READY_BYTES)] {
            gate.add(READY_BYTES);
            std::thread::scope(|scope| {
                let (passed, seen) = channel();
                {
                    let _guard = OpenAtEnd(&gate);
                    gate.close();
                    let waiting = &gate;
                    scope.spawn(move || {
                        waiting.pass(1);
                        let _ = passed.send(());
                    });
                    assert!(seen.recv_timeout(Duration::from_millis(50)).is_err());
                    end(&gate);
                    seen.recv().unwrap();
                }
            });
            gate.written(READY_BYTES);
        }
    }
}
