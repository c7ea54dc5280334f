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
