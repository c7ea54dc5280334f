//! Who reads which unit of a global batch, by what it costs: a pure function of batch, counts, world and placement.
//!
//! Owns the stages of such a dealing: units to nodes, to ranks, to micro-batches. Invariant: as that of
//! [`assign`](crate::assign), but that with `modalities=same` more may be remote, where ranks would lack images otherwise.

use stoker_formats::Counts;

use crate::assign::{Assignment, assign, ranks_of_nodes, sets};
use crate::balance::{Bins, Cost, costs, heaviest_first, plus, weight};
use crate::flow::{self, Group};
use crate::modality::ImageSteps;
use crate::options::{Balance, Dealing, Modalities};
use crate::order_error::OrderError;
use crate::placement::Placement;
use crate::schedule::GlobalBatch;
use crate::swap::{Filled, WORD};
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
        let (first, others): (Vec<u32>, Vec<u32>) =
            order.iter().partition(|row| images[**row as usize]);
        order = [first, others].concat();
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
    /// Words of a group.
    words: usize,
    /// For each group a bit for each node that holds it.
    held: Vec<u64>,
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
        let numbers = flow::numbers(groups);
        for row in rows {
            let row = *row as usize;
            let cost = self.costs[row];
            let number = self.sets[row].and_then(|set| *numbers.get(set as usize)?);
            // What the best node weighs with the row, which it is, and the place of its group there.
            let mut best: Option<(i32, usize, Option<usize>)> = None;
            let mut offer = |node: usize, slot| {
                let with = weight(plus(load[node], cost));
                let lighter = |(least, other, _): (i32, usize, _)| {
                    let ranks = |node: usize| self.ranks[node].len() as i64;
                    let (with, least) = (i64::from(with), i64::from(least));
                    (with * ranks(other), node) < (least * ranks(node), other)
                };
                if best.is_none_or(lighter) {
                    best = Some((with, node, slot));
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
            let Some((_, node, slot)) = best else {
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
        let mut of_node = vec![Vec::new(); self.ranks.len()];
        for row in &self.order {
            of_node[self.nodes[*row as usize] as usize].push(*row);
        }
        let (least, most) = self.steps.map_or((0, 0), |steps| (steps.least, steps.most));
        let mut bins = Bins::default();
        for (ranks, rows) in self.ranks.iter().zip(&of_node) {
            let mut taken = vec![0; ranks.len()];
            bins.clear(ranks.iter().map(|_| (most, least)));
            self.spread(&mut bins, rows, each as u32, |row, bin| {
                dealt[ranks[bin] * each + taken[bin]] = row;
                taken[bin] += 1;
            });
        }
        let nodes = self.world.nodes();
        let of = |row: u32| {
            let row = row as usize;
            (self.costs[row], self.images[row])
        };
        let home = (!held.fixed).then_some(|row, word| held.nodes(row, word));
        let mut filled = Filled::new(dealt, each, nodes, of, home);
        filled.even_out();
        filled.into_rows()
    }

    /// Fills `bins` with `rows`, those with images first, for which there is room as it is; then there is room for `each` in
    /// every bin.
    fn spread(&self, bins: &mut Bins, rows: &[u32], each: u32, mut put: impl FnMut(u32, usize)) {
        let first_text = rows.partition_point(|row| self.images[*row as usize]);
        let (images, texts) = rows.split_at(first_text);
        bins.spread(images, &self.costs, &mut put);
        bins.fill_up(each);
        bins.spread(texts, &self.costs, put);
    }

    /// Divides the rows of each rank into micro-batches.
    fn to_micro_batches(&self, dealt: Vec<u32>, held: &HeldBy) -> Assignment {
        let each = self.world.rank_units() as usize;
        let mut ranks = vec![0; dealt.len()];
        for (rank, rows) in dealt.chunks(each).enumerate() {
            for row in rows {
                ranks[*row as usize] = rank;
            }
        }
        // The rows of a rank in the order in which they are dealt.
        let mut of_rank = dealt;
        let mut taken = vec![0; of_rank.len() / each];
        for row in &self.order {
            let rank = ranks[*row as usize];
            of_rank[rank * each + taken[rank]] = *row;
            taken[rank] += 1;
        }
        let mut steps = Steps::new(self);
        let mut rows = Vec::with_capacity(of_rank.len());
        let mut remote = 0;
        for (of_rank, node) in of_rank.chunks(each).zip(self.world.nodes()) {
            for row in steps.divide(self, of_rank) {
                remote += usize::from(!held.is_local(*row, *node));
                rows.push(self.batch.units[*row as usize]);
            }
        }
        Assignment::new(rows, each, remote)
    }
}

/// The micro-batches of a rank.
struct Steps {
    micro: usize,
    /// How many have images.
    with_images: usize,
    /// Rows with images that each of these can take, and needs.
    room: (u32, u32),
    bins: Bins,
    /// The rows of each.
    rows: Vec<Vec<u32>>,
    /// In the order in which they follow each other.
    order: Vec<usize>,
    found: Vec<u32>,
}

impl Steps {
    fn new(dealer: &Dealer<'_>) -> Self {
        let count = dealer.world.micro_batches() as usize;
        let micro = dealer.world.micro_batch_size() as usize;
        Self {
            micro,
            with_images: dealer.steps.map_or(0, |steps| steps.steps as usize),
            room: dealer
                .steps
                .map_or((0, 0), |steps| (steps.most_each, steps.least_each)),
            bins: Bins::default(),
            rows: vec![Vec::with_capacity(micro); count],
            order: Vec::with_capacity(count),
            found: Vec::with_capacity(count * micro),
        }
    }

    /// The rows of one rank, micro-batch by micro-batch: the heaviest first, as on every rank, and those with images before
    /// those without; in each by position.
    fn divide(&mut self, dealer: &Dealer<'_>, of_rank: &[u32]) -> &[u32] {
        let (rows, bins) = (&mut self.rows, &mut self.bins);
        rows.iter_mut().for_each(Vec::clear);
        let room = |step| {
            if step < self.with_images {
                self.room
            } else {
                (0, 0)
            }
        };
        bins.clear((0..rows.len()).map(room));
        dealer.spread(bins, of_rank, self.micro as u32, |row, step| {
            rows[step].push(row);
        });
        self.order.clear();
        self.order.extend(0..rows.len());
        self.order
            .sort_by_key(|step| (*step >= self.with_images, !weight(bins.load(*step))));
        self.found.clear();
        for step in &self.order {
            rows[*step].sort_unstable();
            self.found.extend_from_slice(&rows[*step]);
        }
        &self.found
    }
}

impl HeldBy {
    fn new(groups: &[Group], sets: &[Option<u32>], batch: &GlobalBatch, nodes: usize) -> Self {
        let words = nodes.div_ceil(WORD);
        let mut held = vec![0; (groups.len() + 2) * words];
        for (number, group) in groups.iter().enumerate() {
            for node in &group.nodes {
                held[number * words + node / WORD] |= 1 << (node % WORD);
            }
        }
        // A padding row is at home everywhere.
        let (nowhere, everywhere) = (groups.len(), groups.len() + 1);
        held[everywhere * words..].fill(u64::MAX);
        let numbers = flow::numbers(groups);
        let group = sets.iter().zip(&batch.units).map(|(set, unit)| {
            let number = set.and_then(|set| *numbers.get(set as usize)?);
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
            words,
            held,
            fixed: alone && sets.iter().all(Option::is_some),
        }
    }

    /// A bit for each of the nodes of `word` that hold a row.
    fn nodes(&self, row: u32, word: usize) -> u64 {
        let group = self.group[row as usize] as usize;
        self.held[group * self.words + word]
    }

    fn is_local(&self, row: u32, node: u32) -> bool {
        let node = node as usize;
        self.nodes(row, node / WORD) >> (node % WORD) & 1 == 1
    }
}
