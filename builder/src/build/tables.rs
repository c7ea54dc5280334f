//! The three tables while they are written: those of the cache, or a part's.
//!
//! Invariant: rows come by partitions, ascending, and depend on plan and receipts alone, so that parts' rows one after another are
//! the rows of the whole.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use stoker_formats::tables::{
    ProvenanceKind, ProvenanceRow, RejectTableRow, SampleTableRow, TableRow, TableWriter,
};
use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, PartFile, PartName, SampleReceipt, TableKind, Tables,
};

use super::commit::Done;
use super::context::Context;
use super::sink::base_name;
use crate::error::{Error, Result};
use crate::publish::{Pending, Publisher};

/// The tables, open.
pub(crate) struct OpenTables {
    part: Option<PartName>,
    pub(crate) samples: TableWriter<Pending, SampleTableRow>,
    pub(crate) rejects: TableWriter<Pending, RejectTableRow>,
    pub(crate) provenance: TableWriter<Pending, ProvenanceRow>,
}

impl OpenTables {
    /// Begins the tables in `folder` below the output: of a part, or of the cache.
    pub(crate) fn new(
        publisher: &Publisher,
        folder: &Path,
        part: Option<PartName>,
    ) -> Result<Self> {
        let pending = |kind: TableKind| publisher.create(folder, kind.name());
        Ok(Self {
            part,
            samples: TableWriter::new(pending(TableKind::Samples)?)?,
            rejects: TableWriter::new(pending(TableKind::Rejects)?)?,
            provenance: TableWriter::new(pending(TableKind::Provenance)?)?,
        })
    }

    pub(super) fn add_images(&mut self, context: &Context, done: &Done<'_>) -> Result<()> {
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

    pub(super) fn add_samples(
        &mut self,
        context: &Context,
        split: &str,
        done: &Done<'_>,
    ) -> Result<()> {
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

    /// Publishes the tables.
    pub(crate) fn finish(self, publisher: &Publisher) -> Result<Tables> {
        self.finish_by(publisher, |pending, name, _| pending.publish(name))
    }

    /// The same by `publish`, which is told the name and the hash of each.
    pub(crate) fn finish_by(
        self,
        publisher: &Publisher,
        publish: impl Fn(Pending, &str, ContentHash) -> Result<()>,
    ) -> Result<Tables> {
        let end = End {
            publisher,
            part: self.part,
            publish: &publish,
        };
        Ok(Tables {
            samples: end.table(TableKind::Samples, self.samples)?,
            rejects: end.table(TableKind::Rejects, self.rejects)?,
            provenance: end.table(TableKind::Provenance, self.provenance)?,
        })
    }
}

/// How tables end.
struct End<'a> {
    publisher: &'a Publisher,
    part: Option<PartName>,
    publish: &'a dyn Fn(Pending, &str, ContentHash) -> Result<()>,
}

impl End<'_> {
    fn table<R: TableRow>(
        &self,
        kind: TableKind,
        table: TableWriter<Pending, R>,
    ) -> Result<FileEntry> {
        let finished = table.finish();
        let (pending, entry) = finished.map_err(|error| self.publisher.explain(error))?;
        let hash = entry.hash;
        let name = match self.part {
            None => base_name(&FileName::Table { kind, hash }),
            Some(part) => PartFile::Table(part, kind).to_string(),
        };
        (self.publish)(pending, &name, hash)?;
        Ok(entry)
    }
}

/// The records' own ids of a receipt's rows, read from their shard.
fn record_ids(
    context: &Context,
    partition: u32,
    receipt: &SampleReceipt,
) -> Result<Vec<Option<String>>> {
    let ordinal = receipt.ordinal;
    let folder: Folder = context.layout.text();
    let name = FileName::Shard { partition, ordinal }.to_string();
    let path = context.publisher.root().join(folder.to_string()).join(name);
    if receipt.entries.is_empty() {
        return Ok(Vec::new());
    }
    let shard = File::open(&path).map_err(Error::io("open", &path))?;
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
