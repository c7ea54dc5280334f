//! `stoker commit`: the parts of several workers become one cache.
//!
//! Owns the order of the steps. Needs neither inputs, model nor shards, only the records, receipts, indexes and tables of the
//! parts. Invariant: the manifest is that of a build on one machine, byte for byte, however the partitions were shared out,
//! and it is replaced after everything else that it names is durable in the output; shards stay where they are.

mod collect;
mod cover;
mod fetch;
mod found;
mod merge;

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use stoker_formats::{
    FileName, Folder, Manifest, PARTS_FOLDER, PartEntry, PartName, PartRecord, Partition,
    SplitEntry, Tables, VERSION, fingerprint,
};
use stoker_reader::{CacheFile, CacheFiles};

use crate::build::commit::{CREATED_BY, publish_manifest};
use crate::build::lock::Lock;
use crate::build::named::Named;
use crate::build::receipts::Layout;
use crate::build::state::BuildState;
use crate::build::{BuildReport, Committed, Stop, tidy};
use crate::error::{Error, Result};
use crate::held;
use crate::pack::store;
use crate::plan::PlanIds;
use crate::publish::Publisher;
use crate::records;
use collect::Collector;
use cover::Source;
use found::Part;

/// What to commit, and where.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    /// Output folders of part builds, or copies of them without shards, here or at `s3://bucket/prefix`.
    pub parts: Vec<PathBuf>,
    /// The folder that becomes the cache: one of the parts, or another one.
    pub output: PathBuf,
    /// After the commit, removes the folders of earlier plans from the output.
    pub prune: bool,
    /// S3 endpoint, if not Amazon's.
    pub s3_endpoint: Option<String>,
}

/// What a commit prints.
#[derive(Debug, Clone, Serialize)]
pub struct CommitReport {
    /// The cache.
    #[serde(flatten)]
    pub cache: BuildReport,
    /// The partitions of each worker: the reader's placement table, if worker `k` is node `k`. None if parts of different numbers
    /// of workers were put together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Vec<Vec<u32>>>,
    /// Partitions whose shards are not in the output.
    pub not_held: Vec<u32>,
}

/// Commits the cache of `request.parts` in `request.output`.
///
/// # Errors
/// [`Error::Usage`] naming what is missing, differs, is damaged or belongs to another build; whatever keeps files from being
/// read or written. There is no manifest then, or the earlier one.
pub fn commit(request: &CommitRequest, stop: &Stop) -> Result<CommitReport> {
    let start = Instant::now();
    let mut lock = None;
    let here = if request.parts.iter().any(|part| fetch::is_remote(part)) {
        Publisher::make(request.output.clone())?;
        // Longer than what is brought.
        lock = Some(Lock::take(&request.output)?);
        Some(fetch::fetch(request, stop)?)
    } else {
        None
    };
    let folders = here.as_ref().map_or(&request.parts, |here| &here.folders);
    let parts = found::read(folders, &request.parts)?;
    let first = &parts[0].record;
    found::check_same_build(&parts)?;
    let sources = cover::sources(&parts)?;
    let publisher = Publisher::make(request.output.clone())?;
    let _late = lock
        .is_none()
        .then(|| Lock::take(&request.output))
        .transpose()?;
    if here.is_none() {
        fetch::remove(&request.output)?;
    }
    let ids = PlanIds {
        image: first.image_plan_id,
        text: first.text_plan_id,
    };
    check_output(&request.output, &parts[0])?;
    let layout = Layout::new(ids);
    let named = Named::read(publisher.root())?;
    let collector = Collector {
        parts: &parts,
        sources: &sources,
        layout,
        output: publisher.root(),
        named: &named,
        stop,
    };
    collector.check()?;
    layout.create(&publisher)?;
    collector.collect(&publisher)?;
    let merged = merge::merge(&parts, &sources, &layout, &publisher, stop)
        .map_err(|error| publisher.explain(error))?;
    let manifest = manifest(&parts, &sources, merged.tables)?;
    let bytes = manifest.to_bytes()?;
    let mut committed = Committed {
        fingerprint: Some(manifest.fingerprint.to_string()),
        records: total(manifest.inputs.iter().map(|input| input.records))?,
        rejected_images: total(entries(&parts, &sources).map(|entry| entry.rejected_images))?,
        bytes: total(entries(&parts, &sources).flat_map(shard_bytes))?,
        rejects: merged.rejects,
        ..Committed::default()
    };
    committed.count(&manifest.splits);
    layout.sync(&publisher)?;
    if !named.is_of(ids) {
        // Marks a folder that holds a share of the cache's shards, perhaps none. Not earlier: until then another cache is whole.
        publisher.create_folder(Path::new(PARTS_FOLDER))?;
    }
    publish_manifest(&publisher, &bytes)?;
    // Those of earlier plans say nothing of this cache.
    records::remove(&publisher, None, |of| of != Some(ids))?;
    tidy::after_commit(&publisher)?;
    if request.prune {
        tidy::prune(&publisher, [layout.images(), layout.text()])?;
        store::prune(&publisher, manifest.fingerprint)?;
    }
    committed.earlier_packs = store::earlier(publisher.root(), manifest.fingerprint)?;
    Ok(CommitReport {
        cache: BuildReport::new(committed, &request.output, start.elapsed()),
        placement: placement(&parts),
        not_held: held::elsewhere(&CacheFiles::open(publisher.root())?)?,
    })
}

/// Refuses an output with an unfinished build of something else.
fn check_output(output: &Path, part: &Part) -> Result<()> {
    let state = part.state();
    match BuildState::read(output)? {
        Some(earlier) if earlier.ids() != state.ids() => Err(Error::Changed {
            path: output.to_path_buf(),
            changed: earlier.differences(&state, ["before", "now"]),
        }),
        _ => Ok(()),
    }
}

/// What the parts say of each partition, in order.
fn entries<'a>(
    parts: &'a [Part],
    sources: &'a [Source],
) -> impl Iterator<Item = &'a PartEntry> + 'a {
    sources.iter().map(|source| source.entry(parts))
}

fn shard_bytes(entry: &PartEntry) -> impl Iterator<Item = u64> + '_ {
    let files = [&entry.files.images, &entry.files.samples];
    let shards = files
        .into_iter()
        .flat_map(|files| files.shards.iter().flatten());
    shards.map(|shard| shard.bytes)
}

/// The sum of counts that records name: anybody may have written them.
fn total(counts: impl IntoIterator<Item = u64>) -> Result<u64> {
    let sum = counts.into_iter().try_fold(0u64, u64::checked_add);
    sum.ok_or_else(|| Error::Usage {
        what: "parts count more than a number can hold".into(),
        hint: "build the parts again".into(),
    })
}

/// What a build on one machine would commit.
fn manifest(parts: &[Part], sources: &[Source], tables: Tables) -> Result<Manifest> {
    let first = &parts[0].record;
    let all: Vec<&PartEntry> = entries(parts, sources).collect();
    let partitions: Vec<Partition> = all.iter().map(|entry| entry.files.clone()).collect();
    let split = |split: &SplitEntry| {
        let from = split.first_partition as usize;
        let own = &all[from..from + split.partitions as usize];
        let sum = |of: fn(&PartEntry) -> u64| total(own.iter().copied().map(of));
        Ok(SplitEntry {
            name: split.name.clone(),
            first_partition: split.first_partition,
            partitions: split.partitions,
            samples: sum(|entry| entry.files.samples.index.rows)?,
            tokens: sum(|entry| entry.tokens)?,
            loss_tokens: sum(|entry| entry.loss_tokens)?,
            images: sum(|entry| entry.files.images.index.rows)?,
        })
    };
    Ok(Manifest {
        format_version: VERSION,
        created_by: CREATED_BY.into(),
        fingerprint: fingerprint(&first.recipe, &partitions),
        image_plan_id: first.image_plan_id,
        text_plan_id: first.text_plan_id,
        recipe: first.recipe.clone(),
        splits: first.splits.iter().map(split).collect::<Result<_>>()?,
        partitions,
        tables,
        tokenizer: first.tokenizer,
        inputs: first.inputs.clone(),
    })
}

/// The partitions of each worker, if all parts are of the same number of workers.
fn placement(parts: &[Part]) -> Option<Vec<Vec<u32>>> {
    let first = &parts[0].record;
    let workers = first.name.workers;
    let same = parts.iter().all(|part| part.record.name.workers == workers);
    let of = |worker| PartName { worker, workers }.partitions(first.all_partitions());
    same.then(|| (0..workers).map(|worker| of(worker).collect()).collect())
}

/// What the cache's folder shall hold of a partition but its shards.
fn small_files(layout: Layout, entry: &PartEntry) -> impl Iterator<Item = CacheFile> + '_ {
    let kinds = [
        (layout.images(), &entry.files.images),
        (layout.text(), &entry.files.samples),
    ];
    kinds
        .into_iter()
        .flat_map(move |(folder, files)| CacheFile::of_partition(folder, entry.partition, files))
        .filter(|file| !matches!(file.name, FileName::Shard { .. }))
}

/// The tokenizer that the cache's folder shall hold.
fn tokenizer(layout: Layout, record: &PartRecord) -> CacheFile {
    let entry = record.tokenizer;
    CacheFile {
        folder: layout.text(),
        name: FileName::Tokenizer { hash: entry.hash },
        entry,
    }
}

/// Where a file of a cache or a part lies.
fn path(root: &Path, folder: Folder, name: FileName) -> PathBuf {
    root.join(folder.to_string()).join(name.to_string())
}
