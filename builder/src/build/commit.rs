//! The commit: indexes and tables put together from the receipts, partition by partition as they are done, then the
//! manifest, then the tidying.
//!
//! Memory is one partition's receipts and a part of the tables. Invariant: the manifest is replaced after everything it names is
//! durable; only files that this program names are ever removed.

use std::path::Path;

use serde_json::Value;
use stoker_formats::tables::{
    ProvenanceKind, ProvenanceRow, RejectTableRow, SampleTableRow, TableRow, TableWriter,
};
use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, ImageEntry, InputEntry, MANIFEST_NAME, Manifest,
    Partition, PartitionFiles, SampleEntry, SplitEntry, TableKind, Tables, VERSION, Written,
    fingerprint, write_image_index, write_sample_index,
};

use super::context::Context;
use super::named::changed;
use super::receipts::{ImageReceipts, InFolder, Receipts, SampleReceipts};
use super::report::{Committed, SplitReport};
use super::sink::base_name;
use super::tidy;
use crate::error::{Error, Result};
use crate::folder::has_file;
use crate::model::ModelFolder;
use crate::pack::store;
use crate::plan::PlannedFile;
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

/// A partition whose rows are all on disk, and its receipts.
pub(crate) struct Done<'a> {
    pub(crate) partition: u32,
    /// Its images and records in plan order: what items of receipts count.
    pub(crate) image_items: &'a [u32],
    pub(crate) images: &'a ImageReceipts,
    pub(crate) records: &'a [u32],
    pub(crate) samples: &'a SampleReceipts,
}

/// A commit in the making: partition after partition, then [`finish`](Self::finish).
pub(crate) struct Commit<'a> {
    context: &'a Context,
    tables: OpenTables,
    splits: Vec<SplitEntry>,
    partitions: Vec<Partition>,
    committed: Committed,
}

impl<'a> Commit<'a> {
    /// Opens the tables.
    pub(crate) fn begin(context: &'a Context) -> Result<Self> {
        let splits = context.plan.deal.splits.iter().map(|split| SplitEntry {
            name: split.name.clone(),
            first_partition: split.first_partition,
            partitions: split.partitions,
            samples: 0,
            tokens: 0,
            loss_tokens: 0,
            images: 0,
        });
        Ok(Self {
            tables: OpenTables::new(context).map_err(|error| context.publisher.explain(error))?,
            splits: splits.collect(),
            partitions: Vec::new(),
            committed: Committed {
                records: context.plan.records(),
                ..Committed::default()
            },
            context,
        })
    }

    /// Adds the next partition: its indexes and its rows of the tables.
    pub(crate) fn add(&mut self, done: &Done<'_>) -> Result<()> {
        let (context, partition) = (self.context, done.partition);
        done.images
            .check_all(partition, "images", done.image_items.len())?;
        done.samples
            .check_all(partition, "records", done.records.len())?;
        let split = self
            .splits
            .iter_mut()
            .rfind(|split| split.first_partition <= partition)
            .ok_or_else(|| lost(context, partition))?;
        let committed = &mut self.committed;
        self.tables
            .add_images(context, done)
            .and_then(|()| self.tables.add_samples(context, &split.name, done))
            .map_err(|error| context.publisher.explain(error))?;
        committed.bytes += done.images.bytes() + done.samples.bytes();
        for receipt in done.images.all() {
            committed.rejected_images += receipt.rejects.len() as u64;
        }
        for reject in done
            .samples
            .all()
            .iter()
            .flat_map(|receipt| &receipt.rejects)
        {
            *committed.rejects.entry(reject.reason.clone()).or_default() += 1;
        }
        let image_entries: Vec<_> = entries(done.images);
        let sample_entries: Vec<_> = entries(done.samples);
        split.samples += sample_entries.len() as u64;
        split.images += image_entries.len() as u64;
        for entry in &sample_entries {
            split.tokens += u64::from(entry.n_tokens);
            split.loss_tokens += u64::from(entry.n_loss_tokens);
        }
        let mut bytes = Vec::new();
        let written = write_image_index(&mut bytes, partition, &image_entries)?;
        let images = files(context, partition, done.images, &bytes, written)?;
        bytes.clear();
        let written = write_sample_index(&mut bytes, partition, &sample_entries)?;
        let samples = files(context, partition, done.samples, &bytes, written)?;
        self.partitions.push(Partition { images, samples });
        Ok(())
    }

    /// Commits the cache: every partition has been added.
    pub(crate) fn finish(mut self, making: &Making<'_>) -> Result<Committed> {
        let context = self.context;
        context.progress.phase("commit", 1);
        for (partition, files) in (0..).zip(&self.partitions) {
            context.stop.check()?;
            check_there::<ImageEntry>(context, partition, &files.images)?;
            check_there::<SampleEntry>(context, partition, &files.samples)?;
        }
        for split in &self.splits {
            self.committed.splits.push(SplitReport {
                name: split.name.clone(),
                partitions: split.partitions,
                samples: split.samples,
            });
            self.committed.tokens += split.tokens;
            self.committed.loss_tokens += split.loss_tokens;
            self.committed.images += split.images;
        }
        let manifest = Manifest {
            format_version: VERSION,
            created_by: CREATED_BY.into(),
            fingerprint: fingerprint(making.recipe, &self.partitions),
            image_plan_id: context.layout.ids.image,
            text_plan_id: context.layout.ids.text,
            recipe: making.recipe.clone(),
            splits: self.splits,
            partitions: self.partitions,
            tables: self.tables.finish(context)?,
            tokenizer: publish_tokenizer(context, making)?,
            inputs: context.plan.files.iter().map(input_entry).collect(),
        };
        self.committed.fingerprint = manifest.fingerprint.to_string();
        publish_manifest(context, &manifest.to_bytes()?)?;
        tidy::after_commit(&context.publisher)?;
        if making.prune {
            tidy::prune(
                &context.publisher,
                [context.layout.images(), context.layout.text()],
            )?;
            store::prune(&context.publisher, manifest.fingerprint)?;
        }
        self.committed.earlier_packs =
            store::earlier(context.publisher.root(), manifest.fingerprint)?;
        Ok(self.committed)
    }
}

fn input_entry(file: &PlannedFile) -> InputEntry {
    InputEntry {
        name: file.name.clone(),
        bytes: file.bytes,
        hash: file.hash,
        records: u64::from(file.records),
    }
}

/// The commit itself, after everything that the manifest names is durable.
fn publish_manifest(context: &Context, bytes: &[u8]) -> Result<()> {
    context.layout.sync(&context.publisher)?;
    let there = std::fs::read(context.publisher.root().join(MANIFEST_NAME));
    if there.ok().as_deref() == Some(bytes) {
        return Ok(());
    }
    context
        .publisher
        .replace_bytes(Path::new(""), MANIFEST_NAME, bytes)
}

/// Whether somebody took away what this run, or an earlier one, has made.
fn check_there<E: InFolder>(
    context: &Context,
    partition: u32,
    files: &PartitionFiles,
) -> Result<()> {
    let folder = context
        .publisher
        .root()
        .join(E::folder(&context.layout).to_string());
    let there = |name: FileName, bytes| has_file(&folder.join(name.to_string()), bytes);
    for (ordinal, (shard, receipt)) in (0..).zip(files.shards.iter().zip(&files.receipts)) {
        let shard =
            shard.is_none_or(|shard| there(FileName::Shard { partition, ordinal }, shard.bytes));
        if !shard || !there(FileName::Receipt { partition, ordinal }, receipt.bytes) {
            return Err(lost(context, partition));
        }
    }
    // Written when the partition was done, which may be hours ago.
    if there(FileName::Index { partition }, files.index.bytes) {
        Ok(())
    } else {
        Err(lost(context, partition))
    }
}

fn lost(context: &Context, partition: u32) -> Error {
    Error::Usage {
        what: format!(
            "partition {partition} of `{}` lost files while the cache was built",
            context.publisher.root().display()
        ),
        hint: "run the same command again to make them anew".into(),
    }
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
    let index_name = FileName::Index { partition };
    if !context
        .named
        .allows(E::folder(&context.layout), index_name, written.hash)
    {
        let path = folder.join(index_name.to_string());
        return Err(changed(&context.publisher.root().join(path)));
    }
    let name = base_name(&index_name);
    publish_unless_there(context, &folder.join("index"), &name, index)?;
    let shards = receipts.all().iter().map(|receipt| {
        receipt.shard.map(|shard| FileEntry {
            bytes: shard.bytes,
            hash: shard.hash,
            rows: shard.rows,
        })
    });
    Ok(PartitionFiles {
        shards: shards.collect(),
        receipts: receipts.files().to_vec(),
        index: FileEntry {
            bytes: written.bytes,
            hash: written.hash,
            rows: receipts.files().iter().map(|file| file.rows).sum(),
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

    fn add_images(&mut self, context: &Context, done: &Done<'_>) -> Result<()> {
        let receipts = done.images.all();
        for source in receipts.iter().flat_map(|receipt| &receipt.sources) {
            let image = usize::try_from(source.item)
                .ok()
                .and_then(|at| done.image_items.get(at));
            let key = image.map(|image| context.plan.images[*image as usize].key.to_string());
            self.provenance.push(ProvenanceRow {
                kind: ProvenanceKind::Image,
                uri: source.uri.clone(),
                bytes: source.bytes,
                etag: source.etag.clone(),
                partition: Some(done.partition),
                key,
            })?;
        }
        Ok(())
    }

    fn add_samples(&mut self, context: &Context, split: &str, done: &Done<'_>) -> Result<()> {
        let (plan, partition) = (&context.plan, done.partition);
        let record_of = |item: u64| done.records[usize::try_from(item).unwrap_or(0)];
        for receipt in done.samples.all() {
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
    let (pending, entry) = table
        .finish()
        .map_err(|error| context.publisher.explain(error))?;
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
