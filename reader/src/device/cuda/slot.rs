//! Device slots and the kernels that read them.
//!
//! Owns the order of copies and uses. Invariants: a use starts after the slot's fill has ended; a fill starts after all
//! uses of the fill before have ended; the memory is freed after both.

use std::ffi::{CString, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{Context, DeviceMemory, Fence, Handle, LockedMemory, Stream};
use crate::buffer::size_class;
use crate::device::{DeviceFault, Patches, Target};
use crate::error::{Error, Result};
use crate::expand::{FloatTable, Pixels};

/// Slots grow in steps of this, the driver's own grain.
const GRAIN: usize = 2 << 20;
/// Threads of a block, as the kernels say themselves.
const THREADS: u32 = 256;
/// About as many blocks as a big device runs at once: each reads the table once and goes on in steps of the grid.
const MOST_BLOCKS: u32 = 1024;

/// A loaded PTX text.
struct Module {
    context: Arc<Context>,
    raw: Handle<sys::CUmodule>,
}

impl Module {
    fn new(context: &Arc<Context>, ptx: &'static str) -> Result<Self> {
        let _entered = context.enter()?;
        let text = CString::new(ptx).map_err(|_| {
            let what = "a kernel's text holds a zero";
            context.error(DeviceFault::Refused { what })
        })?;
        // SAFETY: a zero-terminated text, which the driver compiles before it returns.
        let loaded = unsafe { result::module::load_data(text.as_ptr().cast()) };
        Ok(Self {
            raw: Handle(context.run("cuModuleLoadData", loaded)?),
            context: Arc::clone(context),
        })
    }

    fn kernel(&self, name: &str) -> Result<Handle<sys::CUfunction>> {
        let _entered = self.context.enter()?;
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a loaded module; the function lives as long as it.
        let found = unsafe { result::module::get_function(self.raw.0, name) };
        Ok(Handle(self.context.run("cuModuleGetFunction", found)?))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: loaded in new, unloaded once; whoever launched its kernels waited for them.
            let _ = unsafe { result::module::unload(self.raw.0) };
        }
    }
}

/// The kernels and the tables that they look bytes up in.
pub(crate) struct Kernels {
    // Before the module: nothing of it may run when it goes.
    tables: Option<Tables>,
    expand_f32: Handle<sys::CUfunction>,
    expand_bf16: Handle<sys::CUfunction>,
    busy: Handle<sys::CUfunction>,
    _module: Module,
}

struct Tables {
    f32: DeviceMemory,
    bf16: DeviceMemory,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").finish_non_exhaustive()
    }
}

impl Kernels {
    pub(crate) fn new(stream: &Stream, table: Option<&FloatTable>) -> Result<Self> {
        let context = &stream.context;
        let module = Module::new(context, include_str!("../expand.ptx"))?;
        let upload = |bytes: Vec<u8>| {
            let mut memory = DeviceMemory::new(context, bytes.len())?;
            stream.write(&mut memory, &bytes)?;
            Ok::<_, Error>(memory)
        };
        let bytes_f32 = |t: &FloatTable| {
            t.f32()
                .iter()
                .flatten()
                .flat_map(|v| v.to_le_bytes())
                .collect()
        };
        let bytes_bf16 = |t: &FloatTable| {
            t.bf16()
                .iter()
                .flatten()
                .flat_map(|v| v.to_le_bytes())
                .collect()
        };
        let tables = match table {
            Some(table) => Some(Tables {
                f32: upload(bytes_f32(table))?,
                bf16: upload(bytes_bf16(table))?,
            }),
            None => None,
        };
        Ok(Self {
            tables,
            expand_f32: module.kernel("stoker_expand_f32")?,
            expand_bf16: module.kernel("stoker_expand_bf16")?,
            busy: module.kernel("stoker_busy")?,
            _module: module,
        })
    }

    /// Keeps `stream` busy with arithmetic: `rounds` in every thread of `blocks`.
    pub(crate) fn busy(
        &self,
        stream: &Stream,
        sink: &mut DeviceMemory,
        blocks: u32,
        rounds: u32,
    ) -> Result<()> {
        let context = &stream.context;
        let _entered = context.enter()?;
        let (mut address, mut rounds) = (sink.address, rounds);
        let mut parameters = [parameter(&mut address), parameter(&mut rounds)];
        let grid = blocks.clamp(1, MOST_BLOCKS);
        // SAFETY: the kernel takes these two parameters and writes at most 4 bytes at the address, which device memory
        // always has; its owner waits for the stream before it frees it.
        let launched = unsafe { launch(self.busy, grid, stream.raw.0, &mut parameters) };
        context.run("cuLaunchKernel", launched)
    }
}

fn parameter<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// # Safety
/// The parameters must be those of the kernel, and what they point to must live until it has ended.
unsafe fn launch(
    kernel: Handle<sys::CUfunction>,
    blocks: u32,
    stream: sys::CUstream,
    parameters: &mut [*mut c_void],
) -> Result<(), DriverError> {
    // SAFETY: as promised by the caller; the driver reads the parameters before it returns.
    unsafe {
        result::launch_kernel(
            kernel.0,
            (blocks, 1, 1),
            (THREADS, 1, 1),
            0,
            stream,
            parameters,
        )
    }
}

/// Memory of the device that one upload at a time lies in. It never leaves this crate.
#[derive(Debug)]
pub(crate) struct Slot {
    context: Arc<Context>,
    memory: ManuallyDrop<DeviceMemory>,
    /// Bytes of the last fill.
    filled_bytes: usize,
    filled: Fence,
    uses: Vec<Use>,
}

/// A consumer's stream that reads the slot, or an event kept for the next one.
#[derive(Debug)]
struct Use {
    stream: Option<u64>,
    ended: Fence,
}

impl Slot {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        Ok(Self {
            filled: Fence::new(context)?,
            memory: ManuallyDrop::new(DeviceMemory::new(context, bytes.next_multiple_of(GRAIN))?),
            context: Arc::clone(context),
            filled_bytes: 0,
            uses: Vec::new(),
        })
    }

    pub(crate) fn refused(&self, what: &'static str) -> Error {
        self.context.error(DeviceFault::Refused { what })
    }

    /// Address and stream of a target.
    fn place(&self, target: &Target<'_>) -> Result<(u64, u64)> {
        let place = target.on_device();
        place.ok_or_else(|| self.refused("a device writes to its own memory only"))
    }

    /// Waits until nothing uses the memory.
    fn drain(&mut self) -> Result<()> {
        for used in &mut self.uses {
            used.ended.wait()?;
        }
        self.filled.wait()
    }

    /// Starts to copy the first `bytes` of `from`; `read` is armed to say when it was read.
    ///
    /// # Safety
    /// Until `read` is done, `from` must be neither written nor freed.
    pub(crate) unsafe fn fill(
        &mut self,
        stream: &Stream,
        from: &LockedMemory,
        read: &mut Fence,
        bytes: usize,
    ) -> Result<()> {
        if self.memory.len() < bytes {
            self.drain()?;
            let larger = size_class(bytes).next_multiple_of(GRAIN);
            let larger = DeviceMemory::new(&self.context, larger)?;
            *self.memory = larger;
        }
        let _entered = self.context.enter()?;
        for used in &self.uses {
            used.ended.hold_back(stream.raw.0)?;
        }
        self.filled_bytes = 0;
        let source = &from.bytes()[..bytes];
        // SAFETY: fits; the copy starts after the uses of the fill before, and the caller keeps the source.
        let copied =
            unsafe { result::memcpy_htod_async(self.memory.address, source, stream.raw.0) };
        if let Err(error) = self.context.run("cuMemcpyHtoDAsync_v2", copied) {
            read.settle(stream.raw.0);
            self.filled.settle(stream.raw.0);
            return Err(error);
        }
        let armed = read.arm(stream.raw.0);
        let armed = armed.and(self.filled.arm(stream.raw.0));
        // The fill ends after all uses before it, so from now on it stands for them.
        for used in &mut self.uses {
            used.stream = None;
            used.ended.forget();
        }
        armed?;
        self.filled_bytes = bytes;
        Ok(())
    }

    /// Puts an operation that reads the slot into the consumer's stream.
    fn put(
        &mut self,
        call: &'static str,
        stream: u64,
        operation: impl FnOnce(&DeviceMemory, sys::CUstream) -> Result<(), DriverError>,
    ) -> Result<()> {
        let _entered = self.context.enter()?;
        let known = self
            .uses
            .iter()
            .position(|used| used.stream == Some(stream));
        let kept = || self.uses.iter().position(|used| used.stream.is_none());
        let index = match known.or_else(kept) {
            Some(index) => index,
            None => {
                let ended = Fence::new(&self.context)?;
                self.uses.push(Use {
                    stream: None,
                    ended,
                });
                self.uses.len() - 1
            }
        };
        let raw = stream as sys::CUstream;
        self.filled.hold_back(raw)?;
        let used = &mut self.uses[index];
        used.stream = Some(stream);
        let put = operation(&self.memory, raw);
        if let Err(error) = self.context.run(call, put) {
            used.ended.settle(raw);
            return Err(error);
        }
        used.ended.arm(raw)
    }

    /// Expands patches into the consumer's memory.
    pub(crate) fn expand(
        &mut self,
        kernels: &Kernels,
        patches: &Patches,
        target: Target<'_>,
    ) -> Result<()> {
        let (to, stream) = self.place(&target)?;
        let range = patches
            .checked(self.filled_bytes, target.bytes())
            .map_err(|what| self.refused(what))?;
        if range.is_empty() {
            return Ok(());
        }
        let (kernel, table) = match (patches.pixels, &kernels.tables) {
            (Pixels::U8, _) => return self.copy(range, to, stream),
            (_, None) => return Err(self.refused("there is no float table to expand with")),
            (Pixels::F32, Some(tables)) => (kernels.expand_f32, &tables.f32),
            (Pixels::BF16, Some(tables)) => (kernels.expand_bf16, &tables.bf16),
        };
        // Four bytes a step: the results of a step are written at once, at their own size's border.
        let step = 4 * patches.pixels.bytes() as u64;
        if !(patches.area.is_multiple_of(4)
            && range.start.is_multiple_of(4)
            && to.is_multiple_of(step))
        {
            return Err(self.refused("patches and results must lie at borders of four values"));
        }
        // The kernel divides numbers below 2^31 only.
        let number = |n: usize| match u32::try_from(n) {
            Ok(n) if n < 1 << 31 => Ok(n),
            _ => Err(self.refused("more patches than one expansion takes")),
        };
        let mut groups = number(range.len() / 4)?;
        let mut plane = number(patches.area / 4)?;
        let mut frames = number(patches.temporal)?;
        number((range.len() / 4).saturating_mul(patches.temporal))?;
        number(patches.area.saturating_mul(4))?;
        let (mut magic, mut shift) = reciprocal(plane);
        let (mut table, mut to) = (table.address, to);
        self.put("cuLaunchKernel", stream, |memory, raw| {
            let mut from = memory.address + range.start as u64;
            let mut parameters = [
                parameter(&mut from),
                parameter(&mut table),
                parameter(&mut to),
                parameter(&mut groups),
                parameter(&mut plane),
                parameter(&mut magic),
                parameter(&mut shift),
                parameter(&mut frames),
            ];
            let blocks = groups.div_ceil(THREADS).min(MOST_BLOCKS);
            // SAFETY: the kernel's parameters; it reads the range, which lies in the slot, and writes `temporal` times
            // as many values, for which the target was checked to have room. The slot and the tables outlive it, because the use
            // is waited for; the target does as its maker promised.
            unsafe { launch(kernel, blocks, raw, &mut parameters) }
        })
    }

    /// Copies bytes into the consumer's memory.
    pub(crate) fn copy_out(&mut self, from: Range<usize>, target: Target<'_>) -> Result<()> {
        let (to, stream) = self.place(&target)?;
        if from.start > from.end || from.end > self.filled_bytes || from.len() != target.bytes() {
            return Err(
                self.refused("the bytes lie outside of the upload, or the target has another size")
            );
        }
        self.copy(from, to, stream)
    }

    fn copy(&mut self, from: Range<usize>, to: u64, stream: u64) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        self.put("cuMemcpyDtoDAsync_v2", stream, |memory, raw| {
            let source = memory.address + from.start as u64;
            // SAFETY: the range lies in the slot and the target has its size, both checked by the callers; the slot
            // outlives the copy, because the use is waited for, and the target does as its maker promised.
            unsafe { result::memcpy_dtod_async(to, source, from.len(), raw) }
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Where the end of an operation cannot be known, the memory stays until the context goes.
        if self.drain().is_ok() {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// How long `rounds` page-locked copies of `bytes` take with nothing in between: what the link can do.
pub(crate) fn time_copies(stream: &Stream, bytes: usize, rounds: usize) -> Result<Duration> {
    let context = &stream.context;
    let memory = (
        LockedMemory::new(context, bytes)?,
        DeviceMemory::new(context, bytes)?,
    );
    let memory = ManuallyDrop::new(memory);
    let (from, to) = &*memory;
    let copy = || {
        let _entered = context.enter()?;
        // SAFETY: both have this size and are freed only after waiting.
        let copied = unsafe { result::memcpy_htod_async(to.address, from.bytes(), stream.raw.0) };
        context.run("cuMemcpyHtoDAsync_v2", copied)
    };
    // The first is for warming up.
    let timed = copy().and_then(|()| stream.synchronize()).and_then(|()| {
        let began = Instant::now();
        (0..rounds).try_for_each(|_| copy())?;
        stream.synchronize()?;
        Ok(began.elapsed())
    });
    // Otherwise a copy may go on, and both stay.
    if stream.synchronize().is_ok() {
        drop(ManuallyDrop::into_inner(memory));
    }
    timed
}

/// `magic` and `shift` for which `n / divisor == (n * magic) >> shift` for every n below 2^31: the kernel divides by
/// multiplying.
fn reciprocal(divisor: u32) -> (u32, u32) {
    let shift = 31 + divisor.next_power_of_two().trailing_zeros();
    let magic = (1u64 << shift).div_ceil(u64::from(divisor));
    // At most 2^31 * 2^ceil(log2 d) / d < 2^32.
    (magic as u32, shift)
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn the_reciprocal_divides_exactly() {
        for divisor in (1..2000).chain([4096, 65_535, 65_536, 65_537, (1 << 30) - 1, 1 << 30]) {
            let (magic, shift) = reciprocal(divisor);
            let top = (1u32 << 31) - 1;
            let near = |n: u32| (n.saturating_sub(2)..=n.saturating_add(2)).filter(|n| *n <= top);
            let multiples = [
                1,
                2,
                3,
                1000,
                top / divisor,
                top / divisor - top / divisor / 3,
            ];
            for k in multiples {
                for n in near(divisor.saturating_mul(k).min(top)).chain([0, top]) {
                    let quotient = (u64::from(n) * u64::from(magic)) >> shift;
                    assert_eq!(quotient, u64::from(n / divisor), "{n} / {divisor}");
                }
            }
        }
    }
}
