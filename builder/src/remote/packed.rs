//! How a compressed shard stands in a remote: a zstd frame, then a skippable frame with the hash of the shard.
//!
//! `zstd -d` makes the shard of it. Owns these bytes. Invariant: the trailer is written after the last byte of a shard that was
//! confirmed by its hash, so that a file that ends with the right one was once put there whole.

use stoker_formats::ContentHash;

/// Magic number of the skippable frame, one of the sixteen that zstd leaves to others.
const MAGIC: [u8; 4] = 0x184d_2a5b_u32.to_le_bytes();

/// What the skippable frame begins with, beside its magic number and length.
const TAG: [u8; 8] = *b"STOKER1\0";

/// Bytes of the trailer: magic number, length, tag and hash.
pub(crate) const TRAILER_BYTES: u64 = 4 + 4 + 8 + 32;

/// Largest window that a frame may ask a reader to hold, as a power of two: 8 MiB, that of zstd's level 19.
pub(super) const WINDOW_LOG_MAX: u32 = 23;

/// Most bytes that a compressed shard of `bytes` may have: zstd's own bound, and room for the frames' heads.
pub(super) fn bytes_max(bytes: u64) -> u64 {
    bytes + bytes / 128 + (64 << 10)
}

/// The last bytes of a compressed shard with this hash.
pub(crate) fn trailer(hash: ContentHash) -> Vec<u8> {
    let length = u32::try_from(TAG.len() + hash.0.len()).unwrap_or(0);
    [MAGIC.as_slice(), &length.to_le_bytes(), &TAG, &hash.0].concat()
}
