//! What a Stoker cache is on disk. Bytes in, views out: no network, no threads, no unsafe code.
//!
//! `FORMAT.md` beside this crate is the specification; this is its implementation. Writers go through `arrow-ipc`,
//! the reading side through a strict check of the layout of its own, because a file is input like any other.
#![forbid(unsafe_code)]

mod canonical;
mod checksum;
mod columns;
mod error;
mod file_list;
mod fingerprint;
mod float_table;
mod frame;
mod hex;
mod index;
mod layout;
pub mod limits;
mod manifest;
mod names;
#[cfg(feature = "tables")]
mod pack_blocks;
mod pack_entry;
#[cfg(feature = "tables")]
mod pack_table;
#[cfg(feature = "tables")]
mod pack_write;
mod part;
mod permutation;
mod read_at;
mod read_row;
mod receipt;
mod row;
mod sealed;
mod shard;
mod shard_image;
mod shard_sample;
mod share;
#[cfg(feature = "tables")]
pub mod tables;
mod verify_shard;

pub use canonical::canonical_json;
pub use checksum::{ContentHash, ContentHasher, RowHasher, image_checksum, sample_checksum};
pub use error::{Error, Result};
pub use fingerprint::fingerprint;
pub use float_table::{TableRule, float_table};
pub use index::{ImageIndex, SampleIndex, Written, write_image_index, write_sample_index};
pub use manifest::{
    FileEntry, InputEntry, Manifest, Partition, PartitionFiles, SplitEntry, Tables, Version,
};
pub use names::{
    FileName, Folder, MANIFEST_NAME, PACKS_FOLDER, PackFile, PackName, PlanId, TableKind,
};
pub use pack_entry::{
    PackEntry, PackOptions, PackOverlong, PackStrategy, PackTableEntry, PackTotals,
};
#[cfg(feature = "tables")]
pub use pack_table::{Members, PackTable};
#[cfg(feature = "tables")]
pub use pack_write::PackTableWriter;
pub use part::{PARTS_FOLDER, PartEntry, PartFile, PartName, PartRecord};
pub use permutation::{Key, Permutation, last_entries};
pub use read_at::ReadAt;
pub use read_row::{ImageData, SampleData, read_image, read_sample};
pub use receipt::{
    ImageReceipt, Receipt, ReceiptEntry, RejectEntry, SampleReceipt, ShardRef, SourceEntry,
};
pub use row::{Counts, ImageEntry, ImageKey, ImageRow, SampleEntry, SampleRow};
pub use shard::{Finished, ShardHead};
pub use shard_image::ImageShardWriter;
pub use shard_sample::SampleShardWriter;
pub use share::ShareRecord;
pub use verify_shard::{
    ShardKind, read_image_shard, read_sample_shard, read_shard_head, visit_image_shard,
    visit_sample_shard,
};

/// The format version that this crate writes.
pub const VERSION: Version = Version { major: 1, minor: 0 };

/// The label of a token that takes no part in the loss.
pub const IGNORED_LABEL: i32 = -100;
