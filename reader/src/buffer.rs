//! Buffers that batches are put together in, used again and again.
//!
//! Owns their allocation. Invariant: a buffer in hand belongs to its holder alone and starts at a page's border; the
//! memory of free buffers stays within the pool's limit.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Alignment of a buffer's first byte: a page, so that direct reads and page-locking can use it.
const ALIGNMENT: usize = 4096;

/// Free buffers.
#[derive(Debug)]
pub(crate) struct BufferPool {
    /// Bytes that free buffers may keep.
    limit: usize,
    free: Mutex<Vec<Memory>>,
}

/// Page-aligned bytes inside a vector.
#[derive(Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
}

impl Memory {
    /// Zeros, which are written here so that later use meets no fresh page.
    fn new(bytes: usize) -> Self {
        let mut memory = Vec::with_capacity(bytes + ALIGNMENT);
        memory.resize(bytes + ALIGNMENT, 0);
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self {
            bytes: memory,
            start,
        }
    }

    fn size(&self) -> usize {
        self.bytes.len().saturating_sub(ALIGNMENT)
    }
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
            free: Mutex::new(Vec::new()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `bytes`; what it holds is left over from earlier use.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Buffer {
        let found = {
            let mut free = self.lock();
            let fits = free
                .iter()
                .enumerate()
                .filter(|(_, memory)| memory.size() >= bytes)
                .min_by_key(|(_, memory)| memory.size())
                .map(|(at, _)| at);
            match fits {
                Some(at) => Some(free.swap_remove(at)),
                // None is large enough: the largest one makes room for a larger one, so that sizes settle.
                None => {
                    let largest = free
                        .iter()
                        .enumerate()
                        .max_by_key(|(_, memory)| memory.size())
                        .map(|(at, _)| at);
                    if let Some(at) = largest {
                        free.swap_remove(at);
                    }
                    None
                }
            }
        };
        Buffer {
            memory: found.unwrap_or_else(|| Memory::new(size_class(bytes))),
            bytes,
            pool: Arc::downgrade(self),
        }
    }

    fn give(&self, memory: Memory) {
        let mut free = self.lock();
        let kept: usize = free.iter().map(Memory::size).sum();
        if kept.saturating_add(memory.size()) <= self.limit || free.is_empty() {
            free.push(memory);
        }
    }
}

/// Bytes of a pool. Dropped, their memory goes back to it, if it still exists.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Memory,
    bytes: usize,
    pool: Weak<BufferPool>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..][..self.bytes]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..][..self.bytes]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.give(std::mem::take(&mut self.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_start_at_a_page() {
        let pool = BufferPool::new(1 << 20);
        let mut buffer = pool.take(100_000);
        assert_eq!(
            (buffer.len(), buffer.as_ptr() as usize % ALIGNMENT),
            (100_000, 0)
        );
        buffer.fill(7);
        let address = buffer.as_ptr();
        drop(buffer);
        let again = pool.take(90_000);
        assert_eq!(
            (again.as_ptr(), again.len(), again[0]),
            (address, 90_000, 7)
        );
        let other = pool.take(90_000);
        assert_ne!(other.as_ptr(), address);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BufferPool::new(200_000);
        let buffers: Vec<Buffer> = (0..10).map(|_| pool.take(90_000)).collect();
        drop(buffers);
        let kept: usize = pool.lock().iter().map(Memory::size).sum();
        assert!((90_000..=200_000).contains(&kept), "{kept}");
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufferPool::new(1 << 20);
        let buffer = pool.take(10);
        drop(pool);
        assert_eq!(buffer.len(), 10);
    }
}
