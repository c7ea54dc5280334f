//! Long calls that Ctrl-C can end.
//!
//! Owns the waiting. Invariant: while the work runs, other Python threads run too, and signals, or whatever else a call looks
//! at, are looked at every tenth of a second.

use std::panic::resume_unwind;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use stoker_builder::build::Stop;

/// Between two looks at Python's signals.
pub(crate) const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// After a stop request: a server that says nothing may keep the work longer, and then goes on without us.
const STOP_TIME_MAX: Duration = Duration::from_secs(4);

/// The number of SIGINT, which is what Python's default handler answers to.
const SIGINT: i32 = 2;

/// Does `work` in a thread of its own. If a signal's handler raises, asks `stop`, waits for the work to end, and gives
/// that exception; a second one is given at once.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    stop: &Stop,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    watched(py, stop, |_| Ok(()), work)
}

/// The same; an exception of `look`, which is called at once and then between looks at signals until one is raised, counts like
/// a signal's.
pub(crate) fn watched<T: Send + 'static>(
    py: Python<'_>,
    stop: &Stop,
    mut look: impl FnMut(Python<'_>) -> PyResult<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::channel();
    let worker = thread::Builder::new()
        .name("stoker".into())
        .spawn(move || {
            // Nobody listens any more after a second signal.
            let _ = sender.send(work());
        })?;
    let mut raised = look(py).err().map(|error| {
        stop.request(SIGINT);
        (error, Instant::now())
    });
    loop {
        // A receiver can be sent to where the wait happens, but not shared with it.
        let answer;
        (receiver, answer) = py.detach(move || {
            let answer = receiver.recv_timeout(SIGNAL_CHECK);
            (receiver, answer)
        });
        match (answer, raised.take()) {
            (Ok(_), Some((error, _))) => return Err(error),
            (Ok(value), None) => return Ok(value),
            (Err(RecvTimeoutError::Disconnected), _) => {
                return match py.detach(|| worker.join()) {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => Err(PyRuntimeError::new_err("the work ended without a result")),
                };
            }
            (Err(RecvTimeoutError::Timeout), Some((error, since))) => {
                if since.elapsed() > STOP_TIME_MAX {
                    return Err(error);
                }
                py.check_signals()?;
                raised = Some((error, since));
            }
            (Err(RecvTimeoutError::Timeout), None) => {
                if let Err(error) = py.check_signals().and_then(|()| look(py)) {
                    stop.request(SIGINT);
                    raised = Some((error, Instant::now()));
                }
            }
        }
    }
}
