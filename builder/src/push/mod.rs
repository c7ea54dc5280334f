//! `stoker push`: a cache, or the share of one that a node holds, becomes a remote.
//!
//! Owns the order: shards and small files, then pack entries, then the manifest. Invariant: nothing appears in the remote that
//! was not confirmed by the manifest's hash while it was read; a manifest there always names only files that were put there before
//! it, but for shards that other nodes hold; what the manifest of another cache names is never changed.

mod send;
mod there;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;
use stoker_formats::limits::MAX_MANIFEST_BYTES;
use stoker_formats::{ContentHash, MANIFEST_NAME, Manifest, PACKS_FOLDER, PackEntry, PackFile};
use stoker_reader::{CacheFile, CacheFiles};
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::held;
use crate::pack::store::{self, Found};
use crate::remote::files::shard_partition;
use crate::remote::{Remote, RemoteFile, RemoteOptions, Store, Target, crew, pack_files};
use crate::verify::progress::Progress;
use send::{Sender, ended};
use there::There;

/// zstd's level if nobody says: the fastest both ways; slower ones win little on pictures (docs/measured.md).
pub const LEVEL: i32 = 1;

/// What to push, and where.
#[derive(Debug, Clone)]
pub struct PushRequest {
    /// The cache's folder.
    pub cache: PathBuf,
    /// `s3://bucket/prefix`, or a folder.
    pub destination: String,
    /// zstd's level, 1 to 19.
    pub level: i32,
    /// Files on their way at once.
    pub threads: usize,
    /// Whether the manifest of another cache may be replaced.
    pub replace: bool,
    /// How to reach the destination.
    pub options: RemoteOptions,
    /// Whether progress is shown on stderr.
    pub show: bool,
}

/// What a push did.
#[derive(Debug, Clone, Serialize)]
pub struct PushReport {
    /// The cache's folder.
    pub cache: String,
    /// Where it was pushed to.
    pub remote: String,
    /// The cache's fingerprint.
    pub fingerprint: String,
    /// Files that were put there now.
    pub files: u64,
    /// Files that were there already.
    pub files_there: u64,
    /// Bytes of the shards that were put there now.
    pub shard_bytes: u64,
    /// The same, compressed.
    pub packed_bytes: u64,
    /// Raw bytes for each compressed byte; none if no shard was put there.
    pub ratio: Option<f64>,
    /// Partitions of which the remote does not hold every shard: other nodes have them.
    pub lacking: Vec<u32>,
    /// How long it took.
    pub seconds: f64,
}

/// Pushes `request.cache`. Waits on the runtime behind `handle`.
///
/// # Errors
/// If there is no cache, or a file of it is missing or damaged; [`Error::Usage`] if the destination holds another cache;
/// [`Error::Fetch`], [`Error::Io`], [`Error::DiskFull`] for failures. What was put there stays, and the same push goes on.
pub fn push(request: &PushRequest, handle: Handle) -> Result<PushReport> {
    let start = Instant::now();
    let files = CacheFiles::open(&request.cache)?;
    let manifest = files.manifest().clone();
    let bytes = manifest.to_bytes()?;
    let store = Store::open(&request.destination, &request.options, handle)?;
    let target = Target::new(&store)?;
    let is_there = check_manifest(&store, &manifest, &bytes, request.replace)?;
    let remote = Remote::of(store, manifest, bytes);
    let not_held = held::elsewhere(&files)?;
    let is_held = |file: &CacheFile| {
        shard_partition(file).is_none_or(|partition| not_held.binary_search(&partition).is_err())
    };
    let packs = packs(&files)?;
    let mut work: Vec<RemoteFile> = pack_files(packs.iter().map(|(entry, _)| entry)).collect();
    work.extend(
        files
            .expected()
            .filter(is_held)
            .map(|file| RemoteFile::from(&file)),
    );
    let there = There::look(&remote, is_there)?;
    let total = work.iter().map(|file| file.entry.bytes).sum();
    let sender = Sender {
        root: files.root(),
        target: &target,
        remote: &remote,
        level: request.level,
        progress: &Progress::new("push", request.show, total, request.options.stop.clone()),
    };
    let counts = Counts::default();
    crew::each(request.threads, &work, |file| {
        request.options.stop.check()?;
        if there.holds(&remote, file)? {
            counts.there.fetch_add(1, Ordering::Relaxed);
            sender.progress.advance(file.entry.bytes);
            return Ok(());
        }
        counts.add(file, sender.send(file)?);
        Ok(())
    })?;
    sender.progress.finish();
    for (entry, bytes) in &packs {
        let file = PackFile::Entry(entry.name.clone());
        put_unless_there(
            &remote,
            &target,
            &format!("{PACKS_FOLDER}/{file}"),
            bytes,
            &counts,
        )?;
    }
    request.options.stop.check()?;
    put_unless_there(
        &remote,
        &target,
        MANIFEST_NAME,
        remote.manifest_bytes(),
        &counts,
    )?;
    let lacking = if not_held.is_empty() {
        Vec::new()
    } else {
        There::look(&remote, true)?.lacking(&remote, &not_held)?
    };
    Ok(counts.report(request, &remote, lacking, start))
}

/// Whether this cache's manifest is there already; another one must not be, unless it may be replaced.
fn check_manifest(
    store: &Store,
    manifest: &Manifest,
    bytes: &[u8],
    may_replace: bool,
) -> Result<bool> {
    let Some(there) = store.read(MANIFEST_NAME, MAX_MANIFEST_BYTES as u64)? else {
        return Ok(false);
    };
    if there == bytes {
        return Ok(true);
    }
    let uri = store.uri(MANIFEST_NAME);
    let other = match Manifest::parse(there) {
        Err(error) if error.is_newer() => return Err(error.in_file(uri).into()),
        other => other.ok(),
    };
    let refuse = |what: String, hint: &str| {
        Err(Error::Usage {
            what: format!("{what}: `{uri}`"),
            hint: hint.into(),
        })
    };
    if !may_replace {
        return refuse(
            "another cache was pushed there".into(),
            "push to another place, or say --replace: its files stay, and nodes that sync get this cache",
        );
    }
    let changed = other.and_then(|other| first_changed(manifest, &other));
    match changed {
        Some(file) => refuse(
            format!("the cache that was pushed there names other bytes for {file}"),
            "push to another place",
        ),
        None => Ok(false),
    }
}

/// A file that both manifests name, with different bytes.
fn first_changed(one: &Manifest, other: &Manifest) -> Option<String> {
    let theirs: BTreeMap<String, ContentHash> = CacheFile::named_by(other)
        .map(|file| (file.relative(), file.entry.hash))
        .collect();
    CacheFile::named_by(one)
        .map(|file| (file.relative(), file.entry.hash))
        .find(|(name, hash)| theirs.get(name).is_some_and(|other| other != hash))
        .map(|(name, _)| name)
}

/// The entries of the cache's pack tables, and their bytes.
fn packs(files: &CacheFiles) -> Result<Vec<(PackEntry, Vec<u8>)>> {
    let mut packs = Vec::new();
    for Found { name, entry } in store::entries(files.root())? {
        let entry = entry.map_err(|what| stoker_reader::Error::Damaged {
            path: store::path(files.root(), &PackFile::Entry(name)),
            what,
        })?;
        if entry.fingerprint == files.manifest().fingerprint {
            let bytes = entry.to_bytes()?;
            packs.push((entry, bytes));
        }
    }
    Ok(packs)
}

fn put_unless_there(
    remote: &Remote,
    target: &Target,
    name: &str,
    bytes: &[u8],
    counts: &Counts,
) -> Result<()> {
    let is_there = || -> Result<bool> {
        let there = remote.store().read(name, MAX_MANIFEST_BYTES as u64)?;
        Ok(there.as_deref() == Some(bytes))
    };
    if is_there()? {
        counts.there.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    ended(target.replace(name, bytes), is_there)?;
    counts.files.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// What was done, counted by all threads.
#[derive(Debug, Default)]
struct Counts {
    files: AtomicU64,
    there: AtomicU64,
    shard_bytes: AtomicU64,
    packed_bytes: AtomicU64,
}

impl Counts {
    fn add(&self, file: &RemoteFile, sent: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
        if file.is_shard {
            self.shard_bytes
                .fetch_add(file.entry.bytes, Ordering::Relaxed);
            self.packed_bytes.fetch_add(sent, Ordering::Relaxed);
        }
    }

    fn report(
        &self,
        request: &PushRequest,
        remote: &Remote,
        lacking: Vec<u32>,
        start: Instant,
    ) -> PushReport {
        let shard_bytes = self.shard_bytes.load(Ordering::Relaxed);
        let packed_bytes = self.packed_bytes.load(Ordering::Relaxed);
        PushReport {
            cache: request.cache.display().to_string(),
            remote: remote.uri(),
            fingerprint: remote.manifest().fingerprint.to_string(),
            files: self.files.load(Ordering::Relaxed),
            files_there: self.there.load(Ordering::Relaxed),
            shard_bytes,
            packed_bytes,
            ratio: (packed_bytes > 0).then(|| shard_bytes as f64 / packed_bytes as f64),
            lacking,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}
