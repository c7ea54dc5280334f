//! Remotes as a reader asks them for what its node lacks.
//!
//! Owns the runtime behind them, and ending what hangs. Invariant: nothing is asked of a remote before a file of it is missing; a
//! fetch ends soon after its reader gives it up, whatever the network does.

use std::error::Error as StdError;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use stoker_formats::Manifest;
use stoker_reader::{CacheFile, Fallback, Incomplete};
use tokio::runtime::Runtime;

use super::{Remote, RemoteFile, RemoteOptions, Store};
use crate::build::Stop;
use crate::error::{Error, Result};

/// Between two looks whether a fetch was given up.
const WATCH_PAUSE: Duration = Duration::from_millis(20);

/// Threads that the network is waited for on.
const RUNTIME_THREADS: usize = 2;

/// A remote that is opened when something of it is missing.
#[derive(Debug)]
struct RemoteFallback {
    uri: String,
    /// The same without secrets.
    shown: String,
    options: RemoteOptions,
    state: Mutex<State>,
    runtime: Arc<Network>,
}

/// What goes on now.
#[derive(Debug, Default)]
struct State {
    /// Ends all of it.
    stop: Stop,
    remote: Option<Remote>,
}

/// The runtime of all remotes of a reader.
#[derive(Debug)]
struct Network(Option<Runtime>);

impl Drop for Network {
    fn drop(&mut self) {
        // It may be dropped by a thread of a reader, which has better things to do than wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The remotes at `uris`, `s3://bucket/prefix` or folders, for [`CacheOptions::fallback`](stoker_reader::CacheOptions). None of
/// them is contacted yet. The stop of `options` is not looked at: a reader ends its fetches itself.
///
/// # Errors
/// [`Error::Input`] for a URI that is none; [`Error::Io`] if the system gives no threads.
pub fn fallbacks(uris: &[String], options: &RemoteOptions) -> Result<Vec<Arc<dyn Fallback>>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .thread_name("stoker-network")
        .enable_all()
        .build()
        .map_err(Error::io("start", "the network threads"))?;
    let handle = runtime.handle().clone();
    let runtime = Arc::new(Network(Some(runtime)));
    let fallback = |uri: &String| {
        let store = Store::open(uri, options, handle.clone())?;
        Ok(Arc::new(RemoteFallback {
            uri: uri.clone(),
            shown: store.uri(""),
            options: options.clone(),
            state: Mutex::default(),
            runtime: Arc::clone(&runtime),
        }) as Arc<dyn Fallback>)
    };
    uris.iter().map(fallback).collect()
}

impl RemoteFallback {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What ends what begins now. One that was used is not used again, nor is what it has ended.
    fn stop(&self) -> Stop {
        let mut state = self.lock();
        if state.stop.check().is_err() {
            *state = State::default();
        }
        state.stop.clone()
    }

    /// The remote, opened if it is not.
    fn remote(&self, stop: Stop) -> Result<Remote> {
        if let Some(remote) = &self.lock().remote {
            return Ok(remote.clone());
        }
        let Some(runtime) = &self.runtime.0 else {
            return Err(Error::io("use", "the network threads")(
                io::ErrorKind::NotConnected.into(),
            ));
        };
        let options = RemoteOptions {
            stop,
            ..self.options.clone()
        };
        let remote = Remote::open(&self.uri, &options, runtime.handle().clone())?;
        let mut state = self.lock();
        if options.stop.check().is_err() {
            // What another thread has ended is not kept.
            return Ok(remote);
        }
        // Several threads may have opened it; one of them is kept.
        Ok(state.remote.get_or_insert(remote).clone())
    }

    /// Copies while somebody looks whether the reader has given up.
    fn watched(
        &self,
        file: &CacheFile,
        to: &File,
        given_up: &(dyn Fn() -> bool + Sync),
        stop: &Stop,
    ) -> Result<()> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) && stop.check().is_ok() {
                    if given_up() {
                        stop.request(15);
                    }
                    thread::park_timeout(WATCH_PAUSE);
                }
            });
            let copied = self.copy(file, to, given_up, stop.clone());
            done.store(true, Ordering::Relaxed);
            watch.thread().unpark();
            copied
        })
    }

    fn copy(
        &self,
        file: &CacheFile,
        mut to: &File,
        given_up: &(dyn Fn() -> bool + Sync),
        stop: Stop,
    ) -> Result<()> {
        let mut write = |bytes: &[u8]| {
            if given_up() {
                stop.request(15);
            }
            stop.check()?;
            to.write_all(bytes)
                .map_err(Error::io("write", file.relative()))
        };
        let remote = self.remote(stop.clone())?;
        remote.bring(&RemoteFile::from(file), &mut write).map(drop)
    }
}

/// What a reader is told: whether to look after the network, or after the copy.
fn told(error: Error) -> Box<dyn StdError + Send + Sync> {
    match error {
        Error::Remote { .. } => Incomplete(error.to_string()).into(),
        error => error.into(),
    }
}

impl Fallback for RemoteFallback {
    fn uri(&self) -> String {
        self.shown.clone()
    }

    fn manifest(&self) -> Result<Manifest, Box<dyn StdError + Send + Sync>> {
        let remote = self.remote(self.stop()).map_err(told)?;
        Ok(remote.manifest().clone())
    }

    fn bring(
        &self,
        file: &CacheFile,
        to: &File,
        given_up: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Box<dyn StdError + Send + Sync>> {
        loop {
            let stop = self.stop();
            let copied = self.watched(file, to, given_up, &stop);
            if copied.is_err() && stop.check().is_err() && !given_up() {
                // Somebody else's file took too long, and ended this one with it.
                to.set_len(0)?;
                (&*to).rewind()?;
                continue;
            }
            return copied.map_err(told);
        }
    }
}
