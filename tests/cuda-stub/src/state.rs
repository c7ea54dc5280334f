//! What the stub knows: one lock around everything but the waiting.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use crate::config::Config;
use crate::memory::{Kind, Memory};
use crate::ptx::Entry;
use crate::stream::{Event, Stream};

/// The driver's codes that the stub gives by itself.
pub(crate) mod code {
    pub(crate) const OK: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const INVALID_PTX: u32 = 218;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) config: Config,
    initialised: bool,
    calls: HashMap<&'static str, u64>,
    /// A failure after which nothing works any more.
    pub(crate) lost: u32,
    pub(crate) retained: u32,
    pub(crate) memory: Memory,
    pub(crate) streams: HashMap<usize, Arc<Stream>>,
    pub(crate) events: HashMap<usize, Arc<Event>>,
    pub(crate) modules: HashMap<usize, Vec<Entry>>,
    pub(crate) kernels: HashMap<usize, (usize, Entry)>,
    handles: usize,
    pub(crate) copies: u64,
    pub(crate) launches: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static OWNER: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The context that is current on this thread.
    pub(crate) static CURRENT: Current = const { Current(Cell::new(0)) };
}

pub(crate) struct Current(Cell<usize>);

impl Current {
    pub(crate) fn get(&self) -> usize {
        self.0.get()
    }

    pub(crate) fn set(&self, context: usize) {
        self.0.set(context);
    }
}

impl Drop for Current {
    /// A library that leaves its context on other people's threads confuses them.
    fn drop(&mut self) {
        if self.get() != 0 {
            report("violation: a thread ends with a context that was left current on it");
        }
    }
}

/// The only context there is.
pub(crate) const CONTEXT: usize = 0xc0de;

pub(crate) fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap()
}

/// Adds a line to the file that `CUSTUB_REPORT` names.
pub(crate) fn report(line: &str) {
    let path = std::env::var("CUSTUB_REPORT").expect("CUSTUB_REPORT");
    let file = OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.unwrap(), "{line}").unwrap();
}

/// Starts a call: counts it and lets it fail if it is told to. A code that it must fail with later comes along.
pub(crate) fn begin(call: &'static str) -> Result<(MutexGuard<'static, State>, Option<u32>), u32> {
    let owner = OWNER.load(Ordering::SeqCst);
    if owner != 0 && owner != process::id() {
        report(&format!("violation: {call} in a forked child"));
        return Err(code::NOT_INITIALIZED);
    }
    let mut state = lock();
    if call == "cuInit" {
        OWNER.store(process::id(), Ordering::SeqCst);
        let config = Config::read();
        if state.retained == 0 || state.config.text != config.text {
            let fresh = State {
                config,
                initialised: true,
                handles: state.handles,
                ..State::default()
            };
            let old = std::mem::replace(&mut *state, fresh);
            // Its streams end first, which takes the lock.
            drop(state);
            drop(old);
            state = lock();
        }
    }
    if !state.initialised {
        return Err(code::NOT_INITIALIZED);
    }
    if state.lost != code::OK {
        return Err(state.lost);
    }
    let count = state.calls.entry(call).or_default();
    *count += 1;
    let count = *count;
    let fires = |fault: &&crate::config::Fault| fault.call == call && fault.nth == count;
    match state.config.faults.iter().find(fires) {
        Some(fault) if fault.later => {
            let code = fault.code;
            Ok((state, Some(code)))
        }
        Some(fault) => {
            let code = fault.code;
            report(&format!("failed {call} {count}"));
            if is_sticky(code) {
                state.lost = code;
            }
            Err(code)
        }
        None => Ok((state, None)),
    }
}

/// As `begin`, for calls that need a current context.
pub(crate) fn begin_in_context(
    call: &'static str,
) -> Result<(MutexGuard<'static, State>, Option<u32>), u32> {
    let (state, later) = begin(call)?;
    if CURRENT.with(Current::get) != CONTEXT || state.retained == 0 {
        drop(state);
        report(&format!("violation: {call} without a current context"));
        return Err(code::INVALID_CONTEXT);
    }
    Ok((state, later))
}

fn is_sticky(code: u32) -> bool {
    matches!(code, 700 | 702 | 709 | 710 | 714..=719)
}

impl State {
    /// A handle that was never used before.
    pub(crate) fn handle(&mut self) -> usize {
        self.handles += 0x10;
        self.handles
    }

    /// A stream by its handle; 0 is the default stream, made when first used.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<Arc<Stream>, u32> {
        if handle == 0 && !self.streams.contains_key(&0) {
            let stream = Stream::start(self.config.delay, self.config.seed);
            self.streams.insert(0, stream);
        }
        self.streams
            .get(&handle)
            .cloned()
            .ok_or(code::INVALID_HANDLE)
    }

    /// Counts what is left, and forgets it.
    pub(crate) fn summary(&mut self) -> String {
        self.streams.remove(&0);
        let line = format!(
            "closed device={} locked={} streams={} events={} modules={} lost={} copies={} launches={}",
            self.memory.count(Kind::Device),
            self.memory.count(Kind::Locked),
            self.streams.len(),
            self.events.len(),
            self.modules.len(),
            self.lost,
            self.copies,
            self.launches,
        );
        self.memory.clear();
        line
    }
}
