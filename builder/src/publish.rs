//! The only door to durable files: temp in the same folder, write, fsync, close, rename, fsync folder.
//!
//! Owns everything that must survive a power cut. Invariant: a name without the temp suffix is
//! complete, because it appears only by a rename after the file's own fsync. A failed write, fsync,
//! close or rename abandons the temp file and is never retried on the same file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::append::Append;
use crate::error::{Error, Result};

/// Suffix of a file that is being written. One builder owns the output, so the name can be fixed:
/// the next try at the same file finds and replaces what a dead builder left.
pub(crate) const TEMP_SUFFIX: &str = ".tmp";

/// What is still to be written is an estimate; indexes, tables and the manifest are always among it.
const NEEDED_BYTES_MIN: u64 = 1 << 20;

/// Published files of a cache are never written again.
const MODE_IMMUTABLE: u32 = 0o444;

/// The manifest and the state of a running build are replaced.
const MODE_REPLACED: u32 = 0o644;

/// Open flag of files that are written in place: a link under our name is a stranger's.
pub(crate) const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// Creates and publishes files below one output folder.
#[derive(Debug, Clone)]
pub struct Publisher {
    root: PathBuf,
    remaining_bytes: Arc<AtomicU64>,
    /// The last failed write: path and reason. Encoders between us and the file keep only its text.
    write_fault: Arc<Mutex<Option<(PathBuf, io::Error)>>>,
}

impl Publisher {
    /// A publisher for the output folder `root`, which must exist.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            remaining_bytes: Arc::default(),
            write_fault: Arc::default(),
        }
    }

    /// Makes the output folder and those above it, durably, where they are missing, and a publisher for it.
    ///
    /// # Errors
    /// The system's reason, naming the folder.
    pub fn make(root: PathBuf) -> Result<Self> {
        if root.is_dir() {
            // Whoever made it may have died before its name was durable. If the folder above cannot be read, it was not one of us.
            let _ = sync_folder(above(&root));
        } else {
            make_folder(&root)?;
        }
        Ok(Self::new(root))
    }

    /// The output folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Says how many bytes are still to be written, for the message of a full disk.
    pub fn set_remaining_bytes(&self, bytes: u64) {
        self.remaining_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Says that so many of these bytes are written.
    pub(crate) fn wrote(&self, bytes: u64) {
        let less = |remaining: u64| Some(remaining.saturating_sub(bytes));
        let _ = self
            .remaining_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Makes a folder and its parents below the root, durably.
    ///
    /// # Errors
    /// The system's reason, naming the folder.
    pub fn create_folder(&self, relative: &Path) -> Result<PathBuf> {
        let mut folder = self.root.clone();
        for part in relative {
            let parent = folder.clone();
            folder.push(part);
            match fs::create_dir(&folder) {
                Ok(()) => sync_folder(&parent)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.fault("create folder", &folder, error)),
            }
        }
        Ok(folder)
    }

    /// Makes the names in a folder below the root durable, whoever put them there.
    ///
    /// # Errors
    /// The system's reason, naming the folder.
    pub fn sync(&self, folder: &Path) -> Result<()> {
        sync_folder(&self.root.join(folder))
    }

    /// Starts a file in the existing folder `folder` below the root.
    ///
    /// # Errors
    /// The system's reason, naming the file.
    pub fn create(&self, folder: &Path, name: &str) -> Result<Pending> {
        let folder = self.root.join(folder);
        let temp = folder.join(format!(".{name}{TEMP_SUFFIX}"));
        remove_leftover(&temp).map_err(|error| self.fault("remove", &temp, error))?;
        let file = OpenOptions::new()
            .write(true)
            .read(true)
            .create_new(true)
            .mode(MODE_REPLACED)
            .open(&temp)
            .and_then(Append::new)
            .map_err(|error| self.fault("create", &temp, error))?;
        Ok(Pending {
            writer: Some(file),
            temp,
            folder,
            publisher: self.clone(),
        })
    }

    /// Publishes `bytes` as the immutable file `name`.
    ///
    /// # Errors
    /// The system's reason, naming the file.
    pub fn publish_bytes(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let mut pending = self.create(folder, name)?;
        pending.put(bytes)?;
        pending.publish(name)
    }

    /// Replaces the file `name` by `bytes`, atomically: readers see the old or the new one.
    ///
    /// # Errors
    /// The system's reason, naming the file.
    pub fn replace_bytes(&self, folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
        let mut pending = self.create(folder, name)?;
        pending.put(bytes)?;
        pending.finish(name, MODE_REPLACED)
    }

    /// Removes a file of ours, durably. A missing one is no fault.
    ///
    /// # Errors
    /// The system's reason, naming the file.
    pub fn remove(&self, folder: &Path, name: &str) -> Result<()> {
        let folder = self.root.join(folder);
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(&folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(self.fault("remove", &path, error)),
        }
    }

    /// An encoder's error; if a write below it failed, that one, with path and free space, once.
    pub fn explain(&self, error: impl Into<Error>) -> Error {
        let fault = self.lock_write_fault().take();
        fault.map_or_else(
            || error.into(),
            |(path, error)| self.fault("write", &path, error),
        )
    }

    fn lock_write_fault(&self) -> MutexGuard<'_, Option<(PathBuf, io::Error)>> {
        self.write_fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of a failed operation; a full disk is told apart, with needed and free bytes.
    pub fn fault(&self, action: &'static str, path: &Path, error: io::Error) -> Error {
        let full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        );
        if full {
            return Error::DiskFull {
                path: self.root.clone(),
                needed: self
                    .remaining_bytes
                    .load(Ordering::Relaxed)
                    .max(NEEDED_BYTES_MIN),
                free: free_bytes(&self.root).unwrap_or(0),
            };
        }
        Error::io(action, path)(error)
    }
}

/// A file being written. Dropped unpublished, it is removed.
#[derive(Debug)]
pub struct Pending {
    /// `None` once published or abandoned.
    writer: Option<Append>,
    temp: PathBuf,
    folder: PathBuf,
    publisher: Publisher,
}

impl Pending {
    /// Appends `bytes`.
    ///
    /// # Errors
    /// The system's reason, naming the file.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(bytes)
            .map_err(|error| self.publisher.fault("write", &self.temp, error))
    }

    /// Makes the file durable and visible as the immutable `name` in its folder.
    ///
    /// # Errors
    /// The system's reason, naming the file; the temp file is then abandoned.
    pub fn publish(self, name: &str) -> Result<()> {
        self.finish(name, MODE_IMMUTABLE)
    }

    fn finish(mut self, name: &str, mode: u32) -> Result<()> {
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        let target = self.folder.join(name);
        let outcome = (|| {
            let file = writer.finish().map_err(|error| ("write", error))?;
            file.set_permissions(fs::Permissions::from_mode(mode))
                .map_err(|error| ("set the mode of", error))?;
            file.sync_all().map_err(|error| ("sync", error))?;
            // NFS and FUSE report late write errors at close.
            nix::unistd::close(file).map_err(|error| ("close", error.into()))?;
            fs::rename(&self.temp, &target).map_err(|error| ("rename", error))
        })();
        if let Err((action, error)) = outcome {
            let fault = self.publisher.fault(action, &self.temp, error);
            let _ = fs::remove_file(&self.temp);
            return Err(fault);
        }
        sync_folder(&self.folder)
    }
}

impl Pending {
    /// Keeps a failed write's path and reason: encoders above pass only its text on.
    fn keep_fault<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                let copy = error
                    .raw_os_error()
                    .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
                let fault = (self.temp.clone(), copy);
                *self.publisher.lock_write_fault() = Some(fault);
            }
        })
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(writer) = &mut self.writer else {
            return Err(io::Error::other("file is already published"));
        };
        let outcome = writer.write(bytes);
        self.keep_fault(outcome)
    }

    fn flush(&mut self) -> io::Result<()> {
        let outcome = self.writer.as_mut().map_or(Ok(()), Write::flush);
        self.keep_fault(outcome)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The buffer of an abandoned file is not worth a write.
        if self.writer.take().is_some() {
            let _ = fs::remove_file(&self.temp);
        }
    }
}

/// Bytes an unprivileged process may still write on the file system of `path`.
///
/// # Errors
/// The system's reason, naming the folder.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path)
        .map_err(|error| Error::io("read the free space of", path)(error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes a folder, and those above it that are missing, each durably.
fn make_folder(folder: &Path) -> Result<()> {
    let parent = above(folder);
    if !parent.is_dir() {
        make_folder(parent)?;
    }
    match fs::create_dir(folder) {
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        outcome => outcome.map_err(Error::io("create folder", folder))?,
    }
    sync_folder(parent)
}

/// The folder in which `folder` has its name.
fn above(folder: &Path) -> &Path {
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => folder,
    }
}

/// Makes the names in `folder` durable.
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io("sync folder", folder))
}

/// Removes the regular file that a dead builder left under a temp name; anything else there is a
/// stranger's and stays.
fn remove_leftover(temp: &Path) -> io::Result<()> {
    match fs::symlink_metadata(temp) {
        Ok(meta) if meta.is_file() => fs::remove_file(temp),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "not a regular file, so not ours",
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_needs_what_is_still_to_be_written() {
        let publisher = Publisher::new(std::env::temp_dir());
        let needed = || {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            match publisher.fault("write", Path::new("x"), full) {
                Error::DiskFull { needed, .. } => needed,
                other => panic!("{other}"),
            }
        };
        publisher.set_remaining_bytes(10 << 20);
        publisher.wrote(7 << 20);
        assert_eq!(needed(), 3 << 20);
        publisher.wrote(7 << 20);
        assert_eq!(needed(), NEEDED_BYTES_MIN);
    }
}
