//! What a position of the order delivers.
//!
//! Owns the numbers of units that an order is made from. Invariant: order and assignment treat a unit as a number in a
//! partition; what it holds, a sample or a pack of them, is known to `units.rs` alone.

use stoker_formats::{ContentHash, Manifest, SplitEntry};

/// One unit, by where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// The cache, by its place in the list of caches.
    pub cache: u32,
    /// The partition of the cache.
    pub partition: u32,
    /// Its number in the partition.
    pub number: u64,
}

/// The units of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionUnits {
    /// The partition's number in the cache.
    pub partition: u32,
    /// How many units it has.
    pub units: u64,
    /// The first unit of each shard, ascending from 0; only `shuffle=shard` looks at it.
    pub shard_starts: Vec<u64>,
}

/// Which pack table units are counted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackId {
    /// The table's name, the same in every cache of a mixture.
    pub name: String,
    /// The hash of its file.
    pub table: ContentHash,
}

/// The units of one split of one cache: all that an order needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheUnits {
    /// The cache's fingerprint.
    pub fingerprint: ContentHash,
    /// The pack table, if units are packs; otherwise they are samples.
    pub pack: Option<PackId>,
    /// The partitions of the split, ascending.
    pub partitions: Vec<PartitionUnits>,
}

impl CacheUnits {
    /// The units of `split`, one of `manifest`'s splits: its samples. Looks at no file.
    #[must_use]
    pub fn of_split(manifest: &Manifest, split: &SplitEntry) -> Self {
        let numbers = split.first_partition..split.first_partition.saturating_add(split.partitions);
        let partitions = numbers
            .filter_map(|number| {
                let samples = &manifest.partitions.get(number as usize)?.samples;
                let mut units = 0;
                let mut shard_starts = Vec::with_capacity(samples.shards.len());
                for shard in samples.shards.iter().flatten() {
                    shard_starts.push(units);
                    units += shard.rows;
                }
                Some(PartitionUnits {
                    partition: number,
                    units,
                    shard_starts,
                })
            })
            .collect();
        Self {
            fingerprint: manifest.fingerprint,
            pack: None,
            partitions,
        }
    }

    /// The packs of `split`, one of `manifest`'s splits, of a table with so many `packs` in each partition of the cache.
    #[must_use]
    pub fn of_packs(manifest: &Manifest, split: &SplitEntry, pack: PackId, packs: &[u64]) -> Self {
        let numbers = split.first_partition..split.first_partition.saturating_add(split.partitions);
        let partitions = numbers
            .filter_map(|partition| {
                Some(PartitionUnits {
                    partition,
                    units: *packs.get(partition as usize)?,
                    // A pack's samples lie anywhere in the partition.
                    shard_starts: Vec::new(),
                })
            })
            .collect();
        Self {
            fingerprint: manifest.fingerprint,
            pack: Some(pack),
            partitions,
        }
    }
}
