//! A GPU as a device: staging buffers, slots, and the stream that copies from one to the other.
//!
//! Owns who holds which slot. Invariant: a slot is in one upload at a time; when the device and its last upload are
//! gone, so is everything that was allocated, after waiting for what the consumer's streams still do with it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::cuda::{self, Context, Kernels, Slot, Stream};
use super::pool::{Lent, Pool};
use super::{Device, DeviceFault, DeviceOptions, Patches, Target, Upload};
use crate::buffer::{Buffer, Source};
use crate::error::{Error, Result};
use crate::staging::{HostMemory, Staging, StagingRing};

/// A GPU as a device.
#[derive(Debug)]
pub struct CudaDevice {
    shared: Arc<Shared>,
}

/// What uploads in hand keep alive. The order of fields is the order of their end.
pub(super) struct Shared {
    staging: Option<StagingRing>,
    slots: Arc<Pool<Slot>>,
    pub(super) kernels: Kernels,
    stream: Stream,
    pub(super) context: Arc<Context>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl CudaDevice {
    /// Takes a reference to the primary context of device `ordinal`, and allocates what the options ask for.
    pub fn open(ordinal: u32, options: &DeviceOptions) -> Result<Self> {
        let context = Context::open(ordinal)?;
        let stream = Stream::new(&context)?;
        let kernels = Kernels::new(&stream, options.table.as_ref())?;
        let buffers = (0..options.staging).map(|_| HostMemory::locked(&context, options.bytes));
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let slots = (0..options.slots.max(1)).map(|_| Slot::new(&context, options.bytes));
        let slots = slots.collect::<Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            slots: Pool::new(context.name(), slots),
            staging: (!buffers.is_empty()).then(|| StagingRing::new(context.name(), buffers)),
            kernels,
            stream,
            context,
        });
        Ok(Self { shared })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Page-locked memory that this device can fetch from.
    pub(crate) fn source(&self) -> Source {
        Source::Locked(Arc::clone(&self.shared.context))
    }

    /// Starts to move a buffer of [`source`](Self::source). A slot is added where all are in hand;
    /// one that is too small waits for its last use and grows.
    pub(crate) fn send(&self, buffer: &mut Buffer) -> Result<CudaUpload> {
        let shared = &self.shared;
        shared.context.check()?;
        let bytes = buffer.len();
        let add = || Slot::new(&shared.context, bytes);
        let mut slot = shared.slots.take_or(add)?;
        buffer.send(&mut slot, &shared.stream)?;
        Ok(CudaUpload {
            slot,
            bytes,
            shared: Arc::clone(shared),
        })
    }

    /// The error of a request that makes no sense.
    pub(crate) fn refused(&self, what: &'static str) -> Error {
        self.shared.context.error(DeviceFault::Refused { what })
    }

    /// How long `rounds` page-locked copies of `bytes` take with nothing in between: what the link can do.
    pub fn time_copies(&self, bytes: usize, rounds: usize) -> Result<Duration> {
        cuda::time_copies(&self.shared.stream, bytes, rounds)
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        self.shared.context.name()
    }

    fn stage(&self, bytes: usize) -> Result<Staging> {
        let shared = &self.shared;
        shared.context.check()?;
        let larger = || HostMemory::locked(&shared.context, bytes);
        let what = "it was opened without staging buffers";
        let ring = shared.staging.as_ref();
        let ring = ring.ok_or_else(|| self.refused(what))?;
        ring.stage(bytes, larger)
    }

    fn upload(&self, staged: Staging) -> Result<Box<dyn Upload>> {
        let shared = &self.shared;
        shared.context.check()?;
        let bytes = staged.len();
        let mut slot = shared.slots.take(|_| Ok(true))?;
        staged.upload(&mut slot, &shared.stream)?;
        Ok(Box::new(CudaUpload {
            slot,
            bytes,
            shared: Arc::clone(shared),
        }))
    }

    fn close(&self) {
        if self.shared.context.check().is_ok() {
            if let Some(ring) = &self.shared.staging {
                ring.close(DeviceFault::Closed);
            }
            self.shared.slots.close(DeviceFault::Closed);
        }
    }
}

/// Bytes on their way to a GPU, or there.
pub(crate) struct CudaUpload {
    // Before what it needs to be freed.
    slot: Lent<Slot>,
    bytes: usize,
    shared: Arc<Shared>,
}

impl CudaUpload {
    pub(crate) fn refused(&self, what: &'static str) -> Error {
        self.slot.refused(what)
    }
}

impl fmt::Debug for CudaUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaUpload({} bytes)", self.bytes)
    }
}

impl Upload for CudaUpload {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn expand(&mut self, patches: &Patches, target: Target<'_>) -> Result<()> {
        self.shared.context.check()?;
        let kernels = &self.shared.kernels;
        self.slot.expand(kernels, patches, target)
    }

    fn copy_out(&mut self, from: Range<usize>, target: Target<'_>) -> Result<()> {
        self.shared.context.check()?;
        self.slot.copy_out(from, target)
    }
}
