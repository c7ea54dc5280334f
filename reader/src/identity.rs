//! What a cursor knows caches and weights by.
//!
//! Owns two hashes. Invariant: caches, splits or pack tables that give other units give another hash, and so do weights that
//! give other shares.

use stoker_formats::{ContentHash, ContentHasher};

use crate::unit::CacheUnits;

const DATA_CONTEXT: &[u8] = b"stoker cursor data 1\n";
const PACKS_CONTEXT: &[u8] = b"stoker cursor packs 1\n";
const WEIGHTS_CONTEXT: &[u8] = b"stoker cursor weights 1\n";

/// The hash of fingerprints, pack tables and splits, in order.
pub(crate) fn data_hash(caches: &[CacheUnits]) -> ContentHash {
    let packed = caches.iter().any(|cache| cache.pack.is_some());
    let mut hasher = ContentHasher::new();
    hasher.update(if packed { PACKS_CONTEXT } else { DATA_CONTEXT });
    hasher.update(&(caches.len() as u64).to_le_bytes());
    for cache in caches {
        hasher.update(&cache.fingerprint.0);
        if packed {
            let table = cache.pack.as_ref().map_or([0; 32], |pack| pack.table.0);
            hasher.update(&table);
        }
        hasher.update(&(cache.partitions.len() as u64).to_le_bytes());
        for counts in &cache.partitions {
            hasher.update(&counts.partition.to_le_bytes());
            hasher.update(&counts.units.to_le_bytes());
        }
    }
    hasher.finish()
}

/// The hash of what the weights come to: each cache's share of an epoch.
pub(crate) fn weights_hash(quotas: &[u64]) -> ContentHash {
    let mut hasher = ContentHasher::new();
    hasher.update(WEIGHTS_CONTEXT);
    for quota in quotas {
        hasher.update(&quota.to_le_bytes());
    }
    hasher.finish()
}
