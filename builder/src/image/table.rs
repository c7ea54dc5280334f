//! The float table of a recipe, and the reference's rows by it.
//!
//! Owns the expansion of patches; the table itself is the format's. Invariant: `expand` gives exactly the reference's
//! `pixel_values`.

use super::recipe::ImageRecipe;

/// The value of each byte, for each channel.
#[must_use]
pub fn float_table(recipe: &ImageRecipe) -> [[f32; 256]; 3] {
    stoker_formats::float_table(recipe.table, recipe.image_mean, recipe.image_std)
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
