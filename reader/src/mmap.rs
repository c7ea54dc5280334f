//! Shards as mappings, and what of a shard is in memory.
//!
//! Owns the unsafe calls that make them and ask for it. Invariant: bytes are handed out only within the length that the file had
//! when it was mapped.
#![allow(
    unsafe_code,
    reason = "a mapping is memory that others may change, and no library has cachestat"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use memmap2::{Advice, MmapOptions, UncheckedAdvice};

/// The number of the system call cachestat, on all architectures.
const CACHESTAT: libc::c_long = 451;

/// A read-only mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Mapping(memmap2::Mmap);

/// Brings `length` bytes at `offset` of a file into the page cache, in huge pages where the system has them for files.
/// What fails is left to the read that follows.
pub(crate) fn populate(file: &File, offset: u64, length: u64) {
    let Ok(length) = usize::try_from(length) else {
        return;
    };
    let mut options = MmapOptions::new();
    // SAFETY: the system alone reads this mapping, and tells of a file that has shrunk by an error.
    if let Ok(map) = unsafe { options.offset(offset).len(length).map(file) } {
        let _ = map.advise(Advice::HugePage);
        let _ = map.advise(Advice::PopulateRead);
    }
}

/// Whether all of `length` bytes at `offset` of a file are in the page cache. Kernels before 6.5 and some sandboxes do not tell:
/// then it is false.
pub(crate) fn is_cached(file: &File, offset: u64, length: u64) -> bool {
    let range = [offset, length];
    // Pages that are cached, dirty, being written, evicted, recently evicted.
    let mut pages = [0u64; 5];
    // SAFETY: the system reads the two numbers of `struct cachestat_range` and writes the five of `struct cachestat`.
    let failed = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            pages.as_mut_ptr(),
            0,
        )
    };
    failed == 0 && pages[0].saturating_mul(rustix::param::page_size() as u64) >= length
}

impl Mapping {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: shards are never changed after they have their name, and are written 0444. Who chose this backend
        // accepts what happens if somebody does it all the same: other bytes, or SIGBUS if the file shrinks.
        let map = unsafe { memmap2::Mmap::map(file) }?;
        Ok(Self(map))
    }

    /// `length` bytes at `offset`.
    pub(crate) fn bytes(&self, offset: u64, length: u64) -> io::Result<&[u8]> {
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(length).ok());
        range
            .and_then(|(offset, length)| self.0.get(offset..)?.get(..length))
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Takes the whole pages of `length` bytes at `offset` out of the mapping, until somebody reads them again.
    pub(crate) fn forget(&self, offset: u64, length: u64) {
        let page = rustix::param::page_size() as u64;
        let start = offset.next_multiple_of(page);
        let end = offset.saturating_add(length) / page * page;
        if let (Ok(start), Some(Ok(length))) = (
            usize::try_from(start),
            end.checked_sub(start).map(usize::try_from),
        ) {
            // SAFETY: pages of a shared mapping of a file come back from the file with the same bytes. What fails costs memory.
            let _ = unsafe {
                self.0
                    .unchecked_advise_range(UncheckedAdvice::DontNeed, start, length)
            };
        }
    }

    /// Asks the system to read `length` bytes at `offset` ahead.
    pub(crate) fn will_need(&self, offset: u64, length: u64) {
        if let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) {
            // Only advice: without it the pages come one fault at a time.
            let _ = self.0.advise_range(Advice::WillNeed, offset, length);
        }
    }
}
