//! Who reads which unit of a global batch: a pure function of batch, world and placement.
//!
//! Owns the matching of units to nodes and their dealing to ranks. Invariant: every rank gets the same number of rows,
//! every unit goes to one rank, and no assignment reads fewer units on nodes that do not hold them.

use crate::flow::{self, Group};
use crate::order_error::OrderError;
use crate::placement::{Held, Placement};
use crate::schedule::{GlobalBatch, Position, Schedule};
use crate::unit::Unit;
use crate::world::World;

/// The rows of every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    rows: Vec<Option<Unit>>,
    rank_rows: usize,
    remote: usize,
}

impl Assignment {
    /// The assignment of `rows`, those of one rank after those of another.
    pub(crate) fn new(rows: Vec<Option<Unit>>, rank_rows: usize, remote: usize) -> Self {
        Self {
            rows,
            rank_rows,
            remote,
        }
    }

    /// The rows of `rank`, in order; none stands for a padding row.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn rank(&self, rank: u32) -> &[Option<Unit>] {
        let from = rank as usize * self.rank_rows;
        &self.rows[from..from + self.rank_rows]
    }

    /// Units that are read on a node that does not hold their partition.
    #[must_use]
    pub fn remote(&self) -> usize {
        self.remote
    }
}

/// What a [`survey`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Survey {
    /// Units in all.
    pub units: u64,
    /// Units on a node that does not hold their partition.
    pub remote: u64,
}

/// Assigns the units of `batch` to the ranks of `world` in the order of positions, whatever they cost.
///
/// A unit goes to a node that holds it, as long as that node's share of the batch lasts; the rest, and padding rows, fill
/// what is free in the order of positions. A node's units are dealt to its ranks in turn, in the order of positions.
///
/// # Panics
/// If `batch` was made for another global batch size than `world`.
#[must_use]
pub fn assign(batch: &GlobalBatch, world: &World, placement: &Placement) -> Assignment {
    assert_eq!(
        batch.units.len(),
        world.global_batch_size() as usize,
        "units of the global batch"
    );
    let rank_rows = world.rank_units() as usize;
    let ranks = ranks_of_nodes(world);
    let mut room: Vec<u32> = ranks
        .iter()
        .map(|ranks| (ranks.len() * rank_rows) as u32)
        .collect();
    let sets = sets(batch, placement);
    let mut groups = flow::largest(&sets, placement, &mut room);
    let nodes = node_of_each(&sets, &mut groups, &mut room);
    let remote = nodes.iter().zip(&batch.units);
    let remote = remote
        .filter(|((_, local), unit)| unit.is_some() && !local)
        .count();

    let mut rows = vec![None; batch.units.len()];
    let mut dealt = vec![0; ranks.len()];
    for (unit, (node, _)) in batch.units.iter().zip(nodes) {
        let of_node = &ranks[node];
        let turn = dealt[node];
        dealt[node] += 1;
        rows[of_node[turn % of_node.len()] * rank_rows + turn / of_node.len()] = *unit;
    }
    Assignment::new(rows, rank_rows, remote)
}

/// The ranks on each node, ascending.
pub(crate) fn ranks_of_nodes(world: &World) -> Vec<Vec<usize>> {
    let mut ranks = vec![Vec::new(); world.num_nodes() as usize];
    for (rank, node) in world.nodes().iter().enumerate() {
        ranks[*node as usize].push(rank);
    }
    ranks
}

/// The set of nodes that hold each row's unit; none for a padding row, or if no node does.
pub(crate) fn sets(batch: &GlobalBatch, placement: &Placement) -> Vec<Option<u32>> {
    let units = batch.units.iter();
    let set = |unit: &Option<Unit>| {
        let Unit {
            cache, partition, ..
        } = (*unit)?;
        placement.set(Held { cache, partition })
    };
    units.map(set).collect()
}

/// How many units of the next `batches` global batches from `at` are read where they are not held, and of how many: what to
/// know before a run. Costs no more than the assignments, as no row is looked up; with `modalities=same` it may be more.
///
/// # Errors
/// As [`Schedule::batch`].
///
/// # Panics
/// As [`assign`].
pub fn survey(
    schedule: &Schedule,
    world: &World,
    placement: &Placement,
    mut at: Position,
    batches: u64,
) -> Result<Survey, OrderError> {
    let mut survey = Survey::default();
    for _ in 0..batches {
        let batch = schedule.outline(at)?;
        survey.units += batch.units.iter().flatten().count() as u64;
        survey.remote += assign(&batch, world, placement).remote() as u64;
        at = batch.next;
    }
    Ok(survey)
}

/// The node of each row, and whether it holds the unit there.
fn node_of_each(
    sets: &[Option<u32>],
    groups: &mut [Group],
    room: &mut [u32],
) -> Vec<(usize, bool)> {
    let mut nodes: Vec<Option<usize>> = sets
        .iter()
        .map(|set| {
            let number = groups
                .binary_search_by_key(&(*set)?, |group| group.set)
                .ok()?;
            let group = &mut groups[number];
            let slot = group.flow.iter().position(|flow| *flow > 0)?;
            group.flow[slot] -= 1;
            Some(group.nodes[slot])
        })
        .collect();
    let mut free = 0;
    nodes
        .iter_mut()
        .map(|node| match *node {
            Some(node) => (node, true),
            None => {
                while room[free] == 0 {
                    free += 1;
                }
                room[free] -= 1;
                (free, false)
            }
        })
        .collect()
}
