//! Local files below a root.
//!
//! Owns opening and reading them; decides nothing about links. Invariant: whatever the tree below
//! the root is turned into meanwhile, the kernel resolves every name beneath the root, and only
//! regular files are read.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::FetchError;
use crate::error::Error;
use crate::reject::{Reason, Reject};

/// How often an open is tried again when a rename elsewhere disturbs it: the kernel asks for it
/// with `EAGAIN`, and nobody renames this often without meaning harm.
const DISTURBED_TRIES_MAX: u32 = 128;

/// An opened folder below which links are resolved.
#[derive(Debug)]
pub struct LocalRoot {
    path: PathBuf,
    folder: OwnedFd,
}

impl LocalRoot {
    /// Opens the folder `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if it is no folder or cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())
            .map_err(io::Error::from)
            .map_err(Error::io("open folder", path))?;
        Ok(Self {
            path: path.to_path_buf(),
            folder,
        })
    }

    /// The folder's path, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes of the regular file `name` below the root, at most `bytes_max`.
    ///
    /// # Errors
    /// A reject for what is a fact about the link: missing, out of the root, no regular file, too
    /// large. An [`Error::Io`] for what another try may mend: permissions, I/O errors, no descriptors left.
    pub fn read(&self, name: &str, bytes_max: u64) -> Result<Bytes, FetchError> {
        let path = || self.path.join(name);
        let file = File::from(self.open_beneath(name)?);
        let stat = rustix::fs::fstat(&file).map_err(|errno| weather("stat", path(), errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FetchError::Reject(Reject::new(
                Reason::ForbiddenLink,
                "the link names no regular file",
            )));
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size > bytes_max {
            return Err(too_many_bytes(size, bytes_max).into());
        }
        let mut bytes = Vec::new();
        let want = usize::try_from(size).unwrap_or(usize::MAX);
        if bytes.try_reserve_exact(want).is_err() {
            return Err(weather("read", path(), Errno::NOMEM));
        }
        // One byte more than expected, so that a file that grew is noticed.
        file.take(size + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| FetchError::Stop(Error::io("read", path())(error)))?;
        if bytes.len() != want {
            let changed = io::Error::other("the file changed while it was read");
            return Err(FetchError::Stop(Error::io("read", path())(changed)));
        }
        Ok(bytes.into())
    }

    fn open_beneath(&self, name: &str) -> Result<OwnedFd, FetchError> {
        // Non-blocking, because a FIFO without a writer would hold the open for ever.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let mut tries = 0;
        loop {
            tries += 1;
            let reject = |reason, why: &str| Err(FetchError::Reject(Reject::new(reason, why)));
            return match rustix::fs::openat2(&self.folder, name, flags, Mode::empty(), resolve) {
                Ok(file) => Ok(file),
                Err(Errno::AGAIN | Errno::INTR) if tries < DISTURBED_TRIES_MAX => continue,
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    reject(Reason::MissingImage, "there is no such file")
                }
                Err(Errno::NAMETOOLONG) => {
                    reject(Reason::MissingImage, "no file can have so long a name")
                }
                Err(Errno::XDEV | Errno::LOOP) => {
                    reject(Reason::ForbiddenLink, "the link leaves its root")
                }
                Err(Errno::NXIO | Errno::NODEV) => {
                    reject(Reason::ForbiddenLink, "the link names no regular file")
                }
                Err(errno) => Err(weather("open", self.path.join(name), errno)),
            };
        }
    }
}

/// The reject of an object above the byte limit.
pub(super) fn too_many_bytes(bytes: u64, bytes_max: u64) -> Reject {
    Reject::new(
        Reason::TooManyBytes,
        format!("{bytes} bytes are more than the allowed `{bytes_max}`"),
    )
}

fn weather(action: &'static str, path: PathBuf, errno: Errno) -> FetchError {
    FetchError::Stop(Error::io(action, path)(errno.into()))
}
