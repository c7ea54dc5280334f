//! The kernels in plain Rust: the definition the vector code is held to.
//!
//! Owns nothing but the two loops. Invariant: 32-bit sums cannot overflow, because a row's positive
//! weights sum to less than 1.6 and 1.6 * 255 * 2^22 < 2^31.

use super::CHANNELS;
use super::weights::Axis;

/// Columns summed at once: the sums stay in registers or the first cache.
const CHUNK: usize = 64;

/// Rounds a sum to a byte.
fn clamp(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}

/// Filters along each row.
pub(super) fn horizontal(src: &[u8], from: (usize, usize), dst: &mut [u8], axis: &Axis) {
    let rows = src.chunks_exact(from.1 * CHANNELS).take(from.0);
    for (row, out) in rows.zip(dst.chunks_exact_mut(axis.len() * CHANNELS)) {
        for (x, pixel) in out.chunks_exact_mut(CHANNELS).enumerate() {
            let (first, count) = (axis.first[x], axis.count[x]);
            let window = &row[first * CHANNELS..(first + count) * CHANNELS];
            let weights = &axis.whole[x * axis.stride..][..count];
            let mut sums = [1i32 << (axis.bits - 1); CHANNELS];
            for (source, weight) in window.chunks_exact(CHANNELS).zip(weights) {
                for (sum, byte) in sums.iter_mut().zip(source) {
                    *sum += i32::from(*byte) * weight;
                }
            }
            for (byte, sum) in pixel.iter_mut().zip(sums) {
                *byte = clamp(sum, axis.bits);
            }
        }
    }
}

/// One output row of the vertical pass; `window` holds the source rows that it needs, each of `line` bytes.
pub(super) fn columns(window: &[u8], line: usize, out: &mut [u8], axis: &Axis, y: usize) {
    let weights = &axis.whole[y * axis.stride..][..axis.count[y]];
    for (chunk, bytes) in out.chunks_mut(CHUNK).enumerate() {
        let column = chunk * CHUNK;
        let mut sums = [1i32 << (axis.bits - 1); CHUNK];
        for (row, weight) in window.chunks_exact(line).zip(weights) {
            for (sum, byte) in sums.iter_mut().zip(&row[column..column + bytes.len()]) {
                *sum += i32::from(*byte) * weight;
            }
        }
        for (byte, sum) in bytes.iter_mut().zip(sums) {
            *byte = clamp(sum, axis.bits);
        }
    }
}
