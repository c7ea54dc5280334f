//! How many units each node can take that it holds.
//!
//! Owns the matching of units to nodes. Invariant: a flow is as large as it can be, so no dealing that keeps to it reads
//! more units on nodes that do not hold them than must be.
//!
//! Units whose partitions are on the same nodes are alike, so the matching is a flow from these groups to the nodes:
//! filled greedily, then moved along shortest paths until nothing more fits.

use std::collections::VecDeque;

use crate::placement::Placement;

/// Units that the same nodes hold.
pub(crate) struct Group {
    /// The number of that set of nodes in the placement.
    pub(crate) set: u32,
    pub(crate) nodes: Vec<usize>,
    /// Units that have no node yet.
    pub(crate) left: u32,
    /// Units for each of `nodes`.
    pub(crate) flow: Vec<u32>,
}

/// The groups of units that are held by `sets`, in the order of the sets, with the largest flow to nodes that have `room`,
/// which is taken from it.
pub(crate) fn largest(sets: &[Option<u32>], placement: &Placement, room: &mut [u32]) -> Vec<Group> {
    let mut groups = groups(sets, placement, room.len());
    fill(&mut groups, room);
    groups
}

/// The number in `groups` of the group of each set.
pub(crate) fn numbers(groups: &[Group]) -> Vec<Option<usize>> {
    let sets = groups.last().map_or(0, |group| group.set as usize + 1);
    let mut numbers = vec![None; sets];
    for (number, group) in groups.iter().enumerate() {
        numbers[group.set as usize] = Some(number);
    }
    numbers
}

/// One group for each set of nodes that occurs, in the order of the sets.
fn groups(sets: &[Option<u32>], placement: &Placement, num_nodes: usize) -> Vec<Group> {
    let mut sorted: Vec<u32> = sets.iter().copied().flatten().collect();
    sorted.sort_unstable();
    sorted
        .chunk_by(|a, b| a == b)
        .map(|same| {
            let nodes: Vec<usize> = match placement.holders(same[0]) {
                None => (0..num_nodes).collect(),
                // A table of more nodes than there are now may still be in use.
                Some(nodes) => nodes
                    .iter()
                    .map(|node| *node as usize)
                    .filter(|node| *node < num_nodes)
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
