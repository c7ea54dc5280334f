//! What each node will have to bring, before it does.
//!
//! Owns the count, which schedule, placement and indexes are enough for. Invariant: it is never too low: which images a sample
//! shows stands in its row, which nothing here reads, so all image shards of its partition count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Result;
use crate::open_files::{FileId, FileKind};
use crate::placement::Held;
use crate::rows::Rows;
use crate::schedule::Position;
use crate::unit::Unit;
use crate::work::Plan;

/// Says what each node will have to bring from where a reader was, whatever that does meanwhile.
#[derive(Debug, Clone)]
pub struct Planner {
    pub(crate) plan: Arc<Plan>,
    pub(crate) at: Position,
    pub(crate) cache_disk: Option<u64>,
}

/// What one node will have to bring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodePlan {
    /// The node.
    pub node: u32,
    /// Units that it reads and does not hold.
    pub units: u64,
    /// The partitions that these are of, ascending.
    pub partitions: Vec<Held>,
    /// Shards that it may have to bring.
    pub shards: u64,
    /// Their bytes, each shard once: what is brought at most if `cache_disk` holds them all, and nothing of them is there yet.
    pub bytes: u64,
    /// The same where `cache_disk` is less: then a shard may be brought again for each global batch that needs it, and this counts
    /// it so. Holds as long as `cache_disk` has room for the shards that the node needs in one global batch.
    pub bytes_at_most: u64,
}

/// The shards that a node needs of one kind of files, by what it costs to bring them.
type Shards = BTreeMap<(u32, u32, bool, u32), u64>;

/// What a node needs of one global batch.
#[derive(Default)]
struct Batch {
    shards: Shards,
    /// Cache and partition of those whose image shards are among them already.
    with_images: BTreeSet<(u32, u32)>,
}

/// What one node needs so far.
#[derive(Default)]
struct Needed {
    units: u64,
    partitions: BTreeSet<Held>,
    shards: Shards,
    again: u64,
}

impl Planner {
    /// What each node will have to bring to the end of the epoch. Deals every batch up to there, for which the index entries of
    /// all its units are read, and nothing else. None as soon as `stop`, which is asked before each global batch, says so.
    ///
    /// # Errors
    /// What is wrong with an index; [`Error::Order`](crate::Error::Order) where a run would end, too.
    pub fn plan(&self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<NodePlan>>> {
        let plan = &*self.plan;
        let mut nodes: Vec<Needed> = Vec::new();
        nodes.resize_with(plan.world.num_nodes() as usize, Needed::default);
        let mut at = plan.schedule.settle(self.at)?;
        let epoch = at.epoch;
        while at.epoch == epoch {
            if stop() {
                return Ok(None);
            }
            at = add_batch(plan, at, &mut nodes)?;
        }
        let nodes = (0u32..).zip(nodes);
        let plans = nodes.map(|(node, needed)| needed.plan(node, self.cache_disk));
        Ok(Some(plans.collect()))
    }
}

impl Needed {
    fn plan(self, node: u32, cache_disk: Option<u64>) -> NodePlan {
        let bytes = self.shards.values().sum();
        let fits = cache_disk.is_none_or(|cache_disk| bytes <= cache_disk);
        NodePlan {
            node,
            units: self.units,
            partitions: self.partitions.into_iter().collect(),
            shards: self.shards.len() as u64,
            bytes,
            bytes_at_most: if fits { bytes } else { self.again },
        }
    }
}

/// Adds what the `nodes` need of the global batch at `at`; where the next one is.
fn add_batch(plan: &Plan, at: Position, nodes: &mut [Needed]) -> Result<Position> {
    let dealt = plan.deal(at)?;
    let mut batches: Vec<Batch> = Vec::new();
    batches.resize_with(nodes.len(), Batch::default);
    for (rank, node) in (0u32..).zip(plan.world.nodes()) {
        for unit in dealt.assignment.rank(rank).iter().flatten() {
            let number = *node as usize;
            let (Some(needed), Some(batch)) = (nodes.get_mut(number), batches.get_mut(number))
            else {
                continue;
            };
            if add_unit(plan, *node, *unit, batch)? {
                needed.units += 1;
                needed.partitions.insert(held(*unit));
            }
        }
    }
    for (needed, batch) in nodes.iter_mut().zip(batches) {
        needed.again += batch.shards.values().sum::<u64>();
        needed.shards.extend(batch.shards);
    }
    Ok(dealt.batch.next)
}

fn held(unit: Unit) -> Held {
    Held {
        cache: unit.cache,
        partition: unit.partition,
    }
}

/// Adds the shards that `node` lacks of a unit to `batch`; whether there are any. What this node lacks it sees; of other nodes
/// the placement says it.
fn add_unit(plan: &Plan, node: u32, unit: Unit, batch: &mut Batch) -> Result<bool> {
    let is_here = node == plan.world.node_rank();
    let remote = plan.rows.remote();
    if !is_here && plan.placement.holds(node, held(unit)) || is_here && remote.is_none() {
        return Ok(false);
    }
    let lacks = |id: FileId| !is_here || remote.is_some_and(|remote| remote.is_away(id));
    let files = plan.rows.files(unit.cache)?;
    let partition = files.partition(unit.partition)?;
    let mut any = false;
    let mut add = |id: FileId, bytes: u64| {
        if lacks(id) {
            let is_image = id.kind == FileKind::ImageShard;
            batch
                .shards
                .insert((id.cache, id.partition, is_image, id.ordinal), bytes);
            any = true;
        }
    };
    let mut images = 0;
    for sample in plan.rows.units().samples(unit)? {
        let entry = plan.rows.entry(sample)?;
        images += entry.n_images;
        let id = Rows::sample_shard(sample, &entry);
        let shard = partition.samples.shards.get(id.ordinal as usize);
        add(id, shard.copied().flatten().map_or(0, |shard| shard.bytes));
    }
    if images > 0 && batch.with_images.insert((unit.cache, unit.partition)) {
        for (ordinal, shard) in (0u32..).zip(&partition.images.shards) {
            let id = FileId {
                cache: unit.cache,
                kind: FileKind::ImageShard,
                partition: unit.partition,
                ordinal,
            };
            if let Some(shard) = shard {
                add(id, shard.bytes);
            }
        }
    }
    Ok(any)
}
