//! Locks and threads of the prefetch core: the standard library's, or those of a model checker.
//!
//! Invariant: budget and pipeline use no lock and no thread from elsewhere, so that the checker sees every step.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

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
