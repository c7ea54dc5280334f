//! Who reads: ranks, the nodes they are on, and what they take at a time.
//!
//! Owns the checks of these numbers. Invariant: in a `World` the global batch divides evenly, so all ranks take the same
//! number of steps of the same size.

use crate::order_error::OrderError;

/// Units of a global batch at most; a million is far above any in use.
const MAX_BATCH: u32 = 1 << 24;

/// Ranks at most, for the same reason.
const MAX_RANKS: u32 = 1 << 20;

/// The numbers of a world as they are given. Ranks are data-parallel ranks, nodes those of the data-parallel group: where
/// one rank's model spans hosts that all read, these count as one node, and each needs that node's partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldSizes {
    /// This rank.
    pub rank: u32,
    /// How many ranks.
    pub world_size: u32,
    /// The node that this rank reads on.
    pub node_rank: u32,
    /// How many nodes.
    pub num_nodes: u32,
    /// Units that a rank takes at a time.
    pub micro_batch_size: u32,
    /// Units of a global batch.
    pub global_batch_size: u32,
}

/// A checked world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    sizes: WorldSizes,
    /// The node of each rank.
    nodes: Vec<u32>,
}

impl World {
    /// The world of `sizes`, ranks in a row on nodes in a row, as launchers number them.
    ///
    /// # Errors
    /// If a number is out of range, ranks do not spread evenly over nodes, this rank is on another node, or the global
    /// batch is no multiple of world size x micro-batch.
    pub fn new(sizes: WorldSizes) -> Result<Self, OrderError> {
        check_size("world size", MAX_RANKS, sizes.world_size)?;
        check_size("number of nodes", MAX_RANKS, sizes.num_nodes)?;
        if !sizes.world_size.is_multiple_of(sizes.num_nodes) {
            return Err(OrderError::UnevenNodes {
                world_size: sizes.world_size,
                num_nodes: sizes.num_nodes,
            });
        }
        let each = sizes.world_size / sizes.num_nodes;
        Self::with_nodes(
            sizes,
            (0..sizes.world_size).map(|rank| rank / each).collect(),
        )
    }

    /// The same, with the node of every rank: for ranks that are numbered in another way, or spread unevenly.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_nodes(sizes: WorldSizes, nodes: Vec<u32>) -> Result<Self, OrderError> {
        check_size("world size", MAX_RANKS, sizes.world_size)?;
        check_size("number of nodes", MAX_RANKS, sizes.num_nodes)?;
        check_size("micro-batch size", MAX_BATCH, sizes.micro_batch_size)?;
        check_batch_size("global batch size", sizes.global_batch_size)?;
        check_number("rank", sizes.world_size, sizes.rank)?;
        check_number("node rank", sizes.num_nodes, sizes.node_rank)?;
        if nodes.len() != sizes.world_size as usize {
            return Err(OrderError::UnevenNodes {
                world_size: sizes.world_size,
                num_nodes: sizes.num_nodes,
            });
        }
        for node in &nodes {
            check_number("node rank", sizes.num_nodes, *node)?;
        }
        let expected = nodes[sizes.rank as usize];
        if expected != sizes.node_rank {
            return Err(OrderError::NotOnNode {
                rank: sizes.rank,
                expected,
                given: sizes.node_rank,
            });
        }
        check_division(&sizes)?;
        Ok(Self { sizes, nodes })
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.sizes.rank
    }

    /// How many data-parallel ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.sizes.world_size
    }

    /// The node of this rank.
    #[must_use]
    pub fn node_rank(&self) -> u32 {
        self.sizes.node_rank
    }

    /// How many nodes.
    #[must_use]
    pub fn num_nodes(&self) -> u32 {
        self.sizes.num_nodes
    }

    /// Units that a rank takes at a time.
    #[must_use]
    pub fn micro_batch_size(&self) -> u32 {
        self.sizes.micro_batch_size
    }

    /// Units of a global batch.
    #[must_use]
    pub fn global_batch_size(&self) -> u32 {
        self.sizes.global_batch_size
    }

    /// Units of a global batch that each rank takes.
    #[must_use]
    pub fn rank_units(&self) -> u32 {
        self.sizes.global_batch_size / self.sizes.world_size
    }

    /// Micro-batches of a global batch that each rank takes.
    #[must_use]
    pub fn micro_batches(&self) -> u32 {
        self.rank_units() / self.sizes.micro_batch_size
    }

    /// The node of each rank.
    #[must_use]
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }
}

/// Fails unless `given` can be the size of a global batch.
pub(crate) fn check_batch_size(what: &'static str, given: u32) -> Result<(), OrderError> {
    check_size(what, MAX_BATCH, given)
}

fn check_size(what: &'static str, most: u32, given: u32) -> Result<(), OrderError> {
    if (1..=most).contains(&given) {
        return Ok(());
    }
    Err(OrderError::Size { what, most, given })
}

fn check_number(what: &'static str, count: u32, given: u32) -> Result<(), OrderError> {
    if given < count {
        return Ok(());
    }
    Err(OrderError::Number { what, count, given })
}

fn check_division(sizes: &WorldSizes) -> Result<(), OrderError> {
    let step = u64::from(sizes.world_size) * u64::from(sizes.micro_batch_size);
    let batch = u64::from(sizes.global_batch_size);
    if batch.is_multiple_of(step) {
        return Ok(());
    }
    let lower = batch / step * step;
    let valid = |size: u64| {
        u32::try_from(size)
            .ok()
            .filter(|size| (1..=MAX_BATCH).contains(size))
    };
    Err(OrderError::Indivisible {
        global_batch_size: sizes.global_batch_size,
        world_size: sizes.world_size,
        micro_batch_size: sizes.micro_batch_size,
        lower: valid(lower),
        upper: valid(lower + step),
    })
}
