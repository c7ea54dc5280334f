//! Reads one row by its index entry, without parsing the shard.
//!
//! Owns bounds and checksum of a single row. Invariant: what is returned matches the entry's checksum; anything else is
//! an error that names partition, shard and row.

use std::io;

use crate::checksum::RowHasher;
use crate::error::{Error, Result};
use crate::read_at::ReadAt;
use crate::row::{ImageEntry, ImageKey, SampleEntry, loss_tokens, patches_of};

/// An image that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageData {
    /// Hash of the link.
    pub key: ImageKey,
    /// Patches in time, height and width.
    pub grid_thw: [i32; 3],
    /// Height and width in pixels.
    pub size: [i32; 2],
    /// uint8 patches, `t * h * w` rows of equal length.
    pub patches: Vec<u8>,
}

/// A sample that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleData {
    /// `file:line` of the source.
    pub sample_id: String,
    /// The record's own id.
    pub record_id: Option<String>,
    /// Token ids.
    pub input_ids: Vec<i32>,
    /// As many labels.
    pub labels: Vec<i32>,
    /// Image row numbers in the same partition.
    pub images: Vec<u32>,
    /// As many patch grids.
    pub image_grid_thw: Vec<[i32; 3]>,
}

/// Where a row is, for bounds and messages.
struct Place<'a, R: ?Sized> {
    file: &'a R,
    size: u64,
    kind: &'static str,
    partition: u32,
    shard: u32,
    row: u64,
}

impl<'a, R: ReadAt + ?Sized> Place<'a, R> {
    fn new(file: &'a R, kind: &'static str, partition: u32, shard: u32, row: u64) -> Result<Self> {
        let size = file.size().map_err(Error::io("read a shard"))?;
        Ok(Self {
            file,
            size,
            kind,
            partition,
            shard,
            row,
        })
    }

    fn fault(&self, what: &'static str) -> Error {
        Error::Row {
            kind: self.kind,
            partition: self.partition,
            shard: self.shard,
            row: self.row,
            what,
        }
    }

    /// `length` bytes at `offset`, if they lie in the file.
    fn bytes(&self, offset: u64, length: u64) -> Result<Vec<u8>> {
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end <= self.size);
        let Some(length) = usize::try_from(length).ok().filter(|_| inside) else {
            return Err(self.fault("the shard ends before the row"));
        };
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(|source| {
                if source.kind() == io::ErrorKind::UnexpectedEof {
                    self.fault("the shard ends before the row")
                } else {
                    Error::Io {
                        action: "read a shard",
                        source,
                    }
                }
            })?;
        Ok(bytes)
    }

    /// `count` values of `N` bytes at `offset`, hashed on the way.
    fn values<const N: usize, T>(
        &self,
        hasher: &mut RowHasher,
        offset: u64,
        count: u32,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let bytes = self.bytes(offset, u64::from(count) * N as u64)?;
        hasher.update(&bytes);
        Ok(bytes
            .as_chunks::<N>()
            .0
            .iter()
            .copied()
            .map(decode)
            .collect())
    }

    fn text(&self, hasher: &mut RowHasher, offset: u64, length: u32) -> Result<Vec<u8>> {
        let bytes = self.bytes(offset, u64::from(length))?;
        hasher.update(&bytes);
        Ok(bytes)
    }

    fn utf8(&self, bytes: Vec<u8>) -> Result<String> {
        String::from_utf8(bytes).map_err(|_| self.fault("an id is not UTF-8"))
    }
}

/// Reads image row `row` of `partition` from its shard.
///
/// Fails if the entry points outside the file, its numbers do not fit each other, or the checksum differs.
pub fn read_image(
    file: &(impl ReadAt + ?Sized),
    partition: u32,
    row: u64,
    entry: &ImageEntry,
) -> Result<ImageData> {
    let place = Place::new(file, "image", partition, entry.shard, row)?;
    if let Some(what) = entry.fault() {
        return Err(place.fault(what));
    }
    let patches = place.bytes(entry.offset, entry.length)?;
    let mut hasher = RowHasher::of_image(partition, row, entry);
    hasher.update(&patches);
    if hasher.finish() != entry.checksum {
        return Err(place.fault("checksum differs"));
    }
    Ok(ImageData {
        key: entry.key,
        grid_thw: entry.grid_thw,
        size: entry.size,
        patches,
    })
}

/// Reads sample row `row` of `partition` from its shard.
///
/// Fails if the entry points outside the file, a count of the entry differs, or the checksum does.
pub fn read_sample(
    file: &(impl ReadAt + ?Sized),
    partition: u32,
    row: u64,
    entry: &SampleEntry,
) -> Result<SampleData> {
    let place = Place::new(file, "sample", partition, entry.shard, row)?;
    if let Some(what) = entry.fault() {
        return Err(place.fault(what));
    }
    let mut hasher = RowHasher::of_sample(partition, row, entry);
    let sample_id = place.text(&mut hasher, entry.sample_id, entry.sample_id_bytes)?;
    let record_id = match entry.record_id_bytes {
        Some(length) => Some(place.text(&mut hasher, entry.record_id, length)?),
        None => None,
    };
    let input_ids = place.values(
        &mut hasher,
        entry.input_ids,
        entry.n_tokens,
        i32::from_le_bytes,
    )?;
    let labels = place.values(
        &mut hasher,
        entry.labels,
        entry.n_tokens,
        i32::from_le_bytes,
    )?;
    let images = place.values(
        &mut hasher,
        entry.images,
        entry.n_images,
        u32::from_le_bytes,
    )?;
    let image_grid_thw = place.values(
        &mut hasher,
        entry.image_grid_thw,
        entry.n_images,
        |bytes: [u8; 12]| {
            let (words, _) = bytes.as_chunks::<4>();
            [0, 1, 2].map(|side| words.get(side).copied().map_or(0, i32::from_le_bytes))
        },
    )?;
    if hasher.finish() != entry.checksum {
        return Err(place.fault("checksum differs"));
    }
    let patches = image_grid_thw
        .iter()
        .try_fold(0u64, |sum, grid| sum.checked_add(patches_of(*grid)?));
    if patches != Some(u64::from(entry.n_patches))
        || loss_tokens(&labels) != u64::from(entry.n_loss_tokens)
    {
        return Err(place.fault("the index counts other patches or loss tokens"));
    }
    Ok(SampleData {
        sample_id: place.utf8(sample_id)?,
        record_id: record_id.map(|id| place.utf8(id)).transpose()?,
        input_ids,
        labels,
        images,
        image_grid_thw,
    })
}
