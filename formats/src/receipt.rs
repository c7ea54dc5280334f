//! Receipts: written after a shard, and the shard's own commit point.
//!
//! Owns their JSON form and consistency. Invariant: a receipt accounts for every item of its plan range exactly once,
//! as a row or as a reject.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::VERSION;
use crate::checksum::ContentHash;
use crate::error::{Error, Result};
use crate::hex;
use crate::limits::MAX_RECEIPT_BYTES;
use crate::manifest::Version;
use crate::names::PlanId;
use crate::row::{ImageEntry, ImageKey, SampleEntry};
use crate::sealed::{self, document_fault};

const KIND: &str = "receipt";

/// The shard of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRef {
    /// Bytes of the file.
    pub bytes: u64,
    /// Hash of the file.
    pub hash: ContentHash,
    /// Rows in it.
    pub rows: u64,
}

/// An item that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejectEntry {
    /// Its number in the partition's plan order.
    pub item: u64,
    /// The stable reason code.
    pub reason: String,
    /// What was wrong, for a person.
    pub message: String,
    /// The image link to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Byte inside the line where the fault stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
}

/// Something that was read for an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceEntry {
    /// The item's number in the partition's plan order.
    pub item: u64,
    /// Where it was read, without credentials.
    pub uri: String,
    /// How many bytes.
    pub bytes: u64,
    /// The version that the server named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// What became of a run of items of one partition's plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt<E> {
    /// The plan that it belongs to.
    pub plan_id: PlanId,
    /// The partition.
    pub partition: u32,
    /// Its ordinal in the partition, also that of its shard.
    pub ordinal: u32,
    /// The items it accounts for, from the first to before the second, in the partition's plan order.
    pub plan_range: [u64; 2],
    /// The number in the partition of the first row of its shard (of the next shard, if it has none).
    pub first_row: u64,
    /// The shard; none if every item was rejected.
    pub shard: Option<ShardRef>,
    /// The item of each row, ascending.
    pub items: Vec<u64>,
    /// The index entry of each row.
    pub entries: Vec<E>,
    /// The items that could not be used, ascending.
    pub rejects: Vec<RejectEntry>,
    /// What was read.
    pub sources: Vec<SourceEntry>,
}

/// The receipt of an image shard.
pub type ImageReceipt = Receipt<ImageEntry>;

/// The receipt of a sample shard.
pub type SampleReceipt = Receipt<SampleEntry>;

/// The receipt as JSON. Fields are written in this order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<C> {
    format_version: Version,
    kind: String,
    plan_id: PlanId,
    partition: u32,
    ordinal: u32,
    plan_range: [u64; 2],
    first_row: u64,
    shard: Option<ShardRef>,
    items: Vec<u64>,
    entries: C,
    rejects: Vec<RejectEntry>,
    sources: Vec<SourceEntry>,
}

/// Index entries that a receipt can hold, column by column.
pub trait ReceiptEntry: Sized {
    /// The receipt's `kind`.
    const KIND: &'static str;

    /// The columns, as they stand in JSON.
    type Columns: Serialize + DeserializeOwned;

    /// The columns of `entries`.
    fn to_columns(entries: &[Self]) -> Self::Columns;

    /// The entries of `columns` in shard `shard`; none if the columns differ in length.
    fn from_columns(columns: Self::Columns, shard: u32) -> Option<Vec<Self>>;

    /// The ordinal of the entry's shard.
    fn shard(&self) -> u32;
}

impl<E: ReceiptEntry> Receipt<E> {
    /// The bytes of the receipt's file: deterministic, and sealed so that every changed bit is noticed.
    ///
    /// Fails if the receipt contradicts itself, or is too long to be read again.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.to_bytes_within(MAX_RECEIPT_BYTES)
    }

    fn to_bytes_within(&self, limit: usize) -> Result<Vec<u8>> {
        self.check()?;
        let bytes = sealed::seal(
            KIND,
            &Document {
                format_version: VERSION,
                kind: E::KIND.to_owned(),
                plan_id: self.plan_id,
                partition: self.partition,
                ordinal: self.ordinal,
                plan_range: self.plan_range,
                first_row: self.first_row,
                shard: self.shard,
                items: self.items.clone(),
                entries: E::to_columns(&self.entries),
                rejects: self.rejects.clone(),
                sources: self.sources.clone(),
            },
        )?;
        if bytes.len() > limit {
            return Err(Error::LongReceipt {
                bytes: bytes.len(),
                limit,
            });
        }
        Ok(bytes)
    }

    /// Reads a receipt.
    ///
    /// Fails if a bit changed, the version is newer, a field is unknown or missing, or the receipt contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let document: Document<E::Columns> =
            sealed::parse(KIND, bytes.to_vec(), MAX_RECEIPT_BYTES)?;
        document.format_version.check(KIND)?;
        if document.kind != E::KIND {
            return Err(document_fault(KIND, "another kind of receipt", "kind"));
        }
        let entries = E::from_columns(document.entries, document.ordinal)
            .ok_or_else(|| document_fault(KIND, "columns differ in length", "entries"))?;
        let receipt = Self {
            plan_id: document.plan_id,
            partition: document.partition,
            ordinal: document.ordinal,
            plan_range: document.plan_range,
            first_row: document.first_row,
            shard: document.shard,
            items: document.items,
            entries,
            rejects: document.rejects,
            sources: document.sources,
        };
        receipt.check()?;
        Ok(receipt)
    }

    fn check(&self) -> Result<()> {
        let fail = |what, at: &str| Err(document_fault(KIND, what, at));
        let [from, to] = self.plan_range;
        let rows = self.entries.len() as u64;
        if from > to {
            return fail("the range goes back", "plan_range");
        }
        if self.shard.map_or(0, |shard| shard.rows) != rows || self.items.len() as u64 != rows {
            return fail("another number of rows than the shard has", "entries");
        }
        if self
            .shard
            .is_some_and(|shard| shard.rows == 0 || shard.bytes == 0)
        {
            return fail("an empty shard", "shard");
        }
        if self.first_row.checked_add(rows).is_none() {
            return fail("too many rows", "first_row");
        }
        if self
            .entries
            .iter()
            .any(|entry| entry.shard() != self.ordinal)
        {
            return fail("an entry of another shard", "entries");
        }
        // Rows and rejects, both ascending, must together be the range without a gap.
        let mut rows = self.items.iter().peekable();
        let mut rejects = self.rejects.iter().map(|reject| &reject.item).peekable();
        let mut next = from;
        while rows.next_if_eq(&&next).is_some() || rejects.next_if_eq(&&next).is_some() {
            next = next.saturating_add(1);
        }
        if next != to || rows.next().is_some() || rejects.next().is_some() {
            return fail("rows and rejects are not the items of the range", "items");
        }
        if self
            .sources
            .iter()
            .any(|source| !(from..to).contains(&source.item))
        {
            return fail("a source of an item outside the range", "sources");
        }
        Ok(())
    }
}

/// Columns of image entries: keys and checksums are hex digits without separators, grids and sizes flat.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageColumns {
    key: String,
    offset: Vec<u64>,
    length: Vec<u64>,
    grid_thw: Vec<i32>,
    size: Vec<i32>,
    checksum: String,
}

fn checksums(list: impl Iterator<Item = u64>) -> String {
    let mut text = String::new();
    for checksum in list {
        hex::push(&mut text, &checksum.to_be_bytes());
    }
    text
}

impl ReceiptEntry for ImageEntry {
    const KIND: &'static str = "images";

    type Columns = ImageColumns;

    fn to_columns(entries: &[Self]) -> ImageColumns {
        let mut key = String::new();
        for entry in entries {
            hex::push(&mut key, &entry.key.0);
        }
        ImageColumns {
            key,
            offset: entries.iter().map(|entry| entry.offset).collect(),
            length: entries.iter().map(|entry| entry.length).collect(),
            grid_thw: entries.iter().flat_map(|entry| entry.grid_thw).collect(),
            size: entries.iter().flat_map(|entry| entry.size).collect(),
            checksum: checksums(entries.iter().map(|entry| entry.checksum)),
        }
    }

    fn from_columns(columns: ImageColumns, shard: u32) -> Option<Vec<Self>> {
        let count = columns.offset.len();
        let (keys, _) = columns.key.as_bytes().as_chunks::<32>();
        let (checksums, _) = columns.checksum.as_bytes().as_chunks::<16>();
        let (grids, _) = columns.grid_thw.as_chunks::<3>();
        let (sizes, _) = columns.size.as_chunks::<2>();
        let even = columns.key.len() == count * 32
            && columns.checksum.len() == count * 16
            && columns.length.len() == count
            && columns.grid_thw.len() == count * 3
            && columns.size.len() == count * 2;
        if !even {
            return None;
        }
        (0..count)
            .map(|row| {
                Some(Self {
                    key: ImageKey(hex::decode(keys.get(row)?)?),
                    shard,
                    offset: *columns.offset.get(row)?,
                    length: *columns.length.get(row)?,
                    grid_thw: *grids.get(row)?,
                    size: *sizes.get(row)?,
                    checksum: u64::from_be_bytes(hex::decode(checksums.get(row)?)?),
                })
            })
            .collect()
    }

    fn shard(&self) -> u32 {
        self.shard
    }
}

/// Columns of sample entries: checksums are hex digits without separators.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleColumns {
    input_ids: Vec<u64>,
    labels: Vec<u64>,
    images: Vec<u64>,
    image_grid_thw: Vec<u64>,
    sample_id: Vec<u64>,
    record_id: Vec<u64>,
    n_tokens: Vec<u32>,
    n_loss_tokens: Vec<u32>,
    n_images: Vec<u32>,
    n_patches: Vec<u32>,
    sample_id_bytes: Vec<u32>,
    record_id_bytes: Vec<Option<u32>>,
    checksum: String,
}

impl ReceiptEntry for SampleEntry {
    const KIND: &'static str = "samples";

    type Columns = SampleColumns;

    fn to_columns(entries: &[Self]) -> SampleColumns {
        let large = |field: fn(&Self) -> u64| entries.iter().map(field).collect();
        let small = |field: fn(&Self) -> u32| entries.iter().map(field).collect();
        SampleColumns {
            input_ids: large(|entry| entry.input_ids),
            labels: large(|entry| entry.labels),
            images: large(|entry| entry.images),
            image_grid_thw: large(|entry| entry.image_grid_thw),
            sample_id: large(|entry| entry.sample_id),
            record_id: large(|entry| entry.record_id),
            n_tokens: small(|entry| entry.n_tokens),
            n_loss_tokens: small(|entry| entry.n_loss_tokens),
            n_images: small(|entry| entry.n_images),
            n_patches: small(|entry| entry.n_patches),
            sample_id_bytes: small(|entry| entry.sample_id_bytes),
            record_id_bytes: entries.iter().map(|entry| entry.record_id_bytes).collect(),
            checksum: checksums(entries.iter().map(|entry| entry.checksum)),
        }
    }

    fn from_columns(columns: SampleColumns, shard: u32) -> Option<Vec<Self>> {
        let count = columns.input_ids.len();
        let (checksums, _) = columns.checksum.as_bytes().as_chunks::<16>();
        let lengths = [
            columns.labels.len(),
            columns.images.len(),
            columns.image_grid_thw.len(),
            columns.sample_id.len(),
            columns.record_id.len(),
            columns.n_tokens.len(),
            columns.n_loss_tokens.len(),
            columns.n_images.len(),
            columns.n_patches.len(),
            columns.sample_id_bytes.len(),
            columns.record_id_bytes.len(),
        ];
        if lengths.iter().any(|length| *length != count) || columns.checksum.len() != count * 16 {
            return None;
        }
        (0..count)
            .map(|row| {
                Some(Self {
                    shard,
                    input_ids: *columns.input_ids.get(row)?,
                    labels: *columns.labels.get(row)?,
                    images: *columns.images.get(row)?,
                    image_grid_thw: *columns.image_grid_thw.get(row)?,
                    sample_id: *columns.sample_id.get(row)?,
                    record_id: *columns.record_id.get(row)?,
                    n_tokens: *columns.n_tokens.get(row)?,
                    n_loss_tokens: *columns.n_loss_tokens.get(row)?,
                    n_images: *columns.n_images.get(row)?,
                    n_patches: *columns.n_patches.get(row)?,
                    sample_id_bytes: *columns.sample_id_bytes.get(row)?,
                    record_id_bytes: *columns.record_id_bytes.get(row)?,
                    checksum: u64::from_be_bytes(hex::decode(checksums.get(row)?)?),
                })
            })
            .collect()
    }

    fn shard(&self) -> u32 {
        self.shard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_could_read_again_is_not_written() {
        let receipt = SampleReceipt {
            plan_id: PlanId([7; 16]),
            partition: 0,
            ordinal: 0,
            plan_range: [0, 1],
            first_row: 0,
            shard: None,
            items: Vec::new(),
            entries: Vec::new(),
            rejects: vec![RejectEntry {
                item: 0,
                reason: "bad_json".into(),
                message: String::new(),
                link: None,
                column: None,
            }],
            sources: Vec::new(),
        };
        let bytes = receipt.to_bytes().unwrap();
        assert_eq!(receipt.to_bytes_within(bytes.len()).unwrap(), bytes);
        let error = receipt.to_bytes_within(bytes.len() - 1).unwrap_err();
        assert!(matches!(error, Error::LongReceipt { .. }), "{error}");
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("--shard-bytes"))
        );
    }
}
