//! A forked child, for tests of what must not happen there.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Runs `check` in a forked child of this process and says whether it ended without a panic. What it captured is dropped
/// in the child, and comes back in the parent.
pub fn in_child<T>(captured: T, check: impl FnOnce(T)) -> (T, bool) {
    // SAFETY: the child has this thread only; it runs `check` and ends without unwinding into the caller.
    let pid = unsafe { fork() };
    assert!(pid >= 0, "could not fork");
    if pid == 0 {
        let result = catch_unwind(AssertUnwindSafe(|| check(captured)));
        // SAFETY: ends the child, with none of the parent's exit handlers.
        unsafe { _exit(c_int::from(result.is_err())) }
    }
    let mut status = -1;
    // SAFETY: waits for the child made above and writes one int.
    let ended = unsafe { waitpid(pid, &raw mut status, 0) };
    (captured, ended == pid && status == 0)
}
