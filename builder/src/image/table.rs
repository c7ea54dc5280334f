//! The float table: what each byte of a channel becomes, to the bit.
//!
//! Owns the order of float32 operations of both processor classes, and the expansion of patches
//! into the reference's rows. Invariant: `expand` gives exactly the reference's `pixel_values`.

use super::profile::TableRule;
use super::recipe::ImageRecipe;

/// The value of each byte, for each channel.
#[must_use]
pub fn float_table(recipe: &ImageRecipe) -> [[f32; 256]; 3] {
    std::array::from_fn(|channel| {
        let mean = recipe.image_mean[channel] as f32;
        let std = recipe.image_std[channel] as f32;
        std::array::from_fn(|byte| match recipe.table {
            // The processor folds the factor 1/255 into float32 mean and deviation.
            TableRule::Torchvision => (byte as f32 - mean * 255.0) / (std * 255.0),
            // NumPy: scaled in float64, rounded to float32, then normalised in float32.
            TableRule::Pil => ((byte as f64 * (1.0 / 255.0)) as f32 - mean) / std,
        })
    })
}

/// The reference's `pixel_values` of `patches`: one row a patch of `3 * temporal_patch_size *
/// patch_size^2` values, the frame repeated.
#[must_use]
pub fn expand(patches: &[u8], recipe: &ImageRecipe) -> Vec<f32> {
    let table = float_table(recipe);
    let plane = recipe.patch_bytes() / 3;
    let frames = recipe.temporal_patch_size as usize;
    let mut values = Vec::with_capacity(patches.len() * frames);
    for (index, bytes) in patches.chunks_exact(plane).enumerate() {
        for _ in 0..frames {
            values.extend(
                bytes
                    .iter()
                    .map(|byte| table[index % 3][usize::from(*byte)]),
            );
        }
    }
    values
}
