//! Files that this node lacks, brought from elsewhere as they are needed.
//!
//! Owns which files of a reader's caches are absent, and the way of one to here. When, and in which order, is for `run.rs` and
//! `threads.rs`; what may lie where, for `folder.rs`. Invariant: a thread that waits, for a file or for room, holds no file and
//! no room that another could wait for.

mod flock;
mod folder;
mod run;
#[cfg(test)]
mod tests;
mod threads;

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use stoker_formats::{ContentHash, FileName};

use crate::error::{Error, Result};
use crate::fallback::{Fallback, RemoteFault, RemoteOptions, fault_of};
use crate::files::{CacheFile, CacheFiles};
use crate::open_files::{FileId, FileKind, OpenFile};
use crate::presence::Absent;
use crate::stats::Counters;
use crate::sync::unpoisoned;
use crate::work::Plan;
pub(crate) use flock::LockedFile;
use folder::{Content, Folder, Need, Needs, Taken};
pub(crate) use run::Run;

/// The folder in a cache's folder that brought files lie in by default.
pub const FALLBACK_FOLDER: &str = "fallback";

/// Files that are brought at a time.
const FETCHERS: usize = 4;

/// Between two tries while another process has the file, or the room.
const TRY_AGAIN: Duration = Duration::from_millis(10);

thread_local! {
    /// How long this thread has waited since that was last asked.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long this thread has waited for files since it was last asked.
pub(crate) fn waited() -> Duration {
    WAITED.take()
}

/// A cache with a copy elsewhere.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pub(crate) files: Arc<CacheFiles>,
    pub(crate) fallback: Arc<dyn Fallback>,
    pub(crate) absent: Absent,
}

/// What is brought for one reader.
#[derive(Debug)]
pub(crate) struct RemoteCache {
    /// Of each cache; none without a copy.
    caches: Vec<Option<Elsewhere>>,
    folder: Folder,
    timeout: Duration,
    counters: Arc<Counters>,
    /// Shards whose heads were checked.
    checked: Mutex<HashSet<FileId>>,
    run: Mutex<Option<Arc<Run>>>,
}

/// What became of a file.
#[derive(Debug)]
enum Found {
    /// It is here, and stays as long as this is open.
    Here(LockedFile),
    /// Another thread or process brings it.
    Busy,
    /// There is no room now.
    NoRoom,
}

impl RemoteCache {
    /// What is brought for `caches`; none if nothing is absent. Indexes are brought now.
    ///
    /// # Errors
    /// [`Error::Option`] without a bound; [`Error::Fallback`] if a file is too large for it, or an index does not come.
    pub(crate) fn open(
        caches: Vec<Option<Elsewhere>>,
        options: &RemoteOptions,
        counters: Arc<Counters>,
    ) -> Result<Option<Self>> {
        let absent = || {
            caches
                .iter()
                .flatten()
                .filter(|cache| !cache.absent.is_empty())
        };
        let Some(first) = absent().next() else {
            return Ok(None);
        };
        let Some(bound) = options.cache_disk else {
            return Err(Error::Option {
                what: "a fallback needs a bound, cache_disk, for what it brings",
                given: first.fallback.uri(),
            });
        };
        let root = options.cache_folder.clone();
        let root = root.unwrap_or_else(|| first.files.root().join(FALLBACK_FOLDER));
        let pins: Vec<ContentHash> = absent()
            .flat_map(|cache| cache.absent.indexes.iter().map(|file| file.entry.hash))
            .collect();
        let started = Instant::now();
        let folder = Folder::join(root, bound, &pins, &|| started.elapsed() >= options.timeout)?;
        let remote = Self {
            caches,
            folder,
            timeout: options.timeout,
            counters,
            checked: Mutex::default(),
            run: Mutex::default(),
        };
        remote.check_room()?;
        remote.bring_indexes()?;
        Ok(Some(remote))
    }

    /// Fails if a file could not be kept beside the indexes.
    fn check_room(&self) -> Result<()> {
        let indexes: u64 = self.indexes().map(|(_, file)| file.entry.bytes).sum();
        let cache_disk = self.folder.bound();
        for cache in self.caches.iter().flatten() {
            let largest = cache.absent.largest(&cache.files);
            let bytes = largest.map_or(0, |file| file.entry.bytes);
            if bytes.saturating_add(indexes) > cache_disk {
                let file = largest.or_else(|| cache.absent.indexes.first().copied());
                return Err(Error::Fallback {
                    file: file.map_or_else(String::new, |file| file.relative()),
                    uri: cache.fallback.uri(),
                    fault: RemoteFault::NoRoom {
                        bytes,
                        indexes,
                        cache_disk,
                    },
                });
            }
        }
        Ok(())
    }

    /// The indexes that are absent, with their caches.
    fn indexes(&self) -> impl Iterator<Item = (&Elsewhere, CacheFile)> {
        let caches = self.caches.iter().flatten();
        caches.flat_map(|cache| cache.absent.indexes.iter().map(move |file| (cache, *file)))
    }

    /// Brings all indexes that are absent, some at a time, and has them read from where they are then. The first fault ends it.
    fn bring_indexes(&self) -> Result<()> {
        let left: Mutex<VecDeque<_>> = Mutex::new(self.indexes().collect());
        let first: Mutex<Option<Error>> = Mutex::default();
        let failed = || unpoisoned(first.lock()).is_some();
        let next = || {
            let mut left = unpoisoned(left.lock());
            left.pop_front().filter(|_| !failed())
        };
        let bring = || {
            while let Some((cache, file)) = next() {
                if let Err(fault) = self.bring_index(cache, &file, &failed) {
                    unpoisoned(first.lock()).get_or_insert(fault);
                }
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..FETCHERS).map(|_| scope.spawn(bring)).collect();
            for thread in threads {
                if thread.join().is_err() {
                    let fault = Error::Internal("a thread that brings indexes");
                    unpoisoned(first.lock()).get_or_insert(fault);
                }
            }
        });
        if let Some(fault) = unpoisoned(first.into_inner()) {
            return Err(fault);
        }
        for cache in self.caches.iter().flatten() {
            let places = cache.absent.indexes.iter();
            let places = places.map(|file| (file.relative(), self.folder.path(file.entry.hash)));
            cache.files.move_to(places.collect());
        }
        Ok(())
    }

    /// Unlike a shard, an index that was here before is hashed: its rows have no checksums. Ends early where another has `failed`;
    /// what it says then does not count.
    fn bring_index(
        &self,
        cache: &Elsewhere,
        file: &CacheFile,
        failed: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let started = Instant::now();
        let stop = || started.elapsed() >= self.timeout || failed();
        let path = self.folder.path(file.entry.hash);
        if path.exists() && cache.files.check_hash(&path, file.entry, &stop).is_err() {
            self.folder.discard(file.entry.hash, &stop)?;
        }
        loop {
            let open = |path: &Path| File::open(path);
            match self.ensure(cache, file, Need::Now, &Needs::new, &open, &stop) {
                Ok(Found::Here(_)) => return Ok(()),
                Ok(Found::Busy | Found::NoRoom) if !stop() => thread::sleep(TRY_AGAIN),
                Ok(_) | Err(RemoteFault::Stopped) => {
                    return Err(fault(cache, file, self.timed_out()));
                }
                Err(reason) => return Err(fault(cache, file, reason)),
            }
        }
    }

    fn timed_out(&self) -> RemoteFault {
        RemoteFault::TimedOut {
            seconds: self.timeout.as_secs(),
        }
    }

    fn cache(&self, cache: u32) -> Option<&Elsewhere> {
        self.caches.get(cache as usize)?.as_ref()
    }

    /// Whether a cache has a copy elsewhere.
    pub(crate) fn reaches(&self, cache: u32) -> bool {
        self.cache(cache).is_some()
    }

    /// Whether a shard is not on this node's disk of its own.
    pub(crate) fn is_away(&self, id: FileId) -> bool {
        self.cache(id.cache)
            .is_some_and(|cache| cache.absent.has(id))
    }

    /// Whether image shards of a partition are away.
    fn lacks_images(&self, cache: u32, partition: u32) -> bool {
        self.cache(cache)
            .is_some_and(|cache| cache.absent.lacks_images(partition))
    }

    /// The cache of a shard that is away, and what the manifest says of it.
    fn file(&self, id: FileId) -> Option<(&Elsewhere, CacheFile)> {
        let cache = self.cache(id.cache)?;
        let partition = cache.files.partition(id.partition).ok()?;
        let (folder, shards) = match id.kind {
            FileKind::ImageShard => (cache.files.images(), &partition.images.shards),
            FileKind::SampleShard => (cache.files.text(), &partition.samples.shards),
            FileKind::ImageIndex | FileKind::SampleIndex => return None,
        };
        let entry = shards.get(id.ordinal as usize).copied().flatten()?;
        let name = FileName::Shard {
            partition: id.partition,
            ordinal: id.ordinal,
        };
        let file = CacheFile {
            folder,
            name,
            entry,
        };
        Some((cache, file))
    }

    /// Where a shard that is away lies once it was brought.
    pub(crate) fn path(&self, id: FileId) -> Option<PathBuf> {
        let (_, file) = self.file(id)?;
        Some(self.folder.path(file.entry.hash))
    }

    /// Where a shard that is away comes from, for people.
    pub(crate) fn origin(&self, id: FileId) -> Option<PathBuf> {
        let (cache, file) = self.file(id)?;
        Some(Path::new(&cache.fallback.uri()).join(file.relative()))
    }

    /// Bytes that this reader has removed for others, and bytes that all readers of the folder hold now.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.folder.evicted_bytes(), self.folder.held_bytes())
    }

    /// A shard that is away, opened with `open`; waits until it is here. It stays as long as it is open.
    pub(crate) fn shard(
        &self,
        id: FileId,
        open: &dyn Fn(&Path) -> io::Result<File>,
    ) -> Result<Arc<OpenFile>> {
        let (cache, file) = self
            .file(id)
            .ok_or(Error::Internal("a shard that is away"))?;
        if let Some(open) = self.folder.pin(content(&file), open)? {
            return Ok(Arc::new(OpenFile::brought(open, file.entry.bytes)));
        }
        let run = self
            .run()
            .ok_or(Error::Internal("threads that bring files"))?;
        let started = Instant::now();
        let brought = run.wait_for(id, self.timeout, self.timed_out());
        let time = started.elapsed();
        WAITED.set(WAITED.get() + time);
        self.counters.remote(time);
        brought.map_err(|reason| fault(cache, &file, reason))
    }

    /// Does `check` with the path of a shard that is open, the first time.
    pub(crate) fn check_once(
        &self,
        id: FileId,
        check: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let checked = || unpoisoned(self.checked.lock());
        if checked().contains(&id) {
            return Ok(());
        }
        if let Some(path) = self.path(id) {
            check(&path)?;
        }
        checked().insert(id);
        Ok(())
    }

    /// Has a shard brought again that came to harm here.
    pub(crate) fn discard(&self, id: FileId) -> Result<()> {
        let started = Instant::now();
        let stop =
            || started.elapsed() >= self.timeout || self.run().is_none_or(|run| run.is_over());
        match self.file(id) {
            Some((_, file)) => self.folder.discard(file.entry.hash, &stop),
            None => Ok(()),
        }
    }

    /// Has a file here, if that is possible now.
    fn ensure(
        &self,
        cache: &Elsewhere,
        file: &CacheFile,
        need: Need,
        needs: &dyn Fn() -> Needs,
        open: &dyn Fn(&Path) -> io::Result<File>,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Found, RemoteFault> {
        let content = content(file);
        let here = || self.folder.pin(content, open).map_err(failed);
        if let Some(file) = here()? {
            return Ok(Found::Here(file));
        }
        let taken = self.folder.take(content, need, &needs(), stop);
        let mut part = match taken.map_err(failed)? {
            Taken::Part(part) => part,
            Taken::Here => return Ok(here()?.map_or(Found::Busy, Found::Here)),
            Taken::Busy => return Ok(Found::Busy),
            Taken::NoRoom => return Ok(Found::NoRoom),
        };
        let started = Instant::now();
        let over = || stop() || started.elapsed() >= self.timeout;
        let bring = || cache.fallback.bring(file, part.file(), &over);
        let brought = catch_unwind(AssertUnwindSafe(bring));
        let reason = match brought {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(fault_of(&*error)),
            Err(_) => Some(RemoteFault::Failed("it panicked".to_owned())),
        };
        match reason {
            None => {}
            Some(_) if stop() => return Err(RemoteFault::Stopped),
            Some(_) if over() => return Err(self.timed_out()),
            Some(reason) => return Err(reason),
        }
        part.finish(&over).map_err(failed)?;
        self.counters.fetched(content.bytes);
        // Before `part` goes, whose lock keeps the file here.
        Ok(here()?.map_or(Found::Busy, Found::Here))
    }

    /// Starts threads that bring what is asked of the run that is returned.
    pub(crate) fn start(plan: &Arc<Plan>) -> Result<Option<Arc<Run>>> {
        let Some(remote) = plan.rows.remote() else {
            return Ok(None);
        };
        let run = Arc::new(Run::default());
        *remote.lock() = Some(Arc::clone(&run));
        threads::start(plan, &run, FETCHERS)?;
        Ok(Some(run))
    }

    /// Ends what goes on, without waiting for it.
    pub(crate) fn end(&self) {
        if let Some(run) = self.run() {
            run.end();
        }
    }

    /// Waits until the threads have ended, but not beyond `until`: a fetch that hangs ends by itself.
    pub(crate) fn wait(&self, until: Instant) {
        if let Some(run) = self.lock().take() {
            run.wait_for_threads(until);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Run>>> {
        unpoisoned(self.run.lock())
    }

    fn run(&self) -> Option<Arc<Run>> {
        self.lock().clone()
    }
}

fn content(file: &CacheFile) -> Content {
    Content {
        hash: file.entry.hash,
        bytes: file.entry.bytes,
    }
}

fn fault(cache: &Elsewhere, file: &CacheFile, fault: RemoteFault) -> Error {
    Error::Fallback {
        file: file.relative(),
        uri: cache.fallback.uri(),
        fault,
    }
}

fn failed(error: Error) -> RemoteFault {
    RemoteFault::Failed(error.to_string())
}
