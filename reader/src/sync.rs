//! Locks and threads of the prefetch core: the standard library's, or those of a model checker; and what all locks of the reader
//! have in common.
//!
//! Invariant: budget and pipeline use no lock and no thread from elsewhere, so that the checker sees every step.

use std::sync::{LockResult, PoisonError};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

/// What a lock, or a wait with one, gives, even if a thread has panicked with it: what is changed under the locks of this crate is
/// right after every statement.
pub(crate) fn unpoisoned<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

/// Says to the system that this thread computes. To wake it then never takes the processor from who wakes it: the trainer, which
/// took a batch and would otherwise wait until another one is made. Where that is not allowed nothing changes.
pub(crate) fn computes() {
    // The checker's threads are one thread of the system.
    #[cfg(all(target_os = "linux", not(feature = "shuttle")))]
    {
        use preempt_rt::sched::{Pid, Scheduler, SchedulerParams, set_scheduler};
        let priority = SchedulerParams { priority: 0 };
        let _ = set_scheduler(Pid::current_thread(), Scheduler::SCHED_BATCH, priority);
    }
}
