//! What of the driver is used, and what its codes mean.
//!
//! Invariant: every function that this crate calls through cudarc is in [`SYMBOLS`], because cudarc panics at the first
//! call of one that is missing.

use cudarc::driver::result::DriverError;

use crate::device::DeviceFault;

/// The oldest driver that takes the kernels' version of PTX (7.0).
pub(super) const OLDEST: i32 = 11_000;

/// All functions that are called.
pub(super) const SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// What an error of `call` means.
pub(super) fn fault(call: &'static str, error: DriverError) -> DeviceFault {
    let code = error.0 as u32;
    // Not the driver's own text: asking for it is another call that may fail.
    let name = format!("{:?}", error.0);
    match code {
        2 => {
            let kind = if call == "cuMemHostAlloc" {
                "page-locked"
            } else {
                "device"
            };
            DeviceFault::OutOfMemory { kind, bytes: 0 }
        }
        // The toolkit's placeholder for the library.
        34 => DeviceFault::NoDriver,
        100 => DeviceFault::NoSuchDevice { devices: 0 },
        // De-initialised, memory errors, and all after which the driver says that the process must be restarted.
        4 | 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 => DeviceFault::Lost { call, code, name },
        _ => DeviceFault::Failed { call, code, name },
    }
}
