//! What can be wrong with a device.
//!
//! Owns the sorting of the driver's codes: callers match on [`DeviceFault`] and never on numbers.

use std::fmt;

/// Why a device cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFault {
    /// Neither `cpu` nor `cuda:N`.
    UnknownName,
    /// The program was built without the feature `cuda`.
    NotBuilt,
    /// The driver's library cannot be loaded, or is the toolkit's placeholder.
    NoDriver,
    /// The driver's library lacks a function.
    MissingSymbol {
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than the kernels need.
    DriverTooOld {
        /// Its version, as it gives it: 11040 is 11.4.
        found: i32,
        /// The oldest that will do.
        needed: i32,
    },
    /// The machine has no device of this number.
    NoSuchDevice {
        /// How many it has.
        devices: i32,
    },
    /// An allocation failed.
    OutOfMemory {
        /// "device", "page-locked" or "host".
        kind: &'static str,
        /// How much was asked for; 0 where only the driver knows.
        bytes: usize,
    },
    /// The context is beyond use; so is every other CUDA object of this process.
    Lost {
        /// The driver's function that said so.
        call: &'static str,
        /// Its code.
        code: u32,
        /// The code's name.
        name: String,
    },
    /// Another failure of the driver.
    Failed {
        /// The driver's function.
        call: &'static str,
        /// Its code.
        code: u32,
        /// The code's name.
        name: String,
    },
    /// A request that makes no sense, before anything was started.
    Refused {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The device was closed while somebody waited, or before.
    Closed,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName => f.write_str("a device is called cpu, cuda or cuda:N"),
            Self::NotBuilt => f.write_str("this program was built without CUDA"),
            Self::NoDriver => f.write_str("no CUDA driver can be loaded"),
            Self::MissingSymbol { symbol } => write!(f, "the CUDA driver lacks {symbol}"),
            Self::DriverTooOld { found, needed } => write!(
                f,
                "the CUDA driver is too old: {}, needed is {}",
                Version(*found),
                Version(*needed)
            ),
            Self::NoSuchDevice { devices } => {
                write!(f, "no such device; the machine has {devices}")
            }
            Self::OutOfMemory { kind, bytes: 0 } => write!(f, "out of {kind} memory"),
            Self::OutOfMemory { kind, bytes } => {
                write!(f, "out of {kind} memory, asking for {bytes} bytes")
            }
            Self::Lost { call, code, name } => {
                write!(f, "the CUDA context is lost, {call} says {code} ({name})")
            }
            Self::Failed { call, code, name } => write!(f, "{call} failed with {code} ({name})"),
            Self::Refused { what } => f.write_str(what),
            Self::Closed => f.write_str("it was closed"),
        }
    }
}

/// 11040 as 11.4.
struct Version(i32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

impl DeviceFault {
    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoDriver => Some(
                "install NVIDIA's driver, start the container with its runtime, or read with device `cpu`",
            ),
            Self::MissingSymbol { .. } | Self::DriverTooOld { .. } => {
                Some("install a newer NVIDIA driver, or read with device `cpu`")
            }
            Self::NoSuchDevice { .. } => Some("check the number and CUDA_VISIBLE_DEVICES"),
            Self::NotBuilt => Some("build with the feature `cuda`, or read with device `cpu`"),
            Self::OutOfMemory { .. } => {
                Some("lower the prefetch budget or the size of a micro-batch")
            }
            Self::Lost { .. } => Some(
                "start the process again; the first CUDA error of the process and the kernel's log tell why",
            ),
            // What the driver says in a child whose parent had used it.
            Self::Failed { code: 3, .. } => {
                Some("CUDA cannot be used after a fork: start workers with spawn or forkserver")
            }
            Self::UnknownName | Self::Failed { .. } | Self::Refused { .. } | Self::Closed => None,
        }
    }
}
