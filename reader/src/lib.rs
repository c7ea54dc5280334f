//! Opens a Stoker cache and reads checked rows from it.
//!
//! [`CacheFiles`] is a cache whose manifest was read; [`Cache`] one whose indexes are open too, with every file in its
//! place. A row that is returned matches its checksum; anything else is an error that names partition, shard, row and
//! file.

mod cache;
mod error;
mod files;
mod ids;
mod shards;

pub use cache::{Cache, Place};
pub use error::{Error, Result};
pub use files::{CacheFile, CacheFiles};
