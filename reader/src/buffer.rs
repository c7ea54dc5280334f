//! Buffers that batches are put together in, used again and again.
//!
//! Owns their allocation. Invariant: a buffer in hand belongs to its holder alone and starts at a page's border; the
//! memory of free buffers stays within the pool's limit.

use std::ops::{Deref, DerefMut};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

#[cfg(feature = "cuda")]
use crate::device::cuda::{Context, Slot, Stream};
use crate::error::Result;
use crate::staging::{HUGE_PAGE, HostMemory};
use crate::sync::unpoisoned;

/// Where a pool's memory comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// The system.
    Plain,
    /// Page-locked by a GPU's driver, so that the GPU can fetch from it.
    #[cfg(feature = "cuda")]
    Locked(Arc<Context>),
}

impl Source {
    fn allocate(&self, bytes: usize) -> Result<HostMemory> {
        match self {
            Self::Plain => HostMemory::plain(bytes),
            #[cfg(feature = "cuda")]
            Self::Locked(context) => HostMemory::locked(context, bytes),
        }
    }
}

/// Free buffers.
#[derive(Debug)]
pub(crate) struct BufferPool {
    source: Source,
    /// Bytes that free buffers may keep.
    limit: usize,
    /// The process that made it.
    pid: u32,
    free: Mutex<Vec<HostMemory>>,
}

/// The size that is allocated for `bytes`, so that batches of like size share buffers: at most a quarter more, and whole huge
/// pages from two on. This is what the byte budget counts.
pub(crate) fn size_class(bytes: usize) -> usize {
    let step = (bytes.max(1 << 16).next_power_of_two() / 8).max(1 << 14);
    let step = if bytes < 2 * HUGE_PAGE {
        step
    } else {
        step.max(HUGE_PAGE)
    };
    bytes.max(1).next_multiple_of(step)
}

impl BufferPool {
    pub(crate) fn new(source: Source, limit: usize) -> Arc<Self> {
        Arc::new(Self {
            source,
            limit,
            pid: process::id(),
            free: Mutex::new(Vec::new()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HostMemory>> {
        unpoisoned(self.free.lock())
    }

    /// A buffer of `bytes`; what it holds is left over from earlier use.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no memory for it, or the device is lost.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let memory = match self.reused(bytes)? {
            Some(memory) => memory,
            None => self.source.allocate(size_class(bytes))?,
        };
        Ok(Buffer {
            memory: Some(memory),
            bytes,
            pool: Arc::downgrade(self),
        })
    }

    /// The smallest free memory that is large enough and that no copy reads.
    fn reused(&self, bytes: usize) -> Result<Option<HostMemory>> {
        let mut free = self.lock();
        let mut found: Option<(usize, usize)> = None;
        let mut is_large_enough = false;
        for (at, memory) in free.iter_mut().enumerate() {
            let len = memory.len();
            is_large_enough |= len >= bytes;
            let better = len >= bytes && found.is_none_or(|(best, _)| len < best);
            if better && memory.is_idle()? {
                found = Some((len, at));
            }
        }
        if let Some((_, at)) = found {
            return Ok(Some(free.swap_remove(at)));
        }
        // None is large enough: the largest one makes room for a larger one, so that sizes settle.
        let largest = (0..free.len()).max_by_key(|at| free[*at].len());
        let outgrown = largest.filter(|_| !is_large_enough);
        let outgrown = outgrown.map(|at| free.swap_remove(at));
        drop(free);
        // Memory that a copy still reads waits for it as it goes.
        drop(outgrown);
        Ok(None)
    }

    fn give(&self, memory: HostMemory) {
        let mut free = self.lock();
        let kept: usize = free.iter().map(|memory| memory.len()).sum();
        if kept.saturating_add(memory.len()) <= self.limit || free.is_empty() {
            free.push(memory);
        }
    }
}

/// Bytes of a pool. Dropped, their memory goes back to it, if it still exists.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// None once it was sent, and while it is dropped.
    memory: Option<HostMemory>,
    bytes: usize,
    pool: Weak<BufferPool>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory
            .as_ref()
            .map_or(&[], |memory| &memory.bytes()[..self.bytes])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.memory
            .as_mut()
            .map_or(&mut [], |memory| &mut memory.bytes_mut()[..bytes])
    }
}

#[cfg(feature = "cuda")]
impl Buffer {
    /// Starts to copy the bytes to `slot`, and gives the memory back to its pool, where it waits for the copy.
    pub(crate) fn send(&mut self, slot: &mut Slot, stream: &Stream) -> Result<()> {
        if let Some(memory) = &mut self.memory {
            memory.send(self.bytes, slot, stream)?;
        }
        self.release();
        Ok(())
    }
}

impl Buffer {
    fn release(&mut self) {
        self.bytes = 0;
        if let (Some(memory), Some(pool)) = (self.memory.take(), self.pool.upgrade()) {
            if process::id() == pool.pid {
                pool.give(memory);
            } else {
                // In a fork the pool's lock may be held by a thread that is not there.
                std::mem::forget(memory);
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_start_at_a_page() {
        let pool = BufferPool::new(Source::Plain, 1 << 20);
        let mut buffer = pool.take(100_000).unwrap();
        assert_eq!(
            (buffer.len(), buffer.as_ptr() as usize % 4096),
            (100_000, 0)
        );
        buffer.fill(7);
        let address = buffer.as_ptr();
        drop(buffer);
        let again = pool.take(90_000).unwrap();
        assert_eq!(
            (again.as_ptr(), again.len(), again[0]),
            (address, 90_000, 7)
        );
        let other = pool.take(90_000).unwrap();
        assert_ne!(other.as_ptr(), address);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BufferPool::new(Source::Plain, 200_000);
        let buffers: Vec<Buffer> = (0..10).map(|_| pool.take(90_000).unwrap()).collect();
        drop(buffers);
        let kept: usize = pool.lock().iter().map(|memory| memory.len()).sum();
        assert!((90_000..=200_000).contains(&kept), "{kept}");
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufferPool::new(Source::Plain, 1 << 20);
        let buffer = pool.take(10).unwrap();
        drop(pool);
        assert_eq!(buffer.len(), 10);
    }
}
