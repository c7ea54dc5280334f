//! The float table: what each byte of a patch becomes, to the bit.
//!
//! Owns the order of float operations of both reference processors, as FORMAT.md has it. Invariant: the table follows from the
//! recipe alone, so that whoever has a manifest has it, with or without an image shard.

use serde::{Deserialize, Serialize};

/// In which order of operations the 256 values of a channel are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TableRule {
    /// Rescaling fused into mean and deviation.
    Torchvision,
    /// Rescaled first, then normalised.
    Pil,
}

/// The value of each byte, for each channel with its mean and standard deviation.
#[must_use]
pub fn float_table(rule: TableRule, mean: [f64; 3], std: [f64; 3]) -> [[f32; 256]; 3] {
    std::array::from_fn(|channel| {
        let (mean, std) = (mean[channel] as f32, std[channel] as f32);
        std::array::from_fn(|byte| match rule {
            // The processor folds the factor 1/255 into float32 mean and deviation.
            TableRule::Torchvision => (byte as f32 - mean * 255.0) / (std * 255.0),
            // NumPy: scaled in float64, rounded to float32, then normalised in float32.
            TableRule::Pil => ((byte as f64 * (1.0 / 255.0)) as f32 - mean) / std,
        })
    })
}
