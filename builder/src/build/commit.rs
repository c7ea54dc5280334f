//! The commit: indexes and tables put together from the receipts, then the manifest, then the tidying.
//!
//! Memory is one partition's receipts. Invariant: the manifest is replaced after everything it names is
//! durable; only files that this program names are ever removed.

use std::path::Path;

use serde_json::Value;
use stoker_formats::tables::{
    ProvenanceKind, ProvenanceRow, RejectTableRow, SampleTableRow, TableRow, TableWriter,
};
use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, InputEntry, MANIFEST_NAME, Manifest, Partition,
    PartitionFiles, SplitEntry, TableKind, Tables, VERSION, Written, fingerprint,
    write_image_index, write_sample_index,
};

use super::context::Context;
use super::receipts::{ImageReceipts, InFolder, Receipts, SampleReceipts};
use super::report::{Committed, SplitReport};
use super::sink::base_name;
use super::tidy;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::pack::store;
use crate::publish::Pending;

/// What the manifest says of its maker. Byte identity is promised for one release.
const CREATED_BY: &str = concat!("stoker ", env!("CARGO_PKG_VERSION"));

/// What a commit needs beside the context.
pub(crate) struct Making<'a> {
    pub(crate) recipe: &'a Value,
    pub(crate) model: &'a ModelFolder,
    /// Whether folders of earlier plans, and pack tables of earlier caches, are removed.
    pub(crate) prune: bool,
}

/// Commits the cache: every partition must be complete.
pub(crate) fn commit(context: &Context, making: &Making<'_>) -> Result<Committed> {
    let plan = &context.plan;
    context
        .progress
        .phase("commit", u64::from(plan.deal.partitions()));
    let mut tables = OpenTables::new(context)?;
    let mut committed = Committed {
        records: plan.records(),
        ..Committed::default()
    };
    let mut partitions = Vec::new();
    let mut splits = Vec::new();
    for split in &plan.deal.splits {
        let mut entry = SplitEntry {
            name: split.name.clone(),
            first_partition: split.first_partition,
            partitions: split.partitions,
            samples: 0,
            tokens: 0,
            loss_tokens: 0,
            images: 0,
        };
        for partition in split.first_partition..split.first_partition + split.partitions {
            context.stop.check()?;
            let done =
                commit_partition(context, partition, &mut tables, &mut entry, &mut committed)?;
            partitions.push(done);
            context.progress.advance(1);
        }
        committed.splits.push(SplitReport {
            name: entry.name.clone(),
            partitions: entry.partitions,
            samples: entry.samples,
        });
        committed.tokens += entry.tokens;
        committed.loss_tokens += entry.loss_tokens;
        committed.images += entry.images;
        splits.push(entry);
    }
    let manifest = Manifest {
        format_version: VERSION,
        created_by: CREATED_BY.into(),
        fingerprint: fingerprint(making.recipe, &partitions),
        image_plan_id: context.layout.ids.image,
        text_plan_id: context.layout.ids.text,
        recipe: making.recipe.clone(),
        splits,
        partitions,
        tables: tables.finish(context)?,
        tokenizer: publish_tokenizer(context, making)?,
        inputs: plan
            .files
            .iter()
            .map(|file| InputEntry {
                name: file.name.clone(),
                bytes: file.bytes,
                hash: file.hash,
                records: u64::from(file.records),
            })
            .collect(),
    };
    committed.fingerprint = manifest.fingerprint.to_string();
    let bytes = manifest.to_bytes()?;
    context.layout.sync(&context.publisher)?;
    if std::fs::read(context.publisher.root().join(MANIFEST_NAME))
        .ok()
        .as_deref()
        != Some(&bytes)
    {
        context
            .publisher
            .replace_bytes(Path::new(""), MANIFEST_NAME, &bytes)?;
    }
    tidy::after_commit(&context.publisher)?;
    if making.prune {
        tidy::prune(
            &context.publisher,
            [context.layout.images(), context.layout.text()],
        )?;
        store::prune(&context.publisher, manifest.fingerprint)?;
    }
    committed.earlier_packs = store::earlier(context.publisher.root(), manifest.fingerprint)?;
    Ok(committed)
}

fn commit_partition(
    context: &Context,
    partition: u32,
    tables: &mut OpenTables,
    split: &mut SplitEntry,
    committed: &mut Committed,
) -> Result<Partition> {
    let plan = &context.plan;
    let root = context.publisher.root();
    let image_items = plan.partition_images(partition);
    let images = ImageReceipts::load(root, &context.layout, partition)?;
    let records = plan.partition_records(partition);
    let samples = SampleReceipts::load(root, &context.layout, partition)?;
    check_complete(context, partition, images.covered(), image_items.len())?;
    check_complete(context, partition, samples.covered(), records.len())?;
    tables.add_images(context, partition, &image_items, &images)?;
    tables.add_samples(context, partition, &split.name, &records, &samples)?;
    committed.bytes += images.bytes() + samples.bytes();
    for receipt in images.all() {
        committed.rejected_images += receipt.rejects.len() as u64;
    }
    for reject in samples.all().iter().flat_map(|receipt| &receipt.rejects) {
        *committed.rejects.entry(reject.reason.clone()).or_default() += 1;
    }
    let image_entries: Vec<_> = entries(&images);
    let sample_entries: Vec<_> = entries(&samples);
    split.samples += sample_entries.len() as u64;
    split.images += image_entries.len() as u64;
    for entry in &sample_entries {
        split.tokens += u64::from(entry.n_tokens);
        split.loss_tokens += u64::from(entry.n_loss_tokens);
    }
    let mut bytes = Vec::new();
    let written = write_image_index(&mut bytes, partition, &image_entries)?;
    let image_files = files(context, partition, &images, &bytes, written)?;
    bytes.clear();
    let written = write_sample_index(&mut bytes, partition, &sample_entries)?;
    let sample_files = files(context, partition, &samples, &bytes, written)?;
    Ok(Partition {
        images: image_files,
        samples: sample_files,
    })
}

fn check_complete(context: &Context, partition: u32, covered: u64, items: usize) -> Result<()> {
    if covered == items as u64 {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!(
            "partition {partition} of `{}` lost files while the cache was built",
            context.publisher.root().display()
        ),
        hint: "run the same command again to make them anew".into(),
    })
}

fn entries<E: InFolder + Clone>(receipts: &Receipts<E>) -> Vec<E> {
    receipts
        .all()
        .iter()
        .flat_map(|receipt| receipt.entries.iter().cloned())
        .collect()
}

/// Publishes the index and lists the partition's files of one kind.
fn files<E: InFolder>(
    context: &Context,
    partition: u32,
    receipts: &Receipts<E>,
    index: &[u8],
    written: Written,
) -> Result<PartitionFiles> {
    let folder = E::folder(&context.layout).to_string();
    let folder = Path::new(&folder);
    let name = base_name(&FileName::Index { partition });
    publish_unless_there(context, &folder.join("index"), &name, index)?;
    let mut shards = Vec::new();
    let mut receipt_files = Vec::new();
    for receipt in receipts.all() {
        let ordinal = receipt.ordinal;
        let rows = receipt.entries.len() as u64;
        shards.push(receipt.shard.map(|shard| FileEntry {
            bytes: shard.bytes,
            hash: shard.hash,
            rows,
        }));
        let name = FileName::Receipt { partition, ordinal }.to_string();
        let path = context.publisher.root().join(folder).join(name);
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        receipt_files.push(FileEntry {
            bytes: bytes.len() as u64,
            hash: ContentHash::of(&bytes),
            rows,
        });
    }
    Ok(PartitionFiles {
        shards,
        receipts: receipt_files,
        index: FileEntry {
            bytes: written.bytes,
            hash: written.hash,
            rows: receipts
                .all()
                .iter()
                .map(|receipt| receipt.entries.len() as u64)
                .sum(),
        },
    })
}

/// Publishes `bytes`, unless an earlier run or an earlier cache has left exactly them.
fn publish_unless_there(context: &Context, folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let there = std::fs::read(context.publisher.root().join(folder).join(name));
    if there.ok().as_deref() == Some(bytes) {
        return Ok(());
    }
    context.publisher.publish_bytes(folder, name, bytes)
}

fn publish_tokenizer(context: &Context, making: &Making<'_>) -> Result<FileEntry> {
    let path = making.model.tokenizer_path();
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let hash = ContentHash::of(&bytes);
    if hash.to_string() != making.model.tokenizer_blake3() {
        return Err(Error::Model {
            path: path.to_path_buf(),
            what: "the tokenizer changed during the build".into(),
            hint: "let nothing write to the model folder, and run again".into(),
        });
    }
    let folder = context.layout.text().to_string();
    let name = base_name(&FileName::Tokenizer { hash });
    publish_unless_there(context, Path::new(&folder), &name, &bytes)?;
    Ok(FileEntry {
        bytes: bytes.len() as u64,
        hash,
        rows: making.model.tokenizer().get_vocab_size(true) as u64,
    })
}

/// The three tables while they are written.
struct OpenTables {
    samples: TableWriter<Pending, SampleTableRow>,
    rejects: TableWriter<Pending, RejectTableRow>,
    provenance: TableWriter<Pending, ProvenanceRow>,
}

impl OpenTables {
    fn new(context: &Context) -> Result<Self> {
        let folder = Path::new(&context.layout.text().to_string()).join("tables");
        let pending = |kind: TableKind| context.publisher.create(&folder, kind.name());
        let mut tables = Self {
            samples: TableWriter::new(pending(TableKind::Samples)?)?,
            rejects: TableWriter::new(pending(TableKind::Rejects)?)?,
            provenance: TableWriter::new(pending(TableKind::Provenance)?)?,
        };
        for file in &context.plan.files {
            tables.provenance.push(ProvenanceRow {
                kind: ProvenanceKind::Input,
                uri: file.uri.clone(),
                bytes: file.bytes,
                etag: file.etag.clone(),
                partition: None,
                key: None,
            })?;
        }
        Ok(tables)
    }

    fn add_images(
        &mut self,
        context: &Context,
        partition: u32,
        items: &[u32],
        receipts: &ImageReceipts,
    ) -> Result<()> {
        for source in receipts.all().iter().flat_map(|receipt| &receipt.sources) {
            let image = usize::try_from(source.item)
                .ok()
                .and_then(|at| items.get(at));
            let key = image.map(|image| context.plan.images[*image as usize].key.to_string());
            self.provenance.push(ProvenanceRow {
                kind: ProvenanceKind::Image,
                uri: source.uri.clone(),
                bytes: source.bytes,
                etag: source.etag.clone(),
                partition: Some(partition),
                key,
            })?;
        }
        Ok(())
    }

    fn add_samples(
        &mut self,
        context: &Context,
        partition: u32,
        split: &str,
        records: &[u32],
        receipts: &SampleReceipts,
    ) -> Result<()> {
        let plan = &context.plan;
        let record_of = |item: u64| records[usize::try_from(item).unwrap_or(0)];
        for receipt in receipts.all() {
            let ids = record_ids(context, partition, receipt)?;
            let rows = receipt.first_row..;
            for (((item, entry), record_id), row) in receipt
                .items
                .iter()
                .zip(&receipt.entries)
                .zip(ids)
                .zip(rows)
            {
                let record = record_of(*item);
                let line = plan.lines[record as usize];
                self.samples.push(SampleTableRow {
                    sample_id: plan.sample_id(record),
                    record_id,
                    split: split.to_owned(),
                    partition,
                    row,
                    file: plan.file_of(record).name.clone(),
                    line: u64::from(line.number),
                    byte_offset: line.offset,
                    n_tokens: entry.n_tokens,
                    n_loss_tokens: entry.n_loss_tokens,
                    n_images: entry.n_images,
                    n_patches: entry.n_patches,
                })?;
            }
            for reject in &receipt.rejects {
                let record = record_of(reject.item);
                let line = plan.lines[record as usize];
                self.rejects.push(RejectTableRow {
                    sample_id: plan.sample_id(record),
                    file: plan.file_of(record).name.clone(),
                    line: u64::from(line.number),
                    byte_offset: line.offset,
                    column: reject.column,
                    reason: reject.reason.clone(),
                    link: reject.link.clone(),
                    message: reject.message.clone(),
                })?;
            }
        }
        Ok(())
    }

    fn finish(self, context: &Context) -> Result<Tables> {
        Ok(Tables {
            samples: finish_table(context, TableKind::Samples, self.samples)?,
            rejects: finish_table(context, TableKind::Rejects, self.rejects)?,
            provenance: finish_table(context, TableKind::Provenance, self.provenance)?,
        })
    }
}

fn finish_table<R: TableRow>(
    context: &Context,
    kind: TableKind,
    table: TableWriter<Pending, R>,
) -> Result<FileEntry> {
    let (pending, entry) = table.finish().map_err(|error| {
        let fault = context.publisher.take_write_fault();
        fault.unwrap_or(Error::Formats(error))
    })?;
    let hash = entry.hash;
    pending.publish(&base_name(&FileName::Table { kind, hash }))?;
    Ok(entry)
}

/// The records' own ids of a receipt's rows, read from their shard.
fn record_ids(
    context: &Context,
    partition: u32,
    receipt: &stoker_formats::SampleReceipt,
) -> Result<Vec<Option<String>>> {
    use std::os::unix::fs::FileExt;
    let ordinal = receipt.ordinal;
    let folder: Folder = context.layout.text();
    let name = FileName::Shard { partition, ordinal }.to_string();
    let path = context.publisher.root().join(folder.to_string()).join(name);
    if receipt.entries.is_empty() {
        return Ok(Vec::new());
    }
    let shard = std::fs::File::open(&path).map_err(Error::io("open", &path))?;
    let mut ids = Vec::with_capacity(receipt.entries.len());
    for entry in &receipt.entries {
        let id = match entry.record_id_bytes {
            None => None,
            Some(length) => {
                let mut text = vec![0; length as usize];
                shard
                    .read_exact_at(&mut text, entry.record_id)
                    .map_err(Error::io("read", &path))?;
                Some(String::from_utf8_lossy(&text).into_owned())
            }
        };
        ids.push(id);
    }
    Ok(ids)
}
