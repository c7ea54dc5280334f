//! The record of a part: what one of several workers has built of a cache, and what the commit needs to know of it.
//!
//! Owns its JSON form, its consistency, and the names of a part's files. Invariant: what the record says of its partitions
//! is what the manifest will say, and its tables have exactly the rows of these partitions.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::is_within_bounds;
use crate::checksum::ContentHash;
use crate::error::Result;
use crate::limits::{MAX_ID_BYTES, MAX_MANIFEST_BYTES, MAX_PARTITIONS, MAX_WORKERS};
use crate::manifest::{FileEntry, InputEntry, Partition, SplitEntry, Tables, Version};
use crate::names::{PlanId, TableKind, bad};
use crate::sealed::{self, document_fault};

const KIND: &str = "part record";

/// The folder of the parts' records and tables in the output folder. It marks a share.
pub const PARTS_FOLDER: &str = "parts";

/// Which of how many workers: `0003-of-0008`, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartName {
    /// The worker, from 0.
    pub worker: u32,
    /// How many workers there are.
    pub workers: u32,
}

impl PartName {
    /// The partitions of this worker among `partitions`: each `workers`-th. So every split is shared out evenly.
    pub fn partitions(self, partitions: u32) -> impl Iterator<Item = u32> {
        let step = usize::try_from(self.workers).unwrap_or(usize::MAX).max(1);
        (self.worker..partitions).step_by(step)
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-of-{:04}", self.worker, self.workers)
    }
}

/// A file inside [`PARTS_FOLDER`]; `Display` gives its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartFile {
    /// `0003-of-0008.json`: the record, which makes the part count.
    Record(PartName),
    /// `0003-of-0008-samples.parquet`: the rows of a table that are this part's.
    Table(PartName, TableKind),
    /// `share-<fingerprint>.json`: which partitions of that cache a sync has brought.
    Share(ContentHash),
}

impl PartFile {
    /// The file that `name` names. Fails for every other text.
    pub fn parse(name: &str) -> Result<Self> {
        recognise(name)
            .filter(|file| file.to_string() == name)
            .ok_or_else(|| bad(name))
    }
}

fn recognise(name: &str) -> Option<PartFile> {
    let (stem, extension) = name.split_once('.')?;
    if let Some(hash) = stem.strip_prefix("share-") {
        let hash = ContentHash::from_hex(hash)?;
        return (extension == "json").then_some(PartFile::Share(hash));
    }
    let (worker, rest) = stem.split_once("-of-")?;
    let (workers, table) = match rest.split_once('-') {
        Some((workers, table)) => (workers, Some(table)),
        None => (rest, None),
    };
    let part = PartName {
        worker: worker.parse().ok()?,
        workers: workers.parse().ok()?,
    };
    match (table, extension) {
        (None, "json") => Some(PartFile::Record(part)),
        (Some(table), "parquet") => TableKind::ALL
            .into_iter()
            .find(|kind| kind.name() == table)
            .map(|kind| PartFile::Table(part, kind)),
        _ => None,
    }
}

impl fmt::Display for PartFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(part) => write!(f, "{part}.json"),
            Self::Table(part, kind) => write!(f, "{part}-{}.parquet", kind.name()),
            Self::Share(fingerprint) => write!(f, "share-{fingerprint}.json"),
        }
    }
}

/// One partition of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartEntry {
    /// Its number in the cache.
    pub partition: u32,
    /// Token ids of its samples.
    pub tokens: u64,
    /// Labels of its samples that take part in the loss.
    pub loss_tokens: u64,
    /// Its rows in the table of rejects.
    pub rejects: u64,
    /// Its images that could not be prepared.
    pub rejected_images: u64,
    /// Its rows in the table of provenance.
    pub sources: u64,
    /// Its files, as the manifest will name them.
    pub files: Partition,
}

/// What one worker has built. Its JSON has the fields in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// The version of the format.
    pub format_version: Version,
    /// The program that wrote it.
    pub created_by: String,
    /// Which worker of how many.
    pub name: PartName,
    /// Names the image folder.
    pub image_plan_id: PlanId,
    /// Names the text folder.
    pub text_plan_id: PlanId,
    /// The resolved build configuration.
    #[serde(with = "crate::canonical::recipe")]
    pub recipe: Value,
    /// The splits of the whole cache; their counts are those of this part's partitions.
    pub splits: Vec<SplitEntry>,
    /// All inputs, in order.
    pub inputs: Vec<InputEntry>,
    /// The part's tables; that of provenance begins with a row for each input.
    pub tables: Tables,
    /// The model's `tokenizer.json`, in the text folder.
    pub tokenizer: FileEntry,
    /// The partitions of the part, ascending.
    pub partitions: Vec<PartEntry>,
}

impl PartRecord {
    /// The bytes of the record's file: canonical, and sealed so that every changed bit is noticed.
    ///
    /// Fails if the record contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        sealed::seal(KIND, self)
    }

    /// Reads a record.
    ///
    /// Fails if a bit changed, the version is newer, a field is unknown or missing, or the record contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let record: Self = sealed::parse(KIND, bytes.to_vec(), MAX_MANIFEST_BYTES)?;
        record.check()?;
        Ok(record)
    }

    /// Partitions of the whole cache.
    #[must_use]
    pub fn all_partitions(&self) -> u32 {
        let counts = self.splits.iter().map(|split| split.partitions);
        counts.fold(0, u32::saturating_add)
    }

    fn check(&self) -> Result<()> {
        self.format_version.check(KIND)?;
        let fail = |what, at: String| Err(document_fault(KIND, what, at));
        if self.created_by.len() > MAX_ID_BYTES || !is_within_bounds(&self.recipe) {
            return fail(
                "text too long, or too large a recipe",
                "created_by, recipe".into(),
            );
        }
        let PartName { worker, workers } = self.name;
        if worker >= workers || workers > MAX_WORKERS {
            return fail("no such worker", self.name.to_string());
        }
        let mut next = 0;
        for split in &self.splits {
            if split.first_partition != next {
                return fail("splits do not follow each other", split.name.clone());
            }
            next = next.saturating_add(split.partitions);
        }
        let partitions = next;
        if partitions > MAX_PARTITIONS {
            return fail("too many partitions", partitions.to_string());
        }
        let mut next = 0;
        for entry in &self.partitions {
            let files = &entry.files;
            let number = entry.partition;
            if !(next..partitions).contains(&number) {
                return fail("partitions do not ascend", format!("partition {number}"));
            }
            if number % workers != worker {
                return fail(
                    "a partition of another worker",
                    format!("partition {number}"),
                );
            }
            if let Some(what) = files.images.fault().or_else(|| files.samples.fault()) {
                return fail(what, format!("partition {number}"));
            }
            next = number + 1;
        }
        let rows = |of: fn(&PartEntry) -> u64| {
            let mut rows = self.partitions.iter().map(of);
            rows.try_fold(0u64, u64::checked_add)
        };
        let sources = rows(|entry| entry.sources);
        let sources = sources.and_then(|rows| rows.checked_add(self.inputs.len() as u64));
        let tables = &self.tables;
        if rows(|entry| entry.files.samples.index.rows) != Some(tables.samples.rows)
            || rows(|entry| entry.rejects) != Some(tables.rejects.rows)
            || sources != Some(tables.provenance.rows)
        {
            return fail("the tables have other rows", "tables".into());
        }
        Ok(())
    }
}
