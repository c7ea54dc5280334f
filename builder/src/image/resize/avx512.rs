//! The kernels in AVX-512 with its byte permutes and dot products: five pixels a vector along rows, 64 bytes along columns.
//!
//! Owns the vector code and how a row's windows are laid out for it. Weights wider than 16 bits come as two halves and two
//! sums, as in the AVX2 code. Invariant: equal to the scalar code, for the same reason.

use std::arch::x86_64::*;
use std::ops::Range;

use super::weights::{Axis, SPLIT_BITS};
use super::{CHANNELS, ROWS, SLACK_BYTES};

/// Bytes of a row that the vertical pass handles at once; narrower rows go to the scalar code.
pub(super) const COLUMNS: usize = 64;

/// Pixels of the result that one vector sums: 15 of its 16 lanes.
const PIXELS: usize = 5;

/// Lanes of a vector.
const LANES: usize = 16;

/// Whether this processor has what the code needs.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("avx512vnni")
}

/// The windows of an axis, laid out for blocks of [`PIXELS`] pixels. In each step a block takes two source pixels of every
/// window out of 64 bytes that begin at the block's first window, and then two further on.
pub(super) struct Blocks {
    blocks: Vec<Block>,
    low: Vec<[i32; LANES]>,
    /// As long as `low`, if the weights have high halves.
    high: Vec<[i32; LANES]>,
}

struct Block {
    /// First source pixel of the first window.
    first: usize,
    /// Its steps: where their weights begin, and how many they are.
    at: usize,
    steps: usize,
    /// Which byte goes where; every second one is zero.
    bytes: [u8; 64],
}

impl Blocks {
    /// None if five windows are spread over more than a vector holds.
    pub(super) fn new(axis: &Axis) -> Option<Self> {
        let mut all = Self {
            blocks: Vec::new(),
            low: Vec::new(),
            high: Vec::new(),
        };
        let high = axis.high.as_deref();
        for start in (0..axis.len()).step_by(PIXELS) {
            let pixels = start..(start + PIXELS).min(axis.len());
            let first = axis.first[start];
            let steps = axis.count[pixels.clone()].iter().max()?.div_ceil(2);
            let mut bytes = [0; 64];
            for (lane, (x, channel)) in lanes(pixels.clone()).enumerate() {
                let byte = (axis.first[x] - first) * CHANNELS + channel;
                if byte + CHANNELS >= bytes.len() {
                    return None;
                }
                bytes[4 * lane] = byte as u8;
                bytes[4 * lane + 2] = (byte + CHANNELS) as u8;
            }
            all.blocks.push(Block {
                first,
                at: all.low.len(),
                steps,
                bytes,
            });
            for step in 0..steps {
                let of = |weights: &[i16]| {
                    let mut pairs = [0; LANES];
                    for (pair, (x, _)) in pairs.iter_mut().zip(lanes(pixels.clone())) {
                        let at = x * axis.stride + 2 * step;
                        let [one, two] = [weights[at], weights[at + 1]].map(|w| w as u16 as i32);
                        *pair = one | two << 16;
                    }
                    pairs
                };
                all.low.push(of(&axis.low));
                all.high.extend(high.map(of));
            }
        }
        Some(all)
    }
}

/// What each lane sums: pixel and channel.
fn lanes(pixels: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    pixels.flat_map(|x| (0..CHANNELS).map(move |channel| (x, channel)))
}

/// Filters along each of at least [`ROWS`] rows. `src` holds [`SLACK_BYTES`] after its pixels.
#[expect(unsafe_code, reason = "AVX-512 intrinsics")]
pub(super) fn horizontal(
    src: &[u8],
    from: (usize, usize),
    dst: &mut [u8],
    axis: &Axis,
    blocks: &Blocks,
) {
    let (line_in, line_out) = (from.1 * CHANNELS, axis.len() * CHANNELS);
    assert!(is_there());
    assert!(src.len() >= from.0 * line_in + SLACK_BYTES && dst.len() == from.0 * line_out);
    assert!(from.0 >= ROWS);
    for block in &blocks.blocks {
        assert!(block.steps > 0 && block.first + 2 * (block.steps - 1) < from.1);
    }
    for y in (0..from.0).step_by(ROWS) {
        // The last rows come out twice where their number is no multiple.
        let y = y.min(from.0 - ROWS);
        let row = &src[y * line_in..];
        let out = &mut dst[y * line_out..][..ROWS * line_out];
        // SAFETY: the features were found. `row` starts ROWS rows inside `src`, which holds SLACK_BYTES more; all steps begin
        // inside a row.
        unsafe {
            if blocks.high.is_empty() {
                rows::<false>(row, line_in, out, axis.bits, blocks);
            } else {
                rows::<true>(row, line_in, out, axis.bits, blocks);
            }
        }
    }
}

/// Filters [`ROWS`] rows.
///
/// # Safety
/// [`is_there`] must hold; `src` must hold ROWS rows of `line` bytes and 64 bytes after the last, and each step of `blocks`
/// must begin inside a row.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
#[expect(unsafe_code, reason = "AVX-512 intrinsics")]
unsafe fn rows<const SPLIT: bool>(
    src: &[u8],
    line: usize,
    dst: &mut [u8],
    bits: u32,
    blocks: &Blocks,
) {
    /// The low byte of each 16-bit word.
    const LOW: u64 = 0x5555_5555_5555_5555;
    let half = _mm512_set1_epi32(1 << (bits - 1));
    let bits = _mm_cvtsi32_si128(bits as i32);
    let split = _mm_cvtsi32_si128(SPLIT_BITS as i32);
    let zero = _mm512_setzero_si512();
    let line_out = dst.len() / ROWS;
    let mut out = 0;
    for block in &blocks.blocks {
        let low = &blocks.low[block.at..][..block.steps];
        let high = if SPLIT {
            &blocks.high[block.at..][..block.steps]
        } else {
            low
        };
        // SAFETY: an array of 64 bytes.
        let bytes = unsafe { _mm512_loadu_si512(block.bytes.as_ptr().cast()) };
        let mut sums = [half; ROWS];
        let mut tops = [zero; ROWS];
        for (step, (low, high)) in low.iter().zip(high).enumerate() {
            let from = (block.first + 2 * step) * CHANNELS;
            // SAFETY: arrays of 64 bytes; a step begins inside its row, so its 64 bytes end at most 61 after it: inside `src`
            // by contract.
            unsafe {
                let low = _mm512_loadu_si512(low.as_ptr().cast());
                let high = _mm512_loadu_si512(high.as_ptr().cast());
                for n in 0..ROWS {
                    let source = _mm512_loadu_si512(src.as_ptr().add(n * line + from).cast());
                    let pairs = _mm512_maskz_permutexvar_epi8(LOW, bytes, source);
                    sums[n] = _mm512_dpwssd_epi32(sums[n], pairs, low);
                    if SPLIT {
                        tops[n] = _mm512_dpwssd_epi32(tops[n], pairs, high);
                    }
                }
            }
        }
        for n in 0..ROWS {
            let mut sum = sums[n];
            if SPLIT {
                sum = _mm512_add_epi32(sum, _mm512_sll_epi32(tops[n], split));
            }
            let sum = _mm512_max_epi32(_mm512_sra_epi32(sum, bits), zero);
            let pixels = _mm512_cvtusepi32_epi8(sum);
            let out = &mut dst[n * line_out + out..(n + 1) * line_out];
            if out.len() >= LANES {
                // The byte after the fifth pixel is the next block's, which is written after this one.
                // SAFETY: `out` has 16 bytes.
                unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), pixels) };
            } else {
                let mut all = [0; LANES];
                // SAFETY: an array of 16 bytes.
                unsafe { _mm_storeu_si128(all.as_mut_ptr().cast(), pixels) };
                let count = out.len().min(PIXELS * CHANNELS);
                out[..count].copy_from_slice(&all[..count]);
            }
        }
        out += PIXELS * CHANNELS;
    }
}

/// One output row of the vertical pass; `window` holds the source rows that it needs, each of `line` (at least [`COLUMNS`]) bytes.
#[expect(unsafe_code, reason = "AVX-512 intrinsics")]
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

/// Filters one output row, in blocks of [`COLUMNS`]; the last may come out twice in part.
///
/// # Safety
/// [`is_there`] must hold; `window` must hold `axis.count[y]` rows of `line` bytes, `out` one.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vnni")]
#[expect(unsafe_code, reason = "AVX-512 intrinsics")]
unsafe fn column_blocks<const SPLIT: bool>(
    window: &[u8],
    line: usize,
    out: &mut [u8],
    axis: &Axis,
    y: usize,
) {
    let count = axis.count[y];
    let half = _mm512_set1_epi32(1 << (axis.bits - 1));
    let bits = _mm_cvtsi32_si128(axis.bits as i32);
    let split = _mm_cvtsi32_si128(SPLIT_BITS as i32);
    let zero = _mm512_setzero_si512();
    let high = axis.high.as_deref().unwrap_or(&axis.low);
    for column in (0..line).step_by(COLUMNS) {
        let column = column.min(line - COLUMNS);
        let mut sums = [half; 4];
        let mut tops = [zero; 4];
        for k in (0..count).step_by(2) {
            // The last odd row is paired with itself: its weight there is the padding's zero.
            let next = (k + 1).min(count - 1);
            // SAFETY: both rows and the block lie inside `window`; rows of weights have an even length, so the pair lies
            // inside too.
            unsafe {
                let row =
                    |k: usize| _mm512_loadu_si512(window.as_ptr().add(k * line + column).cast());
                let pair = |weights: &[i16]| {
                    let at = weights.as_ptr().add(y * axis.stride + k);
                    _mm512_set1_epi32(at.cast::<i32>().read_unaligned())
                };
                let (one, two) = (row(k), row(next));
                let mixed = [
                    _mm512_unpacklo_epi8(one, two),
                    _mm512_unpackhi_epi8(one, two),
                ];
                let pairs = [
                    _mm512_unpacklo_epi8(mixed[0], zero),
                    _mm512_unpackhi_epi8(mixed[0], zero),
                    _mm512_unpacklo_epi8(mixed[1], zero),
                    _mm512_unpackhi_epi8(mixed[1], zero),
                ];
                let weights = pair(&axis.low);
                let upper = if SPLIT { pair(high) } else { weights };
                for i in 0..4 {
                    sums[i] = _mm512_dpwssd_epi32(sums[i], pairs[i], weights);
                    if SPLIT {
                        tops[i] = _mm512_dpwssd_epi32(tops[i], pairs[i], upper);
                    }
                }
            }
        }
        for i in 0..4 {
            if SPLIT {
                sums[i] = _mm512_add_epi32(sums[i], _mm512_sll_epi32(tops[i], split));
            }
            sums[i] = _mm512_sra_epi32(sums[i], bits);
        }
        let low = _mm512_packs_epi32(sums[0], sums[1]);
        let high = _mm512_packs_epi32(sums[2], sums[3]);
        let block = &mut out[column..column + COLUMNS];
        // SAFETY: `block` is 64 bytes long.
        unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), _mm512_packus_epi16(low, high)) };
    }
}
