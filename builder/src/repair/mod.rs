//! `stoker repair`: damaged and missing files of a cache are made good again, byte for byte.
//!
//! Owns the order and the report: what is wrong (`damage.rs`), then where good bytes come from: a remote (`fetch.rs`) or the source
//! (`rebuild.rs`). Invariant: files that are whole are not touched, and a damaged one is replaced in one step by its good
//! replacement.

mod damage;
mod fetch;
mod rebuild;

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use stoker_reader::CacheFiles;
use tokio::runtime::Handle;

use crate::build::lock::Lock;
use crate::build::{BuildOptions, Stop};
use crate::error::{Error, Result};
use crate::publish::Publisher;
use crate::remote::{Remote, RemoteOptions};
use crate::verify::Fault;
use damage::Look;

/// What to repair, and from where.
#[derive(Debug, Clone)]
pub struct RepairRequest {
    /// The cache's folder.
    pub cache: PathBuf,
    /// Where good bytes come from.
    pub good: Good,
    /// Files that are checked, or on their way, at once.
    pub threads: usize,
    /// Ends the repair early.
    pub stop: Stop,
    /// Whether progress is shown on stderr.
    pub show: bool,
}

/// Where good bytes come from.
#[derive(Debug, Clone)]
pub enum Good {
    /// A remote: `s3://bucket/prefix`, or a folder; and how to reach it.
    Remote(String, RemoteOptions),
    /// The source, with the options that the cache was built with. Output and parts are the cache's own, and no reject is too many.
    Source(Box<BuildOptions>),
}

/// What a repair found and did.
#[derive(Debug, Clone, Serialize)]
pub struct RepairReport {
    /// The cache's folder.
    pub cache: String,
    /// The cache's fingerprint.
    pub fingerprint: String,
    /// Whether nothing is damaged any more.
    pub sound: bool,
    /// Files that were checked.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Partitions whose shards are on other nodes, and were not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<u32>,
    /// What was damaged or missing.
    pub damages: Vec<Repaired>,
    /// How long it took.
    pub seconds: f64,
}

/// A file that was damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// The file, relative to the cache.
    pub file: String,
    /// How it was damaged.
    pub fault: Fault,
    /// The same for a person.
    pub what: String,
    /// Why it still is; none if it is mended.
    pub remains: Option<String>,
}

/// Mends the cache that `request` names. Waits on the runtime behind `handle` for a remote.
///
/// # Errors
/// If there is no cache, the remote is none or another cache's, or the options would build another cache; [`Error::Fetch`],
/// [`Error::Io`] and [`Error::DiskFull`] for failures. Damage that remains is no error but stands in the report. What was mended
/// stays.
pub fn repair(request: &RepairRequest, handle: Handle) -> Result<RepairReport> {
    let start = Instant::now();
    let (files, found, damages) = match &request.good {
        Good::Remote(uri, options) => from_remote(request, uri, options, handle)?,
        Good::Source(options) => from_source(request, options)?,
    };
    Ok(RepairReport {
        cache: request.cache.display().to_string(),
        fingerprint: files.manifest().fingerprint.to_string(),
        sound: damages.iter().all(|damage| damage.remains.is_none()),
        files: found.files,
        bytes: found.bytes,
        not_held: found.not_held,
        damages,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The cache, what was found of it, and what became of that.
type Outcome = (CacheFiles, Look, Vec<Repaired>);

fn from_remote(
    request: &RepairRequest,
    uri: &str,
    options: &RemoteOptions,
    handle: Handle,
) -> Result<Outcome> {
    let options = RemoteOptions {
        stop: request.stop.clone(),
        ..options.clone()
    };
    let remote = Remote::open(uri, &options, handle)?;
    let publisher = Publisher::new(request.cache.clone());
    let lock = request.cache.is_dir().then(|| Lock::take(&request.cache));
    let _lock = lock.transpose()?;
    let manifest = fetch::manifest(&publisher, &remote)?;
    let files = CacheFiles::open(&request.cache)?;
    check_same(&files, &remote)?;
    let found = damage::find(&files, request.threads, request.show, &request.stop)?;
    let mended = fetch::fetch(&found.damaged, &publisher, &remote, request)?;
    Ok((files, found, manifest.into_iter().chain(mended).collect()))
}

fn from_source(request: &RepairRequest, options: &BuildOptions) -> Result<Outcome> {
    let files = CacheFiles::open(&request.cache)?;
    let found = {
        let _lock = Lock::take(&request.cache)?;
        damage::find(&files, request.threads, request.show, &request.stop)?
    };
    let mended = rebuild::rebuild(&found.damaged, &files, options, request)?;
    Ok((files, found, mended))
}

fn check_same(files: &CacheFiles, remote: &Remote) -> Result<()> {
    let (here, there) = (files.manifest().fingerprint, remote.manifest().fingerprint);
    if here == there {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!("the remote holds another cache, {there}, this is `{here}`"),
        hint: "name the remote that this cache was pushed to, or `stoker sync` the other one into a folder of its own".into(),
    })
}
