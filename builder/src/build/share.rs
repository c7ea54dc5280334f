//! What one run builds of a plan: everything, or the partitions of some workers among several.
//!
//! Invariant: a pure function of plan, workers and their number, so that workers need not talk to each other.

use stoker_formats::PartName;

use crate::plan::Plan;
use crate::reject::Reason;

/// What is committed at once: a part, or the whole cache.
#[derive(Debug)]
pub(crate) struct Portion {
    /// The part; none for the whole.
    pub(crate) part: Option<PartName>,
    /// Ascending.
    pub(crate) partitions: Vec<u32>,
}

/// The portions of a run, and what is in them.
#[derive(Debug)]
pub(crate) struct Share {
    /// In the order in which they are built; no partition is in two of them.
    pub(crate) portions: Vec<Portion>,
    /// Records in them, good or bad.
    pub(crate) records: u64,
    /// Images that they need; in parts one that several partitions need counts in each.
    pub(crate) images: u64,
    /// Records of them that cannot be used whatever their images are.
    pub(crate) faulty: Vec<(u32, Reason)>,
}

impl Share {
    /// The share of these parts, which are of one number of workers; of everything if there are none.
    pub(crate) fn new(plan: &Plan, parts: &[PartName]) -> Self {
        let all = plan.deal.partitions();
        if parts.is_empty() {
            return Self {
                portions: vec![Portion {
                    part: None,
                    partitions: (0..all).collect(),
                }],
                records: plan.records(),
                images: plan.images.len() as u64,
                faulty: plan.faulty.clone(),
            };
        }
        let portion = |name: &PartName| Portion {
            part: Some(*name),
            partitions: name.partitions(all).collect(),
        };
        let mut share = Self {
            portions: parts.iter().map(portion).collect(),
            records: 0,
            images: 0,
            faulty: Vec::new(),
        };
        let mut records: Vec<u32> = share
            .partitions()
            .flat_map(|partition| plan.partition_records(partition))
            .collect();
        records.sort_unstable();
        let is_ours = |record: &u32| records.binary_search(record).is_ok();
        let faulty = plan.faulty.iter().filter(|(record, _)| is_ours(record));
        share.faulty = faulty.cloned().collect();
        share.records = records.len() as u64;
        share.images = share
            .partitions()
            .map(|partition| plan.partition_images(partition).len() as u64)
            .sum();
        share
    }

    /// All partitions, in the order in which they are built.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = u32> + '_ {
        let portions = self.portions.iter();
        portions.flat_map(|portion| portion.partitions.iter().copied())
    }
}
