//! Buffers that batches are put together in, used again and again.
//!
//! Owns their allocation. Invariant: a buffer in hand belongs to its holder alone and starts at a page's border; the
//! memory of free buffers stays within the pool's limit.

use std::ops::{Deref, DerefMut};
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Result;
use crate::staging::PlainMemory;

/// Free buffers.
#[derive(Debug)]
pub(crate) struct BufferPool {
    /// Bytes that free buffers may keep.
    limit: usize,
    /// The process that made it.
    pid: u32,
    free: Mutex<Vec<PlainMemory>>,
}

/// The size that is allocated for `bytes`: at most a quarter more, so that batches of like size share buffers.
fn size_class(bytes: usize) -> usize {
    let step = (bytes.max(1 << 16).next_power_of_two() / 8).max(1 << 14);
    bytes.max(1).next_multiple_of(step)
}

impl BufferPool {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            pid: process::id(),
            free: Mutex::new(Vec::new()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PlainMemory>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `bytes`; what it holds is left over from earlier use.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no memory for it.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let found = {
            let mut free = self.lock();
            let fits = free
                .iter()
                .enumerate()
                .filter(|(_, memory)| memory.len() >= bytes)
                .min_by_key(|(_, memory)| memory.len())
                .map(|(at, _)| at);
            match fits {
                Some(at) => Some(free.swap_remove(at)),
                // None is large enough: the largest one makes room for a larger one, so that sizes settle.
                None => {
                    let largest = free
                        .iter()
                        .enumerate()
                        .max_by_key(|(_, memory)| memory.len())
                        .map(|(at, _)| at);
                    if let Some(at) = largest {
                        free.swap_remove(at);
                    }
                    None
                }
            }
        };
        let memory = match found {
            Some(memory) => memory,
            None => PlainMemory::new(size_class(bytes))?,
        };
        Ok(Buffer {
            memory: Some(memory),
            bytes,
            pool: Arc::downgrade(self),
        })
    }

    fn give(&self, memory: PlainMemory) {
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
    /// None only while it is dropped.
    memory: Option<PlainMemory>,
    bytes: usize,
    pool: Weak<BufferPool>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory
            .as_deref()
            .map_or(&[], |memory| &memory[..self.bytes])
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        self.memory
            .as_deref_mut()
            .map_or(&mut [], |memory| &mut memory[..bytes])
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_start_at_a_page() {
        let pool = BufferPool::new(1 << 20);
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
        let pool = BufferPool::new(200_000);
        let buffers: Vec<Buffer> = (0..10).map(|_| pool.take(90_000).unwrap()).collect();
        drop(buffers);
        let kept: usize = pool.lock().iter().map(|memory| memory.len()).sum();
        assert!((90_000..=200_000).contains(&kept), "{kept}");
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufferPool::new(1 << 20);
        let buffer = pool.take(10).unwrap();
        drop(pool);
        assert_eq!(buffer.len(), 10);
    }
}
