//! The heaviest samples of a cache.
//!
//! Owns keeping the top few and naming them. Invariant: equal weights are told apart by the number in the cache, so the
//! list never depends on anything but the cache.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::File;

use serde::Serialize;
use stoker_formats::{FileName, SampleEntry, read_sample};
use stoker_reader::CacheFiles;

/// Samples in the list.
const HEAVIEST_MAX: usize = 10;

/// One of the heaviest samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeavySample {
    /// Its id; none if its shard is not on this machine.
    pub sample_id: Option<String>,
    /// Its number in the cache.
    pub row: u64,
    /// Token ids.
    pub tokens: u32,
    /// Labels that take part in the loss.
    pub loss_tokens: u32,
    /// Patches.
    pub patches: u32,
    /// Images.
    pub images: u32,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    partition: u32,
    row: u64,
    entry: SampleEntry,
}

/// The samples kept, the heaviest first, earlier ones before later ones.
#[derive(Debug, Default)]
pub(super) struct Heaviest(BTreeMap<(Reverse<u64>, u64), Kept>);

impl Heaviest {
    /// Keeps sample `number` of the cache if it is heavy enough.
    pub(super) fn offer(
        &mut self,
        weight: u64,
        number: u64,
        partition: u32,
        row: u64,
        entry: &SampleEntry,
    ) {
        let key = (Reverse(weight), number);
        let full = self.0.len() >= HEAVIEST_MAX;
        if full && self.0.last_key_value().is_some_and(|(last, _)| key > *last) {
            return;
        }
        let entry = *entry;
        self.0.insert(
            key,
            Kept {
                partition,
                row,
                entry,
            },
        );
        if self.0.len() > HEAVIEST_MAX {
            self.0.pop_last();
        }
    }

    /// The list, with ids where the shards can be read.
    pub(super) fn named(&self, files: &CacheFiles) -> Vec<HeavySample> {
        self.0
            .iter()
            .map(|((_, number), kept)| HeavySample {
                sample_id: sample_id(files, kept),
                row: *number,
                tokens: kept.entry.n_tokens,
                loss_tokens: kept.entry.n_loss_tokens,
                patches: kept.entry.n_patches,
                images: kept.entry.n_images,
            })
            .collect()
    }
}

fn sample_id(files: &CacheFiles, kept: &Kept) -> Option<String> {
    let (partition, ordinal) = (kept.partition, kept.entry.shard);
    let path = files.path(files.text(), FileName::Shard { partition, ordinal });
    if !path.is_file() {
        return None;
    }
    let file = File::open(path).ok()?;
    let sample = read_sample(&file, partition, kept.row, &kept.entry).ok()?;
    Some(sample.sample_id)
}
