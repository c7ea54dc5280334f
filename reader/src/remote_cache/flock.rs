//! Files that are locked (flock) until they are dropped.
//!
//! Invariant: the lock ends with the value. To close the file is not enough: a fork of this process has it open, too, and with
//! it the lock. In the fork nothing may drop one, which would unlock it here; the drop of a reader sees to that.

use std::fs::File;
use std::ops::Deref;

/// A file with a lock.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// A file that was just locked.
    pub(super) fn of(file: File) -> Self {
        Self(file)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // What cannot be unlocked ends when all have closed it.
        let _ = self.0.unlock();
    }
}
