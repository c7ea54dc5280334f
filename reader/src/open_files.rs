//! The open files of a reader: as many as it may have, opened when they are needed.
//!
//! Owns descriptors and the check that an open file is what the manifest means. Invariant: at most `capacity` files are
//! kept open, and each has the manifest's size; a shard's head is checked the first time that it is opened.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Result;
use crate::mmap::Mapping;
use crate::page_cache::{Filled, forget};
use crate::remote_cache::LockedFile;
use crate::sync::unpoisoned;

/// Fewest and most files that are kept open.
const CAPACITY: (u64, u64) = (16, 1024);

/// Names a file of a reader's caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub(crate) cache: u32,
    pub(crate) kind: FileKind,
    pub(crate) partition: u32,
    /// The shard's ordinal; 0 for an index.
    pub(crate) ordinal: u32,
}

/// The kinds of files that a reader keeps open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FileKind {
    ImageShard,
    SampleShard,
    ImageIndex,
    SampleIndex,
}

impl FileKind {
    /// What its rows are called in messages.
    pub(crate) fn rows(self) -> &'static str {
        match self {
            Self::ImageShard | Self::ImageIndex => "image",
            Self::SampleShard | Self::SampleIndex => "sample",
        }
    }
}

/// What a file is read through.
#[derive(Debug)]
enum Handle {
    Plain(File),
    /// One that stays as long as it is locked.
    Locked(LockedFile),
}

/// A file that is open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    handle: Handle,
    size: u64,
    mapping: OnceLock<Mapping>,
    /// None where nothing is to be brought into the page cache.
    filled: Option<Arc<Filled>>,
}

impl OpenFile {
    pub(crate) fn new(file: File, size: u64) -> Self {
        Self {
            handle: Handle::Plain(file),
            size,
            mapping: OnceLock::new(),
            filled: Some(Arc::default()),
        }
    }

    /// One that has just been written, and so is in the page cache, or is open for one read.
    pub(crate) fn brought(file: LockedFile, size: u64) -> Self {
        Self {
            handle: Handle::Locked(file),
            size,
            mapping: OnceLock::new(),
            filled: None,
        }
    }

    pub(crate) fn file(&self) -> &File {
        match &self.handle {
            Handle::Plain(file) => file,
            Handle::Locked(file) => file,
        }
    }

    /// Bytes, as the manifest says and as was found when the file was opened.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Has `length` bytes at `offset` brought into the page cache, if they were not before.
    pub(crate) fn fill(&self, offset: u64, length: u64) {
        if let Some(filled) = &self.filled {
            filled.fill(self.file(), self.size, offset, length);
        }
    }

    /// Asks for `length` bytes at `offset`, which will be read soon, if they may not be in the page cache.
    pub(crate) fn expect(&self, offset: u64, length: u64) {
        if let Some(filled) = &self.filled {
            filled.expect(self.file(), self.size, offset, length);
        }
    }

    /// Gives the pages of `length` bytes at `offset` back to the system.
    pub(crate) fn forget(&self, offset: u64, length: u64) {
        // Those that are mapped stay in the page cache.
        if let Some(mapping) = self.mapping.get() {
            mapping.forget(offset, length);
        }
        forget(self.file(), offset, length);
    }

    /// The file's mapping, made when it is first asked for.
    pub(crate) fn mapping(&self) -> io::Result<&Mapping> {
        if let Some(mapping) = self.mapping.get() {
            return Ok(mapping);
        }
        let mapping = Mapping::new(self.file())?;
        Ok(self.mapping.get_or_init(|| mapping))
    }
}

/// Files that are open, by name.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<FileId, usize>,
    slots: Vec<(FileId, Arc<OpenFile>)>,
    /// The slot that is given up next. Going round is as good as any rule here: shuffled reads have no favourites.
    hand: usize,
    /// Files whose heads were checked, with what of them was brought into the page cache.
    checked: HashMap<FileId, Option<Arc<Filled>>>,
}

impl OpenFiles {
    /// Keeps at most a quarter of the process's descriptors.
    pub(crate) fn new() -> Self {
        let allowed = rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .unwrap_or(u64::MAX);
        let capacity = (allowed / 4).clamp(CAPACITY.0, CAPACITY.1);
        make_room(capacity);
        Self::with_capacity(usize::try_from(capacity).unwrap_or(16))
    }

    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    /// The file of `id`. `open` opens it, `check` looks into it once; both run without the lock.
    pub(crate) fn get(
        &self,
        id: FileId,
        open: impl FnOnce() -> Result<OpenFile>,
        check: impl FnOnce() -> Result<()>,
    ) -> Result<Arc<OpenFile>> {
        let checked = {
            let state = self.lock();
            if let Some((_, file)) = state.by_id.get(&id).and_then(|at| state.slots.get(*at)) {
                return Ok(Arc::clone(file));
            }
            state.checked.get(&id).cloned()
        };
        let mut file = open()?;
        match checked {
            Some(filled) => file.filled = filled,
            None => check()?,
        }
        Ok(self.lock().keep(id, Arc::new(file), self.capacity))
    }

    /// Files that are open.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().slots.len()
    }
}

/// Lets the system's table of descriptors grow at once to what `capacity` files and some others need. It would grow three
/// times otherwise, and where threads run each time waits for all of them, some milliseconds, with an `open` that is in the way of a batch.
fn make_room(capacity: u64) {
    let beyond = i32::try_from(capacity + capacity / 4).unwrap_or(0);
    // What is not possible costs this time only.
    let _ = File::open("/").map(|folder| rustix::io::fcntl_dupfd_cloexec(folder, beyond));
}

impl State {
    fn keep(&mut self, id: FileId, file: Arc<OpenFile>, capacity: usize) -> Arc<OpenFile> {
        let filled = self.checked.entry(id);
        filled.or_insert_with(|| file.filled.clone());
        // Another thread may have been faster; its file is as good.
        if let Some((_, first)) = self.by_id.get(&id).and_then(|at| self.slots.get(*at)) {
            return Arc::clone(first);
        }
        if self.slots.len() < capacity {
            self.by_id.insert(id, self.slots.len());
            self.slots.push((id, Arc::clone(&file)));
            return file;
        }
        let at = self.hand % capacity;
        self.hand = self.hand.wrapping_add(1);
        if let Some(slot) = self.slots.get_mut(at) {
            self.by_id.remove(&slot.0);
            *slot = (id, Arc::clone(&file));
            self.by_id.insert(id, at);
        }
        file
    }
}

/// Opens `path` with `open` and holds it against its size in the manifest.
pub(crate) fn open_sized(
    path: &Path,
    bytes: u64,
    open: impl FnOnce(&Path) -> io::Result<File>,
) -> Result<OpenFile> {
    let file = open(path).map_err(crate::error::Error::io("open", path))?;
    let metadata = file
        .metadata()
        .map_err(crate::error::Error::io("open", path))?;
    crate::files::check_size(path, &metadata, bytes)?;
    Ok(OpenFile::new(file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_bounded_and_heads_checked_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = OpenFiles::with_capacity(3);
        let mut checks = 0;
        for round in 0..3 {
            for ordinal in 0..10 {
                let id = FileId {
                    cache: 0,
                    kind: FileKind::ImageShard,
                    partition: 0,
                    ordinal,
                };
                let open = || open_sized(file.path(), 0, |path| File::open(path));
                let check = || {
                    checks += 1;
                    Ok(())
                };
                files.get(id, open, check).unwrap();
                files
                    .get(id, || panic!("is open"), || panic!("is checked"))
                    .unwrap();
                assert!(files.len() <= 3, "round {round}");
            }
        }
        assert_eq!(checks, 10);
    }
}
