//! How a compressed shard stands in a remote: a zstd frame, then a skippable frame with the hash of the shard.
//!
//! `zstd -d` makes the shard of it. Owns these bytes. Invariant: the trailer is written after the last byte of a shard that was
//! confirmed by its hash, so that a file that ends with the right one was once put there whole.

use std::io::{self, Write};

use stoker_formats::ContentHash;
use zstd::stream::write::Encoder;

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

/// Compresses a shard into `W`.
pub(crate) struct Packed<W: Write> {
    encoder: Encoder<'static, W>,
}

impl<W: Write> Packed<W> {
    /// Of a shard of `bytes`, at zstd's `level`.
    ///
    /// # Errors
    /// zstd's, if there is no memory.
    pub(crate) fn new(out: W, level: i32, bytes: u64) -> io::Result<Self> {
        let mut encoder = Encoder::new(out, level)?;
        // A reader then knows the size before it begins.
        encoder.set_pledged_src_size(Some(bytes))?;
        Ok(Self { encoder })
    }

    /// Goes on with `bytes`.
    ///
    /// # Errors
    /// Those of the writer below.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.encoder.write_all(bytes)
    }

    /// Ends the frame of a shard that was found to have this hash.
    ///
    /// # Errors
    /// Those of the writer below.
    pub(crate) fn finish(self, hash: ContentHash) -> io::Result<W> {
        let mut out = self.encoder.finish()?;
        out.write_all(&trailer(hash))?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_shard_is_plain_zstd_and_names_its_hash() {
        let content: Vec<u8> = (0..300_000u32).map(|at| (at / 7 % 251) as u8).collect();
        let hash = ContentHash::of(&content);
        let mut packed = Packed::new(Vec::new(), 3, content.len() as u64).unwrap();
        for piece in content.chunks(1000) {
            packed.put(piece).unwrap();
        }
        let bytes = packed.finish(hash).unwrap();
        assert_eq!(zstd::decode_all(bytes.as_slice()).unwrap(), content);
        let at = bytes.len() - usize::try_from(TRAILER_BYTES).unwrap();
        assert_eq!(bytes[at..], trailer(hash));
        assert!(bytes.len() as u64 <= bytes_max(content.len() as u64));
    }
}
