//! `stoker verify`: is a cache what its manifest says, and if not, which samples does that cost?
//!
//! Owns the order of the checks and the verdict. Reads only. Invariant: a cache that is called sound has every file of
//! the manifest and of its pack tables with its size and hash and, with `deep`, every row as index, receipt and the format's
//! rules want it.

mod cost;
mod deep;
pub(crate) mod files;
mod foreign;
mod packs;
pub(crate) mod progress;
mod report;
pub(crate) mod table_rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use stoker_formats::{FileName, ImageIndex, MANIFEST_NAME, SampleIndex};
use stoker_reader::{CacheFile, CacheFiles};

use crate::build::Stop;
use crate::error::Result;
use crate::held;
use crate::pack::store;
pub(crate) use files::check_file;
use progress::Progress;
pub use report::{Damage, Fault, Note, NoteKind, Report};
pub(crate) use report::{extra_text, part_record};

/// Sample ids that a damage names; the count says how many there are.
const NAMED_SAMPLES_MAX: usize = 5;

/// Rows of one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rows {
    partition: u32,
    rows: Vec<u64>,
}

/// A fault of a file, with the samples that it costs.
#[derive(Debug)]
struct Finding {
    file: CacheFile,
    fault: Fault,
    what: String,
    lost: Rows,
}

/// The indexes of a partition, as far as they are intact.
#[derive(Debug)]
struct Indexes {
    samples: Option<SampleIndex>,
    images: Option<ImageIndex>,
}

/// Checks the cache at `root`; with `deep`, every row. `show` draws progress on stderr.
///
/// # Errors
/// If there is no cache, it is of a newer major version, or its folder cannot be read. Damage is no error but stands in
/// the report.
pub fn verify(root: &Path, deep: bool, show: bool) -> Result<Report> {
    verify_until(root, deep, show, &Stop::default())
}

/// The same, until `stop` is requested.
///
/// # Errors
/// As [`verify`], and [`Error::Interrupted`](crate::Error::Interrupted).
pub fn verify_until(root: &Path, deep: bool, show: bool, stop: &Stop) -> Result<Report> {
    let files = match CacheFiles::open(root) {
        Ok(files) => files,
        Err(error) => return unreadable_manifest(root, deep, error),
    };
    let packs = store::entries(root)?;
    let held::Held {
        elsewhere,
        extra,
        damages,
    } = held::look(&files)?;
    let (here, other): (Vec<CacheFile>, Vec<CacheFile>) =
        files.expected().partition(|file| is_here(file, &elsewhere));
    let work = work_bytes(&here, deep).saturating_add(packs::work_bytes(&files, &packs));
    let progress = Progress::new("verify", show, work, stop.clone());
    let mut findings = files::check(&files, &here, &progress);
    // What is on other nodes is no finding, but cannot be looked into either.
    let damaged = findings.iter().map(|found| &found.file).chain(&other);
    let damaged: BTreeSet<CacheFileKey> = damaged.map(key).collect();
    let partitions: Vec<u32> = (0..files.partitions()).collect();
    // Indexes are small beside their shards, but not beside memory: one partition's at a time.
    let results: Vec<PartitionResult> = partitions
        .par_iter()
        .map(|partition| check_partition(&files, *partition, &damaged, &findings, deep, &progress))
        .collect();
    let mut sums = Vec::with_capacity(results.len());
    let mut costs = BTreeMap::new();
    for result in results {
        sums.push(result.sums);
        costs.extend(result.costs);
        findings.extend(result.findings);
    }
    for finding in &mut findings {
        if let Some(lost) = costs.remove(&key(&finding.file)) {
            finding.lost = lost;
        }
    }
    let pack_damages = packs::check(&files, &packs, deep, &progress);
    progress.finish();
    // What was left out after a request is no finding: there is no report then.
    stop.check()?;
    let notes = foreign::find(&files, &packs)?;
    let mut report = report::make(&files, deep, findings, notes);
    report.count(&here);
    report.not_held = elsewhere;
    report.extra = extra;
    report.pack_tables = packs::names(&files, &packs);
    report.sound &= pack_damages.is_empty();
    report.damages.extend(pack_damages);
    for record in damages.into_iter().rev() {
        report.add(Damage {
            file: record.file,
            fault: Fault::Changed,
            what: record.what,
            lost_samples: 0,
            first_lost: Vec::new(),
        });
    }
    count_splits(&files, &sums, &mut report);
    Ok(report)
}

type CacheFileKey = (stoker_formats::Folder, FileName);

fn key(file: &CacheFile) -> CacheFileKey {
    (file.folder, file.name)
}

/// A manifest that is there but damaged is damage; everything else is a reason not to run.
fn unreadable_manifest(root: &Path, deep: bool, error: stoker_reader::Error) -> Result<Report> {
    use stoker_formats::Error as Format;
    match &error {
        stoker_reader::Error::Formats { error: inner, .. }
            if !matches!(inner, Format::NewerVersion { .. }) =>
        {
            Ok(Report::of_manifest(
                root,
                deep,
                format!("{inner}; nothing else can be checked without it"),
            ))
        }
        stoker_reader::Error::Damaged { what, .. } => {
            Ok(Report::of_manifest(root, deep, what.clone()))
        }
        _ => Err(error.into()),
    }
}

/// Whether a file must be in this folder: shards of partitions that are not held need not.
pub(crate) fn is_here(file: &CacheFile, not_held: &[u32]) -> bool {
    match file.name {
        FileName::Shard { partition, .. } => not_held.binary_search(&partition).is_err(),
        _ => true,
    }
}

/// Bytes that the checks will read.
fn work_bytes(files: &[CacheFile], deep: bool) -> u64 {
    files
        .iter()
        .map(|file| match file.name {
            FileName::Shard { .. } if deep => file.entry.bytes.saturating_mul(2),
            _ => file.entry.bytes,
        })
        .fold(0, u64::saturating_add)
}

/// What the checks of one partition found.
struct PartitionResult {
    findings: Vec<Finding>,
    /// What the files that were found damaged before cost.
    costs: Vec<(CacheFileKey, Rows)>,
    /// Tokens and loss tokens; none without an index.
    sums: Option<(u64, u64)>,
}

fn check_partition(
    files: &CacheFiles,
    partition: u32,
    damaged: &BTreeSet<CacheFileKey>,
    known: &[Finding],
    deep: bool,
    progress: &Progress,
) -> PartitionResult {
    let mut findings = Vec::new();
    let indexes = load_indexes(files, partition, damaged, &mut findings);
    if deep {
        let check = deep::Partition::new(files, partition, &indexes, damaged);
        findings.extend(check.run(progress));
    }
    let costs = known
        .iter()
        .filter(|found| cost::partition_of(found.file.name) == Some(partition))
        .map(|found| {
            (
                key(&found.file),
                cost::of(files, partition, &indexes, &found.file),
            )
        })
        .collect();
    for finding in &mut findings {
        if finding.lost.rows.is_empty() && matches!(finding.file.name, FileName::Index { .. }) {
            finding.lost = cost::of(files, partition, &indexes, &finding.file);
        }
    }
    let sums = indexes.samples.as_ref().map(|index| {
        index.iter().fold((0, 0), |(tokens, learnt), entry| {
            (
                tokens + u64::from(entry.n_tokens),
                learnt + u64::from(entry.n_loss_tokens),
            )
        })
    });
    PartitionResult {
        findings,
        costs,
        sums,
    }
}

/// Opens both indexes. One whose hash is right but which cannot be opened is a finding.
fn load_indexes(
    files: &CacheFiles,
    partition: u32,
    damaged: &BTreeSet<CacheFileKey>,
    findings: &mut Vec<Finding>,
) -> Indexes {
    let name = FileName::Index { partition };
    let Ok(entry) = files.partition(partition) else {
        return Indexes {
            samples: None,
            images: None,
        };
    };
    let (text, images) = (files.text(), files.images());
    let mut failed = |folder, entry, error: stoker_reader::Error| {
        let file = CacheFile {
            folder,
            name,
            entry,
        };
        findings.push(Finding::new(file, Fault::Inconsistent, error.to_string()));
    };
    let mut indexes = Indexes {
        samples: None,
        images: None,
    };
    if !damaged.contains(&(text, name)) {
        match files.sample_index(partition) {
            Ok(index) => indexes.samples = Some(index),
            Err(error) => failed(text, entry.samples.index, error),
        }
    }
    if !damaged.contains(&(images, name)) {
        match files.image_index(partition) {
            Ok(index) => indexes.images = Some(index),
            Err(error) => failed(images, entry.images.index, error),
        }
    }
    indexes
}

/// Compares the token counts of the splits with the sums over their indexes.
fn count_splits(files: &CacheFiles, sums: &[Option<(u64, u64)>], report: &mut Report) {
    for split in &files.manifest().splits {
        let from = split.first_partition as usize;
        let parts = sums
            .get(from..from + split.partitions as usize)
            .unwrap_or_default();
        let Some(sum) = parts.iter().try_fold((0u64, 0u64), |sum, part| {
            let (tokens, learnt) = (*part)?;
            Some((sum.0 + tokens, sum.1 + learnt))
        }) else {
            continue;
        };
        if sum != (split.tokens, split.loss_tokens) {
            report.add(Damage {
                file: MANIFEST_NAME.into(),
                fault: Fault::Inconsistent,
                what: format!(
                    "split {} counts {} tokens, {} of them learnt; its indexes count {} and {}",
                    split.name, split.tokens, split.loss_tokens, sum.0, sum.1
                ),
                lost_samples: 0,
                first_lost: Vec::new(),
            });
        }
    }
}

impl Finding {
    /// A finding that costs no sample, or whose cost is not known yet.
    fn new(file: CacheFile, fault: Fault, what: String) -> Self {
        Self {
            file,
            fault,
            what,
            lost: Rows::default(),
        }
    }
}
