//! What can be wrong with bytes on disk.

/// A fault in a file of a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {}

impl Error {
    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        None
    }
}
