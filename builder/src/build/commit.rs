//! The commit: indexes and tables put together from the receipts, partition by partition as they are done, then the
//! manifest, then the tidying.
//!
//! Memory is one partition's receipts and a part of the tables. Invariant: the manifest is replaced after everything it names is
//! durable; only files that this program names are ever removed.

use std::path::Path;

use serde_json::Value;
use stoker_formats::tables::{ProvenanceKind, ProvenanceRow};
use stoker_formats::{
    ContentHash, FileEntry, FileName, ImageEntry, InputEntry, MANIFEST_NAME, Manifest,
    PARTS_FOLDER, PartEntry, PartName, Partition, PartitionFiles, Receipt, SampleEntry, SplitEntry,
    VERSION, Written, fingerprint, write_image_index, write_sample_index,
};

use super::context::Context;
use super::receipts::{ImageReceipts, InFolder, Receipts, SampleReceipts};
use super::report::Committed;
use super::sink::base_name;
use super::tables::OpenTables;
use super::tidy;
use crate::error::{Error, Result};
use crate::folder::has_file;
use crate::model::ModelFolder;
use crate::pack::store;
use crate::plan::PlannedFile;
use crate::publish::Publisher;

/// What the manifest, the record of a part or share and the entry of a pack table say of their maker. Byte identity is promised
/// for one release.
pub(crate) const CREATED_BY: &str = concat!("stoker ", env!("CARGO_PKG_VERSION"));

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
    pub(super) context: &'a Context,
    pub(super) tables: OpenTables,
    /// Whether rows are missing from the tables, which a repair has given up.
    lacks_rows: bool,
    pub(super) splits: Vec<SplitEntry>,
    pub(super) partitions: Vec<PartEntry>,
    pub(super) committed: Committed,
}

impl<'a> Commit<'a> {
    /// Opens the tables of a part, or of the cache.
    pub(crate) fn begin(context: &'a Context, part: Option<PartName>) -> Result<Self> {
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
            tables: open_tables(context, part).map_err(|error| context.publisher.explain(error))?,
            lacks_rows: false,
            splits: splits.collect(),
            partitions: Vec::new(),
            committed: Committed::default(),
            context,
        })
    }

    /// Leaves out the next partition, of which a repair has given something up.
    pub(crate) fn leave_out(&mut self) {
        self.lacks_rows = true;
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
        // Ids of records stand in the sample shards alone.
        self.lacks_rows |= done.samples.is_given_up();
        if !self.lacks_rows {
            self.tables
                .add_images(context, done)
                .and_then(|()| self.tables.add_samples(context, &split.name, done))
                .map_err(|error| context.publisher.explain(error))?;
        }
        committed.bytes += done.images.bytes() + done.samples.bytes();
        let rejected_images = count(done.images, |receipt| receipt.rejects.len());
        committed.rejected_images += rejected_images;
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
        let sum = |of: fn(&SampleEntry) -> u32| sample_entries.iter().map(of).map(u64::from).sum();
        let tokens: u64 = sum(|entry| entry.n_tokens);
        let loss_tokens: u64 = sum(|entry| entry.n_loss_tokens);
        split.samples += sample_entries.len() as u64;
        split.images += image_entries.len() as u64;
        split.tokens += tokens;
        split.loss_tokens += loss_tokens;
        let mut bytes = Vec::new();
        let written = write_image_index(&mut bytes, partition, &image_entries)?;
        let images = files(context, partition, done.images, &bytes, written)?;
        bytes.clear();
        let written = write_sample_index(&mut bytes, partition, &sample_entries)?;
        let samples = files(context, partition, done.samples, &bytes, written)?;
        self.partitions.push(PartEntry {
            partition,
            tokens,
            loss_tokens,
            rejects: count(done.samples, |receipt| receipt.rejects.len()),
            rejected_images,
            sources: count(done.images, |receipt| receipt.sources.len()),
            files: Partition { images, samples },
        });
        Ok(())
    }

    /// Checks that every partition that was added is there, and counts.
    pub(super) fn close(&mut self) -> Result<()> {
        let context = self.context;
        for PartEntry {
            partition, files, ..
        } in &self.partitions
        {
            context.stop.check()?;
            check_there::<ImageEntry>(context, *partition, &files.images)?;
            check_there::<SampleEntry>(context, *partition, &files.samples)?;
        }
        self.committed.count(&self.splits);
        Ok(())
    }

    /// Commits the cache: every partition has been added.
    pub(crate) fn finish(mut self, making: &Making<'_>) -> Result<Committed> {
        let context = self.context;
        if context.mending.is_repair() {
            return self.finish_repair(making);
        }
        self.close()?;
        let tables = self.tables.finish(&context.publisher)?;
        let partitions: Vec<Partition> = self.partitions.into_iter().map(|one| one.files).collect();
        let manifest = Manifest {
            format_version: VERSION,
            created_by: CREATED_BY.into(),
            fingerprint: fingerprint(making.recipe, &partitions),
            image_plan_id: context.layout.ids.image,
            text_plan_id: context.layout.ids.text,
            recipe: making.recipe.clone(),
            splits: self.splits,
            partitions,
            tables,
            tokenizer: publish_tokenizer(context, making)?,
            inputs: inputs(context),
        };
        self.committed.fingerprint = Some(manifest.fingerprint.to_string());
        context.layout.sync(&context.publisher)?;
        publish_manifest(&context.publisher, &manifest.to_bytes()?)?;
        tidy::after_commit(&context.publisher)?;
        tidy::remove_parts(&context.publisher)?;
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

impl Commit<'_> {
    /// Ends a repair: the cache is committed, so nothing is published that its manifest does not name.
    fn finish_repair(self, making: &Making<'_>) -> Result<Committed> {
        let context = self.context;
        if !self.lacks_rows {
            self.tables
                .finish_by(&context.publisher, |pending, name, hash| {
                    if !context.named.names_table(hash) {
                        return Ok(());
                    }
                    context.mending.made(pending.publish(name)).map(drop)
                })?;
        }
        context.mending.made(publish_tokenizer(context, making))?;
        context.layout.sync(&context.publisher)?;
        Ok(self.committed)
    }
}

/// What the manifest says of the inputs.
pub(super) fn inputs(context: &Context) -> Vec<InputEntry> {
    let entry = |file: &PlannedFile| InputEntry {
        name: file.name.clone(),
        bytes: file.bytes,
        hash: file.hash,
        records: u64::from(file.records),
    };
    context.plan.files.iter().map(entry).collect()
}

/// The commit itself, after everything that the manifest names is durable.
pub(crate) fn publish_manifest(publisher: &Publisher, bytes: &[u8]) -> Result<()> {
    let there = std::fs::read(publisher.root().join(MANIFEST_NAME));
    if there.ok().as_deref() == Some(bytes) {
        return Ok(());
    }
    publisher.replace_bytes(Path::new(""), MANIFEST_NAME, bytes)
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

/// The tables, with the rows of the inputs.
fn open_tables(context: &Context, part: Option<PartName>) -> Result<OpenTables> {
    let text = context.layout.text().to_string();
    let folder = part.map_or_else(|| Path::new(&text).join("tables"), |_| PARTS_FOLDER.into());
    let mut tables = OpenTables::new(&context.publisher, &folder, part)?;
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

fn lost(context: &Context, partition: u32) -> Error {
    Error::Usage {
        what: format!(
            "partition {partition} of `{}` lost files while the cache was built",
            context.publisher.root().display()
        ),
        hint: "run the same command again to make them anew".into(),
    }
}

/// The sum of `of` over all receipts.
fn count<E: InFolder>(receipts: &Receipts<E>, of: fn(&Receipt<E>) -> usize) -> u64 {
    receipts
        .all()
        .iter()
        .map(|receipt| of(receipt) as u64)
        .sum()
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
    let published = if !context
        .named
        .allows(E::folder(&context.layout), index_name, written.hash)
    {
        let path = folder.join(index_name.to_string());
        Err(Error::Otherwise {
            path: context.publisher.root().join(path),
        })
    } else {
        let name = base_name(&index_name);
        publish_unless_there(&context.publisher, &folder.join("index"), &name, index)
    };
    context.mending.made(published)?;
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
pub(crate) fn publish_unless_there(
    publisher: &Publisher,
    folder: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<()> {
    let there = std::fs::read(publisher.root().join(folder).join(name));
    if there.ok().as_deref() == Some(bytes) {
        return Ok(());
    }
    publisher.publish_bytes(folder, name, bytes)
}

pub(super) fn publish_tokenizer(context: &Context, making: &Making<'_>) -> Result<FileEntry> {
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
    publish_unless_there(&context.publisher, Path::new(&folder), &name, &bytes)?;
    Ok(FileEntry {
        bytes: bytes.len() as u64,
        hash,
        rows: making.model.tokenizer().get_vocab_size(true) as u64,
    })
}
