//! Host memory that uploads are made from, page-locked or plain.
//!
//! Owns the only way from host memory to a device slot. Invariant: a [`Staging`] in hand is idle, nothing but its
//! holder touches it; memory that a copy may still read is neither lent nor freed.
#![cfg_attr(
    feature = "cuda",
    allow(unsafe_code, reason = "memory that a device reads by itself")
)]

use std::fmt;
#[cfg(feature = "cuda")]
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use memmap2::{Advice, MmapMut};

use crate::device::DeviceFault;
#[cfg(feature = "cuda")]
use crate::device::cuda::{Context, Fence, LockedMemory, Slot, Stream};
use crate::device::pool::{Lent, Pool};
use crate::error::{Error, Result};

/// Good for O_DIRECT on every disk, and for whole pages.
const ALIGNMENT: usize = 4096;

/// Memory of at least this size lies at a border of it, so that the system can back it with huge pages: copying into those
/// takes half the CPU time of copying into small ones.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Bytes in whole pages that the system has already backed with memory, so that no first touch is slow.
pub struct PlainMemory {
    map: MmapMut,
    /// Where the bytes lie in the mapping.
    range: Range<usize>,
}

impl fmt::Debug for PlainMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlainMemory({} bytes)", self.range.len())
    }
}

impl PlainMemory {
    /// Zeros, at least one page.
    pub fn new(bytes: usize) -> Result<Self> {
        let none = || {
            let kind = "host";
            Error::device("cpu", DeviceFault::OutOfMemory { kind, bytes })
        };
        let whole = bytes.max(1).checked_next_multiple_of(ALIGNMENT);
        let whole = whole.ok_or_else(none)?;
        // What lies before the border is never touched, so it takes addresses but no memory.
        let spare = if whole < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let length = whole.checked_add(spare).ok_or_else(none)?;
        let mut map = MmapMut::map_anon(length).map_err(|_| none())?;
        let start = if spare == 0 {
            0
        } else {
            let start = map.as_ptr().align_offset(HUGE_PAGE);
            // Only advice: where there are no huge pages, small ones do. None for the rest that fills no whole one.
            let huge = whole / HUGE_PAGE * HUGE_PAGE;
            let _ = map.advise_range(Advice::HugePage, start, huge);
            start
        };
        let range = start..start + whole;
        // In pieces: meanwhile the system lets no other thread grow its memory, and the first batches are made side by side.
        for at in range.clone().step_by(HUGE_PAGE) {
            let piece = HUGE_PAGE.min(range.end - at);
            if map.advise_range(Advice::PopulateWrite, at, piece).is_err() {
                // Older systems: the first touch of each page does it.
                map[at..at + piece].fill(0);
            }
        }
        Ok(Self { map, range })
    }
}

impl Deref for PlainMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

impl DerefMut for PlainMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.range.clone()]
    }
}

/// The memory of one staging buffer, and what says whether a copy reads it.
#[derive(Debug)]
pub(crate) enum HostMemory {
    Plain(PlainMemory),
    #[cfg(feature = "cuda")]
    Locked(Locked),
}

/// Memory that a device reads by itself.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub(crate) struct Locked {
    memory: ManuallyDrop<LockedMemory>,
    read: Fence,
}

#[cfg(feature = "cuda")]
impl Drop for Locked {
    fn drop(&mut self) {
        // Where the end of a copy cannot be known, the memory stays until the process ends.
        if self.read.wait().is_ok() {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

impl HostMemory {
    pub(crate) fn plain(bytes: usize) -> Result<Self> {
        Ok(Self::Plain(PlainMemory::new(bytes)?))
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn locked(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let read = Fence::new(context)?;
        let memory = ManuallyDrop::new(LockedMemory::new(context, bytes)?);
        Ok(Self::Locked(Locked { memory, read }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain(memory) => memory,
            #[cfg(feature = "cuda")]
            Self::Locked(locked) => locked.memory.bytes(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(memory) => memory,
            #[cfg(feature = "cuda")]
            Self::Locked(locked) => locked.memory.bytes_mut(),
        }
    }

    /// Its size.
    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Starts to copy the first `bytes` to `slot`; until the copy has ended the memory is not idle.
    #[cfg(feature = "cuda")]
    pub(crate) fn send(&mut self, bytes: usize, slot: &mut Slot, stream: &Stream) -> Result<()> {
        match self {
            Self::Locked(Locked { memory, read }) => {
                // SAFETY: whoever lends the memory asks whether it is idle first, and its drop waits for `read`.
                unsafe { slot.fill(stream, memory, read, bytes) }
            }
            Self::Plain(_) => Err(slot.refused("the bytes are in memory of another device")),
        }
    }

    /// Whether no copy reads it.
    pub(crate) fn is_idle(&mut self) -> Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            #[cfg(feature = "cuda")]
            Self::Locked(locked) => locked.read.is_done(),
        }
    }
}

/// Staging buffers, used in turn.
#[derive(Debug)]
pub(crate) struct StagingRing(Arc<Pool<HostMemory>>);

impl StagingRing {
    pub(crate) fn new(device: &str, buffers: Vec<HostMemory>) -> Self {
        Self(Pool::new(device, buffers))
    }

    /// Waits for an idle buffer. One that is too small is replaced by what `larger` makes.
    pub(crate) fn stage(
        &self,
        bytes: usize,
        larger: impl FnOnce() -> Result<HostMemory>,
    ) -> Result<Staging> {
        let mut buffer = self.0.take(HostMemory::is_idle)?;
        if buffer.bytes().len() < bytes {
            *buffer = larger()?;
        }
        Ok(Staging { buffer, bytes })
    }

    /// Ends all waiting, now and later.
    pub(crate) fn close(&self, fault: DeviceFault) {
        self.0.close(fault);
    }
}

/// A staging buffer in hand: bytes to fill, at a page's border. What they hold at first is left over from earlier use.
///
/// Dropped without an upload, it goes back to the ring.
pub struct Staging {
    buffer: Lent<HostMemory>,
    bytes: usize,
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Staging({} bytes)", self.bytes)
    }
}

impl Staging {
    /// Forgets all but the first `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    /// Starts to copy the bytes to `slot` and gives the buffer back to its ring, where it waits for the copy.
    #[cfg(feature = "cuda")]
    pub(crate) fn upload(mut self, slot: &mut Slot, stream: &Stream) -> Result<()> {
        self.buffer.send(self.bytes, slot, stream)
    }
}

impl Deref for Staging {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer.bytes()[..self.bytes]
    }
}

impl DerefMut for Staging {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        &mut self.buffer.bytes_mut()[..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_memory_is_zero_and_page_aligned() {
        for bytes in [0, 1, 4096, 4097, 1_000_000, HUGE_PAGE, 5 * HUGE_PAGE / 4] {
            let mut memory = PlainMemory::new(bytes).unwrap();
            assert!(memory.len() >= bytes && memory.len().is_multiple_of(ALIGNMENT));
            let border = if bytes < HUGE_PAGE {
                ALIGNMENT
            } else {
                HUGE_PAGE
            };
            assert_eq!(memory.as_ptr() as usize % border, 0);
            assert!(memory.iter().all(|byte| *byte == 0));
            memory.fill(7);
        }
        let huge = PlainMemory::new(isize::MAX as usize).unwrap_err();
        assert!(huge.to_string().contains("out of host memory"), "{huge}");
    }

    #[test]
    fn buffers_come_back_grow_and_keep_their_bytes() {
        let ring = StagingRing::new("cpu", vec![HostMemory::plain(100).unwrap()]);
        let mut staging = ring.stage(10, || unreachable!()).unwrap();
        assert_eq!(staging.len(), 10);
        staging.fill(9);
        staging.truncate(4);
        assert_eq!(*staging, [9; 4]);
        drop(staging);
        let mut staging = ring.stage(9000, || HostMemory::plain(9000)).unwrap();
        assert_eq!(staging.len(), 9000);
        staging.fill(1);
        drop(staging);
        // A failure to grow keeps the buffer that there is.
        let failed = ring.stage(90_000, || Err(Error::device("cpu", DeviceFault::NotBuilt)));
        assert!(failed.is_err());
        assert_eq!(*ring.stage(3, || unreachable!()).unwrap(), [1; 3]);
        ring.close(DeviceFault::Closed);
        assert!(ring.stage(1, || unreachable!()).is_err());
    }
}
