//! How far a pass over files is: bytes, rate and time left, on stderr.
//!
//! Owns its display: a live bar on a terminal, a line every 10 s elsewhere. Nothing here reaches the report.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::build::Stop;
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Between two lines where stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The bytes of one pass.
pub(crate) struct Progress {
    what: &'static str,
    bar: ProgressBar,
    shown: bool,
    plain: bool,
    total: u64,
    done: AtomicU64,
    start: Instant,
    last_line: Mutex<Instant>,
    /// Said at the end of the line.
    note: Mutex<String>,
    stop: Stop,
}

impl Progress {
    /// Of `what`, over `total` bytes, until `stop`; seen only if `show`.
    pub(crate) fn new(what: &'static str, show: bool, total: u64, stop: Stop) -> Self {
        let target = if show {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let rest = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, ETA {eta}{msg}";
        if let Ok(style) = ProgressStyle::with_template(&format!("{what} {rest}")) {
            bar.set_style(style);
        }
        Self {
            what,
            shown: show,
            plain: show && bar.is_hidden(),
            bar,
            total,
            done: AtomicU64::new(0),
            start: Instant::now(),
            last_line: Mutex::new(Instant::now()),
            note: Mutex::default(),
            stop,
        }
    }

    /// Whether the rest may be left out, because nobody will see what comes out.
    pub(crate) fn stopped(&self) -> bool {
        self.stop.check().is_err()
    }

    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) after a request to stop.
    pub(crate) fn check(&self) -> crate::Result<()> {
        self.stop.check()
    }

    /// Counts bytes that were read.
    pub(crate) fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.bar.inc(bytes);
        if !self.plain {
            return;
        }
        let mut last = self
            .last_line
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            let note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
            let text = line(self.what, done, self.total, self.start.elapsed(), &note);
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }

    /// Says a line of its own.
    pub(crate) fn say(&self, text: &str) {
        if self.shown {
            let line = format!("{}: {text}\n", self.what);
            self.bar.suspend(|| {
                let _ = io::stderr().lock().write_all(line.as_bytes());
            });
        }
    }

    /// Says `note` at the end of the line from now on.
    pub(crate) fn note(&self, note: String) {
        self.bar.set_message(note.clone());
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = note;
    }

    /// Ends the display.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The line of a plain display.
fn line(what: &str, done: u64, total: u64, elapsed: Duration, note: &str) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = Duration::from_secs_f64(total.saturating_sub(done) as f64 / rate.max(1.0));
    format!(
        "{what}: {} of {}, {}/s, ETA {}{note}\n",
        HumanBytes(done),
        HumanBytes(total),
        HumanBytes(rate as u64),
        HumanDuration(left)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_line_says_bytes_rate_and_time_left() {
        assert_eq!(
            line(
                "sync",
                10 << 20,
                50 << 20,
                Duration::from_secs(10),
                ", limited by disk"
            ),
            "sync: 10.00 MiB of 50.00 MiB, 1.00 MiB/s, ETA 40 seconds, limited by disk\n"
        );
    }
}
