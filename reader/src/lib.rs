//! Opens a Stoker cache and reads checked rows from it.
//!
//! [`CacheFiles`] is a cache whose manifest was read; [`Cache`] one whose indexes are open too, with every file in its
//! place. A row that is returned matches its checksum; anything else is an error that names partition, shard, row and
//! file.

mod cache;
pub mod device;
mod error;
mod expand;
mod files;
mod ids;
mod shards;
mod staging;

pub use cache::{Cache, Place};
pub use error::{Error, Result};
pub use expand::{FloatTable, Pixels, expand_bf16, expand_bytes, expand_f32};
pub use files::{CacheFile, CacheFiles};
pub use staging::{PlainMemory, Staging};
