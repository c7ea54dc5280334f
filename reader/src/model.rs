//! What a cache says about the model that it was made for.
//!
//! Owns reading it from the recipe, which every node has. Invariant: all caches of a mixture say the same, so a batch never
//! joins rows that one model cannot take.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use stoker_formats::TableRule;
use stoker_formats::limits::{MAX_MERGE_SIZE, MAX_PATCH_SIZE, MAX_TEMPORAL_PATCH_SIZE};

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
    /// What the bytes of patches become.
    pub float_table: FloatTable,
    /// Whether it holds an image, on whatever node.
    has_images: bool,
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

    /// What the cache at `files` was made for.
    ///
    /// # Errors
    /// [`Error::Recipe`] if the recipe does not say, [`Error::RecipeRange`] if no model has such sizes.
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
        Ok(Self {
            patch_size: size(files, "/image/patch_size", MAX_PATCH_SIZE)?,
            temporal_patch_size: size(
                files,
                "/image/temporal_patch_size",
                MAX_TEMPORAL_PATCH_SIZE,
            )?,
            mrope: Mrope {
                image_pad: needed("/text/special/image_pad")?,
                merge_size: size(files, "/image/merge_size", MAX_MERGE_SIZE)? as i32,
            },
            vision_start: number("/text/special/vision_start"),
            // Padded places are masked: without a token of its own, any will do.
            pad_token: number("/text/special/endoftext").unwrap_or(0),
            float_table: float_table(files)?,
            has_images: has_images(files),
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
            let first = common.get_or_insert_with(|| model.clone());
            let difference = first.difference(&model);
            if let (Some(what), Some(one)) = (difference, caches.first()) {
                return Err(Error::OtherModel {
                    what,
                    one: one.root().to_path_buf(),
                    other: files.root().to_path_buf(),
                });
            }
            // What a cache of text only says of pixels plays no part.
            if model.has_images && !first.has_images {
                (first.float_table, first.has_images) = (model.float_table, true);
            }
        }
        common.ok_or(Error::NoCaches)
    }

    fn difference(&self, other: &Self) -> Option<&'static str> {
        let both_have_images = self.has_images && other.has_images;
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
        } else if both_have_images && self.float_table != other.float_table {
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

/// A size that the recipe holds, from 1 to `most`.
fn size(files: &CacheFiles, field: &'static str, most: u32) -> Result<usize> {
    let said = files.manifest().recipe.pointer(field);
    let said = said.filter(|said| said.is_number());
    let given = said.ok_or_else(|| unsaid(files, field))?;
    let number = given.as_u64().and_then(|number| u32::try_from(number).ok());
    match number.filter(|number| (1..=most).contains(number)) {
        Some(number) => Ok(number as usize),
        None => Err(Error::RecipeRange {
            root: files.root().to_path_buf(),
            field,
            most,
            given: given.to_string(),
        }),
    }
}

fn has_images(files: &CacheFiles) -> bool {
    let partitions = files.manifest().partitions.iter();
    partitions
        .flat_map(|partition| &partition.images.shards)
        .any(Option::is_some)
}

/// The table by the recipe: shards say the same, but a node may hold none.
fn float_table(files: &CacheFiles) -> Result<FloatTable> {
    let (rule, mean, std) = (
        said::<TableRule>(files, "/image/table")?,
        said::<[f64; 3]>(files, "/image/image_mean")?,
        said::<[f64; 3]>(files, "/image/image_std")?,
    );
    Ok(FloatTable::new(stoker_formats::float_table(
        rule, mean, std,
    )))
}

fn said<T: DeserializeOwned>(files: &CacheFiles, field: &'static str) -> Result<T> {
    let said = files.manifest().recipe.pointer(field);
    said.and_then(|said| T::deserialize(said).ok())
        .ok_or_else(|| unsaid(files, field))
}
