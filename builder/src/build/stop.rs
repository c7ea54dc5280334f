//! Stopping on request: the first SIGINT or SIGTERM asks, the second ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

use crate::error::{Error, Result};

/// Between two looks at the request while waiting: short beside the five seconds that a stop may take.
const CHECK_PAUSE: Duration = Duration::from_millis(100);

/// Asked often, between items; cheap.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// A stop request fed by the process's signals.
    ///
    /// # Errors
    /// The system's reason when a handler cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        let second = Arc::new(AtomicBool::new(false));
        for (signal, code) in [(SIGINT, 2), (SIGTERM, 15)] {
            // Order matters: the shutdown looks at the flag before this signal sets it.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&second),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&second))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.signal), code)?;
        }
        // Past a file size limit the write must fail with an error, not end the process.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(stop)
    }

    /// # Errors
    /// [`Error::Interrupted`] once a signal has come.
    pub fn check(&self) -> Result<()> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Error::Interrupted {
                signal: i32::try_from(signal).unwrap_or(SIGTERM),
            }),
        }
    }

    /// Waits for the request.
    pub(crate) async fn wait(&self) -> Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::time::sleep(CHECK_PAUSE).await;
        }
    }

    /// Asks for a stop as `signal` would.
    pub fn request(&self, signal: i32) {
        self.signal
            .store(usize::try_from(signal).unwrap_or(15), Ordering::Relaxed);
    }
}
