//! The deal: groups of records with the same first image, shuffled once and dealt round-robin.
//!
//! Image groups and text-only records are shuffled and dealt apart, so that the place of an image
//! depends on image links alone. Invariant: every record is in exactly one partition.

use std::ops::Range;

use stoker_formats::{Key, Permutation};

use super::Collected;
use super::draw::draw;
use super::splits::{self, SplitPlan, SplitShare, default_partitions};
use crate::error::{Error, Result};

/// No group: the image is nobody's first one.
const NONE: u32 = u32::MAX;

/// Who goes where.
#[derive(Debug)]
pub struct Deal {
    seed: u64,
    /// The splits, the main one first.
    pub splits: Vec<SplitPlan>,
    /// Groups in dealt order, split by split.
    group_order: Vec<u32>,
    /// Records of group `g`: `group_records[group_starts[g]..group_starts[g + 1]]`.
    group_starts: Vec<u32>,
    group_records: Vec<u32>,
    /// Text-only records in dealt order.
    text_order: Vec<u32>,
}

impl Deal {
    pub(super) fn new(
        collected: &Collected,
        seed: u64,
        shares: &[SplitShare],
        partitions: Option<u32>,
    ) -> Result<Self> {
        check_shares(shares)?;
        let records = u32::try_from(collected.lines.len()).unwrap_or(NONE);
        let (group_of, groups) = group(collected, records);
        let (group_starts, group_records, texts) = sort_by_group(&group_of, groups);
        let mut group_order = shuffled(Key::derive(seed, "deal image groups", &[]), groups);
        let pictures = (0..).zip(&group_of).flat_map(|(record, group)| {
            let images = collected.record_images(record);
            images.iter().map(move |image| (*group, *image))
        });
        let images = collected.images.len();
        let group_ranges = draw(&mut group_order, shares, images, pictures);
        let text_count = u32::try_from(texts.len()).unwrap_or(NONE);
        let text_order = shuffled(Key::derive(seed, "deal text-only records", &[]), text_count)
            .into_iter()
            .map(|at| texts[at as usize])
            .collect();
        let mut deal = Self {
            seed,
            splits: Vec::new(),
            group_order,
            group_starts,
            group_records,
            text_order,
        };
        deal.splits = deal.plan_splits(group_ranges, text_count, shares, partitions);
        Ok(deal)
    }

    fn plan_splits(
        &self,
        groups: Vec<Range<u32>>,
        texts: u32,
        shares: &[SplitShare],
        partitions: Option<u32>,
    ) -> Vec<SplitPlan> {
        let grouped = |groups: &Range<u32>| -> u64 {
            let groups = groups.clone();
            groups.map(|at| self.group_at(at).len() as u64).sum()
        };
        let named: Vec<u64> = groups[1..].iter().map(grouped).collect();
        // The main split has the rest: nobody need look at millions of groups to count it.
        let main = self.group_records.len() as u64 - named.iter().sum::<u64>();
        let names = std::iter::once(splits::MAIN_SPLIT.to_owned())
            .chain(shares.iter().map(|share| share.name.clone()));
        let count = u32::try_from(self.group_order.len()).unwrap_or(NONE);
        let ranges = groups
            .into_iter()
            .zip(splits::cut(count, shares))
            .zip(splits::cut(texts, shares));
        let grouped = std::iter::once(main).chain(named);
        let mut first_partition = 0;
        let mut planned = Vec::new();
        for ((name, ((groups, allowed), texts)), grouped) in names.zip(ranges).zip(grouped) {
            let records = grouped + texts.len() as u64;
            let count = match partitions {
                Some(partitions) if first_partition == 0 => partitions,
                _ => default_partitions(records),
            };
            planned.push(SplitPlan {
                name,
                first_partition,
                partitions: count,
                records,
                groups,
                texts,
                groups_max: allowed.end - allowed.start,
            });
            first_partition += count;
        }
        planned
    }

    /// Partitions of all splits.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.splits.iter().map(|split| split.partitions).sum()
    }

    /// The seed of the build.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The split that holds `partition`.
    #[must_use]
    pub fn split_of(&self, partition: u32) -> &SplitPlan {
        let after = self
            .splits
            .partition_point(|split| split.first_partition <= partition);
        &self.splits[after - 1]
    }

    fn group_at(&self, position: u32) -> &[u32] {
        let group = self.group_order[position as usize] as usize;
        &self.group_records
            [self.group_starts[group] as usize..self.group_starts[group + 1] as usize]
    }

    /// The image groups of a partition, in dealt order.
    fn partition_groups(&self, partition: u32) -> impl Iterator<Item = &[u32]> {
        let split = self.split_of(partition);
        let first = partition - split.first_partition;
        split
            .groups
            .clone()
            .skip(first as usize)
            .step_by(split.partitions as usize)
            .map(|position| self.group_at(position))
    }

    /// The distinct ones of `images` images that a partition has, groups in dealt order, then order of appearance.
    pub(super) fn partition_images<'a>(
        &'a self,
        partition: u32,
        images: usize,
        images_of: impl Fn(u32) -> &'a [u32],
    ) -> Vec<u32> {
        // A bit for each image of the plan: little to clear, and no hashing of millions of numbers.
        let mut seen = vec![0u64; images.div_ceil(64)];
        let mut is_new = |image: u32| {
            let (word, bit) = (&mut seen[image as usize / 64], 1 << (image % 64));
            let new = *word & bit == 0;
            *word |= bit;
            new
        };
        self.partition_groups(partition)
            .flatten()
            .flat_map(|record| images_of(*record))
            .copied()
            .filter(|image| is_new(*image))
            .collect()
    }

    /// The records of a partition, shuffled so that every shard is a random subset.
    pub(super) fn partition_records(&self, partition: u32) -> Vec<u32> {
        let split = self.split_of(partition);
        let first = partition - split.first_partition;
        let texts = split
            .texts
            .clone()
            .skip(first as usize)
            .step_by(split.partitions as usize)
            .map(|position| self.text_order[position as usize]);
        let records: Vec<u32> = self
            .partition_groups(partition)
            .flatten()
            .copied()
            .chain(texts)
            .collect();
        let key = Key::derive(self.seed, "order of samples", &[u64::from(partition)]);
        let count = u32::try_from(records.len()).unwrap_or(NONE);
        shuffled(key, count)
            .into_iter()
            .map(|at| records[at as usize])
            .collect()
    }
}

fn check_shares(shares: &[SplitShare]) -> Result<()> {
    if shares.iter().map(|share| share.millionths).sum::<u64>() >= 1_000_000 {
        return Err(Error::Usage {
            what: "the splits' shares leave nothing to train on".into(),
            hint: "let the shares of all --split sum up to less than 100%".into(),
        });
    }
    let mut seen = std::collections::BTreeSet::new();
    if let Some(share) = shares.iter().find(|share| !seen.insert(&share.name)) {
        return Err(Error::Usage {
            what: format!("two splits have the name `{}`", share.name),
            hint: "give each --split another name".into(),
        });
    }
    Ok(())
}

/// `0..count` in the keyed order.
fn shuffled(key: Key, count: u32) -> Vec<u32> {
    let permutation = Permutation::new(key, u64::from(count));
    (0..u64::from(count))
        .map(|at| u32::try_from(permutation.get(at)).unwrap_or(NONE))
        .collect()
}

/// The group of every record ([`NONE`] for text-only ones); groups are numbered in order of appearance.
fn group(collected: &Collected, records: u32) -> (Vec<u32>, u32) {
    let mut group_of_image = vec![NONE; collected.images.len()];
    let mut groups = 0;
    let group_of = (0..records)
        .map(|record| {
            let Some(leader) = collected.record_images(record).first() else {
                return NONE;
            };
            let leader = *leader as usize;
            if group_of_image[leader] == NONE {
                group_of_image[leader] = groups;
                groups += 1;
            }
            group_of_image[leader]
        })
        .collect();
    (group_of, groups)
}

/// Records sorted by group (stable), where each group starts, and the text-only records.
fn sort_by_group(group_of: &[u32], groups: u32) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut starts = vec![0u32; groups as usize + 1];
    for group in group_of.iter().filter(|group| **group != NONE) {
        starts[*group as usize + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    let mut sorted = vec![0; starts[groups as usize] as usize];
    let mut texts = Vec::new();
    for (record, group) in (0u32..).zip(group_of) {
        if *group == NONE {
            texts.push(record);
        } else {
            let place = &mut next[*group as usize];
            sorted[*place as usize] = record;
            *place += 1;
        }
    }
    (starts, sorted, texts)
}
