//! Shards as mappings.
//!
//! Owns the unsafe calls that make them. Invariant: bytes are handed out only within the length that the file had
//! when it was mapped.
#![allow(unsafe_code, reason = "a mapping is memory that others may change")]

use std::fs::File;
use std::io;

use memmap2::{Advice, MmapOptions};

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

    /// Asks the system to read `length` bytes at `offset` ahead.
    pub(crate) fn will_need(&self, offset: u64, length: u64) {
        if let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) {
            // Only advice: without it the pages come one fault at a time.
            let _ = self.0.advise_range(Advice::WillNeed, offset, length);
        }
    }
}
