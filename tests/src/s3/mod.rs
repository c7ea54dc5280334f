//! A real S3 server on loopback, a fault proxy in front of it, and a trap for forbidden requests.
//!
//! Everything here binds 127.0.0.1 only, runs on threads of its own, and ends when dropped.

mod fault;
mod head;
mod proxy;
pub mod scene;
mod server;
pub mod tls;
mod trap;

pub use fault::Fault;
pub use proxy::{Faults, Proxy};
pub use server::{ACCESS_KEY, SECRET_KEY, Server};
pub use trap::Trap;

use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Runtime};

/// A runtime on a thread of its own, which ends when this is dropped.
struct Worker {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Runs what `start` spawns, and returns what it returns once it has set up.
    fn start<T: Send + 'static>(
        start: impl FnOnce(&Runtime) -> std::io::Result<T> + Send + 'static,
    ) -> std::io::Result<(Self, T)> {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let outcome = start(&runtime);
            let good = outcome.is_ok();
            if ready.send(outcome).is_ok() && good {
                let _ = runtime.block_on(stopped);
            }
            runtime.shutdown_background();
        });
        let value = is_ready.recv().map_err(std::io::Error::other)??;
        let worker = Self {
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok((worker, value))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
