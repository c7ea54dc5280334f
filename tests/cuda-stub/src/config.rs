//! What the stub is told: a text file that is read again at each `cuInit`. Other settings, or a driver that nobody uses,
//! make it start afresh, as in a new process.
//!
//! One setting a line: `delay 200` (most microseconds before an operation), `seed 7`, `devices 1`, `version 12080`,
//! `memory BYTES` and `locked BYTES` (limits), `kernels interpret`, `fail cuMemAlloc_v2 3 2` (the third call says 2),
//! `break cuLaunchKernel 2 719` (the second operation is taken and fails when it runs).

use std::fs;

/// A call that fails.
pub(crate) struct Fault {
    pub(crate) call: String,
    pub(crate) nth: u64,
    pub(crate) code: u32,
    /// Taken without an error; it fails when its turn comes in the stream.
    pub(crate) later: bool,
}

pub(crate) struct Config {
    pub(crate) delay: u64,
    pub(crate) seed: u64,
    pub(crate) devices: i32,
    pub(crate) version: i32,
    pub(crate) memory: usize,
    pub(crate) locked: usize,
    pub(crate) interpret: bool,
    pub(crate) faults: Vec<Fault>,
    /// All of the above as it was read.
    pub(crate) text: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            delay: 0,
            seed: 1,
            devices: 1,
            version: 12_080,
            memory: usize::MAX,
            locked: usize::MAX,
            interpret: false,
            faults: Vec::new(),
            text: String::new(),
        }
    }
}

impl Config {
    /// From the file that `CUSTUB_CONFIG` names; a setting that is not understood ends the process.
    pub(crate) fn read() -> Self {
        let path = std::env::var("CUSTUB_CONFIG").expect("CUSTUB_CONFIG");
        let text = fs::read_to_string(path).expect("the settings");
        let mut config = Self::default();
        for line in text.lines() {
            let known = config.set(line);
            known.unwrap_or_else(|| panic!("custub does not know the setting `{line}`"));
        }
        Self { text, ..config }
    }

    fn set(&mut self, line: &str) -> Option<()> {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["delay", value] => self.delay = value.parse().ok()?,
            ["seed", value] => self.seed = value.parse().ok()?,
            ["devices", value] => self.devices = value.parse().ok()?,
            ["version", value] => self.version = value.parse().ok()?,
            ["memory", value] => self.memory = value.parse().ok()?,
            ["locked", value] => self.locked = value.parse().ok()?,
            ["kernels", "interpret"] => self.interpret = true,
            [kind @ ("fail" | "break"), call, nth, code] => self.faults.push(Fault {
                call: call.to_owned(),
                nth: nth.parse().ok()?,
                code: code.parse().ok()?,
                later: kind == "break",
            }),
            _ => return None,
        }
        Some(())
    }
}
