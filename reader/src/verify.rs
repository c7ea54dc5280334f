//! When rows are held against their checksums.

use std::fmt;
use std::str::FromStr;

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
