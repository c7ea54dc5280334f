//! Why an order, a world or a cursor is refused.
//!
//! Owns the words. Invariant: where two things differ, the message names both.

/// A fault in what an order, a batch or a cursor is asked for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// An option has an unknown value.
    #[error("{option} must be one of {}, not `{}`", known.join(", "), given.escape_debug())]
    UnknownChoice {
        /// The option.
        option: &'static str,
        /// Its values.
        known: &'static [&'static str],
        /// The value given, cut to a printable length.
        given: String,
    },
    /// A split has no units, or no cache was given.
    #[error("there are no samples to order")]
    NoUnits,
    /// A partition takes the sum of units beyond what positions can count.
    #[error("too many samples: partition {partition} has `{units}`")]
    TooManyUnits {
        /// The partition.
        partition: u32,
        /// Its units.
        units: u64,
    },
    /// Partitions of a split are not in ascending order.
    #[error("partitions do not ascend at `{partition}`")]
    Partitions {
        /// The first one that does not come after the one before.
        partition: u32,
    },
    /// The shards of a partition do not ascend from unit 0 to its end.
    #[error("the shards do not divide the units of partition `{partition}`")]
    ShardStarts {
        /// The partition.
        partition: u32,
    },
    /// Packs are to be read shard by shard.
    #[error(
        "the samples of a pack lie in any shard, so there is no shuffle=shard with pack `{pack}`"
    )]
    ShardsOfPacks {
        /// The pack table.
        pack: String,
    },
    /// Too many caches.
    #[error("too many caches, partitions or samples in one mixture: `{caches}` caches")]
    TooLargeMixture {
        /// How many caches.
        caches: usize,
    },
    /// Another number of weights than of caches.
    #[error("{caches} caches need as many weights, not `{weights}`")]
    WeightCount {
        /// How many caches.
        caches: usize,
        /// How many weights.
        weights: usize,
    },
    /// A weight that is zero, negative or no finite number.
    #[error("the weight of cache {cache} is no number above 0: `{weight}`")]
    Weight {
        /// The cache's place in the list.
        cache: usize,
        /// The weight.
        weight: f64,
    },
    /// A weight so small that its cache would never be read.
    #[error("cache {cache} would not get one of the {epoch} units of an epoch: weight `{weight}`")]
    WeightTooSmall {
        /// The cache's place in the list.
        cache: usize,
        /// Units of an epoch.
        epoch: u64,
        /// The weight.
        weight: f64,
    },
    /// A size that must be above 0, or is beyond all reason.
    #[error("{what} must be from 1 to {most}, not `{given}`")]
    Size {
        /// The size.
        what: &'static str,
        /// The most it may be.
        most: u32,
        /// What was given.
        given: u32,
    },
    /// A rank or node number that does not exist.
    #[error("{what} must be below {count}, not `{given}`")]
    Number {
        /// "rank" or "node rank".
        what: &'static str,
        /// How many there are.
        count: u32,
        /// What was given.
        given: u32,
    },
    /// Ranks do not divide evenly over nodes.
    #[error("a world of {world_size} ranks does not spread evenly over nodes: `{num_nodes}`")]
    UnevenNodes {
        /// Data-parallel ranks.
        world_size: u32,
        /// Nodes.
        num_nodes: u32,
    },
    /// The node does not hold the rank.
    #[error("rank {rank} is on node {expected}, not on `{given}`")]
    NotOnNode {
        /// The rank.
        rank: u32,
        /// Its node.
        expected: u32,
        /// What was given.
        given: u32,
    },
    /// The global batch is no multiple of what the ranks take at a time.
    #[error(
        "a global batch of {global_batch_size} does not divide by world size {world_size} x micro-batch {micro_batch_size}; nearest: {}",
        nearest(*lower, *upper)
    )]
    Indivisible {
        /// Units of a global batch.
        global_batch_size: u32,
        /// Data-parallel ranks.
        world_size: u32,
        /// Units of a micro-batch.
        micro_batch_size: u32,
        /// The next smaller size that fits.
        lower: Option<u32>,
        /// The next larger size that fits.
        upper: Option<u32>,
    },
    /// A placement names more caches, partitions or nodes than there can be.
    #[error("no {what} of a placement can have the number `{given}`")]
    Placement {
        /// "cache" or "partition".
        what: &'static str,
        /// The number.
        given: u32,
    },
    /// An epoch does not give one global batch.
    #[error("an epoch has {units} units, too few for a global batch of `{global_batch_size}`")]
    ShortEpoch {
        /// Units of an epoch.
        units: u64,
        /// Units of a global batch.
        global_batch_size: u32,
    },
    /// The last global batch of an epoch is short, and `last=error`.
    #[error(
        "with last=error an epoch must divide into global batches of {global_batch_size}; left over: `{left}`"
    )]
    ShortBatch {
        /// Units of a global batch.
        global_batch_size: u32,
        /// Units that are left.
        left: u64,
    },
    /// With `order=length` somebody must say how long units are.
    #[error("nothing says how long units are, for `order=length`")]
    NoLengths,
    /// A position beyond what the order counts.
    #[error("no position {position} in epoch `{epoch}`")]
    NoPosition {
        /// The epoch.
        epoch: u64,
        /// The position in it.
        position: u64,
    },
    /// No dealing gives every rank an image in the same micro-steps.
    #[error(
        "with modalities=same the units with images of the global batch at epoch {epoch}, position {position} do not go round {ranks} ranks in micro-batches of {micro_batch_size}: `{images}`"
    )]
    Modalities {
        /// The epoch.
        epoch: u64,
        /// The position in it.
        position: u64,
        /// Units with images.
        images: u32,
        /// Ranks.
        ranks: u32,
        /// Units of a micro-batch.
        micro_batch_size: u32,
    },
    /// A cursor that is not as it was written.
    #[error("damaged cursor: `{what}`")]
    DamagedCursor {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A cursor of a later program.
    #[error("the cursor has version {version}, this program reads up to version `{known}`")]
    NewerCursor {
        /// Its version.
        version: u64,
        /// The version of this program.
        known: u64,
    },
    /// A cursor that does not count what each cache gave, so that other weights cannot apply from it on.
    #[error("the cursor does not count the units of each cache, of which there are `{caches}`")]
    Uncounted {
        /// How many caches.
        caches: usize,
    },
    /// A cursor of another data set, order or global batch.
    #[error("the cursor was saved with another {what}: {saved}, here it is `{given}`")]
    OtherCursor {
        /// What differs.
        what: Difference,
        /// The cursor's side.
        saved: String,
        /// This reader's side.
        given: String,
    },
}

/// What a cursor differs in from the reader that is to resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Difference {
    /// What a position counts: samples, or the packs of a table.
    Units,
    /// The caches, their order, the split, or the pack table behind its name.
    Data,
    /// The weights of the mixture.
    Weights,
    /// The weights of the mixture, inside a global batch.
    WeightsInside,
    /// The units that each cache of the mixture has given.
    Given,
    /// The seed.
    Seed,
    /// The shuffle option.
    Shuffle,
    /// The order option.
    Order,
    /// The tail option.
    Tail,
    /// The last option.
    Last,
    /// The data-parallel size, inside a global batch.
    WorldSize,
    /// The micro-batch size, inside a global batch.
    MicroBatchSize,
    /// The global batch size, inside a global batch.
    GlobalBatchSize,
    /// The nodes of the ranks or what they hold, inside a global batch.
    Placement,
    /// How units are dealt to ranks, inside a global batch.
    Dealing,
}

impl Difference {
    /// Whether it matters only to a cursor that was saved inside a global batch.
    #[must_use]
    pub fn is_geometry(self) -> bool {
        matches!(
            self,
            Self::WeightsInside
                | Self::WorldSize
                | Self::MicroBatchSize
                | Self::GlobalBatchSize
                | Self::Placement
                | Self::Dealing
        )
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Units => "kind of unit",
            Self::Data => "data set",
            Self::Weights => "list of weights",
            Self::WeightsInside => "list of weights, inside a global batch",
            Self::Given => "count of units that each cache has given",
            Self::Seed => "seed",
            Self::Shuffle => "shuffle",
            Self::Order => "order",
            Self::Tail => "tail",
            Self::Last => "last",
            Self::WorldSize => "world size, inside a global batch",
            Self::MicroBatchSize => "micro-batch size, inside a global batch",
            Self::GlobalBatchSize => "global batch size, inside a global batch",
            Self::Placement => "placement of ranks and partitions, inside a global batch",
            Self::Dealing => "choice of balance, modalities and dummy_image, inside a global batch",
        })
    }
}

fn nearest(lower: Option<u32>, upper: Option<u32>) -> String {
    let sizes: Vec<_> = [lower, upper].into_iter().flatten().collect();
    let sizes: Vec<_> = sizes.iter().map(|size| format!("`{size}`")).collect();
    sizes.join(" or ")
}

impl OrderError {
    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::UnknownChoice { .. }
            | Self::TooManyUnits { .. }
            | Self::Partitions { .. }
            | Self::ShardStarts { .. }
            | Self::WeightCount { .. }
            | Self::Size { .. }
            | Self::Number { .. }
            | Self::NotOnNode { .. }
            | Self::NoPosition { .. }
            | Self::NoLengths
            | Self::Placement { .. } => None,
            Self::NoUnits => {
                Some("choose another split, or see the reject ledger for what was left out")
            }
            Self::ShardsOfPacks { .. } => Some("use shuffle=full or shuffle=none"),
            Self::TooLargeMixture { .. } => Some("open fewer caches at a time"),
            Self::Weight { .. } => Some("leave out a cache that is not to be read"),
            Self::WeightTooSmall { .. } => Some("raise the weight, or leave the cache out"),
            Self::UnevenNodes { .. } => {
                Some("count the nodes of the data-parallel group, or give the node of every rank")
            }
            Self::Indivisible { .. } => {
                Some("choose one of the nearest sizes, another micro-batch or another world size")
            }
            Self::ShortEpoch { .. } => Some("choose a smaller global batch, or last=pad"),
            Self::ShortBatch { .. } => {
                Some("choose a global batch size that divides the epoch, or last=drop or last=pad")
            }
            Self::Modalities { .. } => {
                Some("add dummy_image=True, or choose a larger micro-batch or global batch")
            }
            Self::DamagedCursor { .. } => {
                Some("use an earlier checkpoint, or seek to the number of consumed samples")
            }
            Self::NewerCursor { .. } => {
                Some("resume with the program version that saved it, or a later one")
            }
            Self::OtherCursor { what, .. } if what.is_geometry() => Some(
                "resume once as it was saved and save at a global batch border: such a cursor fits every world and batch size",
            ),
            Self::Uncounted { .. } => Some(
                "cursors count them for up to 16 caches, from version 2 on; give the weights that this one was saved with",
            ),
            Self::OtherCursor {
                what: Difference::Weights,
                ..
            } => Some(
                "give the weights that the cursor was saved with, or restore it with reweight: then these apply from here on",
            ),
            Self::OtherCursor { .. } => {
                Some("give what the cursor was saved with, or start a new run without it")
            }
        }
    }
}
