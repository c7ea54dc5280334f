//! The manifest: the committed description of a cache.
//!
//! Owns its JSON form and its consistency. Invariant: no file name stands in it; names follow from ids, numbers and
//! hashes, so a hostile manifest cannot point anywhere else.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::VERSION;
use crate::canonical::is_within_bounds;
use crate::checksum::ContentHash;
use crate::error::{Error, Result};
use crate::fingerprint::fingerprint;
use crate::limits::{MAX_ID_BYTES, MAX_MANIFEST_BYTES, MAX_PARTITIONS};
use crate::names::{FileName, PlanId, TableKind};
use crate::sealed::{self, document_fault};

const KIND: &str = "manifest";

/// The longest split name; it stands in messages and options.
const MAX_SPLIT_NAME_BYTES: usize = 64;

/// A version of the format. A reader takes every minor version of its major one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    /// Raised when an older reader would misread.
    pub major: u32,
    /// Raised when what is written changes without a new field: every reader of the major version reads it.
    pub minor: u32,
}

impl Version {
    /// Fails for a major version other than this program's.
    pub(crate) fn check(self, kind: &'static str) -> Result<()> {
        if self.major == VERSION.major {
            return Ok(());
        }
        if self.major > VERSION.major {
            return Err(Error::NewerVersion {
                kind,
                major: self.major,
                minor: self.minor,
            });
        }
        Err(document_fault(
            kind,
            "unknown format version",
            self.major.to_string(),
        ))
    }
}

/// One file: its size, hash and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Bytes of the file.
    pub bytes: u64,
    /// Hash of the file.
    pub hash: ContentHash,
    /// Rows in it: of a shard or an index the rows, of a receipt those of its shard, of a table those of the table.
    pub rows: u64,
}

/// The image files, or the sample files, of one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionFiles {
    /// Shards by ordinal; none where every item of a receipt was rejected.
    #[serde(with = "crate::file_list::optional")]
    pub shards: Vec<Option<FileEntry>>,
    /// Receipts by ordinal, as many as shards.
    #[serde(with = "crate::file_list::plain")]
    pub receipts: Vec<FileEntry>,
    /// The index.
    pub index: FileEntry,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Files in `images-<image plan id>`.
    pub images: PartitionFiles,
    /// Files in `text-<text plan id>`.
    pub samples: PartitionFiles,
}

/// One split: a run of partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitEntry {
    /// Its name: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Its first partition.
    pub first_partition: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// Samples in them.
    pub samples: u64,
    /// Token ids in them.
    pub tokens: u64,
    /// Labels that take part in the loss.
    pub loss_tokens: u64,
    /// Image rows in them.
    pub images: u64,
}

/// The Parquet tables, all in the text folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// One row a sample.
    pub samples: FileEntry,
    /// One row a reject.
    pub rejects: FileEntry,
    /// One row an input and an image that was read.
    pub provenance: FileEntry,
}

impl Tables {
    /// The name and the entry of every table.
    #[must_use]
    pub fn files(&self) -> [(FileName, FileEntry); 3] {
        [
            (TableKind::Samples, self.samples),
            (TableKind::Rejects, self.rejects),
            (TableKind::Provenance, self.provenance),
        ]
        .map(|(kind, entry)| {
            let hash = entry.hash;
            (FileName::Table { kind, hash }, entry)
        })
    }
}

/// One input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputEntry {
    /// The name by which sample ids call it.
    pub name: String,
    /// Its bytes, uncompressed.
    pub bytes: u64,
    /// Hash of them.
    pub hash: ContentHash,
    /// Records in it, rejected ones included.
    pub records: u64,
}

/// The committed description of a cache. Its JSON has the fields in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format.
    pub format_version: Version,
    /// The program that wrote it.
    pub created_by: String,
    /// [`fingerprint`] of recipe and shards.
    pub fingerprint: ContentHash,
    /// Names the image folder.
    pub image_plan_id: PlanId,
    /// Names the text folder.
    pub text_plan_id: PlanId,
    /// The resolved build configuration.
    #[serde(with = "crate::canonical::recipe")]
    pub recipe: Value,
    /// The splits; together they take every partition once, in order.
    pub splits: Vec<SplitEntry>,
    /// The inputs, in order.
    pub inputs: Vec<InputEntry>,
    /// The tables.
    pub tables: Tables,
    /// The model's `tokenizer.json`, in the text folder: what the token ids mean. Its rows are its tokens.
    pub tokenizer: FileEntry,
    /// The partitions, by number.
    pub partitions: Vec<Partition>,
}

impl Manifest {
    /// The bytes of `manifest.json`: canonical, and sealed so that every changed bit is noticed.
    ///
    /// Fails if the manifest contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        sealed::seal(KIND, self)
    }

    /// Reads `manifest.json`.
    ///
    /// Fails if a bit changed, the version is newer, a field is unknown or missing, or the manifest contradicts itself.
    pub fn parse(bytes: Vec<u8>) -> Result<Self> {
        let manifest: Self = sealed::parse(KIND, bytes, MAX_MANIFEST_BYTES)?;
        manifest.check()?;
        Ok(manifest)
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
        if self.partitions.len() > MAX_PARTITIONS as usize {
            return fail("too many partitions", self.partitions.len().to_string());
        }
        for (number, partition) in self.partitions.iter().enumerate() {
            if let Some(what) = partition
                .images
                .fault()
                .or_else(|| partition.samples.fault())
            {
                return fail(what, format!("partition {number}"));
            }
        }
        self.check_splits()?;
        if fingerprint(&self.recipe, &self.partitions) != self.fingerprint {
            return fail(
                "the fingerprint is not that of recipe and shards",
                self.fingerprint.to_string(),
            );
        }
        Ok(())
    }

    fn check_splits(&self) -> Result<()> {
        let mut next = 0u64;
        for (number, split) in self.splits.iter().enumerate() {
            let fail = |what| Err(document_fault(KIND, what, format!("splits[{number}]")));
            let named = (1..=MAX_SPLIT_NAME_BYTES).contains(&split.name.len())
                && split
                    .name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            let again = self.splits[..number]
                .iter()
                .any(|other| other.name == split.name);
            if !named || again {
                return fail("a split has no fit name of its own");
            }
            let end = next + u64::from(split.partitions);
            let parts = usize::try_from(next)
                .ok()
                .zip(usize::try_from(end).ok())
                .and_then(|(from, to)| self.partitions.get(from..to));
            let Some(parts) = parts.filter(|_| u64::from(split.first_partition) == next) else {
                return fail("splits do not follow each other");
            };
            let rows = |index: fn(&Partition) -> u64| {
                parts
                    .iter()
                    .try_fold(0u64, |sum, part| sum.checked_add(index(part)))
            };
            if rows(|part| part.samples.index.rows) != Some(split.samples)
                || rows(|part| part.images.index.rows) != Some(split.images)
                || split.loss_tokens > split.tokens
            {
                return fail("a split counts other rows than its partitions");
            }
            next = end;
        }
        if next != self.partitions.len() as u64 {
            return Err(document_fault(
                KIND,
                "partitions without a split",
                next.to_string(),
            ));
        }
        Ok(())
    }
}

impl PartitionFiles {
    /// What contradicts itself.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.shards.len() != self.receipts.len() {
            return Some("another number of receipts than shards");
        }
        let mut rows = 0u64;
        for (shard, receipt) in self.shards.iter().zip(&self.receipts) {
            let shard_rows = shard.map_or(0, |shard| shard.rows);
            if shard.is_some_and(|shard| shard.rows == 0 || shard.bytes == 0) || receipt.bytes == 0
            {
                return Some("an empty file");
            }
            if receipt.rows != shard_rows {
                return Some("a receipt counts other rows than its shard");
            }
            match rows.checked_add(shard_rows) {
                Some(sum) => rows = sum,
                None => return Some("too many rows"),
            }
        }
        (rows != self.index.rows || self.index.bytes == 0)
            .then_some("the index has other rows than the shards")
    }
}
