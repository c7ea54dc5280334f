//! `stoker place`: which partition belongs on which node.
//!
//! Owns the choice. A global batch takes its units from partitions in turn, so what makes reads local is that every node holds
//! as many partitions of each split as the others, spread over their numbers; bytes decide who gets what has to move. Invariant:
//! a pure function of sizes, splits, nodes and the current table; a partition stays where it is unless its node has too many.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;
use stoker_formats::{Manifest, Partition, SplitEntry};
use stoker_reader::CacheFiles;

use crate::error::{Error, Result};

/// Nodes at most; more than the largest clusters have.
const NODES_MAX: u32 = 1 << 16;

/// A placement, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlaceReport {
    /// The partitions of each node, ascending: the reader's placement table.
    pub placement: Vec<Vec<u32>>,
    /// Bytes of each node's shards.
    pub bytes: Vec<u64>,
    /// Partitions that the current table has elsewhere, or nowhere.
    pub moved_partitions: u64,
    /// Bytes of their shards.
    pub moved_bytes: u64,
}

/// Places the partitions of the cache at `root` on `nodes` nodes, starting from `current`, if there is a table already.
///
/// # Errors
/// If there is no cache at `root`; [`Error::Usage`] for no nodes, too many, or a table of another cache.
pub fn place(root: &Path, nodes: u32, current: Option<&[Vec<u32>]>) -> Result<PlaceReport> {
    of_manifest(CacheFiles::open(root)?.manifest(), nodes, current)
}

/// The same of a cache with this manifest.
pub(crate) fn of_manifest(
    manifest: &Manifest,
    nodes: u32,
    current: Option<&[Vec<u32>]>,
) -> Result<PlaceReport> {
    let sizes: Vec<u64> = manifest.partitions.iter().map(bytes).collect();
    place_sizes(&sizes, &manifest.splits, nodes, current)
}

/// Bytes of a partition's shards.
fn bytes(partition: &Partition) -> u64 {
    let files = [&partition.images, &partition.samples];
    let shards = files
        .into_iter()
        .flat_map(|files| files.shards.iter().flatten());
    shards.map(|shard| shard.bytes).sum()
}

fn place_sizes(
    sizes: &[u64],
    splits: &[SplitEntry],
    nodes: u32,
    current: Option<&[Vec<u32>]>,
) -> Result<PlaceReport> {
    if !(1..=NODES_MAX).contains(&nodes) {
        return Err(Error::Usage {
            what: format!("nodes are 1 to {NODES_MAX}, not `{nodes}`"),
            hint: "give --nodes".into(),
        });
    }
    let homes = homes(sizes.len(), current)?;
    let mut placing = Placing {
        sizes,
        placement: vec![Vec::new(); nodes as usize],
        bytes: vec![0; nodes as usize],
    };
    if current.is_none() {
        // Where part builds of so many workers put them.
        for partition in 0..sizes.len() {
            placing.put(partition % nodes as usize, partition);
        }
    } else {
        for split in splits {
            let first = split.first_partition as usize;
            placing.split(first, &homes[first..first + split.partitions as usize]);
        }
    }
    let Placing {
        mut placement,
        bytes,
        ..
    } = placing;
    let (mut moved_partitions, mut moved_bytes) = (0, 0);
    for (node, partitions) in (0u32..).zip(&mut placement) {
        partitions.sort_unstable();
        for partition in partitions {
            if homes[*partition as usize] != Some(node) {
                moved_partitions += 1;
                moved_bytes += sizes[*partition as usize];
            }
        }
    }
    Ok(PlaceReport {
        placement,
        bytes,
        moved_partitions,
        moved_bytes,
    })
}

/// The node of each partition in the table; the first one, if several hold it.
fn homes(partitions: usize, current: Option<&[Vec<u32>]>) -> Result<Vec<Option<u32>>> {
    let mut homes = vec![None; partitions];
    for (node, held) in (0u32..).zip(current.unwrap_or_default()) {
        for partition in held {
            let home = homes
                .get_mut(*partition as usize)
                .ok_or_else(|| Error::Usage {
                    what: format!("the current table names a partition that the cache does not have: `{partition}`"),
                    hint: "give the table of this cache".into(),
                })?;
            home.get_or_insert(node);
        }
    }
    Ok(homes)
}

/// A placement in the making, split by split.
struct Placing<'a> {
    sizes: &'a [u64],
    placement: Vec<Vec<u32>>,
    bytes: Vec<u64>,
}

impl Placing<'_> {
    /// Places the partitions of one split, whose first has the number `first`.
    fn split(&mut self, first: usize, homes: &[Option<u32>]) {
        let nodes = self.placement.len();
        let mut kept: Vec<Vec<usize>> = vec![Vec::new(); nodes];
        let mut homeless = Vec::new();
        for (at, home) in homes.iter().enumerate() {
            match home.and_then(|node| kept.get_mut(node as usize)) {
                Some(kept) => kept.push(first + at),
                None => homeless.push(first + at),
            }
        }
        let quotas = self.quotas(&kept, homes.len());
        for (kept, quota) in kept.iter_mut().zip(&quotas) {
            give_up(kept, *quota, &mut homeless);
        }
        homeless.sort_unstable();
        for (node, kept) in kept.iter().enumerate() {
            for partition in kept {
                self.put(node, *partition);
            }
        }
        // By what a node lacks, then by bytes.
        let mut lacking: BTreeSet<(std::cmp::Reverse<usize>, u64, usize)> = (0..nodes)
            .map(|node| {
                let lacks = quotas[node] - kept[node].len();
                (std::cmp::Reverse(lacks), self.bytes[node], node)
            })
            .collect();
        for partition in homeless {
            let Some((std::cmp::Reverse(lacks), _, node)) = lacking.pop_first() else {
                return;
            };
            self.put(node, partition);
            let lacks = lacks.saturating_sub(1);
            lacking.insert((std::cmp::Reverse(lacks), self.bytes[node], node));
        }
    }

    /// How many partitions of a split each node gets: as many as any other, or one more. The odd ones are for those that have
    /// most of the split already, then for those with the fewest bytes.
    fn quotas(&self, kept: &[Vec<usize>], partitions: usize) -> Vec<usize> {
        let nodes = kept.len();
        let mut order: Vec<usize> = (0..nodes).collect();
        let low = partitions / nodes;
        order.sort_by_key(|node| {
            let above = kept[*node].len() > low;
            (std::cmp::Reverse(above), self.bytes[*node], *node)
        });
        let mut quotas = vec![low; nodes];
        for node in order.into_iter().take(partitions % nodes) {
            quotas[node] += 1;
        }
        quotas
    }

    fn put(&mut self, node: usize, partition: usize) {
        self.placement[node].push(u32::try_from(partition).unwrap_or(u32::MAX));
        self.bytes[node] += self.sizes[partition];
    }
}

/// Moves what is above `quota` out of `kept`, evenly spread, so that what stays is spread too.
fn give_up(kept: &mut Vec<usize>, quota: usize, homeless: &mut Vec<usize>) {
    let count = kept.len();
    if count <= quota {
        return;
    }
    let surplus = count - quota;
    // The n-th of `surplus` goes where n * count / surplus passes a whole number.
    let goes = |at: usize| (at + 1) * surplus / count > at * surplus / count;
    let (gone, stay): (Vec<_>, Vec<_>) = kept.drain(..).enumerate().partition(|(at, _)| goes(*at));
    homeless.extend(gone.into_iter().map(|(_, partition)| partition));
    kept.extend(stay.into_iter().map(|(_, partition)| partition));
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use stoker_formats::PartName;

    use super::*;

    fn splits(counts: &[u32]) -> Vec<SplitEntry> {
        let mut first_partition = 0;
        let mut splits = Vec::new();
        for (number, partitions) in counts.iter().enumerate() {
            splits.push(SplitEntry {
                name: format!("split{number}"),
                first_partition,
                partitions: *partitions,
                samples: 0,
                tokens: 0,
                loss_tokens: 0,
                images: 0,
            });
            first_partition += partitions;
        }
        splits
    }

    fn placed(counts: &[u32], nodes: u32, current: Option<&[Vec<u32>]>) -> PlaceReport {
        let partitions: u32 = counts.iter().sum();
        let sizes: Vec<u64> = (0..u64::from(partitions)).map(|at| 1000 + at % 7).collect();
        place_sizes(&sizes, &splits(counts), nodes, current).unwrap()
    }

    proptest! {
        #[test]
        fn every_partition_has_one_node_and_every_split_is_shared_evenly(
            counts in vec(1..60u32, 1..4),
            steps in vec(1..20u32, 1..4),
        ) {
            let mut current: Option<Vec<Vec<u32>>> = None;
            for nodes in steps {
                let report = placed(&counts, nodes, current.as_deref());
                prop_assert_eq!(&report, &placed(&counts, nodes, current.as_deref()));
                let mut all: Vec<u32> = report.placement.concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..counts.iter().sum()).collect::<Vec<u32>>());
                for split in splits(&counts) {
                    let range = split.first_partition..split.first_partition + split.partitions;
                    let held: Vec<usize> = report
                        .placement
                        .iter()
                        .map(|node| node.iter().filter(|at| range.contains(at)).count())
                        .collect();
                    let (least, most) = (held.iter().min(), held.iter().max());
                    prop_assert!(most.unwrap() - least.unwrap() <= 1, "{:?}", held);
                }
                // The same nodes again move nothing.
                let again = placed(&counts, nodes, Some(&report.placement));
                prop_assert_eq!((again.moved_partitions, &again.placement), (0, &report.placement));
                current = Some(report.placement);
            }
        }

        #[test]
        fn one_node_more_moves_little_more_than_its_share(
            partitions in prop_oneof![Just(48u32), Just(240), Just(960)],
            nodes in 2..33u32,
            sizes in vec(900..1100u64, 960),
        ) {
            let sizes = &sizes[..partitions as usize];
            let splits = splits(&[partitions]);
            let before = place_sizes(sizes, &splits, nodes, None).unwrap();
            let after = place_sizes(sizes, &splits, nodes + 1, Some(&before.placement)).unwrap();
            let all: u64 = sizes.iter().sum();
            let share = 1.0 / f64::from(nodes + 1) + 0.05;
            prop_assert!((after.moved_bytes as f64) < share * all as f64, "{}", after.moved_bytes);
            // And one less moves what it held, and no more than an odd one for each of the others.
            let back = place_sizes(sizes, &splits, nodes, Some(&after.placement)).unwrap();
            let held = after.placement[nodes as usize].len() as u64;
            prop_assert!(back.moved_partitions <= held + u64::from(nodes));
        }
    }

    #[test]
    fn a_new_cache_is_placed_as_part_builds_lay_it() {
        let report = placed(&[8], 4, None);
        assert_eq!(report.placement, [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(report.moved_partitions, 8);
        let report = placed(&[5, 4], 3, None);
        for (worker, held) in (0u32..).zip(report.placement) {
            let part = PartName { worker, workers: 3 };
            assert_eq!(held, part.partitions(9).collect::<Vec<_>>());
        }
    }

    #[test]
    fn wrong_tables_are_named() {
        let error = |nodes, current: &[Vec<u32>]| {
            let placed = place_sizes(&[1, 1], &splits(&[2]), nodes, Some(current));
            placed.unwrap_err().to_string()
        };
        assert!(error(0, &[]).contains("not `0`"));
        assert!(error(2, &[vec![0], vec![5]]).contains("does not have: `5`"));
    }
}
