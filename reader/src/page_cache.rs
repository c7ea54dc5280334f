//! Brings shards into the page cache in large pages.
//!
//! A shard that comes in by small reads ahead stands there in small pages, and copying out of those takes about twice the
//! CPU time of copying out of large ones. A populated mapping that asks for huge pages makes Linux read whole ones where
//! the file system can (ext4, XFS and others of late); elsewhere it is an ordinary read ahead. Text, of which a row is a few
//! pages in several places, is asked for all at once: one read after another would wait behind the large ones each time.
//! Invariant: all of it is a hint. Nothing is read here, and what fails is found by the read that follows.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;

use rustix::fs::{Advice, fadvise};

use crate::bits::Bits;
use crate::mmap::{is_cached, populate};

/// Bytes that are brought in at once: a huge page of the usual CPUs.
const BLOCK: u64 = 2 << 20;

/// Bytes of a file beyond which nothing is brought in: no shard is so large.
const MOST: u64 = 1 << 40;

/// Which blocks of a file somebody has asked for, and which of them were there already, a bit each.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    asked: Bits,
    cached: Bits,
}

impl Filled {
    /// Brings in those blocks of `length` bytes at `offset` of a file of `size` bytes that were not before. Those that are there
    /// are left alone: populating them takes as long as copying a tenth of their bytes, of small pages all.
    pub(crate) fn fill(&self, file: &File, size: u64, offset: u64, length: u64) {
        for block in blocks(offset, length).filter(|block| self.take(size, *block)) {
            if !is_block_cached(file, size, block) {
                populate(file, block * BLOCK, BLOCK);
            }
        }
    }

    /// Asks for `length` bytes at `offset` of a file of `size` bytes, unless their blocks were there when somebody asked first:
    /// asking costs a system call, and a sample's text lies in six places.
    pub(crate) fn expect(&self, file: &File, size: u64, offset: u64, length: u64) {
        if !blocks(offset, length).all(|block| self.was_there(file, size, block)) {
            will_need(file, offset, length);
        }
    }

    fn was_there(&self, file: &File, size: u64, block: u64) -> bool {
        if self.take(size, block) && is_block_cached(file, size, block) {
            self.cached.set(block_count(size), block);
        }
        self.cached.get(block_count(size), block)
    }

    /// Whether the caller is the first to ask for a block.
    fn take(&self, size: u64, block: u64) -> bool {
        self.asked.set(block_count(size), block)
    }
}

fn block_count(size: u64) -> u64 {
    size.min(MOST).div_ceil(BLOCK)
}

/// The blocks that `length` bytes at `offset` lie in.
fn blocks(offset: u64, length: u64) -> Range<u64> {
    offset / BLOCK..offset.saturating_add(length).div_ceil(BLOCK)
}

fn is_block_cached(file: &File, size: u64, block: u64) -> bool {
    let start = block * BLOCK;
    is_cached(file, start, BLOCK.min(size.saturating_sub(start)))
}

/// Asks for `length` bytes at `offset` of a file, and does not wait for them.
pub(crate) fn will_need(file: &File, offset: u64, length: u64) {
    advise(file, offset, length, Advice::WillNeed);
}

/// Gives the pages of `length` bytes at `offset` of a file back: those that stay cost memory, not correctness.
pub(crate) fn forget(file: &File, offset: u64, length: u64) {
    advise(file, offset, length, Advice::DontNeed);
}

/// Nothing for no bytes: to the system that means all that follow.
fn advise(file: &File, offset: u64, length: u64, advice: Advice) {
    if let Some(length) = NonZeroU64::new(length) {
        let _ = fadvise(file, offset, Some(length), advice);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Write};
    use std::os::unix::fs::FileExt;

    use rustix::io::{Errno, ReadWriteFlags, preadv2};

    use super::*;
    use crate::open_files::OpenFile;

    #[test]
    fn each_block_is_taken_once() {
        let filled = Filled::default();
        let size = 65 * BLOCK + 1;
        assert!((0..128).all(|block| filled.take(size, block)));
        assert!(!(0..200).any(|block| filled.take(size, block)));
        assert!(!Filled::default().take(0, 0));
        // What a file claims costs no memory to speak of.
        let huge = Filled::default();
        assert!(huge.take(u64::MAX, 0) && !huge.take(u64::MAX, MOST / BLOCK));
    }

    #[test]
    fn what_cannot_be_brought_in_does_no_harm() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 10_000]).unwrap();
        let open = File::open(file.path()).unwrap();
        let (filled, size) = (Filled::default(), 10 * BLOCK);
        // Beyond the file's end, as after somebody has cut it.
        filled.fill(&open, size, 0, 3 * BLOCK);
        filled.fill(&open, size, u64::MAX - 1, 5);
        filled.fill(&File::open("/dev/null").unwrap(), size, 5 * BLOCK, 1);
        assert_eq!(std::fs::read(file.path()).unwrap(), [7; 10_000]);
    }

    /// Whether the byte at `offset` is in the page cache; none where the file system cannot say.
    fn looked_up(file: &File, offset: u64) -> Option<bool> {
        let mut byte = [0];
        let read = preadv2(
            file,
            &mut [IoSliceMut::new(&mut byte)],
            offset,
            ReadWriteFlags::NOWAIT,
        );
        match read {
            Ok(_) => Some(true),
            Err(Errno::AGAIN) => Some(false),
            Err(_) => None,
        }
    }

    /// Whether the kernel has cachestat, and no filter may forbid it.
    fn must_tell() -> bool {
        let read = |path| std::fs::read_to_string(path).unwrap();
        let release = read("/proc/sys/kernel/osrelease");
        let mut numbers = release.split('.').map_while(|part| part.parse().ok());
        let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
        version >= (6, 5) && read("/proc/self/status").contains("Seccomp:\t0\n")
    }

    /// A file of eight blocks that the page cache has forgotten, but not in a memory file system, which is all page cache.
    fn forgotten() -> (tempfile::NamedTempFile, File, u64) {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let size = 8 * BLOCK;
        file.write_all(&vec![7; usize::try_from(size).unwrap()])
            .unwrap();
        file.as_file().sync_all().unwrap();
        fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
        let open = File::open(file.path()).unwrap();
        (file, open, size)
    }

    /// Bytes that this thread has asked disks for.
    fn asked_for() -> u64 {
        let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        let line = counters
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        line.unwrap().parse().unwrap()
    }

    #[test]
    fn what_is_asked_for_is_on_its_way_at_once() {
        let (_file, open, size) = forgotten();
        let before = asked_for();
        will_need(&open, BLOCK, 3 * 4096);
        will_need(&open, 0, 0);
        let asked = asked_for() - before;
        // Whether pages can be absent here, and whether that is told: a look asks for what it misses.
        if looked_up(&open, size - 1) == Some(false) {
            assert!(asked >= 3 * 4096, "{asked}");
        }
    }

    #[test]
    fn what_was_there_is_not_asked_for() {
        let (_file, open, size) = forgotten();
        let filled = Filled::default();
        // Absent when it is asked for first, so that it is asked for each time.
        assert!(!filled.was_there(&open, size, 0) || looked_up(&open, 0) != Some(false));
        populate(&open, BLOCK, 2 * BLOCK);
        if must_tell() {
            assert!(filled.was_there(&open, size, 1));
            fadvise(&open, BLOCK, NonZeroU64::new(BLOCK), Advice::DontNeed).unwrap();
            assert!(filled.was_there(&open, size, 1));
            let before = asked_for();
            filled.expect(&open, size, BLOCK + 5, 100);
            assert_eq!(asked_for(), before);
        }
    }

    #[test]
    fn what_is_given_back_leaves_the_page_cache_mapped_or_not() {
        for is_mapped in [false, true] {
            let (_file, open, size) = forgotten();
            let told = looked_up(&open, size - 1) == Some(false);
            let open = OpenFile::new(open, size);
            let mut bytes = vec![0; usize::try_from(size).unwrap()];
            if is_mapped {
                bytes.copy_from_slice(open.mapping().unwrap().bytes(0, size).unwrap());
            } else {
                open.file().read_exact_at(&mut bytes, 0).unwrap();
            }
            open.forget(1, size - 1);
            // A look asks for what it misses, so there is one only.
            let is_there = looked_up(open.file(), size / 2);
            assert!(!told || is_there == Some(false), "{is_mapped}");
            if is_mapped {
                assert_eq!(open.mapping().unwrap().bytes(0, size).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn blocks_are_in_the_page_cache_afterwards() {
        let (_file, open, size) = forgotten();
        let filled = Filled::default();
        filled.fill(&open, size, BLOCK + 5, BLOCK);
        // Where the system tells, it tells the same.
        assert!(is_cached(&open, BLOCK, 2 * BLOCK) || !must_tell());
        let cached: Vec<_> = (0..2 * BLOCK / 4096)
            .map(|page| looked_up(&open, BLOCK + page * 4096))
            .collect();
        // The last block shows whether pages can be absent here, and whether that is told.
        let absent = !is_cached(&open, size - BLOCK, BLOCK);
        if looked_up(&open, size - 1) == Some(false) {
            assert!(absent);
            assert!(cached.iter().all(|page| *page == Some(true)));
        }
    }
}
