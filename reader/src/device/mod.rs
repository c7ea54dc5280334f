//! Where batches go: host memory or a GPU.
//!
//! A [`Device`] lends [`Staging`] buffers, takes them back full as [`Upload`]s, and writes from those into memory of the
//! consumer, in the order of the consumer's stream. Owns the checks of requests. Invariant: what an upload holds is
//! reached through it alone; slots of a device are never handed out.

#[cfg(feature = "cuda")]
mod consumer;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod fault;
mod host;
pub(crate) mod pool;
#[cfg(feature = "cuda")]
mod upload;

use std::fmt;
#[cfg(feature = "cuda")]
use std::marker::PhantomData;
use std::ops::Range;

#[cfg(feature = "cuda")]
pub use self::consumer::Consumer;
pub use self::fault::DeviceFault;
pub use self::host::HostDevice;
#[cfg(feature = "cuda")]
pub use self::upload::CudaDevice;
#[cfg(feature = "cuda")]
pub(crate) use self::upload::CudaUpload;
use crate::error::{Error, Result};
use crate::expand::{FloatTable, Pixels};
use crate::staging::Staging;

/// How much a device prepares when it is opened.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Staging buffers: how many uploads are filled or copied at a time. With 0 a GPU has none, and refuses to stage.
    pub staging: usize,
    /// Device slots: how many uploads can be in hand at a time. At least 1.
    pub slots: usize,
    /// Size of each at first; what is bigger makes them grow, which costs a pause.
    pub bytes: usize,
    /// What bytes of patches become; needed for floats only.
    pub table: Option<FloatTable>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            staging: 3,
            slots: 3,
            bytes: 16 << 20,
            table: None,
        }
    }
}

/// Where batches go. After a fork, a child gets [`Error::Forked`] from everything.
pub trait Device: fmt::Debug + Send + Sync {
    /// `cpu` or `cuda:N`.
    fn name(&self) -> &str;

    /// Waits for a staging buffer that nothing reads, with room for `bytes`.
    fn stage(&self, bytes: usize) -> Result<Staging>;

    /// Starts to move the bytes of a staging buffer. Waits while all slots are in hand.
    fn upload(&self, staged: Staging) -> Result<Box<dyn Upload>>;

    /// Ends all waiting in [`Device::stage`] and [`Device::upload`], now and later, with [`DeviceFault::Closed`].
    fn close(&self);
}

/// Bytes on their way to a device, or there. Dropping it gives its slot back, for use as soon as the consumer's streams
/// have done what they were given.
pub trait Upload: fmt::Debug + Send {
    /// How many bytes there are.
    fn bytes(&self) -> usize;

    /// Expands patches into `target`, in the order of its stream, and comes back at once.
    fn expand(&mut self, patches: &Patches, target: Target<'_>) -> Result<()>;

    /// Copies bytes into `target`, in the order of its stream, and comes back at once.
    fn copy_out(&mut self, from: Range<usize>, target: Target<'_>) -> Result<()>;
}

/// Opens `cpu`, `cuda` (which is `cuda:0`) or `cuda:N`.
pub fn open(name: &str, options: &DeviceOptions) -> Result<Box<dyn Device>> {
    let unknown = || Error::device(name, DeviceFault::UnknownName);
    if name == "cpu" {
        return Ok(Box::new(HostDevice::open(options)?));
    }
    let number = match name.strip_prefix("cuda").ok_or_else(unknown)? {
        "" => "0",
        number => number.strip_prefix(':').ok_or_else(unknown)?,
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unknown());
    }
    let ordinal: u32 = number.parse().map_err(|_| unknown())?;
    open_cuda(ordinal, options)
}

#[cfg(feature = "cuda")]
fn open_cuda(ordinal: u32, options: &DeviceOptions) -> Result<Box<dyn Device>> {
    Ok(Box::new(CudaDevice::open(ordinal, options)?))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(ordinal: u32, _options: &DeviceOptions) -> Result<Box<dyn Device>> {
    let name = format!("cuda:{ordinal}");
    Err(Error::device(&name, DeviceFault::NotBuilt))
}

/// Patches in an upload, and what they become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patches {
    /// Where the first begins.
    pub offset: usize,
    /// How many there are.
    pub count: usize,
    /// Pixels of a patch: the patch size squared. A patch has three bytes for each.
    pub area: usize,
    /// How often each frame stands in the result; [`Pixels::U8`] leaves it once.
    pub temporal: usize,
    /// The type of the result.
    pub pixels: Pixels,
}

impl Patches {
    /// Bytes of the result; none if that overflows.
    #[must_use]
    pub fn target_bytes(&self) -> Option<usize> {
        self.source_bytes()?
            .checked_mul(self.pixels.frames(self.temporal))?
            .checked_mul(self.pixels.bytes())
    }

    fn source_bytes(&self) -> Option<usize> {
        self.count.checked_mul(3)?.checked_mul(self.area)
    }

    /// Where the patches lie in an upload of `held` bytes, if they do and the target fits.
    fn checked(&self, held: usize, target: usize) -> Result<Range<usize>, &'static str> {
        let end = self.source_bytes().and_then(|n| n.checked_add(self.offset));
        match end.filter(|end| *end <= held) {
            None => Err("the patches lie outside of the upload"),
            Some(_) if self.target_bytes() != Some(target) => {
                Err("the target has another size than the expanded patches")
            }
            Some(end) => Ok(self.offset..end),
        }
    }
}

/// Memory of the consumer that is written to; on a GPU with the stream whose order it follows.
#[derive(Debug)]
pub struct Target<'a>(Place<'a>);

#[derive(Debug)]
enum Place<'a> {
    Host(&'a mut [u8]),
    #[cfg(feature = "cuda")]
    Device {
        address: u64,
        bytes: usize,
        stream: u64,
        borrowed: PhantomData<&'a mut [u8]>,
    },
}

impl<'a> Target<'a> {
    /// Host memory, for [`HostDevice`]; it needs no alignment.
    pub fn host(bytes: &'a mut [u8]) -> Self {
        Self(Place::Host(bytes))
    }

    #[cfg(feature = "cuda")]
    fn at(address: u64, bytes: usize, stream: u64) -> Self {
        let borrowed = PhantomData;
        Self(Place::Device {
            address,
            bytes,
            stream,
            borrowed,
        })
    }

    /// Address and stream, if it is a device's.
    #[cfg(feature = "cuda")]
    fn on_device(&self) -> Option<(u64, u64)> {
        match &self.0 {
            Place::Host(_) => None,
            Place::Device {
                address, stream, ..
            } => Some((*address, *stream)),
        }
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Place::Host(bytes) => bytes.len(),
            #[cfg(feature = "cuda")]
            Place::Device { bytes, .. } => *bytes,
        }
    }

    fn into_host(self) -> Option<&'a mut [u8]> {
        match self.0 {
            Place::Host(bytes) => Some(bytes),
            #[cfg(feature = "cuda")]
            Place::Device { .. } => None,
        }
    }
}
