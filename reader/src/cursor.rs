//! The state that resumes an order.
//!
//! Owns its JSON form and what it must agree with. Invariant: restoring takes effect or raises; a cursor saved at a global
//! batch border fits every world and batch size, one saved inside a batch only the geometry it was saved in.

use serde::{Deserialize, Serialize};
use stoker_formats::{ContentHash, ContentHasher};

use crate::offsets::MAX_COUNTED_CACHES;
use crate::options::{Balance, Curriculum, Dealing, Modalities};
use crate::order_error::{Difference, OrderError};
use crate::placement::Placement;
use crate::schedule::{Position, Schedule};
use crate::world::World;

/// The version that this program writes. It reads version 1 too, which knew no choice of order or dealing and counted no units.
const VERSION: u64 = 2;

/// The longest text that is read: what is written takes less than a quarter.
const MAX_BYTES: usize = 4096;

/// What a program did that knew nothing else.
const UNBALANCED: Dealing = Dealing {
    balance: Balance::None,
    modalities: Modalities::Any,
    dummy_image: false,
};

/// What is wrong with a cursor that no program wrote so.
const OTHER_FIELDS: &str = "a field is unknown or missing in its version";

/// Where a run stands, independent of ranks and nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(Fields);

/// The fields as JSON, in this order. The order options stand as their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    version: u64,
    /// The pack table's name; none where units are samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pack: Option<String>,
    data: ContentHash,
    weights: ContentHash,
    seed: u64,
    shuffle: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    order: Option<String>,
    tail: String,
    last: String,
    epoch: u64,
    position: u64,
    /// Units that each cache of a mixture has given, if they are not too many to be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given: Option<Vec<u64>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<Within>,
    /// Over all of the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<ContentHash>,
}

/// How far a global batch was delivered, and in what geometry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Within {
    micro_batches_delivered: u32,
    world_size: u32,
    micro_batch_size: u32,
    global_batch_size: u32,
    placement: ContentHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dealing: Option<String>,
}

/// Only what tells a newer cursor from a damaged one.
#[derive(Deserialize)]
struct Probe {
    version: u64,
}

/// Where to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resume {
    /// The global batch.
    pub at: Position,
    /// Micro-batches of it that every rank was given already.
    pub micro_batches_delivered: u32,
}

impl Cursor {
    /// The cursor at the global batch border `at` of `schedule`.
    #[must_use]
    pub fn new(schedule: &Schedule, at: Position) -> Self {
        let options = schedule.options();
        Self(Fields {
            version: VERSION,
            pack: schedule.pack().map(|pack| pack.name.clone()),
            data: schedule.data_hash(),
            weights: schedule.weights_hash(),
            seed: options.seed,
            shuffle: options.shuffle.to_string(),
            order: Some(options.order.to_string()),
            tail: options.tail.to_string(),
            last: options.last.to_string(),
            epoch: at.epoch,
            position: at.position,
            given: counts(schedule).then(|| schedule.given(at)),
            within: None,
            check: None,
        })
    }

    /// The cursor of a rank that was given some micro-batches of the global batch at `resume.at`.
    ///
    /// # Panics
    /// If that were all of them: then the next batch's border is the place to save.
    #[must_use]
    pub fn within(
        schedule: &Schedule,
        resume: Resume,
        world: &World,
        placement: &Placement,
        dealing: &Dealing,
    ) -> Self {
        let (given, all) = (resume.micro_batches_delivered, world.micro_batches());
        assert!(given < all, "{given} of {all} micro-batches");
        let mut cursor = Self::new(schedule, resume.at);
        if given > 0 {
            cursor.0.within = Some(Within {
                micro_batches_delivered: given,
                world_size: world.world_size(),
                micro_batch_size: world.micro_batch_size(),
                global_batch_size: world.global_batch_size(),
                placement: placement.geometry(world),
                dealing: Some(name(dealing)),
            });
        }
        cursor
    }

    /// The cursor as JSON, at most 1 KiB.
    #[must_use]
    pub fn to_json(&self) -> String {
        let checked = Fields {
            check: Some(self.0.hash()),
            ..self.0.clone()
        };
        text(&checked)
    }

    /// Reads a cursor. Space and the order of fields do not matter.
    ///
    /// # Errors
    /// [`OrderError::NewerCursor`], or [`OrderError::DamagedCursor`] if a field changed or is missing or unknown.
    pub fn from_json(json: &str) -> Result<Self, OrderError> {
        let damaged = |what| OrderError::DamagedCursor { what };
        if json.len() > MAX_BYTES {
            return Err(damaged("too long"));
        }
        let parsed = serde_json::from_str::<Fields>(json);
        // A newer version may differ in every field but this one.
        if let Ok(Probe { version }) = serde_json::from_str(json)
            && version > VERSION
        {
            return Err(OrderError::NewerCursor {
                version,
                known: VERSION,
            });
        }
        let mut fields = parsed.map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                damaged("a field is unknown, missing or of another type")
            }
            _ => damaged("not JSON"),
        })?;
        let check = fields.check.take();
        if check != Some(fields.hash()) {
            return Err(damaged("its fields do not match its check"));
        }
        let dealing = fields.within.as_ref().map(|within| &within.dealing);
        let fits = match fields.version {
            1 => {
                fields.pack.is_none()
                    && fields.order.is_none()
                    && fields.given.is_none()
                    && dealing.is_none_or(Option::is_none)
            }
            VERSION => fields.order.is_some() && dealing.is_none_or(Option::is_some),
            _ => return Err(damaged("unknown version")),
        };
        if !fits {
            return Err(damaged(OTHER_FIELDS));
        }
        Ok(Self(fields))
    }

    /// The place that the cursor stands for.
    #[must_use]
    pub fn at(&self) -> Position {
        Position {
            epoch: self.0.epoch,
            position: self.0.position,
        }
    }

    /// The schedule that goes on at this cursor: `schedule`, of the same data and options, with each cache where it was. With
    /// `reweight` the cursor may have been saved under other weights; those of `schedule` apply from it on.
    ///
    /// # Errors
    /// [`OrderError::OtherCursor`] naming the first thing that differs; [`OrderError::Uncounted`] if weights differ and the
    /// cursor does not say what each cache gave; [`OrderError::DamagedCursor`] if it should say so, or should not.
    pub fn schedule(&self, schedule: &Schedule, reweight: bool) -> Result<Schedule, OrderError> {
        self.check_options(schedule)?;
        let (saved, own) = (self.0.weights, schedule.weights_hash());
        if saved != own && reweight && self.0.within.is_some() {
            differs(Difference::WeightsInside, saved, own)?;
        }
        if !reweight {
            differs(Difference::Weights, saved, own)?;
        }
        let given = self.0.given.as_deref();
        if saved != own && given.is_none() {
            return Err(OrderError::Uncounted {
                caches: schedule.quotas().len(),
            });
        }
        let start = schedule.going_on(Position::default(), None)?;
        start.check(self.at())?;
        start.going_on(self.at(), given)
    }

    /// Fails if it was saved with other data or options than those of `schedule`, or cannot have been.
    fn check_options(&self, schedule: &Schedule) -> Result<(), OrderError> {
        let fields = &self.0;
        let options = schedule.options();
        let given = schedule.pack().map(|pack| &*pack.name);
        differs(
            Difference::Units,
            unit_kind(fields.pack.as_deref()),
            unit_kind(given),
        )?;
        differs(Difference::Data, fields.data, schedule.data_hash())?;
        if fields.version == VERSION && fields.given.is_some() != counts(schedule) {
            return Err(OrderError::DamagedCursor { what: OTHER_FIELDS });
        }
        differs(Difference::Seed, fields.seed, options.seed)?;
        let shuffle = options.shuffle.name();
        differs(Difference::Shuffle, &*fields.shuffle, shuffle)?;
        let before = Curriculum::Random.name();
        let saved = fields.order.as_deref().unwrap_or(before);
        differs(Difference::Order, saved, options.order.name())?;
        differs(Difference::Tail, &*fields.tail, options.tail.name())?;
        differs(Difference::Last, &*fields.last, options.last.name())
    }

    /// Where `schedule`, which [`schedule`](Self::schedule) made, goes on in `world`.
    ///
    /// # Errors
    /// [`OrderError::OtherCursor`] naming the first thing that differs; [`OrderError::ShortBatch`] with `last=error` and a
    /// batch size that does not divide what is left of the epoch.
    pub fn resume(
        &self,
        schedule: &Schedule,
        world: &World,
        placement: &Placement,
        dealing: &Dealing,
    ) -> Result<Resume, OrderError> {
        let fields = &self.0;
        self.check_options(schedule)?;
        let at = self.at();
        // Shares follow from the tail too, so that a difference in them is one of weights only now.
        if !schedule.began_at(at) {
            differs(Difference::Weights, fields.weights, schedule.weights_hash())?;
        }
        schedule.check(at)?;
        if let Some(given) = &fields.given {
            differs(Difference::Given, list(given), list(&schedule.given(at)))?;
        }
        let Some(within) = &fields.within else {
            return Ok(Resume {
                at: schedule.resume_at(at)?,
                micro_batches_delivered: 0,
            });
        };
        let (saved, given) = (within.world_size, world.world_size());
        differs(Difference::WorldSize, saved, given)?;
        let (saved, given) = (within.micro_batch_size, world.micro_batch_size());
        differs(Difference::MicroBatchSize, saved, given)?;
        let (saved, given) = (within.global_batch_size, world.global_batch_size());
        differs(Difference::GlobalBatchSize, saved, given)?;
        let (saved, given) = (within.placement, placement.geometry(world));
        differs(Difference::Placement, saved, given)?;
        let before = || name(&UNBALANCED);
        let saved = within.dealing.clone().unwrap_or_else(before);
        differs(Difference::Dealing, saved, name(dealing))?;
        if within.micro_batches_delivered >= world.micro_batches() {
            return Err(OrderError::DamagedCursor {
                what: "more micro-batches delivered than a global batch has",
            });
        }
        Ok(Resume {
            at,
            micro_batches_delivered: within.micro_batches_delivered,
        })
    }
}

impl Fields {
    /// The hash of all fields but `check`, which is none here.
    fn hash(&self) -> ContentHash {
        let mut hasher = ContentHasher::new();
        hasher.update(format!("stoker cursor {}\n", self.version).as_bytes());
        hasher.update(text(self).as_bytes());
        hasher.finish()
    }
}

fn text(fields: &Fields) -> String {
    // Numbers, names and hashes only: nothing in it can fail.
    serde_json::to_string(fields).unwrap_or_default()
}

fn list(counts: &[u64]) -> String {
    let counts: Vec<String> = counts.iter().map(u64::to_string).collect();
    counts.join(", ")
}

/// The name of a way of dealing.
fn name(dealing: &Dealing) -> String {
    let dummies = if dealing.dummy_image { " dummy" } else { "" };
    format!("{} {}{dummies}", dealing.balance, dealing.modalities)
}

/// Whether cursors of a schedule count the units of each cache.
fn counts(schedule: &Schedule) -> bool {
    (2..=MAX_COUNTED_CACHES).contains(&schedule.quotas().len())
}

/// What a position counts, in words.
fn unit_kind(pack: Option<&str>) -> String {
    pack.map_or_else(|| "sample".to_owned(), |pack| format!("pack {pack}"))
}

fn differs<T: PartialEq + ToString>(
    what: Difference,
    saved: T,
    given: T,
) -> Result<(), OrderError> {
    if saved == given {
        return Ok(());
    }
    Err(OrderError::OtherCursor {
        what,
        saved: saved.to_string(),
        given: given.to_string(),
    })
}
