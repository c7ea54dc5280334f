//! Where rows go: cut into shards by their bytes, in plan order, each published and receipted.
//!
//! Owns when a shard ends. Invariant: shard and receipt depend only on the rows before them, never on
//! where a run began, so an interrupted build ends with the same bytes; what a receipt or the committed manifest names is made
//! again with the same bytes or not at all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_formats::{
    ContentHash, FileName, Finished, ImageEntry, ImageKey, ImageShardWriter, Receipt, RejectEntry,
    SampleEntry, SampleRow, SampleShardWriter, ShardHead, ShardRef, SourceEntry, canonical_json,
};

use super::context::Context;
use super::progress::Counters;
use super::receipts::{InFolder, OnDisk, Receipts, Rest};
use crate::error::{Error, Result};
use crate::image::{ImageRecipe, float_table};
use crate::publish::Pending;

/// One of the two kinds of rows: how its shards are written.
pub(crate) trait Kind {
    type Row<'r>;
    type Entry: InFolder;
    type Writer;
    /// What is left of a written row and can be used again.
    type Used;

    /// Bytes the row adds to a shard's payload.
    fn payload_bytes(row: &Self::Row<'_>) -> u64;
    fn metadata(context: &Context) -> &BTreeMap<String, String>;
    fn open(out: Pending, head: &ShardHead) -> stoker_formats::Result<Self::Writer>;
    fn push(writer: &mut Self::Writer, row: Self::Row<'_>) -> stoker_formats::Result<Self::Used>;
    fn written(writer: &Self::Writer) -> u64;
    fn finish(writer: Self::Writer) -> stoker_formats::Result<Finished<Pending, Self::Entry>>;
}

/// Image rows.
pub(crate) struct Images;

/// An image row that brings its patches along.
pub(crate) struct OwnedImage {
    pub(crate) key: ImageKey,
    pub(crate) grid_thw: [i32; 3],
    pub(crate) size: [i32; 2],
    pub(crate) patches: Vec<u8>,
}

/// Sample rows.
pub(crate) struct Samples;

impl Kind for Images {
    type Row<'r> = OwnedImage;
    type Entry = ImageEntry;
    type Writer = ImageShardWriter<Pending>;
    type Used = Vec<u8>;

    fn payload_bytes(row: &OwnedImage) -> u64 {
        row.patches.len() as u64
    }

    fn metadata(context: &Context) -> &BTreeMap<String, String> {
        &context.image_metadata
    }

    fn open(out: Pending, head: &ShardHead) -> stoker_formats::Result<Self::Writer> {
        ImageShardWriter::new(out, head)
    }

    fn push(writer: &mut Self::Writer, row: OwnedImage) -> stoker_formats::Result<Vec<u8>> {
        writer.push_owned(row.key, row.grid_thw, row.size, row.patches)
    }

    fn written(writer: &Self::Writer) -> u64 {
        writer.payload_bytes()
    }

    fn finish(writer: Self::Writer) -> stoker_formats::Result<Finished<Pending, ImageEntry>> {
        writer.finish()
    }
}

impl Kind for Samples {
    type Row<'r> = SampleRow<'r>;
    type Entry = SampleEntry;
    type Writer = SampleShardWriter<Pending>;
    type Used = ();

    fn payload_bytes(row: &SampleRow<'_>) -> u64 {
        let ids = row.sample_id.len() + row.record_id.map_or(0, str::len);
        let tokens = 4 * (row.input_ids.len() + row.labels.len());
        (ids + tokens + 4 * row.images.len() + 12 * row.image_grid_thw.len()) as u64
    }

    fn metadata(context: &Context) -> &BTreeMap<String, String> {
        &context.sample_metadata
    }

    fn open(out: Pending, head: &ShardHead) -> stoker_formats::Result<Self::Writer> {
        SampleShardWriter::new(out, head)
    }

    fn push(writer: &mut Self::Writer, row: SampleRow<'_>) -> stoker_formats::Result<()> {
        writer.push(&row)
    }

    fn written(writer: &Self::Writer) -> u64 {
        writer.payload_bytes()
    }

    fn finish(writer: Self::Writer) -> stoker_formats::Result<Finished<Pending, SampleEntry>> {
        writer.finish()
    }
}

/// What the rows of one receipt have added up to.
struct Open<K: Kind> {
    /// `None` until the first row: a receipt of rejects alone has no shard.
    writer: Option<K::Writer>,
    items: Vec<u64>,
    rejects: Vec<RejectEntry>,
    sources: Vec<SourceEntry>,
}

impl<K: Kind> Default for Open<K> {
    fn default() -> Self {
        Self {
            writer: None,
            items: Vec::new(),
            rejects: Vec::new(),
            sources: Vec::new(),
        }
    }
}

/// Takes the rest of a partition, item by item. Dropped unfinished, it leaves what is published.
pub(crate) struct Sink<'a, K: Kind> {
    context: &'a Context,
    folder: PathBuf,
    partition: u32,
    rest: Rest,
    open: Open<K>,
}

impl<'a, K: Kind> Sink<'a, K> {
    pub(crate) fn new(context: &'a Context, partition: u32, rest: Rest) -> Self {
        Self {
            context,
            folder: K::Entry::folder(&context.layout).to_string().into(),
            partition,
            rest,
            open: Open::default(),
        }
    }

    /// Notes what was read for an item, if anything was.
    pub(crate) fn read(&mut self, source: Option<SourceEntry>) {
        self.open.sources.extend(source);
    }

    /// Notes a rejected item.
    pub(crate) fn reject(&mut self, reject: RejectEntry) {
        self.open.rejects.push(reject);
    }

    /// Ends the shard in hand if `row`, of item `item`, would make it too large.
    pub(crate) fn make_room(
        &mut self,
        item: u64,
        row: &K::Row<'_>,
        receipts: &mut Receipts<K::Entry>,
    ) -> Result<()> {
        let full = self.open.writer.as_ref().is_some_and(|writer| {
            K::written(writer) + K::payload_bytes(row) > self.context.shard_bytes
        });
        if full {
            self.close(item, receipts)
        } else {
            Ok(())
        }
    }

    /// Writes the row of item `item`.
    pub(crate) fn push(&mut self, item: u64, row: K::Row<'_>) -> Result<K::Used> {
        let mut writer = match self.open.writer.take() {
            Some(writer) => writer,
            None => self.start_shard()?,
        };
        let bytes = K::payload_bytes(&row);
        let used = K::push(&mut writer, row).map_err(|error| self.fault(error))?;
        self.open.writer = Some(writer);
        self.open.items.push(item);
        Counters::add(&self.context.progress.counters().bytes_out, bytes);
        self.context.publisher.wrote(bytes);
        Ok(used)
    }

    /// Publishes what is in hand; all items up to the rest's end are then accounted for.
    pub(crate) fn finish(mut self, receipts: &mut Receipts<K::Entry>) -> Result<()> {
        self.close(self.rest.items.end, receipts)
    }

    fn start_shard(&self) -> Result<K::Writer> {
        let shards = self.folder.join("shards");
        let name = base_name(&self.shard_name());
        let pending = self.context.publisher.create(&shards, &name)?;
        let head = ShardHead {
            partition: self.partition,
            shard: self.rest.ordinal,
            first_row: self.rest.first_row,
            metadata: K::metadata(self.context).clone(),
        };
        K::open(pending, &head).map_err(|error| self.fault(error))
    }

    fn shard_name(&self) -> FileName {
        FileName::Shard {
            partition: self.partition,
            ordinal: self.rest.ordinal,
        }
    }

    fn receipt_name(&self) -> FileName {
        FileName::Receipt {
            partition: self.partition,
            ordinal: self.rest.ordinal,
        }
    }

    /// Publishes the shard in hand and its receipt for the items before `end`.
    fn close(&mut self, end: u64, receipts: &mut Receipts<K::Entry>) -> Result<()> {
        if self.rest.items.start == end {
            return Ok(());
        }
        // Decoders need not wait for the disk.
        self.context.gate.open();
        let open = std::mem::take(&mut self.open);
        let (out, shard, entries) = match open.writer {
            None => (None, None, Vec::new()),
            Some(writer) => {
                let finished = K::finish(writer).map_err(|error| self.fault(error))?;
                let shard = ShardRef {
                    bytes: finished.bytes,
                    hash: finished.hash,
                    rows: finished.entries.len() as u64,
                };
                (Some(finished.out), Some(shard), finished.entries)
            }
        };
        let receipt = Receipt {
            plan_id: K::Entry::plan_id(&self.context.layout),
            partition: self.partition,
            ordinal: self.rest.ordinal,
            plan_range: [self.rest.items.start, end],
            first_row: self.rest.first_row,
            shard,
            items: open.items,
            entries,
            rejects: open.rejects,
            sources: open.sources,
        };
        let bytes = receipt.to_bytes()?;
        let kept = self.check_same(&receipt, &bytes)?;
        if let Some(out) = out {
            out.publish(&base_name(&self.shard_name()))?;
        }
        let (receipt, bytes) = if let Some(kept) = kept {
            kept
        } else {
            let (folder, name) = (self.folder.join("receipts"), self.receipt_name());
            self.context
                .publisher
                .publish_bytes(&folder, &base_name(&name), &bytes)?;
            (receipt, bytes)
        };
        self.rest.ordinal += 1;
        self.rest.first_row += receipt.entries.len() as u64;
        self.rest.items.start = end;
        receipts.put(receipt, &bytes);
        Ok(())
    }

    /// Refuses to publish anything else than what a receipt of this plan, or the committed manifest, says of the shard: other
    /// files count on it. Gives the receipt that stays, with its bytes: the same things may have been read elsewhere.
    fn check_same(
        &self,
        receipt: &Receipt<K::Entry>,
        bytes: &[u8],
    ) -> Result<Option<OnDisk<K::Entry>>> {
        let context = self.context;
        let folder = K::Entry::folder(&context.layout);
        let root = context.publisher.root();
        let path = |name: FileName| root.join(folder.to_string()).join(name.to_string());
        let (shard_name, name) = (self.shard_name(), self.receipt_name());
        if let Some(shard) = receipt.shard
            && !context.named.allows(folder, shard_name, shard.hash)
        {
            return Err(Error::Otherwise {
                path: path(shard_name),
            });
        }
        let allows = |bytes: &[u8]| context.named.allows(folder, name, ContentHash::of(bytes));
        let before = Receipts::before(&path(name), receipt);
        let agrees = before
            .as_ref()
            .is_none_or(|(before, _)| Receipts::agree(before, receipt));
        let kept = before.filter(|(_, bytes)| agrees && allows(bytes));
        if agrees && (kept.is_some() || allows(bytes)) {
            Ok(kept)
        } else {
            Err(Error::Otherwise { path: path(name) })
        }
    }

    fn fault(&self, error: stoker_formats::Error) -> Error {
        self.context.publisher.explain(error)
    }
}

/// The last part of a file's path inside its plan's folder.
pub(crate) fn base_name(name: &FileName) -> String {
    let path = name.to_string();
    let base = Path::new(&path).file_name().unwrap_or_default();
    base.to_string_lossy().into_owned()
}

/// What an image shard says about itself: the recipe and how bytes become floats.
pub(crate) fn image_metadata(image: &ImageRecipe) -> BTreeMap<String, String> {
    let table = float_table(image);
    let text = |value: Value| String::from_utf8_lossy(&canonical_json(&value)).into_owned();
    BTreeMap::from([
        ("patch_size".into(), image.patch_size.to_string()),
        ("merge_size".into(), image.merge_size.to_string()),
        (
            "temporal_patch_size".into(),
            image.temporal_patch_size.to_string(),
        ),
        ("image_mean".into(), text(image.image_mean.to_vec().into())),
        ("image_std".into(), text(image.image_std.to_vec().into())),
        ("float_table".into(), table_text(&table)),
        (
            "recipe".into(),
            text(serde_json::to_value(image).unwrap_or_default()),
        ),
    ])
}

/// Three rows of 256 float32 as little-endian hex: exact, and no parser rounds it.
fn table_text(table: &[[f32; 256]; 3]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(3 * 256 * 8);
    for value in table.iter().flatten() {
        for byte in value.to_le_bytes() {
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

/// What a sample shard says about itself: the text recipe.
pub(crate) fn sample_metadata(text: &impl serde::Serialize) -> BTreeMap<String, String> {
    let value = serde_json::to_value(text).unwrap_or_default();
    let text = String::from_utf8_lossy(&canonical_json(&value)).into_owned();
    BTreeMap::from([("recipe".into(), text)])
}
