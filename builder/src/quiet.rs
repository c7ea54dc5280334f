//! Panics that cost one picture, record or table, and not the build.
//!
//! Owns that such a panic is caught and says nothing on stderr: what it said goes to whoever caught it. Invariant: a panic anywhere
//! else is shown as ever, also one of another thread at the same time.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// How many calls of [`caught`] this thread is in.
    static QUIET: Cell<u32> = const { Cell::new(0) };
}

/// What `work` makes, or what it said when it panicked. The caller sees to it that what it leaves behind harms nobody.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shown = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if QUIET.get() == 0 {
                shown(panic);
            }
        }));
    });
    QUIET.set(QUIET.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    QUIET.set(QUIET.get() - 1);
    outcome.map_err(|panic| said(&*panic))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no words").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_said_is_told() {
        assert_eq!(caught(|| 5), Ok(5));
        let fixed = caught(|| -> u8 { panic!("planted") });
        assert_eq!(fixed, Err("planted".to_owned()));
        let made = caught(|| -> u8 { panic!("planted {}", QUIET.get()) });
        assert_eq!(made, Err("planted 1".to_owned()));
        let inner = caught(|| caught(|| -> u8 { panic!("planted {}", QUIET.get()) }));
        assert_eq!(inner, Ok(Err("planted 2".to_owned())));
        assert_eq!(QUIET.get(), 0);
    }
}
