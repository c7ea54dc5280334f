//! A CUDA driver in host memory: the functions that the upload path calls, with streams that really run by themselves,
//! bounds checks, limits, delays, and calls that fail when told to.
//!
//! Tests put the library into a folder as `libcuda.so.1` and start a process with that folder on its library path. It
//! is stricter than a driver: what a driver would wait for or forgive goes into the report as a violation.
#![allow(unsafe_code, reason = "it plays a C library")]
#![allow(non_snake_case, missing_docs, reason = "the driver's names")]
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a failure here must end the test"
)]

mod config;
mod fork;
mod kernels;
mod memory;
mod ptx;
mod state;
mod stream;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use fork::in_child;
use memory::Kind;
use state::{CONTEXT, CURRENT, Current, State, begin, begin_in_context, code, lock, report};
use stream::{Event, Stream};

type Handle = usize;

/// Writes a result of a call.
fn give<T>(to: *mut T, value: T) -> Result<(), u32> {
    // SAFETY: callers of a C function hand in a place for its result, or null by mistake.
    unsafe { to.as_mut().map(|to| *to = value).ok_or(code::INVALID_VALUE) }
}

fn text(from: *const c_char) -> String {
    // SAFETY: callers of a C function hand in a text that ends with 0.
    unsafe { CStr::from_ptr(from) }
        .to_string_lossy()
        .into_owned()
}

/// The value that a kernel's parameter points to.
fn argument(arguments: *const *const c_void, index: usize, bytes: usize) -> u64 {
    // SAFETY: callers hand in as many pointers as the kernel has parameters, to values of their types.
    let address = unsafe { *arguments.add(index) } as usize;
    match bytes {
        4 => u64::from(u32::from_ne_bytes(memory::load(address))),
        _ => u64::from_ne_bytes(memory::load(address)),
    }
}

fn answer(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(code::OK)
}

macro_rules! driver {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($argument: $type),*) -> u32 {
            // A panic across the border would abort without a word.
            let result = || -> Result<(), u32> { $body };
            answer(result())
        }
    )*};
}

/// Puts work on ranges of memory into a stream; both ends are held until it has run.
fn work(
    mut state: std::sync::MutexGuard<'_, State>,
    stream: &Arc<Stream>,
    held: Vec<usize>,
    later: Option<u32>,
    job: impl FnOnce() -> Result<(), String> + Send + 'static,
) {
    held.iter().for_each(|start| state.memory.hold(*start));
    stream.put(Box::new(move || {
        if lock().lost == code::OK {
            if let Some(code) = later {
                lock().lost = code;
            } else if let Err(what) = job() {
                report(&format!("violation: {what}"));
                lock().lost = code::ILLEGAL_ADDRESS;
            }
        }
        let mut state = lock();
        held.iter().for_each(|start| state.memory.release(*start));
    }));
}

/// The device allocation that holds a range; a range outside is a violation.
fn on_device(state: &State, call: &str, address: u64, bytes: usize) -> Result<usize, u32> {
    match state.memory.holder(address as usize, bytes) {
        Some((start, Kind::Device)) => Ok(start),
        _ => {
            report(&format!("violation: {call} outside of device memory"));
            Err(code::INVALID_VALUE)
        }
    }
}

fn free(call: &'static str, kind: Kind, address: usize) -> Result<(), u32> {
    let (mut state, _) = begin_in_context(call)?;
    match state.memory.in_use(kind, address) {
        None => {
            report(&format!("violation: {call} of what is not allocated"));
            return Err(code::INVALID_VALUE);
        }
        Some(true) => {
            // A driver may wait here, or not: nobody should depend on it.
            report(&format!("violation: {call} of memory in use"));
            let streams: Vec<_> = state.streams.values().cloned().collect();
            drop(state);
            streams.iter().for_each(|stream| stream.synchronize());
            state = lock();
        }
        Some(false) => {}
    }
    state.memory.free(address);
    Ok(())
}

fn allocate(call: &'static str, kind: Kind, bytes: usize) -> Result<usize, u32> {
    let (mut state, _) = begin_in_context(call)?;
    let limit = match kind {
        Kind::Device => state.config.memory,
        Kind::Locked => state.config.locked,
    };
    if bytes == 0 {
        return Err(code::INVALID_VALUE);
    }
    if bytes > limit.saturating_sub(state.memory.bytes(kind)) {
        return Err(code::OUT_OF_MEMORY);
    }
    Ok(state.memory.allocate(kind, bytes))
}

driver! {
    fn cuInit(_flags: c_uint) {
        begin("cuInit").map(drop)
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        let (state, _) = begin("cuDriverGetVersion")?;
        give(version, state.config.version)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        let (state, _) = begin("cuDeviceGetCount")?;
        give(count, state.config.devices)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        let (state, _) = begin("cuDeviceGet")?;
        if ordinal >= state.config.devices {
            return Err(code::INVALID_DEVICE);
        }
        give(device, ordinal)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut Handle, _device: c_int) {
        let (mut state, _) = begin("cuDevicePrimaryCtxRetain")?;
        state.retained += 1;
        give(context, CONTEXT)
    }

    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        let begun = begin("cuDevicePrimaryCtxRelease_v2").map(drop);
        let mut state = lock();
        if state.retained == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        state.retained -= 1;
        if state.retained == 0 {
            let streams: Vec<_> = state.streams.values().cloned().collect();
            drop(state);
            streams.iter().for_each(|stream| stream.synchronize());
            drop(streams);
            report(&lock().summary());
        }
        begun
    }

    fn cuCtxGetCurrent(context: *mut Handle) {
        let _begun = begin("cuCtxGetCurrent")?;
        give(context, CURRENT.with(Current::get))
    }

    fn cuCtxSetCurrent(context: Handle) {
        let _begun = begin("cuCtxSetCurrent")?;
        CURRENT.with(|current| current.set(context));
        Ok(())
    }

    fn cuStreamCreate(stream: *mut Handle, flags: c_uint) {
        let (mut state, _) = begin_in_context("cuStreamCreate")?;
        if flags != 1 {
            report("violation: a stream that waits for the default stream");
        }
        let handle = state.handle();
        let seed = state.config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(handle as u64);
        let made = Stream::start(state.config.delay, seed);
        state.streams.insert(handle, made);
        give(stream, handle)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        let (mut state, _) = begin_in_context("cuStreamDestroy_v2")?;
        let gone = state.streams.remove(&stream).ok_or(code::INVALID_HANDLE)?;
        drop(state);
        drop(gone);
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) {
        let (mut state, _) = begin_in_context("cuStreamSynchronize")?;
        let stream = state.stream(stream)?;
        drop(state);
        stream.synchronize();
        match lock().lost {
            code::OK => Ok(()),
            lost => Err(lost),
        }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let (mut state, _) = begin_in_context("cuStreamWaitEvent")?;
        let event = state.events.get(&event).cloned().ok_or(code::INVALID_HANDLE)?;
        state.stream(stream)?.wait(&event);
        Ok(())
    }

    fn cuEventCreate(event: *mut Handle, _flags: c_uint) {
        let (mut state, _) = begin_in_context("cuEventCreate")?;
        let handle = state.handle();
        state.events.insert(handle, Arc::new(Event::default()));
        give(event, handle)
    }

    fn cuEventDestroy_v2(event: Handle) {
        let (mut state, _) = begin_in_context("cuEventDestroy_v2")?;
        state.events.remove(&event).map(drop).ok_or(code::INVALID_HANDLE)
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        let (mut state, _) = begin_in_context("cuEventRecord")?;
        let event = state.events.get(&event).cloned().ok_or(code::INVALID_HANDLE)?;
        state.stream(stream)?.record(&event);
        Ok(())
    }

    fn cuEventQuery(event: Handle) {
        let (state, _) = begin_in_context("cuEventQuery")?;
        let event = state.events.get(&event).ok_or(code::INVALID_HANDLE)?;
        match event.complete.reached(event.recorded.load(Ordering::SeqCst)) {
            true => Ok(()),
            false => Err(code::NOT_READY),
        }
    }

    fn cuEventSynchronize(event: Handle) {
        let (state, _) = begin_in_context("cuEventSynchronize")?;
        let event = state.events.get(&event).cloned().ok_or(code::INVALID_HANDLE)?;
        drop(state);
        event.complete.wait(event.recorded.load(Ordering::SeqCst));
        match lock().lost {
            code::OK => Ok(()),
            lost => Err(lost),
        }
    }

    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        give(address, allocate("cuMemAlloc_v2", Kind::Device, bytes)? as u64)
    }

    fn cuMemHostAlloc(address: *mut usize, bytes: usize, flags: c_uint) {
        if flags & 4 != 0 {
            report("violation: write-combined staging memory");
        }
        give(address, allocate("cuMemHostAlloc", Kind::Locked, bytes)?)
    }

    fn cuMemFree_v2(address: u64) {
        free("cuMemFree_v2", Kind::Device, address as usize)
    }

    fn cuMemFreeHost(address: usize) {
        free("cuMemFreeHost", Kind::Locked, address)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) {
        let (mut state, later) = begin_in_context("cuMemcpyHtoDAsync_v2")?;
        let stream = state.stream(stream)?;
        let target = on_device(&state, "cuMemcpyHtoDAsync_v2", to, bytes)?;
        state.copies += 1;
        match state.memory.holder(from, bytes) {
            Some((source, Kind::Locked)) => work(state, &stream, vec![source, target], later, move || {
                memory::copy(from, to as usize, bytes);
                Ok(())
            }),
            _ => {
                // Pageable memory is read before the call returns.
                let staged: Vec<u8> = (0..bytes).flat_map(|i| memory::load::<1>(from + i)).collect();
                work(state, &stream, vec![target], later, move || {
                    memory::copy(staged.as_ptr() as usize, to as usize, bytes);
                    Ok(())
                });
            }
        }
        Ok(())
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) {
        let (mut state, later) = begin_in_context("cuMemcpyDtoHAsync_v2")?;
        let stream = state.stream(stream)?;
        let source = on_device(&state, "cuMemcpyDtoHAsync_v2", from, bytes)?;
        state.copies += 1;
        work(state, &stream, vec![source], later, move || {
            memory::copy(from as usize, to, bytes);
            Ok(())
        });
        // Pageable memory is written before the call returns.
        stream.synchronize();
        Ok(())
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        let (mut state, later) = begin_in_context("cuMemcpyDtoDAsync_v2")?;
        let stream = state.stream(stream)?;
        let source = on_device(&state, "cuMemcpyDtoDAsync_v2", from, bytes)?;
        let target = on_device(&state, "cuMemcpyDtoDAsync_v2", to, bytes)?;
        state.copies += 1;
        work(state, &stream, vec![source, target], later, move || {
            memory::copy(from as usize, to as usize, bytes);
            Ok(())
        });
        Ok(())
    }

    fn cuModuleLoadData(module: *mut Handle, image: *const c_char) {
        let (mut state, _) = begin_in_context("cuModuleLoadData")?;
        let entries = ptx::parse(&text(image)).map_err(|what| {
            report(&format!("violation: {what}"));
            code::INVALID_PTX
        })?;
        let handle = state.handle();
        state.modules.insert(handle, entries);
        give(module, handle)
    }

    fn cuModuleGetFunction(kernel: *mut Handle, module: Handle, name: *const c_char) {
        let (mut state, _) = begin_in_context("cuModuleGetFunction")?;
        let entries = state.modules.get(&module).ok_or(code::INVALID_HANDLE)?;
        let name = text(name);
        let entry = entries.iter().find(|entry| entry.name == name).cloned().ok_or(code::NOT_FOUND)?;
        let handle = state.handle();
        state.kernels.insert(handle, (module, entry));
        give(kernel, handle)
    }

    fn cuModuleUnload(module: Handle) {
        let (mut state, _) = begin_in_context("cuModuleUnload")?;
        state.kernels.retain(|_, (of, _)| *of != module);
        state.modules.remove(&module).map(drop).ok_or(code::INVALID_HANDLE)
    }
}

/// As the driver's: see its documentation.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    kernel: Handle,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    _shared_bytes: c_uint,
    stream: Handle,
    arguments: *const *const c_void,
    _extra: *const *const c_void,
) -> u32 {
    let launch = || {
        let (mut state, later) = begin_in_context("cuLaunchKernel")?;
        let stream = state.stream(stream)?;
        let (_, entry) = state
            .kernels
            .get(&kernel)
            .cloned()
            .ok_or(code::INVALID_HANDLE)?;
        let shape = (blocks_y, blocks_z, threads_x, threads_y, threads_z);
        if blocks_x == 0 || shape != (1, 1, 256, 1, 1) {
            report("violation: a launch of another shape than the kernels take");
            return Err(code::INVALID_VALUE);
        }
        let sizes = entry.parameters.iter().enumerate();
        let parameters: Vec<_> = sizes
            .map(|(i, (_, bytes))| argument(arguments, i, *bytes))
            .collect();
        let ranges = kernels::ranges(&entry.name, &parameters).ok_or(code::INVALID_VALUE)?;
        let mut held = Vec::new();
        for range in ranges.read.iter().chain([&ranges.written]) {
            let bytes = (range.end - range.start) as usize;
            held.push(on_device(&state, "cuLaunchKernel", range.start, bytes)?);
        }
        state.launches += 1;
        let interpret = state.config.interpret;
        let launch = ptx::Launch {
            parameters,
            blocks: blocks_x,
            threads: threads_x,
            readable: ranges.read,
            writable: ranges.written,
        };
        work(state, &stream, held, later, move || {
            kernels::run(&entry, &launch, interpret)
        });
        Ok(())
    };
    answer(launch())
}
