//! Who reads which unit of a global batch, by what it costs: a pure function of batch, counts, world and placement.
//!
//! Owns the stages of such a dealing: units to nodes, to ranks, to micro-batches. Invariant: as that of
//! [`assign`](crate::assign), but that with `modalities=same` more may be remote, where ranks would lack images otherwise.

use stoker_formats::Counts;

use crate::assign::{Assignment, assign, ranks_of_nodes, sets};
use crate::balance::{Bins, Cost, Filled, costs, heaviest_first, plus, weight};
use crate::flow::{self, Group};
use crate::modality::ImageSteps;
use crate::options::{Balance, Dealing, Modalities};
use crate::order_error::OrderError;
use crate::placement::Placement;
use crate::schedule::GlobalBatch;
use crate::world::World;

/// Assigns the units of `batch`, whose rows have `counts`, to the ranks of `world`.
///
/// # Errors
/// [`OrderError::Modalities`] if images do not go round and no dummies are wanted.
///
/// # Panics
/// If `batch` was made for another global batch size than `world`, or has another number of rows than counts.
pub fn deal(
    batch: &GlobalBatch,
    counts: &[Counts],
    world: &World,
    placement: &Placement,
    dealing: &Dealing,
) -> Result<Assignment, OrderError> {
    if dealing.balance == Balance::None && dealing.modalities == Modalities::Any {
        return Ok(assign(batch, world, placement));
    }
    let rows = batch.units.len();
    assert_eq!(
        rows,
        world.global_batch_size() as usize,
        "units of the global batch"
    );
    assert_eq!(rows, counts.len(), "counts of the global batch");
    let costs = match dealing.balance {
        Balance::Cost => costs(counts),
        Balance::None => vec![[1, 0]; rows],
    };
    let images: Vec<bool> = match dealing.modalities {
        Modalities::Any => vec![false; rows],
        Modalities::Same => counts.iter().map(|counts| counts.images > 0).collect(),
    };
    let steps = match dealing.modalities {
        Modalities::Any => None,
        Modalities::Same => {
            let images = images.iter().filter(|image| **image).count() as u32;
            Some(ImageSteps::new(
                images,
                world,
                dealing.dummy_image,
                batch.at,
            )?)
        }
    };
    let mut order = heaviest_first(&costs);
    if steps.is_some() {
        order.sort_by_key(|row| !images[*row as usize]);
    }
    let ranks = ranks_of_nodes(world);
    let mut dealer = Dealer {
        batch,
        world,
        placement,
        costs,
        images,
        steps,
        order,
        sets: sets(batch, placement),
        nodes: vec![0; rows],
        ranks,
    };
    let held = dealer.deal_to_nodes();
    let dealt = dealer.deal_to_ranks(&held);
    Ok(dealer.to_micro_batches(dealt, &held))
}

struct Dealer<'a> {
    batch: &'a GlobalBatch,
    world: &'a World,
    placement: &'a Placement,
    costs: Vec<Cost>,
    /// Whether a row counts as one with images: none does where that plays no part.
    images: Vec<bool>,
    steps: Option<ImageSteps>,
    /// The rows in the order in which they are dealt.
    order: Vec<u32>,
    /// The set of nodes that hold each row's unit.
    sets: Vec<Option<u32>>,
    /// The node of each row.
    nodes: Vec<u32>,
    /// The ranks of each node.
    ranks: Vec<Vec<usize>>,
}

/// Which nodes hold what.
struct HeldBy {
    /// The group of each row; two groups more are of rows that no node holds and that all do.
    group: Vec<u32>,
    nodes: usize,
    /// For each group and node whether it is held there.
    held: Vec<bool>,
    /// Whether every set is held by one node and every unit can be read there: then nothing moves between nodes.
    fixed: bool,
}

impl Dealer<'_> {
    /// Deals rows to nodes.
    fn deal_to_nodes(&mut self) -> HeldBy {
        let each = self.world.rank_units();
        let of_node: Vec<u32> = self.ranks.iter().map(|ranks| ranks.len() as u32).collect();
        let share: Vec<u32> = of_node.iter().map(|ranks| ranks * each).collect();
        let mut room = share.clone();
        let mut groups = flow::largest(&self.sets, self.placement, &mut room);
        let held = HeldBy::new(&groups, &self.sets, self.batch, share.len());
        let order = std::mem::take(&mut self.order);
        let mut load = vec![[0; 2]; share.len()];
        self.place(&order, &mut groups, &mut room, &mut load);
        if let Some(steps) = self.steps {
            let mut found = vec![0; share.len()];
            for (node, image) in self.nodes.iter().zip(&self.images) {
                found[*node as usize] += u32::from(*image);
            }
            let wanted = steps.of_nodes(&of_node, &found);
            if wanted != found {
                self.place_apart(&order, &wanted, &share);
            }
        }
        self.order = order;
        held
    }

    /// Deals rows with images and rows without to nodes, one after the other, so that each node gets what is `wanted`.
    fn place_apart(&mut self, order: &[u32], wanted: &[u32], share: &[u32]) {
        let mut load = vec![[0; 2]; share.len()];
        let first_text = order.partition_point(|row| self.images[*row as usize]);
        let rest = share
            .iter()
            .zip(wanted)
            .map(|(share, wanted)| share - wanted);
        let rooms = [wanted.to_vec(), rest.collect()];
        let (images, texts) = order.split_at(first_text);
        for (rows, mut room) in [images, texts].into_iter().zip(rooms) {
            let sets: Vec<_> = rows.iter().map(|row| self.sets[*row as usize]).collect();
            let mut groups = flow::largest(&sets, self.placement, &mut room);
            self.place(rows, &mut groups, &mut room, &mut load);
        }
    }

    /// Gives each of `rows` the node that is lightest with it, of those that have a place for its group or are free.
    fn place(&mut self, rows: &[u32], groups: &mut [Group], room: &mut [u32], load: &mut [Cost]) {
        for row in rows {
            let row = *row as usize;
            let cost = self.costs[row];
            let number = self.sets[row]
                .and_then(|set| groups.binary_search_by_key(&set, |group| group.set).ok());
            let mut best: Option<(usize, Option<usize>)> = None;
            let mut offer = |node: usize, slot| {
                let with = |node: usize, other: usize| {
                    u64::from(weight(plus(load[node], cost))) * self.ranks[other].len() as u64
                };
                if best
                    .is_none_or(|(other, _)| (with(node, other), node) < (with(other, node), other))
                {
                    best = Some((node, slot));
                }
            };
            let mut free = true;
            if let Some(number) = number {
                let group = &groups[number];
                for (slot, node) in group.nodes.iter().enumerate() {
                    if group.flow[slot] > 0 {
                        offer(*node, Some(slot));
                    }
                }
                free = group.left > 0;
            }
            if free {
                for (node, room) in room.iter().enumerate() {
                    if *room > 0 {
                        offer(node, None);
                    }
                }
            }
            let Some((node, slot)) = best else {
                unreachable!("rows are as many as places");
            };
            match (number, slot) {
                (Some(number), Some(slot)) => groups[number].flow[slot] -= 1,
                (number, _) => {
                    room[node] -= 1;
                    if let Some(number) = number {
                        groups[number].left -= 1;
                    }
                }
            }
            load[node] = plus(load[node], cost);
            self.nodes[row] = node as u32;
        }
    }

    /// Deals the rows of each node to its ranks, then swaps what is uneven.
    fn deal_to_ranks(&self, held: &HeldBy) -> Vec<u32> {
        let each = self.world.rank_units() as usize;
        let mut dealt = vec![0; self.order.len()];
        let mut load = vec![[0; 2]; self.world.world_size() as usize];
        let mut of_node = vec![Vec::new(); self.ranks.len()];
        for row in &self.order {
            of_node[self.nodes[*row as usize] as usize].push(*row);
        }
        for (ranks, rows) in self.ranks.iter().zip(&of_node) {
            let mut taken = vec![0; ranks.len()];
            let limits = self.steps.map(|steps| (steps.least, steps.most));
            let bins = self.spread(rows, ranks.len(), each, limits, |row, bin| {
                dealt[ranks[bin] * each + taken[bin]] = row;
                taken[bin] += 1;
            });
            for (rank, bin) in ranks.iter().zip(bins.load) {
                load[*rank] = bin;
            }
        }
        let mut filled = Filled {
            costs: &self.costs,
            rows: &mut dealt,
            each,
            load,
            places: self.world.nodes(),
            apart: held.fixed,
        };
        let nodes = self.world.nodes();
        filled.even_out(|a, in_a, b, in_b| {
            let (at_a, at_b) = (nodes[in_a], nodes[in_b]);
            let like = self.images[a as usize] == self.images[b as usize];
            let local = |row: u32, node: u32| u8::from(held.is_local(row, node));
            let keeps = || {
                at_a == at_b || local(a, at_b) + local(b, at_a) >= local(a, at_a) + local(b, at_b)
            };
            like && keeps()
        });
        dealt
    }

    /// Fills `count` bins of `each` rows with `rows`, those with images first and so that every bin has as many as `limits` say.
    fn spread(
        &self,
        rows: &[u32],
        count: usize,
        each: usize,
        limits: Option<(u32, u32)>,
        mut put: impl FnMut(u32, usize),
    ) -> Bins {
        let first_text = rows.partition_point(|row| self.images[*row as usize]);
        let (images, texts) = rows.split_at(first_text);
        let (least, most) = limits.unwrap_or_default();
        let mut bins = Bins {
            load: vec![[0; 2]; count],
            room: vec![most; count],
            need: vec![least; count],
        };
        if !images.is_empty() {
            bins.spread(images, &self.costs, &mut put);
        }
        for room in &mut bins.room {
            *room = each as u32 - (most - *room);
        }
        bins.need.fill(0);
        bins.spread(texts, &self.costs, put);
        bins
    }

    /// Divides the rows of each rank into micro-batches.
    fn to_micro_batches(&self, dealt: Vec<u32>, held: &HeldBy) -> Assignment {
        let each = self.world.rank_units() as usize;
        let micro = self.world.micro_batch_size() as usize;
        let mut rows = Vec::with_capacity(dealt.len());
        let mut remote = 0;
        for (of_rank, node) in dealt.chunks(each).zip(self.world.nodes()) {
            for row in self.in_steps(of_rank, micro) {
                remote += usize::from(!held.is_local(row, *node));
                rows.push(self.batch.units[row as usize]);
            }
        }
        Assignment::new(rows, each, remote)
    }

    /// The rows of one rank, micro-batch by micro-batch: the heaviest first, as on every rank, and those with images before
    /// those without; in each by position.
    fn in_steps(&self, rows: &[u32], micro: usize) -> Vec<u32> {
        let count = rows.len() / micro;
        let mut rows = rows.to_vec();
        rows.sort_unstable_by_key(|row| {
            let row = *row as usize;
            (!self.images[row], !weight(self.costs[row]), row)
        });
        let mut bins: Vec<Vec<u32>> = vec![Vec::with_capacity(micro); count];
        let first_text = rows.partition_point(|row| self.images[*row as usize]);
        let with_images = self.steps.map_or(0, |steps| steps.steps as usize);
        let (images, texts) = rows.split_at(first_text);
        let mut cells = Bins {
            load: vec![[0; 2]; count],
            room: vec![0; count],
            need: vec![0; count],
        };
        if let Some(steps) = self.steps {
            cells.room[..with_images].fill(steps.most_each);
            cells.need[..with_images].fill(steps.least_each);
            cells.spread(images, &self.costs, |row, bin| bins[bin].push(row));
        }
        for (room, bin) in cells.room.iter_mut().zip(&bins) {
            *room = (micro - bin.len()) as u32;
        }
        cells.need.fill(0);
        cells.spread(texts, &self.costs, |row, bin| bins[bin].push(row));
        let mut steps: Vec<usize> = (0..count).collect();
        steps.sort_by_key(|step| (*step >= with_images, !weight(cells.load[*step])));
        let mut out = Vec::with_capacity(rows.len());
        for step in steps {
            bins[step].sort_unstable();
            out.extend_from_slice(&bins[step]);
        }
        out
    }
}

impl HeldBy {
    fn new(groups: &[Group], sets: &[Option<u32>], batch: &GlobalBatch, nodes: usize) -> Self {
        let mut held = vec![false; (groups.len() + 2) * nodes];
        for (number, group) in groups.iter().enumerate() {
            for node in &group.nodes {
                held[number * nodes + node] = true;
            }
        }
        // A padding row is at home everywhere.
        let (nowhere, everywhere) = (groups.len(), groups.len() + 1);
        held[everywhere * nodes..].fill(true);
        let group = sets.iter().zip(&batch.units).map(|(set, unit)| {
            let number =
                set.and_then(|set| groups.binary_search_by_key(&set, |group| group.set).ok());
            match unit {
                Some(_) => number.unwrap_or(nowhere) as u32,
                None => everywhere as u32,
            }
        });
        let alone = groups
            .iter()
            .all(|group| group.nodes.len() == 1 && group.left == 0);
        Self {
            group: group.collect(),
            nodes,
            held,
            fixed: alone && sets.iter().all(Option::is_some),
        }
    }

    fn is_local(&self, row: u32, node: u32) -> bool {
        let group = self.group[row as usize] as usize;
        self.held[group * self.nodes + node as usize]
    }
}
