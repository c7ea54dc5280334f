//! What a repair could not make again.
//!
//! Owns which faults concern one file, so that a repair goes on with the others. Invariant: in a build every fault is its end.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// The files that stay as they are.
#[derive(Debug)]
pub(crate) struct Mending {
    is_repair: bool,
    left: Mutex<BTreeSet<PathBuf>>,
}

impl Mending {
    pub(crate) fn new(is_repair: bool) -> Self {
        Self {
            is_repair,
            left: Mutex::default(),
        }
    }

    /// Whether a committed cache is mended, and no other is made.
    pub(crate) fn is_repair(&self) -> bool {
        self.is_repair
    }

    /// What was made; none if a repair leaves that file as it is: it would come out otherwise, or a folder stands in its place.
    pub(crate) fn made<T>(&self, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Err(Error::Otherwise { path }) if self.is_repair => {
                self.lock().insert(path);
                Ok(None)
            }
            Err(Error::Io { path, source, .. })
                if self.is_repair && source.kind() == ErrorKind::IsADirectory =>
            {
                self.lock().insert(path);
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Whether some file stays as it is.
    pub(crate) fn has_left(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Those files.
    pub(crate) fn left(&self) -> BTreeSet<PathBuf> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
