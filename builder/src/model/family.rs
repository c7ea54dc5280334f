//! Model families: the constants that differ between them. Adding a family is one entry here.
//!
//! Owns what a family is called in a model folder and what its image processor computes with when
//! the folder does not say so. It reads no file.

use serde::{Deserialize, Serialize};

/// A supported model family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Qwen3-VL: patch 16, mean and std 0.5.
    Qwen3Vl,
    /// Qwen2.5-VL: patch 14, CLIP mean and std.
    #[serde(rename = "qwen2_5_vl")]
    Qwen25Vl,
    /// Qwen2-VL: patch 14, CLIP mean and std.
    Qwen2Vl,
}

/// What a family's image processor computes with, as its `preprocessor_config.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageConstants {
    /// Side of a patch, in pixels.
    pub patch_size: u32,
    /// Patches merged into one token, along each side.
    pub merge_size: u32,
    /// Frames in a patch.
    pub temporal_patch_size: u32,
    /// Mean of each channel, of values in 0..1.
    pub image_mean: [f64; 3],
    /// Standard deviation of each channel, of values in 0..1.
    pub image_std: [f64; 3],
    /// Least area after resizing, in pixels.
    pub min_pixels: u64,
    /// Largest area after resizing, in pixels.
    pub max_pixels: u64,
}

/// The mean of each channel that CLIP's image processor uses.
const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
/// The standard deviation of each channel that CLIP's image processor uses.
const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];

impl Family {
    /// Every supported family.
    pub const ALL: [Self; 3] = [Self::Qwen3Vl, Self::Qwen25Vl, Self::Qwen2Vl];

    /// The name people use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qwen3Vl => "Qwen3-VL",
            Self::Qwen25Vl => "Qwen2.5-VL",
            Self::Qwen2Vl => "Qwen2-VL",
        }
    }

    /// The `model_type` values of `config.json`, the plain one first.
    #[must_use]
    pub fn model_types(self) -> &'static [&'static str] {
        match self {
            Self::Qwen3Vl => &["qwen3_vl", "qwen3_vl_moe"],
            Self::Qwen25Vl => &["qwen2_5_vl"],
            Self::Qwen2Vl => &["qwen2_vl"],
        }
    }

    /// The `processor_class` of `preprocessor_config.json`.
    #[must_use]
    pub fn processor_class(self) -> &'static str {
        match self {
            Self::Qwen3Vl => "Qwen3VLProcessor",
            Self::Qwen25Vl => "Qwen2_5_VLProcessor",
            Self::Qwen2Vl => "Qwen2VLProcessor",
        }
    }

    /// The constants of the family's public models.
    #[must_use]
    pub fn constants(self) -> ImageConstants {
        let (patch_size, image_mean, image_std) = match self {
            Self::Qwen3Vl => (16, [0.5; 3], [0.5; 3]),
            Self::Qwen25Vl | Self::Qwen2Vl => (14, CLIP_MEAN, CLIP_STD),
        };
        let (min_pixels, max_pixels) = match self {
            Self::Qwen3Vl => (65_536, 16_777_216),
            Self::Qwen25Vl | Self::Qwen2Vl => (3_136, 12_845_056),
        };
        ImageConstants {
            patch_size,
            merge_size: 2,
            temporal_patch_size: 2,
            image_mean,
            image_std,
            min_pixels,
            max_pixels,
        }
    }
}
