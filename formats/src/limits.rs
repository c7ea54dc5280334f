//! Bounds of the format, each with its reason. Owns no behaviour.
//!
//! Invariant: a bound on reading is never tighter than the same bound on writing.

/// Payload bytes after which a record batch is closed: small enough to read whole, large enough that headers vanish.
pub const BATCH_BYTES: u64 = 1 << 20;

/// Every buffer starts at a multiple of this many bytes: a cache line, and what Arrow recommends.
pub const ALIGNMENT: u64 = 64;

/// Keys and values of the schema metadata together: a recipe and a float table take some 10 KiB.
pub const MAX_METADATA_BYTES: usize = 128 << 10;

/// Pairs in the schema metadata: the writer needs about 20.
pub const MAX_METADATA_PAIRS: usize = 256;

/// The schema's flatbuffer beside its metadata: names and types of at most 13 columns.
pub const MAX_SCHEMA_BYTES: usize = MAX_METADATA_BYTES + (64 << 10);

/// The header of one record batch: at most 35 buffers of 16 bytes, and 20 nodes.
pub const MAX_BATCH_HEADER_BYTES: usize = 16 << 10;

/// One `sample_id` or `record_id`: longer ones are no names, and must not crowd out the payload.
pub const MAX_ID_BYTES: usize = 64 << 10;

/// Token ids of one sample: the longest contexts in use are 100 times shorter, and 4 bytes each must fit a u32.
pub const MAX_TOKENS: usize = 1 << 28;

/// Images of one sample: a long video has some thousand frames.
pub const MAX_IMAGES: usize = 1 << 20;

/// Patches of one image: far above any model, and sums stay far inside a u64.
pub const MAX_PATCHES: u64 = 1 << 28;

/// Bytes of one image's patches: what one read may ask for.
pub const MAX_IMAGE_BYTES: u64 = 1 << 36;

/// Pixels a side of a patch: no known model is near, and products stay small.
pub const MAX_PATCH_SIZE: u32 = 64;

/// Frames of a patch: as above.
pub const MAX_TEMPORAL_PATCH_SIZE: u32 = 64;

/// Patches a side that become one token: all known models have 2.
pub const MAX_MERGE_SIZE: u32 = 8;

/// Chunk in which payloads are read and hashed, so that memory does not follow what a file claims.
pub const CHUNK_BYTES: usize = 64 << 10;

/// A manifest of a million shards takes about 170 MB; above this the file is not one.
pub const MAX_MANIFEST_BYTES: usize = 1 << 30;

/// A receipt of a million rows takes about 150 MB; above this the file is not one.
pub const MAX_RECEIPT_BYTES: usize = 1 << 30;

/// JSON values inside a recipe: a resolved recipe holds about 100; a parsed value takes 16 times its text.
pub const MAX_RECIPE_VALUES: usize = 10_000;

/// Bytes of text in one recipe string: ids, hashes and rule names are short.
pub const MAX_RECIPE_TEXT_BYTES: usize = 64 << 10;

/// Partitions of a cache: the default plan never makes more than 960 a split.
pub const MAX_PARTITIONS: u32 = 1 << 20;

/// Workers of a build: above all machines there are; a table of them stays small.
pub const MAX_WORKERS: u32 = 1_000_000;

/// Up to this many positions a permutation is a shuffled table (two bytes an entry); above, a Feistel network.
pub const MAX_TABLE_POSITIONS: u64 = 1 << 16;

/// Positions of one permutation: products of its two radices stay inside a u64.
pub const MAX_POSITIONS: u64 = 1 << 48;

/// A block of a pack table's file, the unit in which it is checked: a page or two, hashed in some microseconds.
pub const PACK_BLOCK_BYTES: u64 = 64 << 10;

/// The entry of a pack table: two numbers a partition, 16 digits a block; above this the file is not one.
pub const MAX_PACK_ENTRY_BYTES: usize = 64 << 20;

/// The record of a synced share: at most 8 bytes a partition; above this the file is not one.
pub const MAX_SHARE_BYTES: usize = 16 << 20;
