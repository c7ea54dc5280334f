//! The folder of files that were brought, shared by all readers of a node.
//!
//! Owns names, locks and the bound. Files are named by their hashes, so they fit any cache that names them:
//!
//! ```text
//! lock                    held (flock) for every change below, briefly
//! files/HASH              a file; whoever reads it holds a shared flock on it
//! files/HASH.BYTES.part   one that is being brought; who brings it holds an exclusive flock on it
//! readers/PID-N           what a reader will need, and when; it holds a shared flock on it
//! ```
//!
//! Invariants: finished files and the whole of unfinished ones never take more than the bound; a file that somebody reads is
//! never removed; what a killed process leaves has no lock once its forks have ended, too, and goes or is taken over.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use stoker_formats::ContentHash;

use super::flock::LockedFile;
use crate::error::{Error, Result};

/// Between two looks at a lock that somebody else has.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Bytes of one line of a reader's list: the hash, and the distance.
const LINE_BYTES: usize = 36;

/// Lines of a list at most; later needs are like none.
const MAX_LINES: usize = 1 << 14;

/// Bytes of a list that are read: more than any has.
const MAX_LIST_BYTES: u64 = 64 << 20;

/// The distance of what a reader needs as long as it lives.
pub(crate) const ALWAYS: u32 = u32::MAX;

/// A file by what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) hash: ContentHash,
    pub(crate) bytes: u64,
}

/// What a reader will need, each with how many batches from now.
pub(crate) type Needs = Vec<(ContentHash, u32)>;

/// How much a file is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Somebody waits for it.
    Now,
    /// So many batches from now.
    In(u32),
}

/// What [`Folder::take`] says.
#[derive(Debug)]
pub(crate) enum Taken<'a> {
    /// The caller brings it.
    Part(Part<'a>),
    /// It has come meanwhile.
    Here,
    /// Somebody else is bringing it.
    Busy,
    /// What is here is read, or needed sooner.
    NoRoom,
}

/// The folder, for one reader.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    bound: u64,
    list: File,
    list_path: PathBuf,
    /// The first lines of the list.
    pins: Needs,
    evicted_bytes: AtomicU64,
    opened_by: u32,
}

/// A file that is being brought. Dropped unfinished, it goes.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    folder: &'a Folder,
    file: LockedFile,
    path: PathBuf,
    content: Content,
    finished: bool,
}

/// One file of the folder.
struct Entry {
    path: PathBuf,
    bytes: u64,
    /// None for an unfinished file.
    hash: Option<ContentHash>,
    modified: SystemTime,
}

impl Folder {
    /// Joins the readers of the folder at `root`, which is made if it is not there. The files of `pins` stay as long as this does.
    pub(crate) fn join(
        root: PathBuf,
        bound: u64,
        pins: &[ContentHash],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self> {
        for folder in [root.join("files"), root.join("readers")] {
            fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        }
        let _lock = lock(&root, stop)?;
        let pid = std::process::id();
        let mut number = 0;
        let (list, list_path) = loop {
            let path = root.join("readers").join(format!("{pid}-{number}"));
            match open_new(&path) {
                Ok(file) => break (file, path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(Error::io("create", &path)(error)),
            }
        };
        list.try_lock_shared()
            .map_err(|error| Error::io("lock", &list_path)(error.into()))?;
        let folder = Self {
            root,
            bound,
            list,
            list_path,
            pins: pins.iter().map(|hash| (*hash, ALWAYS)).collect(),
            evicted_bytes: AtomicU64::new(0),
            opened_by: pid,
        };
        folder.write_list(&Needs::new())?;
        Ok(folder)
    }

    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// Bytes that this reader has made room of.
    pub(crate) fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that are held now, by all readers together; unfinished files count whole.
    pub(crate) fn held_bytes(&self) -> u64 {
        // A figure for people: nobody waits long for it, and what cannot be listed now is told by whoever needs it.
        let asked = Instant::now();
        let _lock = lock(&self.root, &|| asked.elapsed() > LOOK_AGAIN * 50);
        let entries = self.entries().unwrap_or_default();
        entries.iter().map(|entry| entry.bytes).sum()
    }

    /// Where a file lies when it is here.
    pub(crate) fn path(&self, hash: ContentHash) -> PathBuf {
        self.root.join("files").join(hash.to_string())
    }

    /// Opens a file with `open` so that it stays while it is open; none if it is not here, with its size.
    pub(crate) fn pin(
        &self,
        content: Content,
        open: impl FnOnce(&Path) -> io::Result<File>,
    ) -> Result<Option<LockedFile>> {
        let path = self.path(content.hash);
        let file = match open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        // Who has it locked is about to remove it, or has just brought it.
        if file.try_lock_shared().is_err() {
            return Ok(None);
        }
        let file = LockedFile::of(file);
        let metadata = file.metadata().map_err(Error::io("read", &path))?;
        let is_it = metadata.nlink() > 0 && metadata.len() == content.bytes;
        Ok(is_it.then_some(file))
    }

    /// Makes room for a file and takes it on, unless somebody else has. `needs` are those of this reader.
    pub(crate) fn take(
        &self,
        content: Content,
        need: Need,
        needs: &Needs,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Taken<'_>> {
        let _lock = lock(&self.root, stop)?;
        self.write_list(needs)?;
        let path = self.path(content.hash);
        if let Ok(metadata) = fs::metadata(&path) {
            if metadata.len() == content.bytes {
                return Ok(Taken::Here);
            }
            // Somebody has cut it.
            if !remove_if_free(&path)? {
                return Ok(Taken::Busy);
            }
        }
        let name = format!("{}.{}.part", content.hash, content.bytes);
        let path = self.root.join("files").join(name);
        let fault = |error| Error::io("create", &path)(error);
        // One that is there already, of a process that was killed, has its room already.
        let existing = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) if file.try_lock().is_err() => return Ok(Taken::Busy),
            // Who brought it may have given it up just now.
            Ok(file) => {
                let file = LockedFile::of(file);
                let is_there = file.metadata().is_ok_and(|found| found.nlink() > 0);
                is_there.then_some(file)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(fault(error)),
        };
        let file = match existing {
            Some(file) => file,
            None if !self.make_room(content.bytes, need)? => return Ok(Taken::NoRoom),
            None => {
                let file = open_new(&path).map_err(fault)?;
                file.try_lock().map_err(|error| fault(error.into()))?;
                LockedFile::of(file)
            }
        };
        file.set_len(0).map_err(fault)?;
        Ok(Taken::Part(Part {
            folder: self,
            file,
            path,
            content,
            finished: false,
        }))
    }

    /// Removes a file that is damaged, as soon as nobody reads it or `stop` says so; then it stays.
    pub(crate) fn discard(
        &self,
        hash: ContentHash,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let path = self.path(hash);
        loop {
            let folder_lock = lock(&self.root, stop)?;
            if remove_if_free(&path)? || stop() {
                return Ok(());
            }
            drop(folder_lock);
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Tells the other readers what this one will need.
    pub(crate) fn tell(&self, needs: &Needs, stop: &(dyn Fn() -> bool + Sync)) -> Result<()> {
        let _lock = lock(&self.root, stop)?;
        self.write_list(needs)
    }

    fn write_list(&self, needs: &Needs) -> Result<()> {
        let mut bytes = Vec::with_capacity((self.pins.len() + needs.len()) * LINE_BYTES);
        for (hash, distance) in self.pins.iter().chain(needs.iter().take(MAX_LINES)) {
            bytes.extend_from_slice(&hash.0);
            bytes.extend_from_slice(&distance.to_le_bytes());
        }
        let written = self.list.write_all_at(&bytes, 0);
        written
            .and_then(|()| self.list.set_len(bytes.len() as u64))
            .map_err(Error::io("write", &self.list_path))
    }

    /// Removes files until `bytes` more fit: those first that all readers need last. Somebody who waits gets the room of whatever
    /// is not read right now; who only reads ahead gets that of files which are needed later. Called with the lock.
    fn make_room(&self, bytes: u64, need: Need) -> Result<bool> {
        let mut used = 0;
        let mut entries = Vec::new();
        for entry in self.entries()? {
            match entry.hash {
                Some(hash) => entries.push((hash, entry)),
                // Of a process that was killed.
                None if remove_if_free(&entry.path)? => {}
                None => used += entry.bytes,
            }
        }
        used += entries.iter().map(|(_, entry)| entry.bytes).sum::<u64>();
        let Some(target) = self.bound.checked_sub(bytes) else {
            return Ok(false);
        };
        if used <= target {
            return Ok(true);
        }
        let needed = self.needed()?;
        let distance = |hash: &ContentHash| needed.get(hash).copied();
        let may_go = |hash: &ContentHash| match (distance(hash), need) {
            (Some((_, true)), _) => false,
            (None, _) | (Some(_), Need::Now) => true,
            (Some((soonest, _)), Need::In(batches)) => soonest > batches,
        };
        entries.retain(|(hash, _)| may_go(hash));
        let free: u64 = entries.iter().map(|(_, entry)| entry.bytes).sum();
        if used.saturating_sub(free) > target {
            return Ok(false);
        }
        // Those that nobody names first, the oldest of them first; then by when they are needed, the last first.
        entries.sort_by_key(|(hash, entry)| {
            let soonest = distance(hash).map(|(soonest, _)| soonest);
            (
                soonest.is_some(),
                std::cmp::Reverse(soonest),
                entry.modified,
            )
        });
        for (_, entry) in entries {
            if used <= target {
                break;
            }
            if remove_if_free(&entry.path)? {
                used -= entry.bytes;
                self.evicted_bytes.fetch_add(entry.bytes, Ordering::Relaxed);
            }
        }
        Ok(used <= target)
    }

    /// When the living readers need which file next, and whether it is to stay. Lists of those that are gone go.
    fn needed(&self) -> Result<HashMap<ContentHash, (u32, bool)>> {
        let mut needed = HashMap::new();
        for (path, _) in list(&self.root.join("readers"))? {
            if remove_if_free(&path)? {
                continue;
            }
            let mut bytes = Vec::new();
            let file = match File::open(&path) {
                Ok(file) => file,
                // Its reader has just gone.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(Error::io("open", &path)(error)),
            };
            let read = file.take(MAX_LIST_BYTES).read_to_end(&mut bytes);
            read.map_err(Error::io("read", &path))?;
            let (lines, _) = bytes.as_chunks::<LINE_BYTES>();
            for line in lines {
                let (hash, distance) = line.split_at(32);
                let (Ok(hash), Ok(distance)) = (hash.try_into(), distance.try_into()) else {
                    continue;
                };
                let distance = u32::from_le_bytes(distance);
                let known = needed.entry(ContentHash(hash)).or_insert((ALWAYS, false));
                known.0 = known.0.min(distance);
                known.1 |= distance == ALWAYS;
            }
        }
        Ok(needed)
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        let listed = list(&self.root.join("files"))?.into_iter();
        let entry = |(path, metadata): (PathBuf, fs::Metadata)| {
            let name = path.file_name()?.to_str()?.to_owned();
            let mut parts = name.split('.');
            let hash = ContentHash::from_hex(parts.next()?)?;
            let whole = match (parts.next(), parts.next(), parts.next()) {
                (None, ..) => None,
                (Some(bytes), Some("part"), None) => Some(bytes.parse().ok()?),
                // Not ours.
                _ => return None,
            };
            Some(Entry {
                path,
                bytes: whole.unwrap_or(metadata.len()),
                hash: whole.is_none().then_some(hash),
                modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            })
        };
        Ok(listed.filter_map(entry).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // In a fork the list is still the parent's.
        if std::process::id() == self.opened_by {
            // What stays has no lock and goes with the next one that looks.
            let _ = fs::remove_file(&self.list_path);
        }
    }
}

impl Part<'_> {
    /// What is written to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name; until this is dropped it stays.
    pub(crate) fn finish(&mut self, stop: &(dyn Fn() -> bool + Sync)) -> Result<()> {
        let found = self
            .file
            .metadata()
            .map_err(Error::io("read", &self.path))?;
        crate::files::check_size(&self.path, &found, self.content.bytes)?;
        let _lock = lock(&self.folder.root, stop)?;
        let path = self.folder.path(self.content.hash);
        fs::rename(&self.path, &path).map_err(Error::io("rename", &path))?;
        self.finished = true;
        // From a lock that keeps all others out to one that readers share: with the folder's lock nobody comes between.
        self.file.lock_shared().map_err(Error::io("lock", &path))
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if !self.finished {
            // Its own lock keeps others from it, so that it may go without the folder's. What stays is taken over.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder's lock, until it is dropped.
pub(super) fn lock(root: &Path, stop: &(dyn Fn() -> bool + Sync)) -> Result<LockedFile> {
    let path = root.join("lock");
    let opened = OpenOptions::new().create(true).append(true).open(&path);
    let file = opened.map_err(Error::io("open", &path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(LockedFile::of(file)),
            Err(fs::TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            Err(fs::TryLockError::WouldBlock) if stop() => {
                let error =
                    io::Error::new(ErrorKind::TimedOut, "another process has held it too long");
                return Err(Error::io("lock", &path)(error));
            }
            Err(fs::TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
        }
    }
}

fn open_new(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
}

/// Removes a file unless somebody has it locked; whether it is gone. Its lock is kept until it is: who opens it just before
/// finds it locked, or without a name.
fn remove_if_free(path: &Path) -> Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(Error::io("open", path)(error)),
    };
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let _lock = LockedFile::of(file);
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(true),
    }
}

/// The files of a folder that are there when they are looked at.
fn list(folder: &Path) -> Result<Vec<(PathBuf, fs::Metadata)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            found.push((entry.path(), metadata));
        }
    }
    Ok(found)
}
