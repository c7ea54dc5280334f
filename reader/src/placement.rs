//! Which node holds which partition.
//!
//! Owns the table, its hash, and that of a world on it. Invariant: equal holdings make equal tables and hashes, in whatever order they were
//! found; all ranks must have the same.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use stoker_formats::limits::MAX_PARTITIONS;
use stoker_formats::{ContentHash, ContentHasher};

use crate::order_error::OrderError;
use crate::world::World;

const CONTEXT: &[u8] = b"stoker placement 1\n";

const GEOMETRY_CONTEXT: &[u8] = b"stoker cursor geometry 1\n";

/// Caches at most: more cannot be opened at a time.
const MAX_CACHES: u32 = 1 << 16;

/// Stands for a partition that no node holds.
const NOWHERE: u32 = u32::MAX;

/// One partition that a node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// The cache, by its place in the list of caches.
    pub cache: u32,
    /// The partition.
    pub partition: u32,
}

/// The placement table.
#[derive(Debug, Clone)]
pub struct Placement {
    /// None where every node holds everything.
    table: Option<Table>,
    /// The nodes of the ranks of the world whose geometry was asked for first, and that: cursors are saved often.
    geometry: OnceLock<(u32, Vec<u32>, ContentHash)>,
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        self.table == other.table
    }
}

impl Eq for Placement {}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    /// The different sets of nodes that hold something, ascending.
    sets: Vec<Vec<u32>>,
    /// For each cache and partition the set, or [`NOWHERE`].
    partitions: Vec<Vec<u32>>,
}

impl Placement {
    /// Every node holds everything, or reaches it as easily.
    #[must_use]
    pub fn everywhere() -> Self {
        Self::of(None)
    }

    fn of(table: Option<Table>) -> Self {
        Self {
            table,
            geometry: OnceLock::new(),
        }
    }

    /// Node `n` holds `nodes[n]`.
    ///
    /// # Errors
    /// [`OrderError::Placement`] if a number is beyond what a cache can have.
    pub fn new(nodes: &[Vec<Held>]) -> Result<Self, OrderError> {
        let mut holders: BTreeMap<Held, Vec<u32>> = BTreeMap::new();
        for (node, held) in (0u32..).zip(nodes) {
            for held in held {
                check("cache", MAX_CACHES, held.cache)?;
                check("partition", MAX_PARTITIONS, held.partition)?;
                let holders = holders.entry(*held).or_default();
                if holders.last() != Some(&node) {
                    holders.push(node);
                }
            }
        }
        let mut sets: Vec<Vec<u32>> = holders.values().cloned().collect();
        sets.sort_unstable();
        sets.dedup();
        let mut partitions: Vec<Vec<u32>> = Vec::new();
        for (held, holders) in &holders {
            let (cache, partition) = (held.cache as usize, held.partition as usize);
            if partitions.len() <= cache {
                partitions.resize_with(cache + 1, Vec::new);
            }
            // Ascending, so that this is the last partition of its cache so far.
            partitions[cache].resize(partition, NOWHERE);
            let set = sets.partition_point(|set| set < holders);
            partitions[cache].push(set as u32);
        }
        Ok(Self::of(Some(Table { sets, partitions })))
    }

    /// Whether `node` holds a partition.
    #[must_use]
    pub fn holds(&self, node: u32, held: Held) -> bool {
        self.set(held)
            .is_some_and(|set| self.holders(set).is_none_or(|nodes| nodes.contains(&node)))
    }

    /// The hash of the table; equal on all ranks, or they would read other units than each other expects.
    #[must_use]
    pub fn hash(&self) -> ContentHash {
        let mut hasher = ContentHasher::new();
        hasher.update(CONTEXT);
        if let Some(table) = &self.table {
            for (cache, sets) in (0u32..).zip(&table.partitions) {
                for (partition, set) in (0u32..).zip(sets).filter(|(_, set)| **set != NOWHERE) {
                    let nodes = &table.sets[*set as usize];
                    let numbers = [cache, partition, nodes.len() as u32];
                    for number in numbers.iter().chain(nodes) {
                        hasher.update(&number.to_le_bytes());
                    }
                }
            }
        } else {
            hasher.update(b"everywhere");
        }
        hasher.finish()
    }

    /// The hash of what decides, besides the sizes, which rank of `world` reads which unit.
    pub(crate) fn geometry(&self, world: &World) -> ContentHash {
        let (num_nodes, nodes) = (world.num_nodes(), world.nodes());
        let compute = || {
            let mut hasher = ContentHasher::new();
            hasher.update(GEOMETRY_CONTEXT);
            hasher.update(&num_nodes.to_le_bytes());
            for node in nodes {
                hasher.update(&node.to_le_bytes());
            }
            hasher.update(&self.hash().0);
            hasher.finish()
        };
        let first = || (num_nodes, nodes.to_vec(), compute());
        match self.geometry.get_or_init(first) {
            (same, same_nodes, hash) if (*same, &**same_nodes) == (num_nodes, nodes) => *hash,
            _ => compute(),
        }
    }

    /// The number of the set of nodes that hold a partition; none if no node does.
    pub(crate) fn set(&self, held: Held) -> Option<u32> {
        let Some(table) = &self.table else {
            return Some(0);
        };
        let sets = table.partitions.get(held.cache as usize)?;
        let set = *sets.get(held.partition as usize)?;
        (set != NOWHERE).then_some(set)
    }

    /// The nodes of set `set`, ascending; none stands for all nodes.
    pub(crate) fn holders(&self, set: u32) -> Option<&[u32]> {
        let table = self.table.as_ref()?;
        Some(&table.sets[set as usize])
    }
}

fn check(what: &'static str, most: u32, given: u32) -> Result<(), OrderError> {
    if given < most {
        return Ok(());
    }
    Err(OrderError::Placement { what, given })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::WorldSizes;

    #[test]
    fn a_geometry_is_that_of_its_world_whoever_asked_first() {
        let world = |num_nodes, nodes: &[u32]| {
            let sizes = WorldSizes {
                rank: 0,
                world_size: 4,
                node_rank: 0,
                num_nodes,
                micro_batch_size: 1,
                global_batch_size: 4,
            };
            World::with_nodes(sizes, nodes.to_vec()).unwrap()
        };
        let worlds = [
            world(2, &[0, 0, 1, 1]),
            world(2, &[0, 1, 0, 1]),
            world(3, &[0, 0, 1, 1]),
        ];
        let held = |partition| Held {
            cache: 0,
            partition,
        };
        let new = || Placement::new(&[vec![held(0)], vec![held(0), held(1)]]).unwrap();
        let shared = new();
        let mut seen = Vec::new();
        for world in &worlds {
            let hash = shared.geometry(world);
            assert_eq!(hash, new().geometry(world));
            assert_ne!(hash, Placement::everywhere().geometry(world));
            assert!(!seen.contains(&hash));
            seen.push(hash);
        }
        assert_eq!(shared, new());
    }
}
