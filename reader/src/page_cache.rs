//! Brings shards into the page cache in large pages.
//!
//! A shard that comes in by small reads ahead stands there in small pages, and copying out of those takes about twice the
//! CPU time of copying out of large ones. A populated mapping that asks for huge pages makes Linux read whole ones where
//! the file system can (ext4, XFS and others of late); elsewhere it is an ordinary read ahead.
//! Invariant: all of it is a hint. Nothing is read here, and what fails is found by the read that follows.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mmap::populate;

/// Bytes that are brought in at once: a huge page of the usual CPUs.
const BLOCK: u64 = 2 << 20;

/// Which blocks of a file were brought in, a bit each.
#[derive(Debug)]
pub(crate) struct Filled(Box<[AtomicU64]>);

impl Filled {
    /// Nothing of a file of `size` bytes.
    pub(crate) fn new(size: u64) -> Self {
        let words = usize::try_from(size.div_ceil(BLOCK).div_ceil(64)).unwrap_or(0);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Brings in those blocks of `length` bytes at `offset` that were not before.
    pub(crate) fn fill(&self, file: &File, offset: u64, length: u64) {
        let blocks = offset / BLOCK..offset.saturating_add(length).div_ceil(BLOCK);
        for block in blocks.filter(|block| self.take(*block)) {
            populate(file, block * BLOCK, BLOCK);
        }
    }

    /// Whether the caller is the first to ask for a block.
    fn take(&self, block: u64) -> bool {
        let (word, bit) = (usize::try_from(block / 64), 1 << (block % 64));
        let word = word.ok().and_then(|word| self.0.get(word));
        word.is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_taken_once() {
        let filled = Filled::new(65 * BLOCK + 1);
        let taken: Vec<u64> = (0..70).filter(|block| filled.take(*block)).collect();
        assert_eq!(taken, (0..128).take(70).collect::<Vec<_>>());
        assert!(!(0..70).any(|block| filled.take(block)));
        assert!(!Filled::new(0).take(0));
    }

    #[test]
    fn what_cannot_be_brought_in_does_no_harm() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 10_000]).unwrap();
        let open = File::open(file.path()).unwrap();
        let filled = Filled::new(10 * BLOCK);
        // Beyond the file's end, as after somebody has cut it.
        filled.fill(&open, 0, 3 * BLOCK);
        filled.fill(&open, u64::MAX - 1, 5);
        filled.fill(&File::open("/dev/null").unwrap(), 5 * BLOCK, 1);
        assert_eq!(std::fs::read(file.path()).unwrap(), [7; 10_000]);
    }
}
