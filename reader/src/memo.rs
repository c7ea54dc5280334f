//! What is kept of shuffled tables, so that a table is not made again for every unit.
//!
//! Owns the bound on that memory. Invariant: what an order says never depends on what is kept; at most the given bytes
//! are, however many partitions take turns (one list of more than 100,000 shards in a partition may go beyond).

use std::collections::HashMap;
use std::mem;

use crate::error::Result;
use stoker_formats::limits::MAX_TABLE_POSITIONS;
use stoker_formats::{Key, Permutation, last_entries};

/// Bytes kept at most, for all caches of a schedule together.
pub(crate) const MEMO_BYTES: usize = 16 << 20;

/// What an entry takes beside its contents: key, value, and its share of the map.
const ENTRY_BYTES: usize = 160;

/// Entries of a window at least, so that a table is not made for a handful of them.
const MIN_WINDOW: u64 = 32;

/// A large odd number: its multiples are spread over a window.
const STAGGER: u64 = 0x9e37_79b9;

/// Names one permutation of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TableId {
    /// The partition, counted over all caches of the schedule.
    pub(crate) lane: u32,
    /// The shard, or [`WHOLE`], or [`BY_LENGTH`].
    pub(crate) block: u32,
    /// The epoch of the cache.
    pub(crate) epoch: u64,
}

/// Stands for all of a partition.
pub(crate) const WHOLE: u32 = u32::MAX;

/// Stands for a partition ordered by length.
pub(crate) const BY_LENGTH: u32 = u32::MAX - 1;

/// Shards in the order of an epoch: where each begins in that order, and which it is.
pub(crate) type Blocks = Vec<(u64, u32)>;

#[derive(Debug)]
enum Kept {
    /// A run of entries of a shuffled table.
    Window(Box<[u16]>),
    Network(Permutation),
    Blocks(Blocks),
}

impl Kept {
    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Window(entries) => mem::size_of_val(&**entries),
                // Sixteen round keys.
                Self::Network(_) => 256,
                Self::Blocks(blocks) => mem::size_of_val(&**blocks),
            }
    }
}

/// A bounded store of pieces of shuffled tables.
///
/// Units come from all partitions in turn, so one whole table for each would be needed at a time: up to 128 KiB times the
/// partitions. Instead a window of the entries that come next is kept for each partition. An order goes through a table
/// from its end, because a table is shuffled from there: what comes first is known first.
#[derive(Debug)]
pub struct Memo {
    window: u64,
    half: usize,
    /// What was used since the other half was let go, and its bytes.
    young: HashMap<(TableId, u64), Kept>,
    young_bytes: usize,
    old: HashMap<(TableId, u64), Kept>,
    old_bytes: usize,
}

impl Memo {
    /// A store of at most `bytes` for orders with `partitions` partitions in all.
    #[must_use]
    pub fn new(bytes: usize, partitions: usize) -> Self {
        let half = bytes / 2;
        // All windows in use fill three quarters of a half: it must take them and some that are used up before it is let go.
        let each = half / 4 * 3 / partitions.max(1);
        let each = each.saturating_sub(ENTRY_BYTES) / mem::size_of::<u16>();
        Self {
            window: (each as u64).clamp(MIN_WINDOW, MAX_TABLE_POSITIONS),
            half,
            young: HashMap::new(),
            young_bytes: 0,
            old: HashMap::new(),
            old_bytes: 0,
        }
    }

    /// Bytes kept now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.young_bytes + self.old_bytes
    }

    /// What the permutation of `key` on `0..len` holds at `turn`, counted from its end; `id` names it.
    pub(crate) fn draw(
        &mut self,
        id: TableId,
        len: u64,
        turn: u64,
        key: impl FnOnce() -> Key,
    ) -> u64 {
        if len > MAX_TABLE_POSITIONS {
            let kept = self.keep((id, 0), || Kept::Network(Permutation::new(key(), len)));
            return match kept {
                Kept::Network(permutation) => permutation.get(len - 1 - turn),
                Kept::Window(_) | Kept::Blocks(_) => unreachable!("another kind under this name"),
            };
        }
        // The first window of each partition ends at another turn, so that they are not all used up at once.
        let shift = (u64::from(id.lane) * STAGGER) % self.window;
        let window = (turn + shift) / self.window;
        let begins = (window * self.window).saturating_sub(shift);
        let ends = (window + 1) * self.window - shift;
        let kept = self.keep((id, window), || {
            Kept::Window(last_entries(key(), len, begins, ends - begins))
        });
        match kept {
            Kept::Window(entries) => u64::from(entries[(turn - begins) as usize]),
            Kept::Network(_) | Kept::Blocks(_) => unreachable!("another kind under this name"),
        }
    }

    /// The shards of the partition and epoch of `id`, in order.
    pub(crate) fn blocks(&mut self, id: TableId, make: impl FnOnce() -> Blocks) -> &Blocks {
        match self.keep((id, 0), || Kept::Blocks(make())) {
            Kept::Blocks(blocks) => blocks,
            Kept::Window(_) | Kept::Network(_) => unreachable!("another kind under this name"),
        }
    }

    /// The turns of window `window` of `id` in another order; if they are not kept, `make` finds them.
    pub(crate) fn turns(
        &mut self,
        (id, window): (TableId, u64),
        make: impl FnOnce(&mut Self) -> Result<Box<[u16]>>,
    ) -> Result<&[u16]> {
        let name = (id, window);
        let kept = if self.young.contains_key(&name) || self.old.contains_key(&name) {
            None
        } else {
            Some(make(self)?)
        };
        match self.keep(name, || Kept::Window(kept.unwrap_or_default())) {
            Kept::Window(turns) => Ok(turns),
            Kept::Network(_) | Kept::Blocks(_) => unreachable!("another kind under this name"),
        }
    }

    /// The entry under `name`, made if it is not there.
    fn keep(&mut self, name: (TableId, u64), make: impl FnOnce() -> Kept) -> &Kept {
        if !self.young.contains_key(&name) {
            let kept = match self.old.remove(&name) {
                Some(kept) => {
                    self.old_bytes -= kept.bytes();
                    kept
                }
                None => make(),
            };
            let bytes = kept.bytes();
            if self.young_bytes + bytes > self.half {
                self.old = mem::take(&mut self.young);
                self.old_bytes = mem::take(&mut self.young_bytes);
            }
            self.young_bytes += bytes;
            self.young.insert(name, kept);
        }
        &self.young[&name]
    }
}
