//! What one run builds of a plan: everything, or the partitions of one worker among several.
//!
//! Invariant: a pure function of plan, worker and number of workers, so that workers need not talk to each other.

use stoker_formats::PartName;

use crate::plan::Plan;
use crate::reject::Reason;

/// The partitions of a run, and what is in them.
#[derive(Debug)]
pub(crate) struct Share {
    /// The part; none if the run builds everything.
    pub(crate) part: Option<PartName>,
    /// Ascending.
    pub(crate) partitions: Vec<u32>,
    /// Records in them, good or bad.
    pub(crate) records: u64,
    /// Images that they need; in a part one that several of them need counts in each.
    pub(crate) images: u64,
    /// Records of them that cannot be used whatever their images are.
    pub(crate) faulty: Vec<(u32, Reason)>,
}

impl Share {
    pub(crate) fn new(plan: &Plan, part: Option<PartName>) -> Self {
        let all = plan.deal.partitions();
        let Some(name) = part else {
            return Self {
                part,
                partitions: (0..all).collect(),
                records: plan.records(),
                images: plan.images.len() as u64,
                faulty: plan.faulty.clone(),
            };
        };
        let partitions: Vec<u32> = name.partitions(all).collect();
        let mut records: Vec<u32> = partitions
            .iter()
            .flat_map(|partition| plan.partition_records(*partition))
            .collect();
        records.sort_unstable();
        let images = partitions
            .iter()
            .map(|partition| plan.partition_images(*partition).len() as u64)
            .sum();
        let is_ours = |record: &u32| records.binary_search(record).is_ok();
        Self {
            part,
            records: records.len() as u64,
            images,
            faulty: plan
                .faulty
                .iter()
                .filter(|(record, _)| is_ours(record))
                .cloned()
                .collect(),
            partitions,
        }
    }
}
