//! The rows of shards, as they are written, and their entries, as they stand in the index.
//!
//! Owns the shapes and the checks of one row by itself. Invariant: an entry is all that is needed to read its row:
//! no other part of the shard has to be parsed.

use std::fmt;

use crate::limits::{MAX_ID_BYTES, MAX_IMAGE_BYTES, MAX_IMAGES, MAX_PATCHES, MAX_TOKENS};
use crate::{IGNORED_LABEL, hex};

/// The 128-bit hash of an image link, which names an image row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ImageKey(pub [u8; 16]);

impl fmt::Display for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One prepared image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRow<'a> {
    /// Hash of the link.
    pub key: ImageKey,
    /// Patches in time, height and width.
    pub grid_thw: [i32; 3],
    /// Height and width in pixels, after resizing.
    pub size: [i32; 2],
    /// uint8 patches in the model's patch order, `t * h * w` rows of equal length.
    pub patches: &'a [u8],
}

/// One tokenised sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRow<'a> {
    /// `file:line` of the source.
    pub sample_id: &'a str,
    /// The record's own id.
    pub record_id: Option<&'a str>,
    /// Token ids, image pads expanded.
    pub input_ids: &'a [i32],
    /// As many as `input_ids`: the id where the loss counts, [`IGNORED_LABEL`] elsewhere, not shifted.
    pub labels: &'a [i32],
    /// Image row numbers in the same partition, in order of appearance.
    pub images: &'a [u32],
    /// The patch grid of each of them.
    pub image_grid_thw: &'a [[i32; 3]],
}

/// Where an image row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageEntry {
    /// Hash of the link.
    pub key: ImageKey,
    /// Ordinal of the shard in the partition.
    pub shard: u32,
    /// First byte of the patches in the shard file.
    pub offset: u64,
    /// Bytes of patches.
    pub length: u64,
    /// Patches in time, height and width.
    pub grid_thw: [i32; 3],
    /// Height and width in pixels, after resizing.
    pub size: [i32; 2],
    /// [`image_checksum`](crate::image_checksum) of the row.
    pub checksum: u64,
}

/// What a sample holds, or several together: what batches are planned by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Token ids.
    pub tokens: u32,
    /// Labels that take part in the loss.
    pub loss_tokens: u32,
    /// Images.
    pub images: u32,
    /// Patches of all images.
    pub patches: u32,
}

impl Counts {
    /// The sum; none if a part of it cannot be counted.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            tokens: self.tokens.checked_add(other.tokens)?,
            loss_tokens: self.loss_tokens.checked_add(other.loss_tokens)?,
            images: self.images.checked_add(other.images)?,
            patches: self.patches.checked_add(other.patches)?,
        })
    }
}

/// Where a sample row lies, and what it weighs. Offsets are bytes from the start of the shard file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleEntry {
    /// Ordinal of the shard in the partition.
    pub shard: u32,
    /// First byte of `n_tokens` i32.
    pub input_ids: u64,
    /// First byte of `n_tokens` i32.
    pub labels: u64,
    /// First byte of `n_images` u32.
    pub images: u64,
    /// First byte of `3 * n_images` i32.
    pub image_grid_thw: u64,
    /// First byte of `sample_id_bytes` of UTF-8.
    pub sample_id: u64,
    /// First byte of `record_id_bytes` of UTF-8.
    pub record_id: u64,
    /// Token ids.
    pub n_tokens: u32,
    /// Labels other than [`IGNORED_LABEL`].
    pub n_loss_tokens: u32,
    /// Images.
    pub n_images: u32,
    /// Patches of all its images: the sum of `t * h * w`.
    pub n_patches: u32,
    /// Bytes of the sample id.
    pub sample_id_bytes: u32,
    /// Bytes of the record id; none if the record has none.
    pub record_id_bytes: Option<u32>,
    /// [`sample_checksum`](crate::sample_checksum) of the row.
    pub checksum: u64,
}

impl ImageEntry {
    /// Why no intact image row can have these numbers; none if one can.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        image_fault(self.grid_thw, self.size, self.length)
    }
}

impl SampleEntry {
    /// What the row holds.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            tokens: self.n_tokens,
            loss_tokens: self.n_loss_tokens,
            images: self.n_images,
            patches: self.n_patches,
        }
    }

    /// Why no intact sample row can have these numbers; none if one can.
    #[must_use]
    pub fn fault(&self) -> Option<&'static str> {
        if self.n_tokens as usize > MAX_TOKENS || self.n_images as usize > MAX_IMAGES {
            return Some("too many tokens or images");
        }
        let ids = [Some(self.sample_id_bytes), self.record_id_bytes];
        if ids
            .into_iter()
            .flatten()
            .any(|length| length as usize > MAX_ID_BYTES)
        {
            return Some("id too long");
        }
        None
    }
}

/// `t * h * w`, if every one is at least 1 and the product within the limit.
pub(crate) fn patches_of(grid: [i32; 3]) -> Option<u64> {
    let mut product = 1u64;
    for side in grid {
        let side = u64::try_from(side).ok().filter(|side| *side >= 1)?;
        product = product
            .checked_mul(side)
            .filter(|product| *product <= MAX_PATCHES)?;
    }
    Some(product)
}

/// Why an image of this shape cannot stand in a shard.
pub(crate) fn image_fault(grid: [i32; 3], size: [i32; 2], length: u64) -> Option<&'static str> {
    let Some(patches) = patches_of(grid) else {
        return Some("patch grid out of range");
    };
    if size.iter().any(|side| *side < 1) {
        return Some("image size out of range");
    }
    if length == 0 || !length.is_multiple_of(patches) {
        return Some("patches do not fill the grid");
    }
    (length > MAX_IMAGE_BYTES).then_some("too many bytes of patches")
}

/// The counts of a row, or why it cannot stand in a shard.
pub(crate) fn sample_counts(row: &SampleRow<'_>) -> Result<Counts, &'static str> {
    if row.sample_id.is_empty() || row.sample_id.len() > MAX_ID_BYTES {
        return Err("sample id empty or too long");
    }
    if row.record_id.is_some_and(|id| id.len() > MAX_ID_BYTES) {
        return Err("record id too long");
    }
    if row.labels.len() != row.input_ids.len() {
        return Err("as many labels as token ids are needed");
    }
    if row.image_grid_thw.len() != row.images.len() {
        return Err("as many grids as images are needed");
    }
    if row.input_ids.len() > MAX_TOKENS || row.images.len() > MAX_IMAGES {
        return Err("too many tokens or images");
    }
    let mut patches = 0;
    for grid in row.image_grid_thw {
        patches += patches_of(*grid).ok_or("patch grid out of range")?;
    }
    let small = |count: u64| u32::try_from(count).map_err(|_| "too many patches");
    Ok(Counts {
        tokens: small(row.input_ids.len() as u64)?,
        loss_tokens: small(loss_tokens(row.labels))?,
        images: small(row.images.len() as u64)?,
        patches: small(patches)?,
    })
}

/// Labels that take part in the loss.
pub(crate) fn loss_tokens(labels: &[i32]) -> u64 {
    labels
        .iter()
        .filter(|label| **label != IGNORED_LABEL)
        .count() as u64
}
