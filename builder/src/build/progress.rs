//! What a build is doing: counters fed by the stages, and the line that shows them.
//!
//! On a terminal a live line, otherwise a line every 10 s, always on stderr. Nothing here reaches
//! an output byte.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Between two updates of a live line.
const TICK_LIVE: Duration = Duration::from_millis(250);
/// Between two lines where stderr is no terminal.
const TICK_PLAIN: Duration = Duration::from_secs(10);

/// A stage whose threads can be busy; fetching, which mostly waits, limits a build where none of them is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Decoding, resizing and patchifying.
    Decode,
    /// Parsing, rendering and tokenising.
    Tokenise,
    /// Writing and publishing shards.
    Write,
}

/// Counters of a running build. All are totals since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Images prepared or rejected.
    pub images: AtomicU64,
    /// Records prepared or rejected.
    pub records: AtomicU64,
    /// Bytes read from sources.
    pub bytes_in: AtomicU64,
    /// Bytes written to shards.
    pub bytes_out: AtomicU64,
    /// Records rejected so far.
    pub rejects: AtomicU64,
    /// Nanoseconds in which a decoder had nothing to do because the next picture found no memory.
    pub(crate) short_of_memory: AtomicU64,
    /// Nanoseconds that all threads together spent in each stage.
    busy: [AtomicU64; 3],
    /// The same without waiting: nanoseconds of CPU time.
    cpu: [AtomicU64; 3],
}

/// CPU seconds that all threads together spent in each stage.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StageSeconds {
    /// Decoding, resizing and patchifying.
    pub decode: f64,
    /// Parsing records, rendering and tokenising.
    pub tokenise: f64,
    /// Checksums and shards, without the threads that wait for the disk.
    pub write: f64,
}

impl Counters {
    /// Adds `count` to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    /// Runs `work` and accounts its time to `stage`.
    pub fn timed<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let (start, cpu) = (Instant::now(), thread_cpu());
        let result = work();
        for (counter, time) in [
            (&self.busy, start.elapsed()),
            (&self.cpu, thread_cpu().saturating_sub(cpu)),
        ] {
            let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            Self::add(&counter[stage as usize], nanos);
        }
        result
    }

    /// What each stage has cost so far.
    #[must_use]
    pub fn cpu_seconds(&self) -> StageSeconds {
        let seconds =
            |stage: Stage| ratio(self.cpu[stage as usize].load(Ordering::Relaxed), 1) / 1e9;
        StageSeconds {
            decode: seconds(Stage::Decode),
            tokenise: seconds(Stage::Tokenise),
            write: seconds(Stage::Write),
        }
    }
}

/// CPU time of this thread. Through the C library, because valgrind does not show a program the kernel's own code.
fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[derive(Debug, Default, Clone, Copy)]
struct Reading {
    images: u64,
    records: u64,
    bytes_in: u64,
    bytes_out: u64,
    short_of_memory: u64,
    busy: [u64; 3],
}

/// What a build is doing, for a caller that shows it itself. Counts are totals since its start.
#[derive(Debug, Clone, Serialize)]
pub struct Doing {
    /// The phase: `start`, `fetch inputs`, `plan`, `build` or `commit`.
    pub stage: &'static str,
    /// Items of the phase that are done: bytes before `build`; images and records in it.
    pub done: u64,
    /// Items of the phase; 0 while that is not known.
    pub total: u64,
    /// Images prepared or rejected.
    pub images: u64,
    /// Records prepared or rejected.
    pub records: u64,
    /// Bytes read from sources.
    pub bytes_in: u64,
    /// Bytes written to shards.
    pub bytes_out: u64,
    /// Records rejected.
    pub rejects: u64,
}

#[derive(Debug)]
struct Shared {
    counters: Counters,
    /// Name of the running phase and its size in items.
    phase: Mutex<(&'static str, u64, Instant)>,
    done: AtomicU64,
    stopped: Mutex<bool>,
    wake: Condvar,
    threads: u64,
}

/// The progress of a build; cheap to clone. Dropping the last one ends the line.
#[derive(Debug, Clone)]
pub struct Progress {
    shared: Arc<Shared>,
    line: Option<Arc<Line>>,
}

#[derive(Debug)]
struct Line {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    /// A progress that nobody sees.
    #[must_use]
    pub fn silent(threads: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                counters: Counters::default(),
                phase: Mutex::new(("start", 0, Instant::now())),
                done: AtomicU64::new(0),
                stopped: Mutex::new(false),
                wake: Condvar::new(),
                threads: threads as u64,
            }),
            line: None,
        }
    }

    /// A progress shown on stderr.
    #[must_use]
    pub fn on_stderr(threads: usize) -> Self {
        let silent = Self::silent(threads);
        let shared = Arc::clone(&silent.shared);
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || show(&shared))
            .ok();
        Self {
            line: Some(Arc::new(Line {
                shared: Arc::clone(&silent.shared),
                thread: Mutex::new(thread),
            })),
            ..silent
        }
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// What the build is doing now.
    #[must_use]
    pub fn doing(&self) -> Doing {
        let reading = self.shared.reading();
        let (stage, total, _) = *lock(&self.shared.phase);
        Doing {
            stage,
            done: self.shared.done.load(Ordering::Relaxed),
            total,
            images: reading.images,
            records: reading.records,
            bytes_in: reading.bytes_in,
            bytes_out: reading.bytes_out,
            rejects: self.shared.counters.rejects.load(Ordering::Relaxed),
        }
    }

    /// Says something that is no error, where progress is shown.
    pub fn warn(&self, text: &str) {
        if self.line.is_some() {
            // A live line stands there already.
            let start = if std::io::stderr().is_terminal() {
                "\r\x1b[K"
            } else {
                ""
            };
            let _ = writeln!(std::io::stderr(), "{start}warning: {text}");
        }
    }

    /// Starts a phase of `total` items (bytes, images or records, as its name says).
    pub fn phase(&self, name: &'static str, total: u64) {
        *lock(&self.shared.phase) = (name, total, Instant::now());
        self.shared.done.store(0, Ordering::Relaxed);
    }

    /// Rejected records so far.
    pub fn set_rejects(&self, count: u64) {
        self.shared.counters.rejects.store(count, Ordering::Relaxed);
    }

    /// `count` more items of the phase are done.
    pub fn advance(&self, count: u64) {
        self.shared.done.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        *lock(&self.shared.stopped) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of the thread that shows the line.
fn show(shared: &Shared) {
    let live = std::io::stderr().is_terminal();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    let tick = if live { TICK_LIVE } else { TICK_PLAIN };
    let mut before = (Instant::now(), Reading::default());
    let mut stopped = lock(&shared.stopped);
    while !*stopped {
        stopped = shared
            .wake
            .wait_timeout(stopped, tick)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
        if *stopped {
            break;
        }
        let now = (Instant::now(), shared.reading());
        let text = shared.line(before, now);
        before = now;
        if live {
            bar.set_message(text);
            bar.tick();
        } else {
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
    drop(stopped);
    bar.finish_and_clear();
}

impl Shared {
    fn reading(&self) -> Reading {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            images: load(&self.counters.images),
            records: load(&self.counters.records),
            bytes_in: load(&self.counters.bytes_in),
            bytes_out: load(&self.counters.bytes_out),
            short_of_memory: load(&self.counters.short_of_memory),
            busy: std::array::from_fn(|stage| load(&self.counters.busy[stage])),
        }
    }

    fn line(&self, before: (Instant, Reading), now: (Instant, Reading)) -> String {
        let seconds = (now.0 - before.0).as_secs_f64().max(1e-3);
        let (old, new) = (before.1, now.1);
        let (phase, total, started) = *lock(&self.phase);
        let done = self.done.load(Ordering::Relaxed);
        let mut text = String::new();
        let percent = if total == 0 {
            0.0
        } else {
            100.0 * ratio(done, total)
        };
        let _ = write!(
            text,
            "{phase} {percent:.1}%: {:.0} records/s, {:.0} images/s, in {}/s, out {}/s, {} rejects",
            per_second(old.records, new.records, seconds),
            per_second(old.images, new.images, seconds),
            HumanBytes(whole(per_second(old.bytes_in, new.bytes_in, seconds))),
            HumanBytes(whole(per_second(old.bytes_out, new.bytes_out, seconds))),
            self.counters.rejects.load(Ordering::Relaxed),
        );
        if done > 0 && done < total {
            let left = started.elapsed().as_secs_f64() * ratio(total - done, done);
            let _ = write!(
                text,
                ", ETA {}",
                HumanDuration(Duration::from_secs_f64(left))
            );
        }
        if let Some(stage) = self.limiting(&old, &new, seconds) {
            let _ = write!(text, ", limited by {stage}");
        }
        text
    }

    /// The stage that was busiest, as a share of what it could do, or memory if decoders had to wait for it longer; fetching
    /// if it was neither.
    fn limiting(&self, old: &Reading, new: &Reading, seconds: f64) -> Option<&'static str> {
        let used = |stage: Stage, threads: u64| {
            let nanos = new.busy[stage as usize].saturating_sub(old.busy[stage as usize]);
            ratio(nanos, threads.max(1)) / 1e9 / seconds
        };
        if new.records == old.records && new.images == old.images && new.bytes_out == old.bytes_out
        {
            return None;
        }
        let short = new.short_of_memory.saturating_sub(old.short_of_memory);
        let shares = [
            ("decode", used(Stage::Decode, self.threads)),
            ("tokenise", used(Stage::Tokenise, self.threads)),
            ("write", used(Stage::Write, 1)),
            ("memory", ratio(short, 1) / 1e9 / seconds),
        ];
        let busiest = shares
            .into_iter()
            .max_by(|left, right| left.1.total_cmp(&right.1))?;
        Some(if busiest.1 < 0.5 { "fetch" } else { busiest.0 })
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates for people")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn per_second(old: u64, new: u64, seconds: f64) -> f64 {
    ratio(new.saturating_sub(old), 1) / seconds
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates for people"
)]
fn whole(rate: f64) -> u64 {
    rate as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoders_that_wait_for_memory_are_limited_by_it_and_not_by_fetching() {
        let progress = Progress::silent(16);
        let limiting = |decode: u64, short_of_memory: u64| {
            let new = Reading {
                images: 1,
                short_of_memory,
                busy: [decode, 0, 0],
                ..Reading::default()
            };
            progress.shared.limiting(&Reading::default(), &new, 1.0)
        };
        let second = 1_000_000_000;
        assert_eq!(limiting(4 * second, 0), Some("fetch"));
        assert_eq!(limiting(4 * second, second * 9 / 10), Some("memory"));
        assert_eq!(limiting(15 * second, second / 2), Some("decode"));
        assert_eq!(limiting(4 * second, second / 10), Some("fetch"));
    }
}
