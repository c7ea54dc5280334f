//! Patches: pixels in the model's order, and back.
//!
//! Owns the order: block row, block column, row and column inside the merge block; inside a patch
//! channel, row, column. One frame only, not normalised. Invariant: a permutation of the pixels'
//! bytes; [`unpatchify`] undoes it.

use super::planar::{PIXELS, Splitter};
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
    let side = recipe.patch_size as usize;
    let mut patches = vec![0; height * width * 3];
    let splitter = Splitter::new();
    let mut rest = patches.as_mut_slice();
    each_patch(height, width, recipe, |top, left| {
        let (patch, after) = std::mem::take(&mut rest).split_at_mut(recipe.patch_bytes());
        rest = after;
        let (red, others) = patch.split_at_mut(side * side);
        let (green, blue) = others.split_at_mut(side * side);
        for y in 0..side {
            let start = ((top + y) * width + left) * 3;
            let lines = y * side..(y + 1) * side;
            let planes = [
                &mut red[lines.clone()],
                &mut green[lines.clone()],
                &mut blue[lines],
            ];
            // Sixteen pixels may be read where a patch has fewer, as long as the buffer holds them.
            match rgb
                .get(start..start + 3 * PIXELS)
                .and_then(|run| run.try_into().ok())
            {
                Some(run) if side <= PIXELS => {
                    for (plane, bytes) in planes.into_iter().zip(splitter.split(run)) {
                        plane.copy_from_slice(&bytes[..side]);
                    }
                }
                _ => split_line(&rgb[start..start + side * 3], planes),
            }
        }
    });
    patches
}

/// One line of a patch, of any length.
fn split_line(line: &[u8], planes: [&mut [u8]; 3]) {
    for (channel, plane) in planes.into_iter().enumerate() {
        for (byte, pixel) in plane.iter_mut().zip(line.chunks_exact(3)) {
            *byte = pixel[channel];
        }
    }
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
