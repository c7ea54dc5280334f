//! Buffers that batches are put together in, used again and again.
//!
//! Owns their allocation. Invariant: a buffer in hand belongs to its holder alone and starts at a page's border. All memory
//! together, lent or free, stays within the pool's limit, or what the lent buffers need where that is more, and half of the
//! limit, or a constant where that is more.

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

/// Bytes that lent memory may have beyond what was asked for: enough that batches of some sizes share buffers. More of it is
/// lent only while all that is lent is at most half of the limit, as it is where the limit is none in practice.
const SPARE_BYTES: usize = 32 << 20;

/// Free buffers that are kept at any limit: the budget does not count the batches that the consumer holds, and theirs come back
/// here.
const KEPT_BUFFERS: usize = 2;

/// Buffers, and what is known of those in hand.
#[derive(Debug)]
pub(crate) struct BufferPool {
    source: Source,
    /// Bytes that all memory may have.
    limit: usize,
    /// The process that made it.
    pid: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that came back first stands first.
    free: Vec<HostMemory>,
    /// Bytes of lent memory.
    lent: usize,
    /// Those of them that nobody asked for.
    spare: usize,
}

impl State {
    /// Bytes of all memory.
    fn bytes(&self) -> usize {
        self.lent + self.free.iter().map(HostMemory::len).sum::<usize>()
    }
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
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    /// A buffer of `bytes`; what it holds is left over from earlier use.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if there is no memory for it, or the device is lost.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let class = size_class(bytes);
        let memory = match self.reused(class)? {
            Some(memory) => memory,
            None => self
                .source
                .allocate(class)
                .inspect_err(|_| self.lock().lent -= class)?,
        };
        Ok(Buffer {
            memory: Some(memory),
            bytes,
            pool: Arc::downgrade(self),
        })
    }

    /// Counts memory of `bytes` as lent: the smallest free one that is large enough, not much too large, and that no copy
    /// reads. Without one, room is made for another.
    fn reused(&self, bytes: usize) -> Result<Option<HostMemory>> {
        let mut state = self.lock();
        let spare = self.limit.div_ceil(4).min(SPARE_BYTES);
        let most = (bytes + spare.saturating_sub(state.spare))
            .max((self.limit / 2).saturating_sub(state.lent));
        let mut found: Option<(usize, usize)> = None;
        let mut is_large_enough = false;
        for (at, memory) in state.free.iter_mut().enumerate() {
            let len = memory.len();
            is_large_enough |= len >= bytes;
            let better = found.is_none_or(|(best, _)| len < best);
            if (bytes..=most).contains(&len) && better && memory.is_idle()? {
                found = Some((len, at));
            }
        }
        if let Some((len, at)) = found {
            state.lent += len;
            state.spare += len - bytes;
            return Ok(Some(state.free.remove(at)));
        }
        state.lent += bytes;
        let mut outgrown = Vec::new();
        // None is large enough: the largest one makes room for a larger one, so that sizes settle.
        if !is_large_enough
            && let Some(largest) = (0..state.free.len()).max_by_key(|at| state.free[*at].len())
        {
            outgrown.push(state.free.remove(largest));
        }
        while state.bytes() > self.limit && !state.free.is_empty() {
            outgrown.push(state.free.remove(0));
        }
        drop(state);
        // Memory that a copy still reads waits for it as it goes.
        drop(outgrown);
        Ok(None)
    }

    /// Takes back what was lent for `bytes`.
    fn give(&self, memory: HostMemory, bytes: usize) {
        let mut state = self.lock();
        let len = memory.len();
        state.lent -= len;
        state.spare -= len - size_class(bytes);
        if state.free.len() < KEPT_BUFFERS || state.bytes() + len <= self.limit {
            state.free.push(memory);
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
        let bytes = std::mem::take(&mut self.bytes);
        if let (Some(memory), Some(pool)) = (self.memory.take(), self.pool.upgrade()) {
            if process::id() == pool.pid {
                pool.give(memory, bytes);
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
    use std::collections::VecDeque;

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
        let kept = pool.lock().bytes();
        assert!((90_000..=200_000).contains(&kept), "{kept}");
    }

    /// Lends buffers as a reader does: as many as `limit` admits are being made, two are the consumer's. Returns the most bytes
    /// of all memory beyond the limit and the consumer's, and which takes found no memory to use again.
    fn lend(pool: &Arc<BufferPool>, sizes: &[usize]) -> (usize, Vec<usize>) {
        let (mut made, mut held) = (VecDeque::new(), VecDeque::new());
        let (mut most, mut fresh) = (0, Vec::new());
        let classes = |lent: &VecDeque<Buffer>| -> usize {
            lent.iter().map(|buffer| size_class(buffer.len())).sum()
        };
        for (number, bytes) in sizes.iter().enumerate() {
            while !made.is_empty()
                && (made.len() == 8 || size_class(*bytes) + classes(&made) > pool.limit)
            {
                held.extend(made.pop_front());
                held.drain(..held.len().saturating_sub(2));
            }
            let mut buffer = pool.take(*bytes).unwrap();
            if buffer[0] == 0 {
                fresh.push(number);
            }
            buffer[0] = 1;
            made.push_back(buffer);
            let lent = made.iter().chain(&held).flat_map(|buffer| &buffer.memory);
            let all: usize = lent.chain(&pool.lock().free).map(HostMemory::len).sum();
            most = most.max(all.saturating_sub(pool.limit + classes(&held)));
        }
        (most, fresh)
    }

    /// 3,000 sizes of about `small` bytes, every `each`-th about `large`, in no order.
    fn sizes(small: usize, large: usize, each: u64) -> Vec<usize> {
        let mut state = 1u64;
        let mut dice = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        let mut size = |_| {
            let about = if dice(each) == 0 { large } else { small };
            about - dice(about as u64 / 4) as usize
        };
        (0..3000).map(&mut size).collect()
    }

    #[test]
    fn large_batches_among_small_ones_leave_memory_within_the_limit() {
        for (limit, large) in [(4 << 20, 4 << 20), (4 << 20, 1 << 20), (4 << 20, 6 << 20)] {
            let pool = BufferPool::new(Source::Plain, limit);
            let (most, _) = lend(&pool, &sizes(100_000, large, 100));
            let spare = limit / 2;
            assert!(
                most <= spare + size_class(large).saturating_sub(limit),
                "{large} {most}"
            );
        }
    }

    #[test]
    fn sizes_settle() {
        for (small, large, each) in [
            (300_000, 300_000, 2),
            (100_000, 400_000, 2),
            (50_000, 900_000, 10),
        ] {
            let pool = BufferPool::new(Source::Plain, 16 << 20);
            let (_, fresh) = lend(&pool, &sizes(small, large, each));
            let late = fresh.iter().filter(|number| **number >= 1000).count();
            assert!(late <= 20, "{small} {large}: {late}");
        }
    }

    #[test]
    fn a_buffer_outlives_its_pool() {
        let pool = BufferPool::new(Source::Plain, 1 << 20);
        let buffer = pool.take(10).unwrap();
        drop(pool);
        assert_eq!(buffer.len(), 10);
    }
}
