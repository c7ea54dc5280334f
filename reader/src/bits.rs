//! One bit for each of many things, shared by threads.
//!
//! Invariant: memory is taken when the first bit is asked for; what has no bit counts as not set, and cannot be set.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits, none of them set at first. How many there are is said with each call, and is the same each time.
#[derive(Debug, Default)]
pub(crate) struct Bits(OnceLock<Box<[AtomicU64]>>);

impl Bits {
    fn word(&self, count: u64, at: u64) -> Option<&AtomicU64> {
        let words = self.0.get_or_init(|| {
            let words = usize::try_from(count.div_ceil(64)).unwrap_or(0);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        });
        words.get(usize::try_from(at / 64).ok()?)
    }

    /// Whether bit `at` of `count` is set.
    pub(crate) fn get(&self, count: u64, at: u64) -> bool {
        self.word(count, at)
            .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (at % 64)) != 0)
    }

    /// Sets bit `at` of `count`; says whether it was not set before.
    pub(crate) fn set(&self, count: u64, at: u64) -> bool {
        let bit = 1 << (at % 64);
        self.word(count, at)
            .is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }
}
