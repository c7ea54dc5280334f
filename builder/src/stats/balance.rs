//! How even a run's ranks would be: `stoker stats --balance`.
//!
//! Owns the prediction, which deals global batches as a reader does, but reads no row. Invariant: the figures are those of the
//! first global batches of an epoch, with the seed of a run that names none.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use stoker_formats::{Counts, SplitEntry};
use stoker_reader::{
    Assignment, Balance, CacheFiles, CacheUnits, Dealing, Held, Last, OrderOptions, Packs,
    Placement, Position, Schedule, Unit, World, WorldSizes, deal,
};

use crate::error::{Error, Result};

/// Global batches that are looked at.
const BATCHES: u64 = 64;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct BalanceOptions {
    /// The split.
    pub split: String,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Nodes that the ranks are spread over; node n of K holds the partitions n, n + K, n + 2 K, ...
    pub nodes: u32,
    /// Units of a global batch.
    pub batch_size: u32,
    /// The pack table whose packs are the units; by default units are samples.
    pub pack: Option<String>,
}

/// How uneven ranks are: the heaviest over the mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct Unevenness {
    /// On average over the global batches.
    pub mean: f64,
    /// In the worst of them.
    pub worst: f64,
}

/// What one way of dealing comes to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Default)]
pub struct Dealt {
    /// Of tokens.
    pub tokens: Unevenness,
    /// Of patches.
    pub patches: Unevenness,
    /// The share of tokens that are padding if a rank's part of a global batch is padded to its longest unit.
    pub padding: f64,
}

/// The prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BalanceStats {
    /// The pack table whose packs are the units; none where they are samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<String>,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Nodes.
    pub nodes: u32,
    /// Units of a global batch.
    pub batch_size: u32,
    /// Global batches that were looked at.
    pub batches: u64,
    /// With `balance=cost`.
    pub cost: Dealt,
    /// With `balance=none`.
    pub none: Dealt,
    /// The share of units on a node that does not hold them.
    pub remote: f64,
}

/// Predicts how even the ranks of a run over the cache at `root` are.
///
/// # Errors
/// If there is no cache or split, an index is missing or damaged, or the numbers make no world.
pub fn balance(root: &Path, options: &BalanceOptions) -> Result<BalanceStats> {
    let files = Arc::new(CacheFiles::open(root)?);
    let splits = &files.manifest().splits;
    let split = splits.iter().find(|split| split.name == options.split);
    let split = split.ok_or_else(|| Error::Usage {
        what: format!("no split of this name: `{}`", options.split.escape_debug()),
        hint: "see `stoker inspect` for the splits of the cache".into(),
    })?;
    let (ranks, nodes, size) = (options.ranks, options.nodes, options.batch_size);
    let order = |error| Error::from(stoker_reader::Error::Order(error));
    let world = World::new(WorldSizes {
        rank: 0,
        world_size: ranks,
        node_rank: 0,
        num_nodes: nodes,
        micro_batch_size: size.checked_div(ranks).unwrap_or(0).max(1),
        global_batch_size: size,
    })
    .map_err(order)?;
    let mut weighed = Weighed::open(&files, options.pack.as_deref())?;
    let units = weighed.units(split);
    let placement = placement(&units, nodes).map_err(order)?;
    let pack = options.pack.clone();
    let options = OrderOptions {
        last: Last::Drop,
        ..OrderOptions::default()
    };
    let schedule = Schedule::new(&[units], None, &options, size).map_err(order)?;
    let batches = schedule.epoch_batches().min(BATCHES);
    let (mut cost, mut none) = (Sums::default(), Sums::default());
    let (mut at, mut remote) = (Position::default(), 0);
    for _ in 0..batches {
        let batch = schedule.batch(at)?;
        let each = batch.units.iter().flatten();
        let counts = each
            .map(|unit| weighed.counts(*unit))
            .collect::<Result<Vec<Counts>>>()?;
        let of: BTreeMap<Unit, Counts> = batch
            .units
            .iter()
            .flatten()
            .copied()
            .zip(counts.iter().copied())
            .collect();
        for (sums, balance) in [(&mut cost, Balance::Cost), (&mut none, Balance::None)] {
            let dealing = Dealing {
                balance,
                ..Dealing::default()
            };
            let dealt = deal(&batch, &counts, &world, &placement, &dealing).map_err(order)?;
            sums.add(&dealt, ranks, &of);
            if balance == Balance::Cost {
                remote += dealt.remote();
            }
        }
        at = batch.next;
    }
    Ok(BalanceStats {
        pack,
        ranks,
        nodes,
        batch_size: size,
        batches,
        cost: cost.dealt(batches),
        none: none.dealt(batches),
        remote: remote as f64 / (batches * u64::from(size)) as f64,
    })
}

/// Each node holds every partition of its turn; one node alone holds everything.
fn placement(
    units: &CacheUnits,
    nodes: u32,
) -> std::result::Result<Placement, stoker_reader::OrderError> {
    if nodes == 1 {
        return Ok(Placement::everywhere());
    }
    let mut held = vec![Vec::new(); nodes as usize];
    for (turn, part) in units.partitions.iter().enumerate() {
        held[turn % nodes as usize].push(Held {
            cache: 0,
            partition: part.partition,
        });
    }
    Placement::new(&held)
}

/// What the units are, and what each holds.
enum Weighed {
    /// Samples, with the counts of the partitions that were asked for.
    Samples(Arc<CacheFiles>, BTreeMap<u32, Vec<Counts>>),
    Packs(Box<Packs>),
}

impl Weighed {
    fn open(files: &Arc<CacheFiles>, pack: Option<&str>) -> Result<Self> {
        let files = Arc::clone(files);
        Ok(match pack {
            None => Self::Samples(files, BTreeMap::new()),
            Some(name) => Self::Packs(Box::new(Packs::open(files, name)?)),
        })
    }

    fn units(&self, split: &SplitEntry) -> CacheUnits {
        match self {
            Self::Samples(files, _) => CacheUnits::of_split(files.manifest(), split),
            Self::Packs(packs) => packs.units(split),
        }
    }

    fn counts(&mut self, unit: Unit) -> Result<Counts> {
        let (files, partitions) = match self {
            Self::Samples(files, partitions) => (files, partitions),
            Self::Packs(packs) => return Ok(packs.counts(unit)?),
        };
        let counts = match partitions.entry(unit.partition) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(free) => {
                let index = files.sample_index(unit.partition)?;
                let counts = (0..index.len()).map_while(|row| index.counts(row));
                free.insert(counts.collect())
            }
        };
        let number = usize::try_from(unit.number).ok();
        let found = number.and_then(|number| counts.get(number));
        // The manifest's rows are held against the index when it is opened.
        Ok(found.copied().unwrap_or_default())
    }
}

/// Sums over global batches.
#[derive(Debug, Default)]
struct Sums {
    tokens: Unevenness,
    patches: Unevenness,
    real: u64,
    filled: u64,
}

impl Sums {
    fn add(&mut self, dealt: &Assignment, ranks: u32, of: &BTreeMap<Unit, Counts>) {
        let mut loads = [Vec::new(), Vec::new()];
        for rank in 0..ranks {
            let units = dealt.rank(rank);
            let counts = || units.iter().flatten().filter_map(|unit| of.get(unit));
            let tokens: u64 = counts().map(|counts| u64::from(counts.tokens)).sum();
            let longest = counts().map(|counts| u64::from(counts.tokens)).max();
            self.real += tokens;
            self.filled += longest.unwrap_or(0) * units.len() as u64;
            loads[0].push(tokens);
            loads[1].push(counts().map(|counts| u64::from(counts.patches)).sum());
        }
        for (sum, loads) in [&mut self.tokens, &mut self.patches]
            .into_iter()
            .zip(&loads)
        {
            let (all, most) = (loads.iter().sum::<u64>(), loads.iter().max());
            // Of nothing every rank has the same.
            let over = match most {
                Some(most) if all > 0 => *most as f64 * f64::from(ranks) / all as f64,
                _ => 1.0,
            };
            sum.mean += over;
            sum.worst = sum.worst.max(over);
        }
    }

    fn dealt(&self, batches: u64) -> Dealt {
        let over = |sum: Unevenness| Unevenness {
            mean: sum.mean / batches as f64,
            ..sum
        };
        Dealt {
            tokens: over(self.tokens),
            patches: over(self.patches),
            padding: 1.0 - self.real as f64 / self.filled.max(1) as f64,
        }
    }
}

impl BalanceStats {
    /// The prediction for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let units = self.pack.as_ref().map_or("samples", |_| "packs");
        let mut text = format!(
            "global batches: {} of {} {units}; ranks: {}, nodes: {}\n\n{:<34} {:>9} {:>9}\n",
            self.batches, self.batch_size, self.ranks, self.nodes, "balance", "cost", "none"
        );
        let mut line = |what: &str, of: fn(&Dealt) -> f64| {
            let _ = writeln!(
                text,
                "{what:<34} {:>9.3} {:>9.3}",
                of(&self.cost),
                of(&self.none)
            );
        };
        line("tokens, heaviest rank / mean", |dealt| dealt.tokens.mean);
        line("  in the worst global batch", |dealt| dealt.tokens.worst);
        line("patches, heaviest rank / mean", |dealt| dealt.patches.mean);
        line("  in the worst global batch", |dealt| dealt.patches.worst);
        line("padding, share of padded tokens", |dealt| dealt.padding);
        let what = format!("remote, share of {units}");
        let _ = writeln!(text, "{what:<34} {:>9.3} {:>9.3}", self.remote, self.remote);
        text
    }
}
