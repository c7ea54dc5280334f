//! The kernels in AVX2: pairs of bytes times pairs of 16-bit weights, summed in 32 bits.
//!
//! Owns the vector code. Weights wider than 16 bits come as two halves and two sums. Invariant:
//! equal to the scalar code, because 32-bit addition is associative and nothing saturates before
//! the last step, where saturation is the clamp.

use std::arch::x86_64::*;

use super::weights::{Axis, GROUP, SPLIT_BITS};
use super::{CHANNELS, ROWS, SLACK_BYTES};

/// Bytes of a row that the vertical pass handles at once; narrower rows go to the scalar code.
pub(super) const COLUMNS: usize = 32;

/// Whether this processor has what the code needs.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Filters along each of at least [`ROWS`] rows. `src` holds [`SLACK_BYTES`] after its pixels.
#[expect(unsafe_code, reason = "AVX2 intrinsics")]
pub(super) fn horizontal(src: &[u8], from: (usize, usize), dst: &mut [u8], axis: &Axis) {
    let (line_in, line_out) = (from.1 * CHANNELS, axis.len() * CHANNELS);
    assert!(is_there());
    assert!(src.len() >= from.0 * line_in + SLACK_BYTES && dst.len() == from.0 * line_out);
    assert!(from.0 >= ROWS);
    for (first, count) in axis.first.iter().zip(&axis.count) {
        assert!(first + count <= from.1 && *count > 0 && *count <= axis.stride);
    }
    for y in (0..from.0).step_by(ROWS) {
        // The last rows come out twice where their number is no multiple.
        let y = y.min(from.0 - ROWS);
        let (row, out) = (
            &src[y * line_in..],
            &mut dst[y * line_out..][..ROWS * line_out],
        );
        // SAFETY: AVX2 was found. `row` starts four of the rows inside `src`, which holds SLACK_BYTES
        // more; all windows of `axis` lie inside a row; `out` is four rows of `line_out` bytes.
        unsafe {
            if axis.high.is_some() {
                rows::<true>(row, line_in, out, axis);
            } else {
                rows::<false>(row, line_in, out, axis);
            }
        }
    }
}

/// Filters [`ROWS`] rows, two a vector, one in each lane. Each step takes four source pixels of all of them.
///
/// # Safety
/// AVX2 must be there; `src` must hold four rows of `line` bytes and 16 bytes after the last, `dst`
/// four rows of output, and each window of `axis` must lie inside a row.
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "AVX2 intrinsics")]
unsafe fn rows<const SPLIT: bool>(src: &[u8], line: usize, dst: &mut [u8], axis: &Axis) {
    const Z: i8 = -128;
    // Bytes of pixels 0 and 1, and of 2 and 3, paired by channel, widened.
    let spread = [
        _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, Z, 3, Z, 1, Z, 4, Z, 2, Z, 5, Z, Z, Z, Z, Z,
        )),
        _mm256_broadcastsi128_si256(_mm_setr_epi8(
            6, Z, 9, Z, 7, Z, 10, Z, 8, Z, 11, Z, Z, Z, Z, Z,
        )),
    ];
    let half = _mm256_set1_epi32(1 << (axis.bits - 1));
    let bits = _mm_cvtsi32_si128(axis.bits as i32);
    let split = _mm_cvtsi32_si128(SPLIT_BITS as i32);
    let line_out = axis.len() * CHANNELS;
    let high = axis.high.as_deref().unwrap_or(&axis.low);
    for x in 0..axis.len() {
        let groups = axis.count[x].div_ceil(GROUP);
        let mut sums = [half; ROWS / 2];
        let mut tops = [_mm256_setzero_si256(); ROWS / 2];
        for group in 0..groups {
            let at = x * axis.stride + group * GROUP;
            let source = (axis.first[x] + group * GROUP) * CHANNELS;
            // SAFETY: rows of weights are padded to whole groups. The group begins inside the
            // window, so its 16 bytes end at most 13 after the row: inside `src` by contract.
            unsafe {
                let pairs = |weights: &[i16]| {
                    let two = weights.as_ptr().add(at).cast::<i32>();
                    [0, 1].map(|pair| _mm256_set1_epi32(two.add(pair).read_unaligned()))
                };
                let weights = pairs(&axis.low);
                let upper = if SPLIT { pairs(high) } else { weights };
                for n in 0..ROWS / 2 {
                    let row = |n: usize| {
                        _mm_loadu_si128(src.as_ptr().add(n * line + source).cast::<__m128i>())
                    };
                    let both = _mm256_set_m128i(row(2 * n + 1), row(2 * n));
                    for pair in 0..2 {
                        let pixels = _mm256_shuffle_epi8(both, spread[pair]);
                        let sum = _mm256_madd_epi16(pixels, weights[pair]);
                        sums[n] = _mm256_add_epi32(sums[n], sum);
                        if SPLIT {
                            let top = _mm256_madd_epi16(pixels, upper[pair]);
                            tops[n] = _mm256_add_epi32(tops[n], top);
                        }
                    }
                }
            }
        }
        let done = |n: usize| {
            let mut sum = sums[n];
            if SPLIT {
                sum = _mm256_add_epi32(sum, _mm256_sll_epi32(tops[n], split));
            }
            _mm256_sra_epi32(sum, bits)
        };
        let words = _mm256_packs_epi32(done(0), done(1));
        let bytes = _mm256_packus_epi16(words, words);
        let (even, odd) = (
            _mm256_castsi256_si128(bytes),
            _mm256_extracti128_si256::<1>(bytes),
        );
        let pixels = [
            _mm_cvtsi128_si32(even),
            _mm_cvtsi128_si32(odd),
            _mm_extract_epi32::<1>(even),
            _mm_extract_epi32::<1>(odd),
        ];
        for (n, pixel) in pixels.into_iter().enumerate() {
            let to = n * line_out + x * CHANNELS;
            if x + 1 < axis.len() {
                // SAFETY: another pixel follows in this row of `dst`, and is written after this one.
                unsafe {
                    dst.as_mut_ptr()
                        .add(to)
                        .cast::<i32>()
                        .write_unaligned(pixel)
                };
            } else {
                dst[to..to + CHANNELS].copy_from_slice(&pixel.to_le_bytes()[..CHANNELS]);
            }
        }
    }
}

/// One output row of the vertical pass; `window` holds the source rows that it needs, each of `line` (at least [`COLUMNS`]) bytes.
#[expect(unsafe_code, reason = "AVX2 intrinsics")]
pub(super) fn columns(window: &[u8], line: usize, out: &mut [u8], axis: &Axis, y: usize) {
    assert!(is_there());
    assert!(line >= COLUMNS && out.len() == line);
    assert!(axis.count[y] > 0 && axis.count[y] <= axis.stride);
    assert!(window.len() == axis.count[y] * line);
    // SAFETY: the features were found; `window` holds as many rows as the axis has weights for y, and `out` is one row.
    unsafe {
        if axis.high.is_some() {
            column_blocks::<true>(window, line, out, axis, y);
        } else {
            column_blocks::<false>(window, line, out, axis, y);
        }
    }
}

/// Sums of 32 columns: four vectors of pairs, in the order that packing undoes.
type Sums = [__m256i; 4];

/// Filters one output row, in blocks of [`COLUMNS`]; the last may come out twice in part.
///
/// # Safety
/// AVX2 must be there; `window` must hold `axis.count[y]` rows of `line` bytes, `out` one.
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "AVX2 intrinsics")]
unsafe fn column_blocks<const SPLIT: bool>(
    window: &[u8],
    line: usize,
    out: &mut [u8],
    axis: &Axis,
    y: usize,
) {
    let count = axis.count[y];
    let half = _mm256_set1_epi32(1 << (axis.bits - 1));
    let bits = _mm_cvtsi32_si128(axis.bits as i32);
    let split = _mm_cvtsi32_si128(SPLIT_BITS as i32);
    let zero = _mm256_setzero_si256();
    let high = axis.high.as_deref().unwrap_or(&axis.low);
    for column in (0..line).step_by(COLUMNS) {
        let column = column.min(line - COLUMNS);
        let mut sums: Sums = [half; 4];
        let mut tops: Sums = [zero; 4];
        for k in (0..count).step_by(2) {
            // The last odd row is paired with itself: its weight there is the padding's zero.
            let next = (k + 1).min(count - 1);
            // SAFETY: both rows and the block lie inside `window`; rows of weights have an even
            // length, so the pair lies inside too.
            unsafe {
                let row = |k: usize| {
                    let at = window.as_ptr().add(k * line + column);
                    _mm256_loadu_si256(at.cast::<__m256i>())
                };
                let pair = |weights: &[i16]| {
                    let at = weights.as_ptr().add(y * axis.stride + k);
                    _mm256_set1_epi32(at.cast::<i32>().read_unaligned())
                };
                let (one, two) = (row(k), row(next));
                let mixed = [
                    _mm256_unpacklo_epi8(one, two),
                    _mm256_unpackhi_epi8(one, two),
                ];
                let pairs = [
                    _mm256_unpacklo_epi8(mixed[0], zero),
                    _mm256_unpackhi_epi8(mixed[0], zero),
                    _mm256_unpacklo_epi8(mixed[1], zero),
                    _mm256_unpackhi_epi8(mixed[1], zero),
                ];
                let weights = pair(&axis.low);
                let upper = if SPLIT { pair(high) } else { weights };
                for i in 0..4 {
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs[i], weights));
                    if SPLIT {
                        tops[i] = _mm256_add_epi32(tops[i], _mm256_madd_epi16(pairs[i], upper));
                    }
                }
            }
        }
        for i in 0..4 {
            if SPLIT {
                sums[i] = _mm256_add_epi32(sums[i], _mm256_sll_epi32(tops[i], split));
            }
            sums[i] = _mm256_sra_epi32(sums[i], bits);
        }
        let low = _mm256_packs_epi32(sums[0], sums[1]);
        let high = _mm256_packs_epi32(sums[2], sums[3]);
        let bytes = _mm256_packus_epi16(low, high);
        let block = &mut out[column..column + COLUMNS];
        // SAFETY: `block` is 32 bytes long.
        unsafe { _mm256_storeu_si256(block.as_mut_ptr().cast::<__m256i>(), bytes) };
    }
}
