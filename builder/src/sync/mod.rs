//! `stoker sync`: a node's share of a cache, from a remote onto the node's disk.
//!
//! Owns the order: the mark of the share, small files and shards, then the manifest, then pack entries, then what is no longer
//! needed. Invariant: the
//! folder's manifest, old or new, names no file that was lost to this command; every file under its name has the bytes that the
//! remote's manifest names, also those that were there before; the quota holds at every moment.

mod mark;
mod room;
mod share;
mod shed;
mod wanted;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use serde::Serialize;
use stoker_formats::{MANIFEST_NAME, PACKS_FOLDER, PackEntry, PackFile};
use stoker_reader::CacheFile;
use tokio::runtime::Handle;

use crate::build::lock::Lock;
use crate::build::named::Named;
use crate::build::state::BuildState;
use crate::build::tidy;
use crate::error::{Error, Result};
use crate::folder;
use crate::pack::store;
use crate::publish::Publisher;
use crate::remote::{Brought, Remote, RemoteFile, RemoteOptions, Stages, crew, files};
use crate::verify::progress::Progress;
use mark::Mark;
use room::Room;
pub use share::Share;
use shed::Shed;
use wanted::Wanted;

/// Small files on their way at once, for each thread: they wait for answers, not for this machine.
const SMALL_AT_ONCE: usize = 4;

/// What to bring, and where to.
#[derive(Debug, Clone)]
pub struct SyncRequest {
    /// The remote: `s3://bucket/prefix`, or a folder.
    pub source: String,
    /// The folder that holds the share.
    pub destination: PathBuf,
    /// Which partitions.
    pub share: Share,
    /// Bytes that the folder's files may have together, at any moment.
    pub max_disk: Option<u64>,
    /// Whether shards that belong elsewhere, and folders of earlier plans, are removed.
    pub prune: bool,
    /// Shards on their way at once.
    pub threads: usize,
    /// How to reach the remote.
    pub options: RemoteOptions,
    /// Whether progress is shown on stderr.
    pub show: bool,
}

/// What a sync did.
#[derive(Debug, Clone, Serialize)]
pub struct SyncReport {
    /// The folder.
    pub cache: String,
    /// Where it came from.
    pub remote: String,
    /// The cache's fingerprint.
    pub fingerprint: String,
    /// The partitions that the folder shall hold.
    pub partitions: Vec<u32>,
    /// Partitions of the cache.
    pub all_partitions: u32,
    /// Files that were brought.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that came for them.
    pub downloaded_bytes: u64,
    /// Files that were there already, with the right bytes.
    pub files_kept: u64,
    /// Shards that were removed, because they belong elsewhere and the remote holds them.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Shards that belong elsewhere but stay, because the remote does not hold them.
    pub not_removed: Vec<String>,
    /// What took longest: `download`, `decompress` or `write`; none if nothing was brought.
    pub limited_by: Option<&'static str>,
    /// How long it took.
    pub seconds: f64,
}

/// Brings the share that `request` names. Waits on the runtime behind `handle`.
///
/// # Errors
/// [`Error::Remote`] if the remote lacks a file or holds a damaged one; [`Error::Usage`] for a node that there is not, a folder that
/// holds something else, or a quota that does not suffice; [`Error::DiskFull`], [`Error::Fetch`] and [`Error::Io`] for failures.
/// What was brought stays, and the same sync goes on.
pub fn sync(request: &SyncRequest, handle: Handle) -> Result<SyncReport> {
    let start = Instant::now();
    let remote = Remote::open(&request.source, &request.options, handle)?;
    let manifest = remote.manifest();
    let partitions = request.share.partitions(manifest)?;
    let publisher = Publisher::make(request.destination.clone())?;
    let _lock = Lock::take(publisher.root())?;
    // Who removes here because a copy is there must be sure of that copy: the folder itself, and another node that removes in the
    // same way, are refused, as each holds its own folder alone. Any number may remove by the same copy.
    let source = remote.folder().filter(|_| request.prune);
    let _source_lock = source.map(Lock::share).transpose()?;
    let named = check_folder(publisher.root(), &remote)?;
    let packs = remote.pack_entries()?;
    let wanted = Wanted::new(&remote, &partitions, &packs);
    let plans = files::folders(manifest);
    tidy::remove_leftovers(&publisher, plans)?;
    store::remove_leftovers(&publisher)?;
    let mark = Mark::new(&publisher, &remote, &partitions)?;
    let mut shed = Shed::new(&remote, &publisher, &partitions);
    // What another manifest names goes after it.
    let is_earlier = named.is_committed() && !is_current(&publisher, &remote);
    if request.prune && !is_earlier {
        mark.set()?;
        shed.shards(request.threads)?;
    }
    let missing = look(&wanted, &publisher, request)?;
    let documents = documents_bytes(&publisher, &remote, &packs) + mark.unwritten_bytes();
    let bringer = Bringer::new(request, &remote, &publisher, &missing, documents)?;
    mark.set()?;
    bringer.bring_all(&missing, request.threads)?;
    request.options.stop.check()?;
    publish_documents(&publisher, &remote, &packs)?;
    mark.settle()?;
    if request.prune {
        if is_earlier {
            shed.shards(request.threads)?;
        }
        tidy::prune(&publisher, plans)?;
        store::prune(&publisher, manifest.fingerprint)?;
    }
    let total = bringer.total();
    Ok(SyncReport {
        cache: request.destination.display().to_string(),
        remote: remote.uri(),
        fingerprint: manifest.fingerprint.to_string(),
        all_partitions: u32::try_from(manifest.partitions.len()).unwrap_or(u32::MAX),
        partitions: partitions.clone(),
        files: missing.len() as u64,
        bytes: wanted::bytes(&missing),
        downloaded_bytes: total.bytes,
        files_kept: wanted.len() - missing.len() as u64,
        removed: shed.removed,
        removed_bytes: shed.removed_bytes,
        not_removed: shed.not_removed,
        limited_by: (!missing.is_empty()).then(|| limit(&total.stages)),
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// What of the share is not there yet, or not with its bytes.
fn look(wanted: &Wanted, publisher: &Publisher, request: &SyncRequest) -> Result<Vec<RemoteFile>> {
    let root = publisher.root();
    let bytes = wanted.bytes_here(root);
    let progress = Progress::new("check", request.show, bytes, request.options.stop.clone());
    let missing = wanted.missing(root, request.threads, &progress)?;
    progress.finish();
    Ok(missing)
}

/// The entries of pack tables, and their bytes.
type Entries = [(PackEntry, Vec<u8>)];

/// Bytes of the manifest, if it will be replaced, and of the entries.
fn documents_bytes(publisher: &Publisher, remote: &Remote, packs: &Entries) -> u64 {
    let entries: u64 = packs.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if is_current(publisher, remote) {
        return entries;
    }
    entries + remote.manifest_bytes().len() as u64
}

/// Makes the folder this cache: all that its manifest and the entries name is there.
fn publish_documents(publisher: &Publisher, remote: &Remote, packs: &Entries) -> Result<()> {
    if !is_current(publisher, remote) {
        publisher.replace_bytes(Path::new(""), MANIFEST_NAME, remote.manifest_bytes())?;
    }
    for (entry, bytes) in packs {
        let name = PackFile::Entry(entry.name.clone()).to_string();
        let folder = Path::new(PACKS_FOLDER);
        let there = folder::read_regular(&publisher.root().join(folder).join(&name), bytes.len());
        if there.ok().as_ref() != Some(bytes) {
            publisher.create_folder(folder)?;
            publisher.replace_bytes(folder, &name, bytes)?;
        }
    }
    Ok(())
}

/// What the folder's manifest names now. Refuses a folder with an unfinished build, and one whose cache would be changed.
fn check_folder(root: &Path, remote: &Remote) -> Result<Named> {
    if BuildState::read(root)?.is_some() {
        return Err(Error::Usage {
            what: format!("the folder holds an unfinished build: `{}`", root.display()),
            hint:
                "run `stoker commit` or the build command there first, or sync into another folder"
                    .into(),
        });
    }
    let named = Named::read(root)?;
    let changed = |file: &CacheFile| !named.allows(file.folder, file.name, file.entry.hash);
    match remote.files().find(changed) {
        None => Ok(named),
        Some(file) => Err(Error::Usage {
            what: format!(
                "the cache in the folder has other bytes under the same name: `{}`",
                root.join(file.relative()).display()
            ),
            hint: "sync into another folder".into(),
        }),
    }
}

/// Whether the folder's manifest is the remote's.
fn is_current(publisher: &Publisher, remote: &Remote) -> bool {
    let bytes = remote.manifest_bytes();
    let there = folder::read_regular(&publisher.root().join(MANIFEST_NAME), bytes.len());
    there.is_ok_and(|there| there == bytes)
}

/// Brings files within the room that there is.
struct Bringer<'a> {
    remote: &'a Remote,
    publisher: &'a Publisher,
    room: Room<'a>,
    progress: Progress,
    brought: Mutex<Brought>,
}

impl<'a> Bringer<'a> {
    /// Refuses to begin what would not fit beside `documents` bytes of documents.
    fn new(
        request: &SyncRequest,
        remote: &'a Remote,
        publisher: &'a Publisher,
        missing: &[RemoteFile],
        documents: u64,
    ) -> Result<Self> {
        let bytes = wanted::bytes(missing);
        let needed = bytes.saturating_add(documents);
        let room = Room::new(publisher, request.max_disk, needed)?;
        let progress = Progress::new("sync", request.show, bytes, request.options.stop.clone());
        let (needed, free) = (HumanBytes(needed), HumanBytes(room.free));
        progress.say(&format!("{needed} to be brought, {free} free"));
        Ok(Self {
            remote,
            publisher,
            room,
            progress,
            brought: Mutex::default(),
        })
    }

    fn bring_all(&self, missing: &[RemoteFile], threads: usize) -> Result<()> {
        let (shards, small): (Vec<_>, Vec<_>) = missing.iter().partition(|file| file.is_shard);
        crew::each(threads * SMALL_AT_ONCE, &small, |file| self.bring(file))?;
        crew::each(threads, &shards, |file| self.bring(file))?;
        self.progress.finish();
        Ok(())
    }

    fn bring(&self, file: &RemoteFile) -> Result<()> {
        let (folder, name) = file.place();
        self.publisher.create_folder(Path::new(folder))?;
        let mut room = self.room.take(file)?;
        let mut pending = self.publisher.create(Path::new(folder), name)?;
        let brought = self.remote.bring(file, &mut |piece| {
            pending.put(piece)?;
            room.written(piece.len() as u64);
            self.progress.advance(piece.len() as u64);
            Ok(())
        })?;
        let start = Instant::now();
        pending.publish(name)?;
        room.published();
        let mut total = self.total_mut();
        total.bytes += brought.bytes;
        let stages = &mut total.stages;
        stages.download += brought.stages.download;
        stages.decompress += brought.stages.decompress;
        stages.write += brought.stages.write + start.elapsed();
        self.progress
            .note(format!(", limited by {}", limit(stages)));
        Ok(())
    }

    fn total_mut(&self) -> MutexGuard<'_, Brought> {
        self.brought.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total(&self) -> Brought {
        *self.total_mut()
    }
}

/// The stage that took longest.
fn limit(stages: &Stages) -> &'static str {
    let Stages {
        download,
        decompress,
        write,
    } = *stages;
    let all: [(Duration, &'static str); 3] = [
        (write, "write"),
        (decompress, "decompress"),
        (download, "download"),
    ];
    all.into_iter().max().map_or("download", |(_, name)| name)
}
