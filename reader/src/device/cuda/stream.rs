//! Streams, and events that say when an operation has ended.
//!
//! Owns waiting. Invariant: a fence is done, pending or known to be unknown; it never says done too early.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{Context, DeviceMemory, Handle};
use crate::device::DeviceFault;
use crate::error::{Error, Result};

/// A stream of our own, which does not wait for the legacy default stream.
pub(crate) struct Stream {
    pub(super) context: Arc<Context>,
    pub(super) raw: Handle<sys::CUstream>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.context.name)
    }
}

impl Stream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let _entered = context.enter()?;
        let made = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Self {
            raw: Handle(context.run("cuStreamCreate", made)?),
            context: Arc::clone(context),
        })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.raw.0 as u64
    }

    /// Waits until everything that was put into it is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let _entered = self.context.enter()?;
        synchronize(&self.context, self.raw.0)
    }

    /// Copies bytes to the start of `to` and waits.
    pub(crate) fn write(&self, to: &mut DeviceMemory, bytes: &[u8]) -> Result<()> {
        let context = &self.context;
        let _entered = context.enter()?;
        if bytes.len() > to.bytes {
            let what = "more bytes than the device memory holds";
            return Err(context.error(DeviceFault::Refused { what }));
        }
        // SAFETY: fits, as checked. Pageable memory is read before the call returns; page-locked memory is not given
        // out as a plain slice while a copy reads it, and the wait below ends the copy unless the context is lost.
        let copied = unsafe { result::memcpy_htod_async(to.address, bytes, self.raw.0) };
        self.end_copy("cuMemcpyHtoDAsync_v2", copied, &mut to.in_use)
    }

    /// Copies from the start of `from` and waits.
    pub(crate) fn read(&self, from: &mut DeviceMemory, bytes: &mut [u8]) -> Result<()> {
        let context = &self.context;
        let _entered = context.enter()?;
        if bytes.len() > from.bytes {
            let what = "more bytes than the device memory holds";
            return Err(context.error(DeviceFault::Refused { what }));
        }
        // SAFETY: fits, as checked; pageable memory is written before the call returns, and the wait below covers
        // page-locked memory unless the context is lost, when nothing is copied any more.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, from.address, self.raw.0) };
        self.end_copy("cuMemcpyDtoHAsync_v2", copied, &mut from.in_use)
    }

    /// Waits for a copy, and notes if that fails.
    fn end_copy(
        &self,
        call: &'static str,
        copied: Result<(), DriverError>,
        in_use: &mut bool,
    ) -> Result<()> {
        let copied = self.context.run(call, copied);
        let ended = synchronize(&self.context, self.raw.0);
        *in_use |= ended.is_err();
        copied.and(ended)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: made in new, destroyed once; the driver lets what is in it end first.
            let _ = unsafe { result::stream::destroy(self.raw.0) };
        }
    }
}

pub(super) fn synchronize(context: &Context, stream: sys::CUstream) -> Result<()> {
    // SAFETY: a live stream of this context; its owner or the consumer holds it.
    context.run("cuStreamSynchronize", unsafe {
        result::stream::synchronize(stream)
    })
}

/// How far what a fence was last armed for is known to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    Pending,
    /// Recording failed and so did waiting: it may never be known.
    Unknown,
}

/// An event that says when an operation has ended.
pub(crate) struct Fence {
    context: Arc<Context>,
    event: Handle<sys::CUevent>,
    progress: Progress,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fence({:?})", self.progress)
    }
}

impl Fence {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        let _entered = context.enter()?;
        let made = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Self {
            event: Handle(context.run("cuEventCreate", made)?),
            context: Arc::clone(context),
            progress: Progress::Done,
        })
    }

    /// From now on it stands for all that `stream` holds. If that cannot be recorded, it waits for the stream.
    pub(super) fn arm(&mut self, stream: sys::CUstream) -> Result<()> {
        self.progress = Progress::Unknown;
        // SAFETY: both live in this context, which is current.
        let recorded = unsafe { result::event::record(self.event.0, stream) };
        if let Err(error) = self.context.run("cuEventRecord", recorded) {
            self.settle(stream);
            return Err(error);
        }
        self.progress = Progress::Pending;
        Ok(())
    }

    /// After an operation that may or may not have been put into `stream`.
    pub(super) fn settle(&mut self, stream: sys::CUstream) {
        self.progress = match synchronize(&self.context, stream) {
            Ok(()) => Progress::Done,
            Err(_) => Progress::Unknown,
        };
    }

    fn unknown(&self) -> Error {
        let what = "after an earlier failure it is unknown whether a copy has ended";
        self.context.error(DeviceFault::Refused { what })
    }

    pub(crate) fn is_done(&mut self) -> Result<bool> {
        match self.progress {
            Progress::Done => Ok(true),
            Progress::Unknown => Err(self.context.check().err().unwrap_or_else(|| self.unknown())),
            Progress::Pending => {
                let _entered = self.context.enter()?;
                // SAFETY: a live event of this context, which is current.
                match unsafe { result::event::query(self.event.0) } {
                    Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
                    other => {
                        self.context.run("cuEventQuery", other)?;
                        self.progress = Progress::Done;
                        Ok(true)
                    }
                }
            }
        }
    }

    /// Something else, put in after the end, stands for it from now on.
    pub(super) fn forget(&mut self) {
        self.progress = Progress::Done;
    }

    /// Waits for the end, as long as it takes.
    pub(crate) fn wait(&mut self) -> Result<()> {
        match self.progress {
            Progress::Done => Ok(()),
            Progress::Unknown => Err(self.unknown()),
            Progress::Pending => {
                let _entered = self.context.enter()?;
                // SAFETY: a live event of this context, which is current.
                let waited = unsafe { result::event::synchronize(self.event.0) };
                self.context.run("cuEventSynchronize", waited)?;
                self.progress = Progress::Done;
                Ok(())
            }
        }
    }

    /// What `stream` gets from now on starts after the end.
    pub(super) fn hold_back(&self, stream: sys::CUstream) -> Result<()> {
        match self.progress {
            Progress::Done => Ok(()),
            Progress::Unknown => Err(self.unknown()),
            Progress::Pending => {
                let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
                // SAFETY: both live in this context, which is current.
                let waits = unsafe { result::stream::wait_event(stream, self.event.0, flags) };
                self.context.run("cuStreamWaitEvent", waits)
            }
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: made in new, destroyed once; the driver allows it while the event is pending.
            let _ = unsafe { result::event::destroy(self.event.0) };
        }
    }
}
