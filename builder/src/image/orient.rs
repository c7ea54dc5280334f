//! Orientation undone: the eight ways an image can lie.
//!
//! Owns the copy from stored to upright pixels. Invariant: a permutation of pixels, nothing else.

use super::reserve;

/// Side of the square moved at once when rows become columns: both sides stay in the first cache.
const TILE: usize = 32;

/// The (height, width) after undoing `orientation`.
pub(super) fn upright(orientation: u8, height: u32, width: u32) -> (u32, u32) {
    if orientation >= 5 {
        (width, height)
    } else {
        (height, width)
    }
}

/// Copies `from` (`height` x `width` RGB) into `to`, upright.
pub(super) fn undo(orientation: u8, from: &[u8], height: usize, width: usize, to: &mut Vec<u8>) {
    reserve(to, height * width * 3);
    let out_width = if orientation >= 5 { height } else { width };
    for tile_y in (0..height).step_by(TILE) {
        for tile_x in (0..width).step_by(TILE) {
            for y in tile_y..(tile_y + TILE).min(height) {
                for x in tile_x..(tile_x + TILE).min(width) {
                    let (back_y, back_x) = (height - 1 - y, width - 1 - x);
                    let (to_y, to_x) = match orientation {
                        2 => (y, back_x),
                        3 => (back_y, back_x),
                        4 => (back_y, x),
                        5 => (x, y),
                        6 => (x, back_y),
                        7 => (back_x, back_y),
                        8 => (back_x, y),
                        _ => (y, x),
                    };
                    let (source, target) = ((y * width + x) * 3, (to_y * out_width + to_x) * 3);
                    to[target..target + 3].copy_from_slice(&from[source..source + 3]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 2 x 3 image whose red channel numbers the pixels.
    fn undone(orientation: u8) -> Vec<u8> {
        let from: Vec<u8> = (0..6).flat_map(|i| [i, 0, 0]).collect();
        let mut to = Vec::new();
        undo(orientation, &from, 2, 3, &mut to);
        to[..18].iter().step_by(3).copied().collect()
    }

    #[test]
    fn every_orientation() {
        assert_eq!(undone(1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(undone(2), [2, 1, 0, 5, 4, 3]);
        assert_eq!(undone(3), [5, 4, 3, 2, 1, 0]);
        assert_eq!(undone(4), [3, 4, 5, 0, 1, 2]);
        assert_eq!(undone(5), [0, 3, 1, 4, 2, 5]);
        assert_eq!(undone(6), [3, 0, 4, 1, 5, 2]);
        assert_eq!(undone(7), [5, 2, 4, 1, 3, 0]);
        assert_eq!(undone(8), [2, 5, 1, 4, 0, 3]);
    }
}
