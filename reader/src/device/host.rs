//! Host memory as a device: what a consumer on the CPU reads from.
//!
//! Invariant: an upload is the staging buffer itself; nothing is copied but into the consumer's memory.

use std::ops::Range;
use std::process;

use super::{Device, DeviceFault, DeviceOptions, Patches, Target, Upload};
use crate::error::{Error, Result};
use crate::expand::{FloatTable, Pixels, expand_bytes};
use crate::staging::{HostMemory, Staging, StagingRing};

/// What it is called.
const NAME: &str = "cpu";

/// Host memory as a device.
#[derive(Debug)]
pub struct HostDevice {
    ring: StagingRing,
    table: Option<FloatTable>,
    pid: u32,
}

impl HostDevice {
    /// Buffers for staging and for uploads in hand, which are the same here.
    pub fn open(options: &DeviceOptions) -> Result<Self> {
        let count = options.staging.max(1) + options.slots.max(1);
        let buffers: Result<_> = (0..count)
            .map(|_| HostMemory::plain(options.bytes))
            .collect();
        Ok(Self {
            ring: StagingRing::new(NAME, buffers?),
            table: options.table.clone(),
            pid: process::id(),
        })
    }

    fn check(&self) -> Result<()> {
        let pid = self.pid;
        let what = "the staging memory";
        match process::id() == pid {
            true => Ok(()),
            false => Err(Error::Forked { what, pid }),
        }
    }
}

impl Device for HostDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn stage(&self, bytes: usize) -> Result<Staging> {
        self.check()?;
        self.ring.stage(bytes, || HostMemory::plain(bytes))
    }

    fn upload(&self, staged: Staging) -> Result<Box<dyn Upload>> {
        self.check()?;
        Ok(Box::new(HostUpload {
            staged,
            table: self.table.clone(),
        }))
    }

    fn close(&self) {
        if self.check().is_ok() {
            self.ring.close(DeviceFault::Closed);
        }
    }
}

#[derive(Debug)]
struct HostUpload {
    staged: Staging,
    table: Option<FloatTable>,
}

fn refused(what: &'static str) -> Error {
    Error::device(NAME, DeviceFault::Refused { what })
}

/// The consumer's bytes.
fn host<'a>(target: Target<'a>) -> Result<&'a mut [u8]> {
    let what = "host memory cannot be expanded into a device's";
    target.into_host().ok_or_else(|| refused(what))
}

impl Upload for HostUpload {
    fn bytes(&self) -> usize {
        self.staged.len()
    }

    fn expand(&mut self, patches: &Patches, target: Target<'_>) -> Result<()> {
        let range = patches.checked(self.staged.len(), target.bytes());
        let source = &self.staged[range.map_err(refused)?];
        let out = host(target)?;
        match (&self.table, patches.pixels) {
            (_, Pixels::U8) => out.copy_from_slice(source),
            _ if source.is_empty() => {}
            (None, _) => return Err(refused("there is no float table to expand with")),
            (Some(table), pixels) => {
                expand_bytes(table, pixels, source, patches.area, patches.temporal, out);
            }
        }
        Ok(())
    }

    fn copy_out(&mut self, from: Range<usize>, target: Target<'_>) -> Result<()> {
        let what = "the bytes lie outside of the upload, or the target has another size";
        let source = self.staged.get(from).ok_or_else(|| refused(what))?;
        if source.len() != target.bytes() {
            return Err(refused(what));
        }
        host(target)?.copy_from_slice(source);
        Ok(())
    }
}
