//! Which partitions a node shall hold.

use stoker_formats::Manifest;

use crate::error::{Error, Result};
use crate::place;

/// The share of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// Everything.
    All,
    /// That of node `node` of `nodes`, as `stoker place` lays a cache out that nobody holds yet.
    Node {
        /// The node, from 0.
        node: u32,
        /// How many there are.
        nodes: u32,
    },
    /// That of node `node` in a placement table.
    Placed {
        /// The node, from 0.
        node: u32,
        /// The partitions of each node.
        table: Vec<Vec<u32>>,
    },
}

impl Share {
    /// Its partitions of the cache with this manifest, ascending.
    pub(super) fn partitions(&self, manifest: &Manifest) -> Result<Vec<u32>> {
        let all = u32::try_from(manifest.partitions.len()).unwrap_or(u32::MAX);
        let (node, mut table) = match self {
            Self::All => return Ok((0..all).collect()),
            Self::Node { node, nodes } => {
                let placed = place::of_manifest(manifest, *nodes, None)?;
                (*node, placed.placement)
            }
            Self::Placed { node, table } => (*node, table.clone()),
        };
        if let Some(partition) = table.iter().flatten().find(|partition| **partition >= all) {
            return Err(Error::Usage {
                what: format!(
                    "the placement names a partition that the cache does not have: `{partition}`"
                ),
                hint: "give the placement of this cache, as `stoker place` prints it".into(),
            });
        }
        let nodes = table.len();
        let own = usize::try_from(node)
            .ok()
            .and_then(|node| table.get_mut(node));
        let mut own = std::mem::take(own.ok_or_else(|| Error::Usage {
            what: format!("{nodes} nodes are numbered from 0, there is no node `{node}`"),
            hint: "look at --node, --nodes and --placement".into(),
        })?);
        own.sort_unstable();
        own.dedup();
        Ok(own)
    }
}
