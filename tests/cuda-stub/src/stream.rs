//! Streams and events: a worker thread for each stream, and real asynchrony.
//!
//! Invariant: operations of a stream run one after the other; an event is complete when the operation of its last
//! recording has run, and a wait is for the recording that was the last when the wait was put in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A count that can be waited for.
#[derive(Default)]
pub(crate) struct Count {
    value: Mutex<u64>,
    changed: Condvar,
}

impl Count {
    pub(crate) fn reached(&self, value: u64) -> bool {
        *self.value.lock().unwrap() >= value
    }

    pub(crate) fn wait(&self, value: u64) {
        let reached = self.value.lock().unwrap();
        drop(
            self.changed
                .wait_while(reached, |now| *now < value)
                .unwrap(),
        );
    }

    fn raise(&self, value: u64) {
        let mut now = self.value.lock().unwrap();
        *now = value.max(*now);
        self.changed.notify_all();
    }
}

#[derive(Default)]
pub(crate) struct Event {
    /// Recordings so far.
    pub(crate) recorded: AtomicU64,
    pub(crate) complete: Count,
}

pub(crate) type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Stream {
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    put: AtomicU64,
    done: Arc<Count>,
}

impl Stream {
    /// `delay` and `seed` say how long operations wait before they run.
    pub(crate) fn start(delay: u64, seed: u64) -> Arc<Self> {
        let (jobs, work): (Sender<Job>, Receiver<Job>) = channel();
        let done = Arc::new(Count::default());
        let count = Arc::clone(&done);
        let worker = thread::spawn(move || {
            let mut random = seed | 1;
            for (number, job) in (1..).zip(work) {
                pause(delay, &mut random);
                job();
                count.raise(number);
            }
        });
        Arc::new(Self {
            jobs: Some(jobs),
            worker: Some(worker),
            put: AtomicU64::new(0),
            done,
        })
    }

    pub(crate) fn put(&self, job: Job) {
        self.put.fetch_add(1, Ordering::SeqCst);
        self.jobs.as_ref().unwrap().send(job).unwrap();
    }

    pub(crate) fn record(&self, event: &Arc<Event>) {
        let number = event.recorded.fetch_add(1, Ordering::SeqCst) + 1;
        let event = Arc::clone(event);
        self.put(Box::new(move || event.complete.raise(number)));
    }

    pub(crate) fn wait(&self, event: &Arc<Event>) {
        let number = event.recorded.load(Ordering::SeqCst);
        let event = Arc::clone(event);
        self.put(Box::new(move || event.complete.wait(number)));
    }

    pub(crate) fn synchronize(&self) {
        self.done.wait(self.put.load(Ordering::SeqCst));
    }
}

impl Drop for Stream {
    /// What is in it still runs.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(worker) = self.worker.take() {
            worker.join().unwrap();
        }
    }
}

/// Mostly nothing, now and then a short or a long time: orders change most where some are slow.
fn pause(delay: u64, random: &mut u64) {
    if delay == 0 {
        return;
    }
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    match *random % 64 {
        0 => thread::sleep(Duration::from_micros(delay)),
        1..3 => thread::sleep(Duration::from_micros((*random >> 8) % delay)),
        3..16 => thread::yield_now(),
        _ => {}
    }
}
