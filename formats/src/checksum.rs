//! Checksums of rows (XXH3-64) and hashes of files (BLAKE3-256).
//!
//! Owns the exact byte layout that a row checksum covers; `FORMAT.md` shows it as tables. Invariant: a row's checksum
//! depends on where the row stands (partition, row number), so that two intact rows that were exchanged are noticed.

use std::fmt;
use std::hash::Hasher as _;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use twox_hash::xxhash3_64::Hasher as Xxh3;

use crate::error::{Error, Result};
use crate::hex;
use crate::row::{ImageEntry, ImageKey, SampleEntry, SampleRow};

/// First bytes of what an image checksum covers.
const IMAGE_TAG: [u8; 4] = *b"STKI";

/// First bytes of what a sample checksum covers.
const SAMPLE_TAG: [u8; 4] = *b"STKS";

/// Stands for the length of a record id that is null.
pub(crate) const NULL_LENGTH: u32 = u32::MAX;

/// Checksum of a row that is fed in pieces.
pub struct RowHasher(Xxh3);

impl RowHasher {
    /// Starts the image row that `entry` describes; its patches follow.
    #[must_use]
    pub fn of_image(partition: u32, row: u64, entry: &ImageEntry) -> Self {
        Self::image(
            partition,
            row,
            entry.key,
            entry.grid_thw,
            entry.size,
            entry.length,
        )
    }

    /// Starts the sample row that `entry` describes; sample id, record id, ids, labels, images and grids follow.
    #[must_use]
    pub fn of_sample(partition: u32, row: u64, entry: &SampleEntry) -> Self {
        Self::sample(
            partition,
            row,
            entry.n_tokens,
            entry.n_images,
            entry.sample_id_bytes,
            entry.record_id_bytes,
        )
    }

    /// Starts an image row: everything but the patches.
    pub(crate) fn image(
        partition: u32,
        row: u64,
        key: ImageKey,
        grid_thw: [i32; 3],
        size: [i32; 2],
        length: u64,
    ) -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.update(&IMAGE_TAG);
        hasher.update(&partition.to_le_bytes());
        hasher.update(&row.to_le_bytes());
        for number in grid_thw.into_iter().chain(size) {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&key.0);
        hasher.update(&length.to_le_bytes());
        hasher
    }

    /// Starts a sample row: position and lengths.
    pub(crate) fn sample(
        partition: u32,
        row: u64,
        n_tokens: u32,
        n_images: u32,
        sample_id_bytes: u32,
        record_id_bytes: Option<u32>,
    ) -> Self {
        let mut hasher = Self(Xxh3::new());
        hasher.update(&SAMPLE_TAG);
        hasher.update(&partition.to_le_bytes());
        hasher.update(&row.to_le_bytes());
        for number in [
            n_tokens,
            n_images,
            sample_id_bytes,
            record_id_bytes.unwrap_or(NULL_LENGTH),
        ] {
            hasher.update(&number.to_le_bytes());
        }
        hasher
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Goes on with 32-bit words, in little-endian bytes.
    pub(crate) fn words<const N: usize>(&mut self, words: impl Iterator<Item = [u8; N]>) {
        let mut buffer = [0u8; 1020];
        let mut filled = 0;
        for word in words {
            if filled + N > buffer.len() {
                self.update(&buffer[..filled]);
                filled = 0;
            }
            buffer[filled..filled + N].copy_from_slice(&word);
            filled += N;
        }
        self.update(&buffer[..filled]);
    }

    /// The checksum.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finish()
    }
}

/// XXH3-64 of an image row: tag, partition, row number in the partition, grid, size, key, length, patches.
#[must_use]
pub fn image_checksum(
    partition: u32,
    row: u64,
    key: ImageKey,
    grid_thw: [i32; 3],
    size: [i32; 2],
    patches: &[u8],
) -> u64 {
    let mut hasher = RowHasher::image(partition, row, key, grid_thw, size, patches.len() as u64);
    hasher.update(patches);
    hasher.finish()
}

/// XXH3-64 of a sample row: tag, partition, row number in the partition, lengths, then every payload.
///
/// Lengths above `u32::MAX` never reach a shard (the writers refuse them) and are cut here.
#[must_use]
pub fn sample_checksum(partition: u32, row: u64, sample: &SampleRow<'_>) -> u64 {
    let mut hasher = RowHasher::sample(
        partition,
        row,
        sample.input_ids.len() as u32,
        sample.images.len() as u32,
        sample.sample_id.len() as u32,
        sample.record_id.map(|id| id.len() as u32),
    );
    hasher.update(sample.sample_id.as_bytes());
    hasher.update(sample.record_id.unwrap_or_default().as_bytes());
    hasher.words(sample.input_ids.iter().map(|id| id.to_le_bytes()));
    hasher.words(sample.labels.iter().map(|label| label.to_le_bytes()));
    hasher.words(sample.images.iter().map(|image| image.to_le_bytes()));
    hasher.words(
        sample
            .image_grid_thw
            .iter()
            .flatten()
            .map(|side| side.to_le_bytes()),
    );
    hasher.finish()
}

/// XXH3-64 of a block of a pack table's file.
#[cfg(feature = "tables")]
pub(crate) fn block_checksum(block: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.write(block);
    hasher.finish()
}

/// BLAKE3-256 of a whole file; 64 lower-case hex digits in JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// The hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash that 64 lower-case hex digits stand for.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        hex::decode(text.as_bytes()).map(Self)
    }

    /// Fails unless `bytes` have this hash. `kind` names the file in the error.
    pub fn check(&self, kind: &'static str, bytes: &[u8]) -> Result<()> {
        if Self::of(bytes) == *self {
            Ok(())
        } else {
            Err(Error::Damaged {
                kind,
                expected: self.to_string(),
            })
        }
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(HashVisitor)
    }
}

struct HashVisitor;

impl Visitor<'_> for HashVisitor {
    type Value = ContentHash;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("64 lower-case hex digits")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ContentHash, E> {
        ContentHash::from_hex(text).ok_or_else(|| E::custom("not 64 lower-case hex digits"))
    }
}

/// A [`ContentHash`] that is fed in pieces.
#[derive(Debug, Clone, Default)]
pub struct ContentHasher(blake3::Hasher);

impl ContentHasher {
    /// A hasher of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Goes on with `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> ContentHash {
        ContentHash(*self.0.finalize().as_bytes())
    }
}
