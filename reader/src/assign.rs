//! Who reads which unit of a global batch: a pure function of batch, world and placement.
//!
//! Owns the matching of units to nodes and their dealing to ranks. Invariant: every rank gets the same number of rows,
//! every unit goes to one rank, and no assignment reads fewer units on nodes that do not hold them.
//!
//! Units whose partitions are on the same nodes are alike, so the matching is a flow from these groups to the nodes:
//! filled greedily, then moved along shortest paths until nothing more fits.

use std::collections::VecDeque;

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

/// Units that the same nodes hold.
struct Group {
    /// The number of that set of nodes in the placement.
    set: u32,
    nodes: Vec<usize>,
    /// Units that have no node yet.
    left: u32,
    /// Units for each of `nodes`.
    flow: Vec<u32>,
}

/// Assigns the units of `batch` to the ranks of `world`.
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
    let mut ranks = vec![Vec::new(); world.num_nodes() as usize];
    for (rank, node) in world.nodes().iter().enumerate() {
        ranks[*node as usize].push(rank);
    }
    let mut room: Vec<u32> = ranks
        .iter()
        .map(|ranks| (ranks.len() * rank_rows) as u32)
        .collect();

    let sets: Vec<Option<u32>> = batch
        .units
        .iter()
        .map(|unit| {
            let Unit {
                cache, partition, ..
            } = (*unit)?;
            placement.set(Held { cache, partition })
        })
        .collect();
    let mut groups = groups(&sets, placement, world.num_nodes());
    fill(&mut groups, &mut room);
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
    Assignment {
        rows,
        rank_rows,
        remote,
    }
}

/// How many units of the next `batches` global batches from `at` are read where they are not held, and of how many: what to
/// know before a run. Costs no more than the assignments, as no row is looked up.
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

/// One group for each set of nodes that occurs, in the order of the sets.
fn groups(sets: &[Option<u32>], placement: &Placement, num_nodes: u32) -> Vec<Group> {
    let mut sorted: Vec<u32> = sets.iter().copied().flatten().collect();
    sorted.sort_unstable();
    sorted
        .chunk_by(|a, b| a == b)
        .map(|same| {
            let nodes: Vec<usize> = match placement.holders(same[0]) {
                None => (0..num_nodes as usize).collect(),
                // A table of more nodes than there are now may still be in use.
                Some(nodes) => nodes
                    .iter()
                    .filter(|node| **node < num_nodes)
                    .map(|node| *node as usize)
                    .collect(),
            };
            Group {
                set: same[0],
                flow: vec![0; nodes.len()],
                nodes,
                left: same.len() as u32,
            }
        })
        .collect()
}

/// Finds the largest flow.
fn fill(groups: &mut [Group], room: &mut [u32]) {
    let mut at_node = vec![Vec::new(); room.len()];
    for (number, group) in groups.iter_mut().enumerate() {
        for (slot, node) in group.nodes.iter().enumerate() {
            at_node[*node].push((number, slot));
            let fits = group.left.min(room[*node]);
            group.flow[slot] = fits;
            group.left -= fits;
            room[*node] -= fits;
        }
    }
    for number in 0..groups.len() {
        while groups[number].left > 0 && make_room(number, groups, room, &at_node) {}
    }
}

/// Moves other groups' units to other nodes that hold them, so that more of group `number` fit; says whether it could.
fn make_room(
    number: usize,
    groups: &mut [Group],
    room: &mut [u32],
    at_node: &[Vec<(usize, usize)>],
) -> bool {
    // For each node that was reached: the group that would move to it, from which slot and to which.
    let mut reached: Vec<Option<(usize, Option<usize>, usize)>> = vec![None; room.len()];
    let mut queue = VecDeque::new();
    for (slot, node) in groups[number].nodes.iter().enumerate() {
        reached[*node] = Some((number, None, slot));
        queue.push_back(*node);
    }
    let end = loop {
        let Some(node) = queue.pop_front() else {
            return false;
        };
        if room[node] > 0 {
            break node;
        }
        for (other, slot) in &at_node[node] {
            let group = &groups[*other];
            if group.flow[*slot] == 0 {
                continue;
            }
            for (to, next) in group.nodes.iter().enumerate() {
                if reached[*next].is_none() {
                    reached[*next] = Some((*other, Some(*slot), to));
                    queue.push_back(*next);
                }
            }
        }
    };
    let mut path = Vec::new();
    let mut node = end;
    while let Some((group, from, to)) = reached[node] {
        path.push((group, from, to));
        match from {
            Some(from) => node = groups[group].nodes[from],
            None => break,
        }
    }
    let movable = path
        .iter()
        .filter_map(|(group, from, _)| Some(groups[*group].flow[(*from)?]));
    let units = movable.fold(room[end].min(groups[number].left), u32::min);
    for (group, from, to) in path {
        if let Some(from) = from {
            groups[group].flow[from] -= units;
        }
        groups[group].flow[to] += units;
    }
    groups[number].left -= units;
    room[end] -= units;
    units > 0
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
