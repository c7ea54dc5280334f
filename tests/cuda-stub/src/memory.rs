//! Host memory that plays device and page-locked memory.
//!
//! Invariant: a range is touched only while the allocation that it lies in is live and counted as in use.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    Locked,
}

struct Allocation {
    bytes: usize,
    kind: Kind,
    in_use: u32,
}

/// All live allocations, by address.
#[derive(Default)]
pub(crate) struct Memory {
    live: BTreeMap<usize, Allocation>,
}

const ALIGNMENT: usize = 4096;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("a size that fits")
}

impl Memory {
    pub(crate) fn bytes(&self, kind: Kind) -> usize {
        let all = self.live.values().filter(|a| a.kind == kind);
        all.map(|a| a.bytes).sum()
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.live.values().filter(|a| a.kind == kind).count()
    }

    /// Fresh memory holds what nobody wants to read.
    pub(crate) fn allocate(&mut self, kind: Kind, bytes: usize) -> usize {
        // SAFETY: the size is not 0.
        let address = unsafe { alloc(layout(bytes)) };
        assert!(!address.is_null(), "the machine is out of memory");
        fill(address as usize, bytes, 0xa5);
        let in_use = 0;
        self.live.insert(
            address as usize,
            Allocation {
                bytes,
                kind,
                in_use,
            },
        );
        address as usize
    }

    /// Whether something pending uses the allocation at `address`; none if there is none.
    pub(crate) fn in_use(&self, kind: Kind, address: usize) -> Option<bool> {
        let found = self.live.get(&address).filter(|a| a.kind == kind);
        found.map(|a| a.in_use > 0)
    }

    pub(crate) fn free(&mut self, address: usize) {
        if let Some(gone) = self.live.remove(&address) {
            fill(address, gone.bytes, 0xde);
            // SAFETY: allocated here with this layout, and no longer in the list.
            unsafe { dealloc(address as *mut u8, layout(gone.bytes)) }
        }
    }

    /// The allocation that holds the whole range.
    pub(crate) fn holder(&self, address: usize, bytes: usize) -> Option<(usize, Kind)> {
        let (start, found) = self.live.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + found.bytes).then_some((*start, found.kind))
    }

    pub(crate) fn hold(&mut self, start: usize) {
        if let Some(found) = self.live.get_mut(&start) {
            found.in_use += 1;
        }
    }

    pub(crate) fn release(&mut self, start: usize) {
        if let Some(found) = self.live.get_mut(&start) {
            found.in_use -= 1;
        }
    }

    /// Forgets everything that was not freed.
    pub(crate) fn clear(&mut self) {
        for address in self.live.keys().copied().collect::<Vec<_>>() {
            self.free(address);
        }
    }
}

fn fill(address: usize, bytes: usize, value: u8) {
    // SAFETY: called with whole allocations of this module only.
    unsafe { std::ptr::write_bytes(address as *mut u8, value, bytes) }
}

/// Copies between ranges that the caller found in live allocations, or in a caller's own buffer.
pub(crate) fn copy(from: usize, to: usize, bytes: usize) {
    // SAFETY: both ranges are live; `copy` allows overlap. That nobody writes them at the same time is what is tested.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
}

/// Reads `N` bytes of a live range.
pub(crate) fn load<const N: usize>(address: usize) -> [u8; N] {
    // SAFETY: as for `copy`; an array of bytes has no alignment.
    unsafe { std::ptr::read(address as *const [u8; N]) }
}

/// Writes bytes to a live range.
pub(crate) fn store<const N: usize>(address: usize, bytes: [u8; N]) {
    // SAFETY: as for `copy`; an array of bytes has no alignment.
    unsafe { std::ptr::write(address as *mut [u8; N], bytes) }
}
