//! When rows are held against their checksums, and which ones were.
//!
//! Invariant: one bit a row, taken when a partition is first read.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// When a row is held against its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// The first time that this reader reads it.
    #[default]
    FirstRead,
    /// Every time.
    Always,
    /// Never.
    Off,
}

impl Verify {
    const NAMES: [(Self, &'static str); 3] = [
        (Self::FirstRead, "first-read"),
        (Self::Always, "always"),
        (Self::Off, "off"),
    ];
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(verify, _)| verify == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::NAMES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(verify, _)| *verify)
            .ok_or_else(|| format!("verify is first-read, always or off, not `{text}`"))
    }
}

/// One bit a row: whether it was checked.
#[derive(Debug, Default)]
pub(crate) struct Checked(OnceLock<Box<[AtomicU64]>>);

impl Checked {
    fn word(&self, rows: u64, row: u64) -> Option<&AtomicU64> {
        let words = self.0.get_or_init(|| {
            let words = usize::try_from(rows.div_ceil(64)).unwrap_or(0);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        });
        words.get(usize::try_from(row / 64).ok()?)
    }

    pub(crate) fn get(&self, rows: u64, row: u64) -> bool {
        self.word(rows, row)
            .is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (row % 64)) != 0)
    }

    pub(crate) fn set(&self, rows: u64, row: u64) {
        if let Some(word) = self.word(rows, row) {
            word.fetch_or(1 << (row % 64), Ordering::Relaxed);
        }
    }
}
