//! Opens a Stoker cache and reads checked rows from it.
//!
//! [`CacheFiles`] is a cache whose manifest was read; [`Cache`] one whose indexes are open too, with every file in its
//! place. A row that is returned matches its checksum; anything else is an error that names partition, shard, row and
//! file.
//!
//! [`Schedule`] is the order: which units (samples, or packs of them) a global batch holds, as `ORDER.md` specifies it. [`assign`]
//! deals them to the ranks of a [`World`], and a [`Cursor`] says where to go on.

mod assemble;
mod assign;
mod balance;
mod batch;
mod batch_plan;
mod bits;
mod budget;
mod buffer;
mod cache;
mod cursor;
mod deal;
pub mod device;
#[cfg(feature = "cuda")]
mod device_batch;
#[cfg(feature = "cuda")]
mod device_reader;
mod dummy;
mod error;
mod expand;
mod fallback;
mod fetch_plan;
mod files;
mod flow;
mod identity;
mod ids;
mod index_check;
mod index_store;
#[cfg(test)]
mod index_tests;
mod io;
mod length;
mod look_ahead;
mod memo;
pub mod memory;
mod mixture;
mod mmap;
mod modality;
mod model;
mod mrope;
mod offsets;
mod open_files;
mod open_shard;
mod opening;
#[cfg(test)]
mod opening_tests;
mod options;
mod order;
mod order_error;
mod packs;
mod page_cache;
mod pipeline;
mod placement;
mod presence;
mod reader;
mod reader_options;
mod reading;
mod remote_cache;
mod rows;
mod sample_text;
mod schedule;
mod staging;
mod stats;
mod swap;
mod swap_pairs;
mod sync;
mod synced;
mod unit;
mod units;
mod verify;
mod views;
mod work;
mod world;

pub use assign::{Assignment, Survey, assign, survey};
pub use batch::{Batch, Dtype, Layout, Tensor};
pub use cache::{Cache, Place};
pub use cursor::{Cursor, Resume};
pub use deal::deal;
#[cfg(feature = "cuda")]
pub use device_batch::DeviceBatch;
#[cfg(feature = "cuda")]
pub use device_reader::{DeviceReader, DeviceStep};
pub use error::{Error, Result};
pub use expand::{FloatTable, Pixels, expand_bf16, expand_bytes, expand_f32};
pub use fallback::{Fallback, Incomplete, RemoteFault, RemoteOptions};
pub use fetch_plan::{NodePlan, Planner};
pub use files::{CacheFile, CacheFiles};
pub use io::Backend;
pub use length::Lengths;
pub use memo::Memo;
pub use model::Model;
pub use mrope::Mrope;
pub use options::{Balance, Curriculum, Dealing, Last, Modalities, OrderOptions, Shuffle, Tail};
pub use order::Order;
pub use order_error::{Difference, OrderError};
pub use packs::Packs;
pub use placement::{Held, Placement};
pub use reader::{Reader, Step};
pub use reader_options::{CacheOptions, ReaderOptions};
pub use remote_cache::FALLBACK_FOLDER;
pub use schedule::{GlobalBatch, Position, Schedule};
pub use staging::{PlainMemory, Staging};
pub use stats::{Limit, SlowRead, Stats};
pub use synced::synced_partitions;
pub use unit::{CacheUnits, PackId, PartitionUnits, Unit};
pub use verify::Verify;
pub use views::{ImageView, Views};
pub use world::{World, WorldSizes};
