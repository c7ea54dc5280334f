//! Opens a Stoker cache and reads checked rows from it.
//!
//! [`CacheFiles`] is a cache whose manifest was read; [`Cache`] one whose indexes are open too, with every file in its
//! place. A row that is returned matches its checksum; anything else is an error that names partition, shard, row and
//! file.

mod assign;
mod cache;
mod cursor;
pub mod device;
mod error;
mod expand;
mod files;
mod ids;
mod memo;
mod mixture;
mod options;
mod order;
mod order_error;
mod placement;
mod schedule;
mod shards;
mod unit;
mod world;
mod staging;

pub use assign::{Assignment, assign};
pub use cache::{Cache, Place};
pub use cursor::{Cursor, Resume};
pub use error::{Error, Result};
pub use expand::{FloatTable, Pixels, expand_bf16, expand_bytes, expand_f32};
pub use files::{CacheFile, CacheFiles};
pub use memo::Memo;
pub use options::{Last, OrderOptions, Shuffle, Tail};
pub use order::Order;
pub use order_error::{Difference, OrderError};
pub use placement::{Held, Placement};
pub use schedule::{GlobalBatch, Position, Schedule};
pub use unit::{CacheUnits, PartitionUnits, Unit};
pub use world::{World, WorldSizes};
pub use staging::{PlainMemory, Staging};
