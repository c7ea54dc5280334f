//! What a cache says about the model that it was made for.
//!
//! Owns reading it from the recipe and an image shard's metadata. Invariant: all caches of a mixture say the same, so a
//! batch never joins rows that one model cannot take.

use std::fs::File;
use std::sync::Arc;

use serde_json::Value;
use stoker_formats::{FileName, ShardKind, read_shard_head};

use crate::error::{Error, Result};
use crate::expand::FloatTable;
use crate::files::CacheFiles;
use crate::mrope::Mrope;

/// Channels of a patch.
const CHANNELS: usize = 3;

/// What batches depend on besides the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Pixels a side of a patch.
    pub patch_size: usize,
    /// Frames of a patch in `pixel_values`.
    pub temporal_patch_size: usize,
    /// The rule of positions.
    pub mrope: Mrope,
    /// The token before the pads of an image.
    pub vision_start: Option<i32>,
    /// The token that fills rows up.
    pub pad_token: i32,
    /// What the bytes of patches become; none if the cache has no image.
    pub float_table: Option<FloatTable>,
    /// The hash of the tokenizer, as the recipe gives it.
    tokenizer: Option<String>,
}

impl Model {
    /// Pixels of one channel of a patch.
    #[must_use]
    pub fn patch_area(&self) -> usize {
        self.patch_size * self.patch_size
    }

    /// Bytes of a patch.
    #[must_use]
    pub fn patch_bytes(&self) -> usize {
        CHANNELS * self.patch_area()
    }

    /// What the cache at `files` was made for. Reads the head of one image shard, the first that is here.
    ///
    /// # Errors
    /// [`Error::Recipe`] if the recipe does not say; [`Error::Formats`] if the shard is damaged.
    pub fn of(files: &CacheFiles) -> Result<Self> {
        let recipe = &files.manifest().recipe;
        let number = |path: &'static str| {
            recipe
                .pointer(path)
                .and_then(Value::as_i64)
                .and_then(|number| i32::try_from(number).ok())
                .filter(|number| *number >= 0)
        };
        let needed = |path| number(path).ok_or_else(|| unsaid(files, path));
        let size = |path| {
            let number = usize::try_from(needed(path)?).map_err(|_| unsaid(files, path))?;
            if (1..=1024).contains(&number) {
                Ok(number)
            } else {
                Err(unsaid(files, path))
            }
        };
        Ok(Self {
            patch_size: size("/image/patch_size")?,
            temporal_patch_size: size("/image/temporal_patch_size")?,
            mrope: Mrope {
                image_pad: needed("/text/special/image_pad")?,
                merge_size: needed("/image/merge_size")?,
            },
            vision_start: number("/text/special/vision_start"),
            // Padded places are masked: without a token of its own, any will do.
            pad_token: number("/text/special/endoftext").unwrap_or(0),
            float_table: float_table(files)?,
            tokenizer: recipe
                .pointer("/text/tokenizer_blake3")
                .and_then(Value::as_str)
                .map(str::to_owned),
        })
    }

    /// What all of `caches` were made for.
    ///
    /// # Errors
    /// As [`of`](Self::of); [`Error::OtherModel`] naming the first difference.
    pub fn of_all(caches: &[Arc<CacheFiles>]) -> Result<Self> {
        let mut common: Option<Self> = None;
        for files in caches {
            let model = Self::of(files)?;
            let Some(first) = &mut common else {
                common = Some(model);
                continue;
            };
            let difference = first.difference(&model);
            if let (Some(what), Some(one)) = (difference, caches.first()) {
                return Err(Error::OtherModel {
                    what,
                    one: one.root().to_path_buf(),
                    other: files.root().to_path_buf(),
                });
            }
            // A cache of text only has no table to disagree with.
            if first.float_table.is_none() {
                first.float_table = model.float_table;
            }
        }
        common.ok_or(Error::NoCaches)
    }

    fn difference(&self, other: &Self) -> Option<&'static str> {
        let tables = self.float_table.as_ref().zip(other.float_table.as_ref());
        if self.patch_size != other.patch_size {
            Some("patch size")
        } else if self.temporal_patch_size != other.temporal_patch_size {
            Some("temporal patch size")
        } else if self.mrope.merge_size != other.mrope.merge_size {
            Some("merge size")
        } else if self.mrope.image_pad != other.mrope.image_pad
            || self.vision_start != other.vision_start
            || self.pad_token != other.pad_token
            || self.tokenizer != other.tokenizer
        {
            Some("tokenizer")
        } else if tables.is_some_and(|(one, other)| one != other) {
            Some("image mean, deviation or profile")
        } else {
            None
        }
    }
}

fn unsaid(files: &CacheFiles, field: &'static str) -> Error {
    Error::Recipe {
        root: files.root().to_path_buf(),
        field,
    }
}

fn float_table(files: &CacheFiles) -> Result<Option<FloatTable>> {
    let shards = (0u32..).zip(&files.manifest().partitions);
    let existing = shards.flat_map(|(partition, entry)| {
        let ordinals = (0u32..).zip(entry.images.shards.iter());
        ordinals
            .filter(|(_, shard)| shard.is_some())
            .map(move |(ordinal, _)| FileName::Shard { partition, ordinal })
    });
    for name in existing {
        let path = files.path(files.images(), name);
        let Ok(file) = File::open(&path) else {
            // On another node, perhaps; if it is needed here, its own reading will say so.
            continue;
        };
        let head = read_shard_head(&file, ShardKind::Images).map_err(Error::formats(&path))?;
        let table = head
            .metadata
            .get("float_table")
            .and_then(|text| FloatTable::from_hex(text));
        return match table {
            Some(table) => Ok(Some(table)),
            None => Err(unsaid(files, "float_table of an image shard")),
        };
    }
    Ok(None)
}
