//! The CUDA driver: handles that free themselves, and the operations of the upload path.
//!
//! Owns every call of the driver. Invariants: memory that the device may still touch is never freed (where the end of
//! an operation cannot be known, it is leaked); the thread's current context is restored after each operation; in a
//! forked child nothing here calls the driver, drops included.
#![allow(unsafe_code, reason = "the driver is a C library")]

mod driver;
mod slot;
mod stream;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::{fmt, process, slice};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

pub(crate) use self::slot::{Kernels, Slot, time_copies};
pub(crate) use self::stream::{Fence, Stream};
use super::{DeviceFault, Target};
use crate::error::{Error, Result};

/// A pointer of the driver, which takes its handles from any thread.
#[derive(Clone, Copy)]
struct Handle<T>(T);

// SAFETY: the driver's handles are tokens; it locks what is behind them.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// A reference to a device's primary context: the one that the CUDA runtime, and so PyTorch, uses too.
pub(crate) struct Context {
    name: String,
    device: sys::CUdevice,
    raw: Handle<sys::CUcontext>,
    pid: u32,
    lost: OnceLock<DeviceFault>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}

/// Puts back the context that was current on this thread.
struct Entered {
    before: Option<sys::CUcontext>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current on this thread a moment ago, or null. Nothing can be done if it fails.
            let _ = unsafe { result::ctx::set_current(before) };
        }
    }
}

impl Context {
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Self>> {
        let name = format!("cuda:{ordinal}");
        let fail = |fault| Error::device(&name, fault);
        // SAFETY: only asks whether the library loads; its initialisers are the driver's.
        if !unsafe { sys::is_culib_present() } {
            return Err(fail(DeviceFault::NoDriver));
        }
        // A call of a function that is not there would panic.
        for &symbol in driver::SYMBOLS {
            // SAFETY: the symbol is looked up and not called.
            let found = unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
            if found.is_err() {
                return Err(fail(DeviceFault::MissingSymbol { symbol }));
            }
        }
        named(&name, "cuInit", result::init())?;
        let mut found = 0;
        // SAFETY: writes one int.
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut found) };
        named(&name, "cuDriverGetVersion", asked.result())?;
        if found < driver::OLDEST {
            let needed = driver::OLDEST;
            return Err(fail(DeviceFault::DriverTooOld { found, needed }));
        }
        let devices = named(&name, "cuDeviceGetCount", result::device::get_count())?;
        let number = i32::try_from(ordinal).ok().filter(|n| *n < devices);
        let number = number.ok_or_else(|| fail(DeviceFault::NoSuchDevice { devices }))?;
        let device = named(&name, "cuDeviceGet", result::device::get(number))?;
        // SAFETY: the device comes from the driver.
        let raw = unsafe { result::primary_ctx::retain(device) };
        let raw = named(&name, "cuDevicePrimaryCtxRetain", raw)?;
        Ok(Arc::new(Self {
            device,
            raw: Handle(raw),
            pid: process::id(),
            lost: OnceLock::new(),
            name,
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is a forked child, where the driver must not be called.
    fn is_foreign(&self) -> bool {
        process::id() != self.pid
    }

    /// Refuses children after a fork, and lost contexts.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_foreign() {
            let what = "the CUDA device";
            let pid = self.pid;
            return Err(Error::Forked { what, pid });
        }
        match self.lost.get() {
            Some(fault) => Err(self.error(fault.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn error(&self, fault: DeviceFault) -> Error {
        Error::device(&self.name, fault)
    }

    fn run<T>(&self, call: &'static str, result: Result<T, DriverError>) -> Result<T> {
        named(&self.name, call, result).inspect_err(|error| {
            if let Error::Device { fault, .. } = error
                && matches!(fault, DeviceFault::Lost { .. })
            {
                self.lost.get_or_init(|| fault.clone());
            }
        })
    }

    /// Makes the context current until the result is dropped.
    fn enter(&self) -> Result<Entered> {
        self.check()?;
        let before = self.run("cuCtxGetCurrent", result::ctx::get_current())?;
        let before = match before {
            Some(current) if current == self.raw.0 => None,
            other => Some(other.unwrap_or(std::ptr::null_mut())),
        };
        if before.is_some() {
            // SAFETY: retained until self is dropped.
            let set = unsafe { result::ctx::set_current(self.raw.0) };
            self.run("cuCtxSetCurrent", set)?;
        }
        Ok(Entered { before })
    }
}

/// The error of a call, with the device's name.
fn named<T>(device: &str, call: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| Error::device(device, driver::fault(call, error)))
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.is_foreign() {
            // SAFETY: retained once in open; everything made in it is gone, as each holds a reference to self.
            let _ = unsafe { result::primary_ctx::release(self.device) };
        }
    }
}

/// Page-locked host memory, mapped into every context.
pub(crate) struct LockedMemory {
    context: Arc<Context>,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the value alone; access to it goes by the borrow of the value.
unsafe impl Send for LockedMemory {}
// SAFETY: as above.
unsafe impl Sync for LockedMemory {}

impl fmt::Debug for LockedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockedMemory({} bytes)", self.bytes)
    }
}

impl LockedMemory {
    /// Zeros.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let _entered = context.enter()?;
        // Not write-combined: the reader hashes what it wrote, and reads of such memory are very slow.
        // SAFETY: the pointer is used only if the call succeeds.
        let made = unsafe { result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        if made == Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) {
            let kind = "page-locked";
            return Err(context.error(DeviceFault::OutOfMemory { kind, bytes }));
        }
        let address = context.run("cuMemHostAlloc", made)?;
        let address = NonNull::new(address.cast::<u8>()).ok_or_else(|| {
            context.error(DeviceFault::Refused {
                what: "the driver gave memory at address 0",
            })
        })?;
        // SAFETY: freshly allocated with this size.
        unsafe { address.write_bytes(0, bytes) };
        Ok(Self {
            context: Arc::clone(context),
            address,
            bytes,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated and initialised with this size, borrowed with self; devices only read it.
        unsafe { slice::from_raw_parts(self.address.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed exclusively; whoever has it waited for the copies that read it.
        unsafe { slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated in new, freed once; the owner waited for the copies that read it.
            let _ = unsafe { result::free_host(self.address.as_ptr().cast()) };
        }
    }
}

/// Memory of the device.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    /// Waiting for a copy failed: it may go on, and the memory stays.
    in_use: bool,
}

impl DeviceMemory {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let _entered = context.enter()?;
        let bytes = bytes.max(4);
        // SAFETY: the address is used only if the call succeeds.
        let made = unsafe { result::malloc_sync(bytes) };
        if made == Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) {
            let kind = "device";
            return Err(context.error(DeviceFault::OutOfMemory { kind, bytes }));
        }
        Ok(Self {
            address: context.run("cuMemAlloc_v2", made)?,
            context: Arc::clone(context),
            bytes,
            in_use: false,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// A part of it to write to in the order of `stream`, if there is that part.
    pub(crate) fn target(&mut self, range: Range<usize>, stream: &Stream) -> Option<Target<'_>> {
        self.targets(&[range], stream)?.pop()
    }

    /// Several parts of it, if they ascend without an overlap.
    pub(crate) fn targets(
        &mut self,
        ranges: &[Range<usize>],
        stream: &Stream,
    ) -> Option<Vec<Target<'_>>> {
        let apart = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
        let inside = ranges
            .iter()
            .all(|range| range.start <= range.end && range.end <= self.bytes);
        let target = |range: &Range<usize>| {
            let address = self.address + range.start as u64;
            Target::at(address, range.len(), stream.handle())
        };
        (apart && inside).then(|| ranges.iter().map(target).collect())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.in_use {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: allocated in new, freed once; the owner waited for the operations that use it.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl Target<'static> {
    /// Memory of a device: `bytes` of it at `address`, written in the order of `stream`, which is the driver's handle
    /// and the runtime's too: `torch.cuda.current_stream().cuda_stream`; 0 is the legacy default stream.
    ///
    /// # Safety
    /// The stream must belong to the primary context of the device that is uploaded to, must not be the handle that
    /// stands for each thread's own default stream, and must live until the uploads that it is used with are dropped.
    /// Until it has done what it is given, the memory must stay allocated on that device, and nobody else may use it
    /// but in the order of the stream.
    #[must_use]
    pub unsafe fn device(address: u64, bytes: usize, stream: u64) -> Self {
        Self::at(address, bytes, stream)
    }
}
