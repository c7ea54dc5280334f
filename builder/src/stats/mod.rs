//! `stoker stats`: distributions over a whole cache, exact, from its indexes.
//!
//! Owns the counting. Reads no shard but for the ids of the heaviest samples. Invariant: memory follows the number of
//! distinct values and one partition's indexes, not the number of samples.

mod balance;
mod bytes;
mod distribution;
mod heaviest;
mod histogram;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use stoker_formats::{ImageEntry, SampleEntry};
use stoker_reader::CacheFiles;

use crate::error::Result;
use crate::held;
use crate::inspect::{PackSummary, pack_tables};
use crate::verify::table_rows::reject_counts;
pub use balance::{BalanceOptions, BalanceStats, Dealt, Unevenness, balance};
use bytes::Bytes;
use distribution::Counts;
pub use distribution::{Bin, Distribution};
use heaviest::Heaviest;
pub use heaviest::HeavySample;

/// What is counted over the samples of one split, or of all.
#[derive(Debug, Clone, Default)]
struct SampleCounts {
    tokens: Counts,
    loss_tokens: Counts,
    patches: Counts,
    images: Counts,
}

impl SampleCounts {
    fn add(&mut self, entry: &SampleEntry) {
        self.tokens.add(u64::from(entry.n_tokens));
        self.loss_tokens.add(u64::from(entry.n_loss_tokens));
        self.patches.add(u64::from(entry.n_patches));
        self.images.add(u64::from(entry.n_images));
    }

    fn distributions(&self) -> SampleDistributions {
        SampleDistributions {
            tokens: self.tokens.distribution(),
            loss_tokens: self.loss_tokens.distribution(),
            patches: self.patches.distribution(),
            images: self.images.distribution(),
        }
    }
}

/// Distributions over samples.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SampleDistributions {
    /// Token ids of a sample.
    pub tokens: Distribution,
    /// Labels of a sample that take part in the loss.
    pub loss_tokens: Distribution,
    /// Patches of a sample, over all its images.
    pub patches: Distribution,
    /// Images of a sample.
    pub images: Distribution,
}

/// Distributions over image rows. An image that many samples use counts once a partition.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageDistributions {
    /// Pixels after resizing, across.
    pub width: Distribution,
    /// Pixels after resizing, down.
    pub height: Distribution,
    /// Patches.
    pub patches: Distribution,
}

/// One split.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitStats {
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: u32,
    /// Its samples.
    pub samples: SampleDistributions,
    /// Its image rows.
    pub images: u64,
}

/// The statistics of a cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stats {
    /// The cache's folder.
    pub cache: String,
    /// Its identity.
    pub fingerprint: String,
    /// Partitions whose shards are on other nodes; their samples have no ids here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<u32>,
    /// Over all samples.
    pub samples: SampleDistributions,
    /// Over all image rows.
    pub images: ImageDistributions,
    /// Split by split.
    pub splits: Vec<SplitStats>,
    /// The samples with the most tokens.
    pub heaviest_by_tokens: Vec<HeavySample>,
    /// The samples with the most patches.
    pub heaviest_by_patches: Vec<HeavySample>,
    /// Pack tables, but for damaged ones.
    pub pack_tables: Vec<PackSummary>,
    /// Bytes of each column and kind of file.
    pub bytes: BTreeMap<&'static str, u64>,
    /// Rejected records.
    pub rejected: u64,
    /// The same by reason; none if the rejects table is missing or damaged.
    pub rejects: Option<BTreeMap<String, u64>>,
}

/// Counts over the cache at `root`.
///
/// # Errors
/// If there is no cache, or its manifest or an index is missing or damaged.
pub fn stats(root: &Path) -> Result<Stats> {
    let files = CacheFiles::open(root)?;
    let manifest = files.manifest();
    let mut all = SampleCounts::default();
    let mut images = [Counts::default(), Counts::default(), Counts::default()];
    let mut bytes = Bytes::new(&files);
    let (mut by_tokens, mut by_patches) = (Heaviest::default(), Heaviest::default());
    let mut splits = Vec::with_capacity(manifest.splits.len());
    let mut number = 0;
    for split in &manifest.splits {
        let mut counts = SampleCounts::default();
        for partition in split.first_partition..split.first_partition + split.partitions {
            for (row, entry) in (0u64..).zip(files.sample_index(partition)?.iter()) {
                all.add(&entry);
                counts.add(&entry);
                bytes.add_sample(&entry);
                by_tokens.offer(u64::from(entry.n_tokens), number, partition, row, &entry);
                by_patches.offer(u64::from(entry.n_patches), number, partition, row, &entry);
                number += 1;
            }
            for entry in files.image_index(partition)?.iter() {
                for (counts, value) in images.iter_mut().zip(image_values(&entry)) {
                    counts.add(value);
                }
                bytes.add_image(&entry);
            }
        }
        splits.push(SplitStats {
            name: split.name.clone(),
            partitions: split.partitions,
            samples: counts.distributions(),
            images: split.images,
        });
    }
    let [width, height, patches] = images.map(|counts| counts.distribution());
    Ok(Stats {
        cache: files.root().display().to_string(),
        fingerprint: manifest.fingerprint.to_string(),
        not_held: held::elsewhere(&files)?,
        samples: all.distributions(),
        images: ImageDistributions {
            width,
            height,
            patches,
        },
        splits,
        heaviest_by_tokens: by_tokens.named(&files),
        heaviest_by_patches: by_patches.named(&files),
        pack_tables: pack_tables(&files)?,
        bytes: bytes.finish(),
        rejected: manifest.tables.rejects.rows,
        rejects: reject_counts(&files),
    })
}

/// Width, height and patches. The index holds height before width.
fn image_values(entry: &ImageEntry) -> [u64; 3] {
    let [height, width] = entry.size.map(|side| u64::from(side.unsigned_abs()));
    let grid = entry.grid_thw.map(|side| u64::from(side.unsigned_abs()));
    [width, height, grid.into_iter().fold(1, u64::saturating_mul)]
}
