//! What a reader measures all the time.
//!
//! Owns the counters and what is made of them. Invariant: counting costs a few atomic additions a row, and no figure is
//! guessed: what was not measured is absent.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The share of time waited from which on the reader is what holds the consumer back.
const WAITS: f64 = 0.01;

/// Counters that all threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    sample_bytes: AtomicU64,
    image_bytes: AtomicU64,
    read_nanos: AtomicU64,
    assemble_nanos: AtomicU64,
    admission_nanos: AtomicU64,
    idle_nanos: AtomicU64,
    remote_nanos: AtomicU64,
    fetched_bytes: AtomicU64,
    fetched_files: AtomicU64,
    /// The most bytes in flight of all runs that have ended.
    peak_bytes: AtomicU64,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn seconds(nanos: &AtomicU64) -> f64 {
    Duration::from_nanos(nanos.load(Ordering::Relaxed)).as_secs_f64()
}

impl Counters {
    pub(crate) fn sample_bytes(&self, bytes: u64) {
        self.sample_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn image_bytes(&self, bytes: u64) {
        self.image_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn made(&self, read: Duration, whole: Duration) {
        self.read_nanos.fetch_add(nanos(read), Ordering::Relaxed);
        self.assemble_nanos
            .fetch_add(nanos(whole.saturating_sub(read)), Ordering::Relaxed);
    }

    pub(crate) fn admission(&self, time: Duration) {
        self.admission_nanos
            .fetch_add(nanos(time), Ordering::Relaxed);
    }

    pub(crate) fn idle(&self, time: Duration) {
        self.idle_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    pub(crate) fn remote(&self, time: Duration) {
        self.remote_nanos.fetch_add(nanos(time), Ordering::Relaxed);
    }

    pub(crate) fn peak(&self, bytes: u64) {
        self.peak_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn fetched(&self, bytes: u64) {
        self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.fetched_files.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the consumer saw; kept by the reader itself.
#[derive(Debug, Clone, Default)]
pub(crate) struct Consumer {
    opened: Option<Instant>,
    first_batch: Option<Duration>,
    batches: u64,
    waited: Duration,
    last_wait: Duration,
    /// From the first batch to now, less the time waited, the consumer was busy.
    first_delivery: Option<Instant>,
    last_delivery: Option<Instant>,
}

impl Consumer {
    pub(crate) fn open(now: Instant) -> Self {
        Self {
            opened: Some(now),
            ..Self::default()
        }
    }

    /// A batch was delivered after `wait`.
    pub(crate) fn delivered(&mut self, wait: Duration) {
        let now = Instant::now();
        self.batches += 1;
        self.last_wait = wait;
        if self.first_delivery.is_some() {
            // The first batch is not waited for while training: it has a figure of its own.
            self.waited += wait;
        } else {
            self.first_batch = self.opened.map(|opened| now - opened);
            self.first_delivery = Some(now);
        }
        self.last_delivery = Some(now);
    }
}

/// A read that takes suspiciously long.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRead {
    /// The file; of one that is brought from elsewhere, where it comes from.
    pub path: PathBuf,
    /// Seconds so far.
    pub seconds: f64,
}

/// The stage that holds a reader back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The consumer: it waits for less than 1 % of the time.
    Consumer,
    /// Reading from disk or page cache.
    Read,
    /// Putting batches together: widening, expanding.
    Assemble,
    /// The byte budget: more could be prepared ahead if it were larger.
    Budget,
    /// Files that this node lacks: reading waits until they are brought.
    Remote,
}

impl Limit {
    /// The stage's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Read => "read",
            Self::Assemble => "assemble",
            Self::Budget => "budget",
            Self::Remote => "remote",
        }
    }
}

/// Figures of a reader since it was opened.
#[derive(Debug, Clone)]
pub struct Stats {
    /// Micro-batches delivered.
    pub batches: u64,
    /// Seconds from opening to the first batch.
    pub first_batch_seconds: Option<f64>,
    /// Seconds waited for the latest batch.
    pub last_wait_seconds: f64,
    /// Seconds waited for all batches but the first.
    pub wait_seconds: f64,
    /// Those seconds as a share of the time from the first delivery to the last.
    pub wait_ratio: Option<f64>,
    /// Bytes of text read from sample shards.
    pub sample_bytes: u64,
    /// Bytes of patches read from image shards.
    pub image_bytes: u64,
    /// Seconds of all threads spent reading, checksums included.
    pub read_seconds: f64,
    /// Seconds of all threads spent putting batches together.
    pub assemble_seconds: f64,
    /// Seconds that the next batch waited for the byte budget.
    pub budget_seconds: f64,
    /// Seconds that the next batch waited for room in the queue, that is for the consumer.
    pub idle_seconds: f64,
    /// Seconds that all reading threads waited for files that this node lacks.
    pub remote_seconds: f64,
    /// Files that this reader has brought from a fallback, indexes included.
    pub fetched_files: u64,
    /// Their bytes, as they lie here.
    pub fetched_bytes: u64,
    /// Bytes of brought files that this reader has removed for others.
    pub evicted_bytes: u64,
    /// Bytes of brought files that lie in the folder now, whoever brought them; unfinished ones count whole.
    pub held_bytes: u64,
    /// Batches that are ready.
    pub queued: usize,
    /// Bytes of batches that are being made or are ready.
    pub bytes_in_flight: u64,
    /// The most that those ever were.
    pub peak_bytes_in_flight: u64,
    /// Bytes of anonymous memory of this process.
    pub anonymous_bytes: Option<u64>,
    /// Bytes of file-backed memory of this process.
    pub file_bytes: Option<u64>,
    /// The stage that held the reader back most.
    pub limit: Limit,
    /// Reads that have taken longer than 30 s, of shards and, for planning, of indexes.
    pub slow_reads: Vec<SlowRead>,
}

impl Stats {
    pub(crate) fn new(
        counters: &Counters,
        consumer: &Consumer,
        queued: usize,
        (bytes_in_flight, peak_bytes): (u64, u64),
        (evicted_bytes, held_bytes): (u64, u64),
        slow_reads: Vec<SlowRead>,
    ) -> Self {
        let span = consumer
            .first_delivery
            .zip(consumer.last_delivery)
            .map(|(first, last)| (last - first).as_secs_f64())
            .filter(|span| *span > 0.0);
        let wait_seconds = consumer.waited.as_secs_f64();
        let [
            read_seconds,
            assemble_seconds,
            budget_seconds,
            idle_seconds,
            remote_seconds,
        ] = [
            &counters.read_nanos,
            &counters.assemble_nanos,
            &counters.admission_nanos,
            &counters.idle_nanos,
            &counters.remote_nanos,
        ]
        .map(seconds);
        let (anonymous_bytes, file_bytes) = crate::memory::resident().unzip();
        let wait_ratio = span.map(|span| (wait_seconds / span).min(1.0));
        let stages = [
            (Limit::Read, read_seconds),
            (Limit::Assemble, assemble_seconds),
            (Limit::Budget, budget_seconds),
            (Limit::Remote, remote_seconds),
        ];
        let busiest = stages
            .into_iter()
            .max_by(|one, other| one.1.total_cmp(&other.1));
        let limit = match busiest {
            Some((limit, _)) if wait_ratio.is_some_and(|ratio| ratio >= WAITS) => limit,
            _ => Limit::Consumer,
        };
        Self {
            batches: consumer.batches,
            first_batch_seconds: consumer.first_batch.map(|time| time.as_secs_f64()),
            last_wait_seconds: consumer.last_wait.as_secs_f64(),
            wait_seconds,
            wait_ratio,
            sample_bytes: counters.sample_bytes.load(Ordering::Relaxed),
            image_bytes: counters.image_bytes.load(Ordering::Relaxed),
            read_seconds,
            assemble_seconds,
            budget_seconds,
            idle_seconds,
            remote_seconds,
            fetched_files: counters.fetched_files.load(Ordering::Relaxed),
            fetched_bytes: counters.fetched_bytes.load(Ordering::Relaxed),
            evicted_bytes,
            held_bytes,
            queued,
            bytes_in_flight,
            peak_bytes_in_flight: peak_bytes.max(counters.peak_bytes.load(Ordering::Relaxed)),
            anonymous_bytes,
            file_bytes,
            limit,
            slow_reads,
        }
    }
}
