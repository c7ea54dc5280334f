//! What a plan will take and what a build has made, for people and for machines.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::RESERVE_BYTES;
use super::options::BuildOptions;
use super::setup::Setup;
use crate::error::Result;
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
}

impl PlanReport {
    pub(super) fn new(setup: &Setup, estimate: Estimate, options: &BuildOptions) -> Result<Self> {
        let plan = &setup.plan;
        let free = free_bytes(&options.output)?;
        let shards = |bytes: u64| bytes.div_ceil(options.shard_bytes);
        let partitions = u64::from(plan.deal.partitions());
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
        })
    }
}

/// What the commit counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Committed {
    pub(crate) fingerprint: String,
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

/// What a build prints at its end.
#[derive(Debug, Clone, Serialize)]
pub struct BuildReport {
    /// The cache's folder.
    pub output: String,
    /// Identity of the cache.
    pub fingerprint: String,
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
    /// Wall time of this run.
    pub seconds: f64,
}

impl BuildReport {
    pub(super) fn new(committed: Committed, options: &BuildOptions, time: Duration) -> Self {
        Self {
            output: options.output.display().to_string(),
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
            seconds: time.as_secs_f64(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn as_float(count: u64) -> f64 {
    count.max(1) as f64
}
