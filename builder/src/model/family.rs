//! Model families: the constants that differ between them. Adding a family is one file like this.

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
