//! Patches: pixels in the model's order, and back.
//!
//! Owns the order: block row, block column, row and column inside the merge block; inside a patch
//! channel, row, column. One frame only, not normalised. Invariant: a permutation of the pixels'
//! bytes; [`unpatchify`] undoes it.

use super::planar::Code;
use super::recipe::ImageRecipe;

/// Calls `visit` with (top, left) of each patch, in pixels, in the model's order.
fn each_patch(
    height: usize,
    width: usize,
    recipe: &ImageRecipe,
    mut visit: impl FnMut(usize, usize),
) {
    let (side, merge) = (recipe.patch_size as usize, recipe.merge_size as usize);
    for block_top in (0..height).step_by(side * merge) {
        for block_left in (0..width).step_by(side * merge) {
            for row in 0..merge {
                for column in 0..merge {
                    visit(block_top + row * side, block_left + column * side);
                }
            }
        }
    }
}

/// The patches of `rgb` (`height` x `width`, interleaved, multiples of the recipe's factor):
/// `height * width / patch_size^2` rows of `3 * patch_size^2` bytes.
///
/// # Panics
/// If `rgb` is shorter than `height * width * 3`.
#[must_use]
pub fn patchify(rgb: &[u8], height: usize, width: usize, recipe: &ImageRecipe) -> Vec<u8> {
    let mut patches = Vec::new();
    patchify_into(rgb, height, width, recipe, &mut patches);
    patches
}

/// As [`patchify`], into `patches`, whatever they held: used memory is cheaper than fresh.
///
/// # Panics
/// As [`patchify`].
pub fn patchify_into(
    rgb: &[u8],
    height: usize,
    width: usize,
    recipe: &ImageRecipe,
    patches: &mut Vec<u8>,
) {
    let side = recipe.patch_size as usize;
    if patches.capacity() < height * width * 3 {
        // Growing would copy what is overwritten anyway, and fresh memory comes zeroed.
        *patches = vec![0; height * width * 3];
    } else {
        patches.resize(height * width * 3, 0);
    }
    let rgb = &rgb[..height * width * 3];
    let code = Code::best(side);
    let mut rest = patches.chunks_exact_mut(recipe.patch_bytes());
    each_patch(height, width, recipe, |top, left| {
        if let Some(patch) = rest.next() {
            code.patch(&rgb[(top * width + left) * 3..], width * 3, side, patch);
        }
    });
}

/// The picture in `patches`: (height, width, RGB pixels interleaved). `grid_thw` counts patches;
/// `None` if the patches do not fill the grid exactly or the grid does not fit the recipe.
#[must_use]
pub fn unpatchify(
    patches: &[u8],
    grid_thw: [i32; 3],
    recipe: &ImageRecipe,
) -> Option<(usize, usize, Vec<u8>)> {
    let side = recipe.patch_size as usize;
    let merge = recipe.merge_size as usize;
    let [frames, rows, columns] = grid_thw.map(|n| usize::try_from(n).unwrap_or(0));
    if frames != 1 || rows == 0 || columns == 0 || rows % merge != 0 || columns % merge != 0 {
        return None;
    }
    let bytes = rows
        .checked_mul(columns)?
        .checked_mul(recipe.patch_bytes())?;
    if patches.len() != bytes {
        return None;
    }
    let (height, width) = (rows * side, columns * side);
    let mut rgb = vec![0; bytes];
    let mut from = patches.chunks_exact(recipe.patch_bytes());
    each_patch(height, width, recipe, |top, left| {
        let planes = from.next().unwrap_or_default();
        for (at, byte) in planes.iter().enumerate() {
            let (channel, y, x) = (at / (side * side), at / side % side, at % side);
            rgb[((top + y) * width + left + x) * 3 + channel] = *byte;
        }
    });
    Some((height, width, rgb))
}
