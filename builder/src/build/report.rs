//! What a plan will take and what a build has made, for people and for machines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use stoker_formats::SplitEntry;

use super::RESERVE_BYTES;
use super::options::BuildOptions;
use super::progress::StageSeconds;
use super::setup::Setup;
use super::share::Share;
use crate::error::Result;
use crate::plan::Plan;
use crate::plan::estimate::Estimate;
use crate::publish::free_bytes;

/// A split, planned or built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SplitReport {
    /// Name of the split.
    pub name: String,
    /// Its partitions.
    pub partitions: u32,
    /// Its records (a plan) or samples (a build).
    pub samples: u64,
}

/// Which parts of a cache a run builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartReport {
    /// The workers whose parts they are, from 0.
    pub worker: Vec<u32>,
    /// How many workers there are.
    pub workers: u32,
    /// Their partitions, ascending.
    pub partitions: Vec<u32>,
    /// Partitions of the whole cache.
    pub all_partitions: u32,
}

impl PartReport {
    pub(super) fn of(share: &Share, plan: &Plan) -> Option<Self> {
        let parts = share.portions.iter().filter_map(|portion| portion.part);
        let workers = parts.clone().map(|part| part.workers).next()?;
        let mut partitions: Vec<u32> = share.partitions().collect();
        partitions.sort_unstable();
        Some(Self {
            worker: parts.map(|part| part.worker).collect(),
            workers,
            partitions,
            all_partitions: plan.deal.partitions(),
        })
    }
}

/// What `--dry-run` prints.
#[derive(Debug, Clone, Serialize)]
pub struct PlanReport {
    /// Records in the inputs, good or bad.
    pub records: u64,
    /// Records that cannot be used whatever their images are.
    pub faulty_records: u64,
    /// Distinct images.
    pub images: u64,
    /// The splits.
    pub splits: Vec<SplitReport>,
    /// Partitions of all splits.
    pub partitions: u32,
    /// Shards, as estimated.
    pub shards: u64,
    /// Bytes still to be written, as estimated.
    pub bytes: u64,
    /// Bytes of them that are pixels.
    pub image_bytes: u64,
    /// Bytes free on the output disk.
    pub free_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
    /// Seconds it takes with the given threads if the source keeps up, as estimated.
    pub seconds: f64,
    /// Names the folder of pixels.
    pub image_plan_id: String,
    /// Names the folder of samples.
    pub text_plan_id: String,
    /// The parts, if only some were planned: then shards, bytes and seconds are theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<PartReport>,
}

impl PlanReport {
    pub(super) fn new(setup: &Setup, estimate: Estimate, options: &BuildOptions) -> Result<Self> {
        let plan = &setup.plan;
        let free = free_bytes(&options.output)?;
        let shards = |bytes: u64| bytes.div_ceil(options.shard_bytes);
        let partitions = setup.share.partitions().count() as u64;
        let time = estimate.image_time + estimate.text_time;
        Ok(Self {
            records: plan.records(),
            faulty_records: plan.faulty.len() as u64,
            images: plan.images.len() as u64,
            splits: plan
                .deal
                .splits
                .iter()
                .map(|split| SplitReport {
                    name: split.name.clone(),
                    partitions: split.partitions,
                    samples: split.records,
                })
                .collect(),
            partitions: plan.deal.partitions(),
            shards: shards(estimate.image_bytes).max(partitions)
                + shards(estimate.text_bytes).max(partitions),
            bytes: estimate.bytes(),
            image_bytes: estimate.image_bytes,
            free_bytes: free,
            fits: estimate.space_bytes() + RESERVE_BYTES <= free,
            seconds: time.as_secs_f64() / as_float(options.threads as u64),
            image_plan_id: setup.ids.image.to_string(),
            text_plan_id: setup.ids.text.to_string(),
            part: PartReport::of(&setup.share, plan),
        })
    }
}

/// What the commit counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Committed {
    pub(crate) fingerprint: Option<String>,
    pub(crate) records: u64,
    pub(crate) images: u64,
    pub(crate) rejected_images: u64,
    pub(crate) tokens: u64,
    pub(crate) loss_tokens: u64,
    pub(crate) bytes: u64,
    pub(crate) splits: Vec<SplitReport>,
    pub(crate) rejects: BTreeMap<String, u64>,
    pub(crate) earlier_packs: Vec<String>,
}

impl Committed {
    /// Adds what another portion of the run has counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.fingerprint = self.fingerprint.take().or(other.fingerprint);
        self.records += other.records;
        self.images += other.images;
        self.rejected_images += other.rejected_images;
        self.tokens += other.tokens;
        self.loss_tokens += other.loss_tokens;
        self.bytes += other.bytes;
        if self.splits.is_empty() {
            self.splits = other.splits;
        } else {
            for (split, more) in self.splits.iter_mut().zip(other.splits) {
                split.partitions += more.partitions;
                split.samples += more.samples;
            }
        }
        for (reason, count) in other.rejects {
            *self.rejects.entry(reason).or_default() += count;
        }
        self.earlier_packs.extend(other.earlier_packs);
    }

    /// Adds what the splits count.
    pub(crate) fn count(&mut self, splits: &[SplitEntry]) {
        for split in splits {
            self.splits.push(SplitReport {
                name: split.name.clone(),
                partitions: split.partitions,
                samples: split.samples,
            });
            self.tokens += split.tokens;
            self.loss_tokens += split.loss_tokens;
            self.images += split.images;
        }
    }
}

/// What a build prints at its end.
#[derive(Debug, Clone, Serialize)]
pub struct BuildReport {
    /// The cache's folder.
    pub output: String,
    /// Identity of the cache; none for parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The parts, if only some were built: then all counts are theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<PartReport>,
    /// Records in the inputs.
    pub records: u64,
    /// Samples in the cache.
    pub samples: u64,
    /// Rejected records.
    pub rejected: u64,
    /// Rejected records by reason.
    pub rejects: BTreeMap<String, u64>,
    /// Prepared images; one that several partitions need counts in each.
    pub images: u64,
    /// Images that could not be prepared.
    pub rejected_images: u64,
    /// Tokens of all samples.
    pub tokens: u64,
    /// Tokens that are learnt.
    pub loss_tokens: u64,
    /// Bytes of the cache's shards.
    pub bytes: u64,
    /// The splits.
    pub splits: Vec<SplitReport>,
    /// Pack tables that were made for an earlier cache in the folder, and fit this one no more.
    pub earlier_packs: Vec<String>,
    /// Whether rejected images are those of the cache that was committed before.
    #[serde(skip)]
    pub(crate) rejects_kept: bool,
    /// Files that a repair could not make as they were; a build has none.
    #[serde(skip)]
    pub(crate) left: BTreeSet<PathBuf>,
    /// What the stages of this run cost; none for a commit, which has no stages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<StageSeconds>,
    /// Wall time of this run.
    pub seconds: f64,
}

impl BuildReport {
    pub(crate) fn new(committed: Committed, output: &Path, time: Duration) -> Self {
        Self {
            output: output.display().to_string(),
            part: None,
            samples: committed.splits.iter().map(|split| split.samples).sum(),
            rejected: committed.rejects.values().sum(),
            fingerprint: committed.fingerprint,
            records: committed.records,
            rejects: committed.rejects,
            images: committed.images,
            rejected_images: committed.rejected_images,
            tokens: committed.tokens,
            loss_tokens: committed.loss_tokens,
            bytes: committed.bytes,
            splits: committed.splits,
            earlier_packs: committed.earlier_packs,
            rejects_kept: false,
            left: BTreeSet::new(),
            cpu_seconds: None,
            seconds: time.as_secs_f64(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_float(count: u64) -> f64 {
    count.max(1) as f64
}
