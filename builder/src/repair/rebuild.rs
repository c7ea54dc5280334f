//! Good bytes from the source: the shards are made again by the plan.
//!
//! Owns which runs of the builder a folder needs, and why a file stays damaged. Invariant: the build replaces nothing that the
//! manifest names by other bytes, and goes on with the others; what is not the builder's stays damaged, and is said.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use stoker_formats::{FileName, Folder, PARTS_FOLDER, PartFile, PartName};
use stoker_reader::{CacheFile, CacheFiles};

use super::damage::{Damaged, File, writer};
use super::{RepairRequest, Repaired};
use crate::build::lock::Lock;
use crate::build::named::plan_ids;
use crate::build::options::RejectLimit;
use crate::build::state::BuildState;
use crate::build::{BuildOptions, Progress, build, tidy};
use crate::error::{Error, Result};
use crate::pack::store;
use crate::publish::Publisher;
use crate::records;
use crate::verify::progress::Progress as Reading;
use crate::verify::{Fault, check_file};

/// Mends what can be mended; says so of each.
pub(super) fn rebuild(
    found: &[Damaged],
    files: &CacheFiles,
    options: &BuildOptions,
    request: &RepairRequest,
) -> Result<Vec<Repaired>> {
    let damaged: Vec<&CacheFile> = found
        .iter()
        .filter_map(|found| match &found.file {
            File::Cache(file) => Some(file),
            File::PackTable(_) | File::PackEntry(_) | File::Record(_) => None,
        })
        .collect();
    let built = if damaged.is_empty() {
        Ok(Left::default())
    } else {
        refuse_unfinished(files)?;
        build_all(damaged, files, options, request)
    };
    // Whether it ended well or not: what only the runs needed, these or killed ones.
    clean(files)?;
    let left = built?;
    let outcome = |found: &Damaged| Repaired {
        file: found.file.relative(),
        fault: found.fault,
        what: found.what.clone(),
        remains: left.remains(found, files),
    };
    Ok(found.iter().map(outcome).collect())
}

/// What could not be made again.
#[derive(Default)]
struct Left {
    /// What is still wrong with files of the manifest.
    faults: HashMap<(Folder, FileName), (Fault, String)>,
    /// Files that would come out otherwise, or in whose place a folder stands.
    files: BTreeSet<PathBuf>,
    /// The records of parts that cannot be read, so that nobody knows what was built here, relative to the cache.
    records: Vec<String>,
}

/// Builds what is `damaged`, and again as long as that mends some of it and not all: a receipt that is back makes those count that
/// follow it, and text is made of all of them.
fn build_all(
    mut damaged: Vec<&CacheFile>,
    files: &CacheFiles,
    options: &BuildOptions,
    request: &RepairRequest,
) -> Result<Left> {
    let reading = Reading::new("check", false, 0, request.stop.clone());
    let key = |file: &&CacheFile| (file.folder, file.name);
    loop {
        let names = damaged.iter().map(key).collect();
        let mut left = build_again(&names, files, options, request)?;
        let fault = |file: &&CacheFile| {
            let path = files.path(file.folder, file.name);
            Some((key(file), check_file(&path, file.entry, &reading)?))
        };
        left.faults = damaged.iter().filter_map(fault).collect();
        // A check that was broken off says nothing.
        request.stop.check()?;
        if left.faults.is_empty() || left.faults.len() == damaged.len() {
            return Ok(left);
        }
        damaged.retain(|file| left.faults.contains_key(&key(file)));
    }
}

/// Builds what is `damaged`, one run for each number of workers that built here.
fn build_again(
    damaged: &HashSet<(Folder, FileName)>,
    files: &CacheFiles,
    options: &BuildOptions,
    request: &RepairRequest,
) -> Result<Left> {
    let mut left = Left::default();
    for parts in runs(files, &mut left.records)? {
        let options = BuildOptions {
            output: files.root().to_path_buf(),
            parts,
            repair: Some(damaged.clone()),
            // Those that the cache has; another one would be another cache.
            max_rejects: RejectLimit::Count(u64::MAX),
            restart: false,
            prune: false,
            ..options.clone()
        };
        let progress = if request.show {
            Progress::on_stderr(options.threads)
        } else {
            Progress::silent(options.threads)
        };
        let report = build(&options, &request.stop, &progress)?;
        left.files.extend(report.left);
    }
    Ok(left)
}

/// Refuses a folder in which another build is unfinished: its files are not ours.
fn refuse_unfinished(files: &CacheFiles) -> Result<()> {
    let ids = plan_ids(files.manifest());
    match BuildState::read(files.root())? {
        Some(state) if state.ids() != ids => Err(Error::Usage {
            what: format!(
                "the folder holds an unfinished build of another cache: `{}`",
                files.root().display()
            ),
            hint: "finish that build, or repair with --from".into(),
        }),
        _ => Ok(()),
    }
}

/// Removes what runs have left that were killed, or failed.
fn clean(files: &CacheFiles) -> Result<()> {
    let ids = plan_ids(files.manifest());
    if BuildState::read(files.root())?.is_some_and(|state| state.ids() != ids) {
        return Ok(());
    }
    let publisher = Publisher::new(files.root().to_path_buf());
    let _lock = Lock::take(files.root())?;
    tidy::after_commit(&publisher)?;
    tidy::remove_leftovers(&publisher, [files.images(), files.text()])?;
    store::remove_leftovers(&publisher)
}

impl Left {
    /// Whether a file would come out otherwise; of shard and receipt both, as one says what the other is made of.
    fn has(&self, file: &CacheFile, files: &CacheFiles) -> bool {
        let other = match file.name {
            FileName::Shard { partition, ordinal } => FileName::Receipt { partition, ordinal },
            FileName::Receipt { partition, ordinal } => FileName::Shard { partition, ordinal },
            name => name,
        };
        [file.name, other]
            .iter()
            .any(|name| self.files.contains(&files.path(file.folder, *name)))
    }

    /// Why a file is still damaged, if it is.
    fn remains(&self, found: &Damaged, files: &CacheFiles) -> Option<String> {
        let file = match &found.file {
            File::Cache(file) => file,
            File::PackTable(_) | File::PackEntry(_) => {
                return Some("make it again with `stoker pack`".to_owned());
            }
            File::Record(path) => return Some(writer(path)),
        };
        let (fault, what) = self.faults.get(&(file.folder, file.name))?;
        let why = if *fault == Fault::NotAFile {
            "remove what stands in its place".to_owned()
        } else if self.has(file, files) {
            "it would come out otherwise, as its source or the version of stoker has changed"
                .to_owned()
        } else if let Some(record) = self.records.first() {
            format!("what was built here is not known: {record} is damaged; build that part again")
        } else if self.files.is_empty() {
            "no part here makes it; bring it with `stoker repair --from`".to_owned()
        } else {
            "it is made of others that could not be made again".to_owned()
        };
        Some(format!("still {what}: {why}"))
    }
}

/// The parts of each run that makes what the folder holds; a run without parts makes a whole cache. Records that cannot be read
/// go to `unread`.
fn runs(files: &CacheFiles, unread: &mut Vec<String>) -> Result<Vec<Vec<PartName>>> {
    if !files.root().join(PARTS_FOLDER).is_dir() {
        return Ok(vec![Vec::new()]);
    }
    let mut by_workers: BTreeMap<u32, Vec<PartName>> = BTreeMap::new();
    for found in records::find(files.root())? {
        let record = match found.read() {
            Ok(record) => record,
            Err(Error::Formats(error)) if !error.is_newer() => {
                unread.push(format!("{PARTS_FOLDER}/{}", PartFile::Record(found.name)));
                continue;
            }
            Err(error) => return Err(error),
        };
        if records::ids(&record) == plan_ids(files.manifest()) {
            let of = by_workers.entry(record.name.workers).or_default();
            of.push(record.name);
        }
    }
    if by_workers.is_empty() && unread.is_empty() {
        return Err(Error::Usage {
            what: format!(
                "no part was built in this share: `{}`",
                files.root().display()
            ),
            hint: "repair it with --from: the remote that it was synced from".into(),
        });
    }
    Ok(by_workers.into_values().collect())
}
