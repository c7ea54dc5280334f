//! The image recipe: every rule and number the pixels of a cache depend on, resolved.
//!
//! Owns the record that goes into the plan id, the shard metadata and the manifest. Invariant: two
//! equal recipes give equal bytes for equal images; nothing outside the recipe changes a pixel.

use serde::{Deserialize, Serialize};
use stoker_formats::TableRule;
use stoker_formats::limits::{MAX_MERGE_SIZE, MAX_PATCH_SIZE, MAX_TEMPORAL_PATCH_SIZE};

use super::profile::{
    AlphaRule, ExifRule, Generation, Kernel, KeyRule, PassOrder, Profile, SizeRule,
};
use crate::error::{Error, Result};
use crate::model::family::{Family, ImageConstants};

/// Most pixels of a source image: 300 MB of RGB, above every camera and far below a bomb.
pub const MAX_SOURCE_PIXELS: u64 = 100_000_000;
/// Most bytes of a source image file: a 100-megapixel lossless photograph still passes.
pub const MAX_SOURCE_BYTES: u64 = 256 << 20;
/// Most pixels after resizing that may be asked for: keeps grids and sizes inside 31 bits.
const MAX_TARGET_PIXELS: u64 = 1 << 28;

/// Everything that decides an image row's bytes. All fields are explicit: defaults are resolved by
/// [`ImageRecipe::new`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRecipe {
    /// The model family.
    pub family: Family,
    /// The profile chosen.
    pub profile: Profile,
    /// The transformers generation that is the oracle.
    pub generation: Generation,
    /// The resampling kernel.
    pub kernel: Kernel,
    /// The order of the resampling passes.
    pub pass_order: PassOrder,
    /// The rule of the target size.
    pub size_rule: SizeRule,
    /// The rule for orientation metadata.
    pub exif: ExifRule,
    /// The rule for transparency.
    pub alpha: AlphaRule,
    /// The rule for a remembered transparent colour.
    pub color_key: KeyRule,
    /// The rule of the float table.
    pub table: TableRule,
    /// Side of a patch, in pixels.
    pub patch_size: u32,
    /// Patches merged into one token, along each side.
    pub merge_size: u32,
    /// Frames in a patch.
    pub temporal_patch_size: u32,
    /// Mean of each channel.
    pub image_mean: [f64; 3],
    /// Standard deviation of each channel.
    pub image_std: [f64; 3],
    /// Least area after resizing, in pixels.
    pub min_pixels: u64,
    /// Largest area after resizing, in pixels.
    pub max_pixels: u64,
    /// Most pixels of a source image.
    pub max_source_pixels: u64,
    /// Most bytes of a source image.
    pub max_source_bytes: u64,
}

impl ImageRecipe {
    /// Resolves a profile for a family: `min_pixels` and `max_pixels` replace the profile's own.
    ///
    /// # Errors
    /// [`Error::Usage`] if the pixel limits contradict each other or the constants cannot be worked with.
    pub fn new(
        profile: Profile,
        generation: Generation,
        family: Family,
        constants: &ImageConstants,
        min_pixels: Option<u64>,
        max_pixels: Option<u64>,
    ) -> Result<Self> {
        let area = u64::from(constants.patch_size).pow(2) * u64::from(constants.merge_size).pow(2);
        let (least, most) = match profile {
            Profile::TvPathFt => (16 * 28 * 28, 576 * 28 * 28),
            // qwen-vl-utils counts in tokens.
            Profile::Qwenvl => (4 * area, 16384 * area),
            _ => (constants.min_pixels, constants.max_pixels),
        };
        let v5 = generation == Generation::V5;
        let pillow_kernel = matches!(profile, Profile::PilPath | Profile::Qwenvl);
        let recipe = Self {
            family,
            profile,
            generation,
            kernel: match profile {
                Profile::PilPath | Profile::Qwenvl => Kernel::Pillow,
                Profile::Fast => Kernel::Fast,
                _ => Kernel::Torchvision,
            },
            pass_order: if pillow_kernel && v5 {
                PassOrder::Pillow13
            } else {
                PassOrder::HorizontalFirst
            },
            size_rule: if profile == Profile::Qwenvl {
                SizeRule::QwenVlUtils
            } else {
                SizeRule::Transformers
            },
            exif: match profile {
                Profile::TvPilobj | Profile::Qwenvl => ExifRule::Ignore,
                Profile::TvPath | Profile::TvPathFt if v5 => ExifRule::Torchvision,
                _ => ExifRule::Pillow,
            },
            alpha: match profile {
                Profile::Qwenvl => AlphaRule::WhiteIfRgba,
                Profile::TvPilobj if v5 => AlphaRule::White,
                _ => AlphaRule::Drop,
            },
            color_key: match profile {
                Profile::PilPath if v5 => KeyRule::BeforeResize,
                Profile::Qwenvl if v5 => KeyRule::AfterResize,
                _ => KeyRule::Ignore,
            },
            table: if profile == Profile::PilPath {
                TableRule::Pil
            } else {
                TableRule::Torchvision
            },
            patch_size: constants.patch_size,
            merge_size: constants.merge_size,
            temporal_patch_size: constants.temporal_patch_size,
            image_mean: constants.image_mean,
            image_std: constants.image_std,
            min_pixels: min_pixels.unwrap_or(least),
            max_pixels: max_pixels.unwrap_or(most),
            max_source_pixels: MAX_SOURCE_PIXELS,
            max_source_bytes: MAX_SOURCE_BYTES,
        };
        recipe.check()?;
        Ok(recipe)
    }

    /// Refuses a recipe that cannot be worked with.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the field.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String, hint: &str| {
            Err(Error::Usage {
                what,
                hint: hint.into(),
            })
        };
        for (name, value, most) in [
            ("patch_size", self.patch_size, MAX_PATCH_SIZE),
            ("merge_size", self.merge_size, MAX_MERGE_SIZE),
            (
                "temporal_patch_size",
                self.temporal_patch_size,
                MAX_TEMPORAL_PATCH_SIZE,
            ),
        ] {
            if !(1..=most).contains(&value) {
                return wrong(
                    format!("{name} out of range 1 to {most}: `{value}`"),
                    "check preprocessor_config.json of the model folder",
                );
            }
        }
        let usable = |value: &f64| value.is_finite() && *value > 0.0;
        if !self.image_std.iter().all(usable) || !self.image_mean.iter().all(|m| m.is_finite()) {
            return wrong(
                "image_mean or image_std is not usable".into(),
                "check preprocessor_config.json of the model folder",
            );
        }
        if self.min_pixels > self.max_pixels {
            return wrong(
                format!(
                    "min pixels {} above max pixels `{}`",
                    self.min_pixels, self.max_pixels
                ),
                "lower --min-pixels or raise --max-pixels",
            );
        }
        let token = u64::from(self.factor()) * u64::from(self.factor());
        if self.max_pixels < token || self.max_pixels > MAX_TARGET_PIXELS {
            return wrong(
                format!(
                    "max pixels out of range {token} to {MAX_TARGET_PIXELS}: `{}`",
                    self.max_pixels
                ),
                "choose another --max-pixels",
            );
        }
        Ok(())
    }

    /// Pixels along the side of one token: target sizes are multiples of it.
    #[must_use]
    pub fn factor(&self) -> u32 {
        self.patch_size * self.merge_size
    }

    /// Bytes of one patch on disk: three channels, one frame.
    #[must_use]
    pub fn patch_bytes(&self) -> usize {
        3 * self.patch_size as usize * self.patch_size as usize
    }
}
