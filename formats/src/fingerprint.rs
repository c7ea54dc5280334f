//! The identity of a cache.
//!
//! Owns what goes into it: the canonical recipe and the content hashes of the shards, in order. Invariant: no URI, no
//! ETag and no clock does, so the same data from disk or from S3 has the same fingerprint.

use crate::canonical::canonical_json;
use crate::checksum::{ContentHash, ContentHasher};
use crate::manifest::{FileEntry, Partition};

const CONTEXT: &[u8] = b"stoker fingerprint 1\n";

/// Bytes that are hashed at once: many are several times faster a byte than 32.
const PIECE_BYTES: usize = 16 << 10;

/// BLAKE3 over context, recipe, and for each partition in order its image shards and its sample shards.
#[must_use]
pub fn fingerprint(recipe: &serde_json::Value, partitions: &[Partition]) -> ContentHash {
    let recipe = canonical_json(recipe);
    let mut hasher = ContentHasher::new();
    hasher.update(CONTEXT);
    hasher.update(&(recipe.len() as u64).to_le_bytes());
    hasher.update(&recipe);
    hasher.update(&(partitions.len() as u64).to_le_bytes());
    let mut pending = Vec::new();
    for partition in partitions {
        for files in [&partition.images, &partition.samples] {
            let shards: Vec<&FileEntry> = files.shards.iter().flatten().collect();
            pending.extend_from_slice(&(shards.len() as u64).to_le_bytes());
            pending.extend(shards.iter().flat_map(|shard| shard.hash.0));
            if pending.len() >= PIECE_BYTES {
                hasher.update(&pending);
                pending.clear();
            }
        }
    }
    hasher.update(&pending);
    hasher.finish()
}
