//! Work that is planned in order, done by threads, and delivered in order.
//!
//! Owns queue, admission and shutdown; it knows nothing of batches. Invariants: jobs are planned and admitted one after
//! another, so the job that the consumer waits for never waits for a permit that only a later one could free; at most
//! `depth` jobs (one more while the consumer waits) are planned beyond what was delivered.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::budget::{Budget, Permit};
use crate::sync::{Condvar, Mutex, MutexGuard, computes, thread, unpoisoned};

/// What a pipeline does.
pub(crate) trait Work: Send + Sync + 'static {
    /// One piece of work.
    type Job: Send;
    /// What comes of it.
    type Done: Send;

    /// The next job in order and the bytes that it will hold; none if there is no more.
    fn plan(&self) -> Option<(Self::Job, u64)>;

    /// Does a job on thread number `worker`.
    fn make(&self, job: Self::Job, worker: usize) -> Self::Done;

    /// What a job comes to whose maker panicked.
    fn panicked(&self, message: String) -> Self::Done;

    /// A thread waited this long for the budget, or for the consumer.
    fn waited(&self, budget: Duration, consumer: Duration);
}

/// What [`Pipeline::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<T> {
    Done(T),
    TimedOut,
    /// All jobs were delivered, and there are no more.
    Ended,
}

struct Core<W: Work> {
    work: W,
    depth: u64,
    budget: Arc<Budget>,
    /// The number of the next job. Its lock is held from planning to admission.
    planner: Mutex<u64>,
    queue: Mutex<Queue<W::Done>>,
    /// There is room in the queue, or it is over.
    room: Condvar,
    /// Something was done, or it is over.
    ready: Condvar,
}

struct Queue<T> {
    /// Results, with the permits of those that hold bytes.
    done: BTreeMap<u64, (T, Option<Permit>)>,
    /// The number of the job that is delivered next.
    deliver: u64,
    waiting: bool,
    /// Jobs in all, once that is known.
    end: Option<u64>,
    stop: bool,
    /// Threads that have not ended.
    running: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Makers run without a lock; what is changed under one is right after every statement.
    unpoisoned(mutex.lock())
}

/// Threads at work.
pub(crate) struct Pipeline<W: Work> {
    core: Arc<Core<W>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<W: Work> Pipeline<W> {
    /// Starts `threads` threads that keep `depth` jobs ahead of the consumer.
    pub(crate) fn start(
        work: W,
        threads: usize,
        depth: u64,
        budget: Arc<Budget>,
    ) -> std::io::Result<Self> {
        let core = Arc::new(Core {
            work,
            depth,
            budget,
            planner: Mutex::new(0),
            queue: Mutex::new(Queue {
                done: BTreeMap::new(),
                deliver: 0,
                waiting: false,
                end: None,
                stop: false,
                running: 0,
            }),
            room: Condvar::new(),
            ready: Condvar::new(),
        });
        let mut pipeline = Self {
            core,
            threads: Vec::with_capacity(threads),
        };
        for worker in 0..threads.max(1) {
            let core = Arc::clone(&pipeline.core);
            let builder = thread::Builder::new().name(format!("stoker-{worker}"));
            lock(&core.queue).running += 1;
            // On failure the drop of the pipeline ends those that run.
            let thread = builder.spawn(move || core.run(worker))?;
            pipeline.threads.push(thread);
        }
        Ok(pipeline)
    }

    /// The next job's result in order. Waits for at most `timeout`, or without end.
    pub(crate) fn next(&self, timeout: Option<Duration>) -> Next<W::Done> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let mut queue = lock(&self.core.queue);
        let found = loop {
            let number = queue.deliver;
            if let Some((done, permit)) = queue.done.remove(&number) {
                queue.deliver += 1;
                break Next::Done((done, permit));
            }
            if queue.stop || queue.end.is_some_and(|end| end <= number) {
                break Next::Ended;
            }
            if !queue.waiting {
                queue.waiting = true;
                self.core.room.notify_all();
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            queue = match left {
                Some(Duration::ZERO) => break Next::TimedOut,
                Some(left) => {
                    let waited = self.core.ready.wait_timeout(queue, left);
                    unpoisoned(waited).0
                }
                None => {
                    let waited = self.core.ready.wait(queue);
                    unpoisoned(waited)
                }
            };
        };
        queue.waiting = false;
        drop(queue);
        self.core.room.notify_all();
        match found {
            // The bytes are the consumer's from here on.
            Next::Done((done, permit)) => {
                drop(permit);
                Next::Done(done)
            }
            Next::TimedOut => Next::TimedOut,
            Next::Ended => Next::Ended,
        }
    }

    /// The work.
    pub(crate) fn work(&self) -> &W {
        &self.core.work
    }

    /// Whether the next job is done.
    #[cfg(feature = "cuda")]
    pub(crate) fn is_ready(&self) -> bool {
        let queue = lock(&self.core.queue);
        queue.done.contains_key(&queue.deliver)
    }

    /// Jobs that are done and wait for the consumer.
    pub(crate) fn queued(&self) -> usize {
        lock(&self.core.queue).done.len()
    }

    /// Bytes in flight now, and at most so far.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        self.core.budget.used()
    }

    /// Ends the threads and waits for them, at most `limit`; whether all have ended.
    pub(crate) fn stop(&mut self, limit: Option<Duration>) -> bool {
        let finished: BTreeMap<_, _> = {
            let mut queue = lock(&self.core.queue);
            queue.stop = true;
            std::mem::take(&mut queue.done)
        };
        drop(finished);
        self.core.budget.close();
        self.core.room.notify_all();
        self.core.ready.notify_all();
        if let Some(limit) = limit {
            let until = Instant::now() + limit;
            let mut queue = lock(&self.core.queue);
            while queue.running > 0 {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    // A read that hangs cannot be called back: its thread ends when the system lets it.
                    self.threads.clear();
                    return false;
                }
                let waited = self.core.ready.wait_timeout(queue, left);
                queue = unpoisoned(waited).0;
            }
        }
        for thread in self.threads.drain(..) {
            // Makers' panics are caught; there is nothing to pass on.
            let _ = thread.join();
        }
        true
    }
}

impl<W: Work> Drop for Pipeline<W> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.stop(None);
        }
    }
}

impl<W: Work> Core<W> {
    fn run(&self, worker: usize) {
        computes();
        self.work_on(worker);
        lock(&self.queue).running -= 1;
        self.ready.notify_all();
    }

    fn work_on(&self, worker: usize) {
        while let Some((number, job, permit)) = self.take() {
            let done = catch_unwind(AssertUnwindSafe(|| self.work.make(job, worker)))
                .unwrap_or_else(|panic| self.work.panicked(message(&*panic)));
            let mut queue = lock(&self.queue);
            if queue.stop {
                return;
            }
            queue.done.insert(number, (done, Some(permit)));
            drop(queue);
            self.ready.notify_all();
        }
    }

    /// The next job, with its permit; none when it is over.
    fn take(&self) -> Option<(u64, W::Job, Permit)> {
        let mut next = lock(&self.planner);
        let number = *next;
        let idle = self.wait_for_room(number)?;
        let planned = catch_unwind(AssertUnwindSafe(|| self.work.plan()));
        let (job, bytes) = match planned {
            Ok(Some(planned)) => planned,
            Ok(None) => {
                lock(&self.queue).end = Some(number);
                self.ready.notify_all();
                return None;
            }
            Err(panic) => {
                // What it says is delivered in its turn, and is the last.
                let done = self.work.panicked(message(&*panic));
                let mut queue = lock(&self.queue);
                queue.done.insert(number, (done, None));
                queue.end = Some(number + 1);
                drop(queue);
                self.ready.notify_all();
                return None;
            }
        };
        *next += 1;
        let asked = Instant::now();
        let permit = self.budget.acquire(bytes)?;
        self.work.waited(asked.elapsed(), idle);
        Some((number, job, permit))
    }

    /// Waits until job `number` may be planned; none when it is over.
    fn wait_for_room(&self, number: u64) -> Option<Duration> {
        let asked = Instant::now();
        let mut queue = lock(&self.queue);
        loop {
            if queue.stop || queue.end.is_some() {
                return None;
            }
            if number < queue.deliver + self.depth + u64::from(queue.waiting) {
                return Some(asked.elapsed());
            }
            let waited = self.room.wait(queue);
            queue = unpoisoned(waited);
        }
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a thread panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to `jobs`, each of so many bytes; the maker of `panics_at` panics.
    struct Counting {
        next: Mutex<u64>,
        jobs: u64,
        bytes: u64,
        panics_at: u64,
        plan_panics_at: u64,
    }

    impl Work for Counting {
        type Job = u64;
        type Done = Result<u64, String>;

        fn plan(&self) -> Option<(u64, u64)> {
            let mut next = lock(&self.next);
            let number = *next;
            *next += 1;
            assert!(number != self.plan_panics_at, "the plan panics");
            (number < self.jobs).then_some((number, self.bytes))
        }

        fn make(&self, job: u64, _: usize) -> Self::Done {
            assert!(job != self.panics_at, "job {job} panics");
            Ok(job)
        }

        fn panicked(&self, message: String) -> Self::Done {
            Err(message)
        }

        fn waited(&self, _: Duration, _: Duration) {}
    }

    fn start(jobs: u64, bytes: u64, threads: usize, depth: u64, limit: u64) -> Pipeline<Counting> {
        let work = Counting {
            next: Mutex::new(0),
            jobs,
            bytes,
            panics_at: 3,
            plan_panics_at: 500,
        };
        Pipeline::start(work, threads, depth, Budget::new(limit)).unwrap()
    }

    /// Runs `case` many times, under the model checker in as many schedules.
    fn check(case: impl Fn() + Send + Sync + 'static) {
        #[cfg(feature = "shuttle")]
        shuttle::check_random(case, 3000);
        #[cfg(not(feature = "shuttle"))]
        for _ in 0..50 {
            case();
        }
    }

    #[test]
    fn everything_is_delivered_in_order_at_any_budget_and_depth() {
        for (threads, depth, limit) in [(1, 0, 1), (2, 0, 1), (2, 1, 1), (3, 4, 25), (2, 8, 1000)] {
            check(move || {
                let pipeline = start(6, 10, threads, depth, limit);
                for number in 0..6 {
                    let Next::Done(done) = pipeline.next(None) else {
                        panic!("job {number} is missing");
                    };
                    if number == 3 {
                        assert!(done.unwrap_err().contains("job 3 panics"));
                    } else {
                        assert_eq!(done, Ok(number));
                    }
                }
                assert_eq!(pipeline.next(None), Next::Ended);
                assert_eq!(pipeline.bytes().0, 0);
            });
        }
    }

    #[test]
    fn stopping_at_any_moment_ends_all_threads() {
        for (taken, limit) in [(0, 1), (1, 10), (2, 1000)] {
            check(move || {
                let mut pipeline = start(1000, 10, 3, 4, limit);
                for _ in 0..taken {
                    assert!(matches!(pipeline.next(None), Next::Done(_)));
                }
                assert!(pipeline.stop(None));
                assert_eq!(pipeline.next(None), Next::Ended);
                assert_eq!(pipeline.bytes().0, 0);
            });
        }
    }

    #[test]
    fn what_is_in_flight_stays_within_budget_and_depth() {
        check(|| {
            let pipeline = start(20, 10, 3, 4, 25);
            for _ in 0..20 {
                assert!(matches!(pipeline.next(None), Next::Done(_)));
                assert!(pipeline.queued() <= 5);
            }
            assert!(pipeline.bytes().1 <= 25);
        });
    }

    #[test]
    fn a_plan_that_panics_is_the_last_that_is_delivered() {
        check(|| {
            let work = Counting {
                next: Mutex::new(0),
                jobs: 6,
                bytes: 10,
                panics_at: 9,
                plan_panics_at: 2,
            };
            let pipeline = Pipeline::start(work, 2, 4, Budget::new(25)).unwrap();
            assert_eq!(pipeline.next(None), Next::Done(Ok(0)));
            assert_eq!(pipeline.next(None), Next::Done(Ok(1)));
            let Next::Done(Err(last)) = pipeline.next(None) else {
                panic!("the panic is missing");
            };
            assert!(last.contains("the plan panics"));
            assert_eq!(pipeline.next(None), Next::Ended);
        });
    }

    #[cfg(not(feature = "shuttle"))]
    #[test]
    fn waiting_has_a_limit_and_a_hanging_maker_does_not_hold_the_stop() {
        struct Hanging;
        impl Work for Hanging {
            type Job = ();
            type Done = ();
            fn plan(&self) -> Option<((), u64)> {
                Some(((), 1))
            }
            fn make(&self, (): (), _: usize) {
                std::thread::sleep(Duration::from_secs(3));
            }
            fn panicked(&self, _: String) {}
            fn waited(&self, _: Duration, _: Duration) {}
        }
        let mut pipeline = Pipeline::start(Hanging, 2, 4, Budget::new(100)).unwrap();
        let short = Duration::from_millis(20);
        assert_eq!(pipeline.next(Some(short)), Next::TimedOut);
        assert!(!pipeline.stop(Some(short)));
    }
}
