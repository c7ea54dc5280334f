//! Opens a Stoker cache and reads checked rows from it.
//!
//! [`CacheFiles`] is a cache whose manifest was read; [`Cache`] one whose indexes are open too, with every file in its
//! place. A row that is returned matches its checksum; anything else is an error that names partition, shard, row and
//! file.
//!
//! [`Schedule`] is the order: which units (today: samples) a global batch holds, as `ORDER.md` specifies it. [`assign`]
//! deals them to the ranks of a [`World`], and a [`Cursor`] says where to go on.

mod assign;
mod cache;
mod cursor;
mod error;
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

pub use assign::{Assignment, Survey, assign, survey};
pub use cache::{Cache, Place};
pub use cursor::{Cursor, Resume};
pub use error::{Error, Result};
pub use files::{CacheFile, CacheFiles};
pub use memo::Memo;
pub use options::{Last, OrderOptions, Shuffle, Tail};
pub use order::Order;
pub use order_error::{Difference, OrderError};
pub use placement::{Held, Placement};
pub use schedule::{GlobalBatch, Position, Schedule};
pub use unit::{CacheUnits, PartitionUnits, Unit};
pub use world::{World, WorldSizes};
