//! Filter weights of one axis, in the fixed-point form each oracle uses.
//!
//! Owns the cubic kernel (a = -1/2), the windows and the rounding. Invariant: the f64 operations
//! and their order are the oracles' own; each row's weights beyond its window are zero.

/// Fractional bits of Pillow's weights; also the upper bound of torchvision's.
const MAX_BITS: u32 = 22;
/// Reach of the cubic kernel, in source pixels at scale 1.
const SUPPORT: f64 = 2.0;
/// Rows of weights are padded to a multiple of this, so that vector code needs no remainder loop.
pub(super) const GROUP: usize = 4;
/// Where Pillow's weights are cut in two halves that each fit 16 bits.
pub(super) const SPLIT_BITS: u32 = 11;

/// The weights of every output position of one axis.
pub(super) struct Axis {
    /// First source position of each output position.
    pub(super) first: Vec<usize>,
    /// Number of source positions of each output position, at least 1.
    pub(super) count: Vec<usize>,
    /// Distance between two rows of weights.
    pub(super) stride: usize,
    /// Fractional bits of a weight.
    pub(super) bits: u32,
    /// The weights.
    pub(super) whole: Vec<i32>,
    /// The weights as 16 bits: all of them, or their low halves if there is `high`.
    pub(super) low: Vec<i16>,
    /// The high halves: `weight == (high << SPLIT_BITS) + low`.
    pub(super) high: Option<Vec<i16>>,
}

/// Keys' cubic.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Rounds half away from zero.
fn fixed(weight: f64, bits: u32) -> i32 {
    let scaled = weight * f64::from(1u32 << bits);
    (scaled + if weight < 0.0 { -0.5 } else { 0.5 }) as i32
}

impl Axis {
    /// torchvision's weights: the most bits with which the largest still fits 16.
    pub(super) fn torchvision(size_in: usize, size_out: usize) -> Self {
        let (mut axis, weights) = Self::windows(size_in, size_out);
        let top = weights.iter().copied().fold(f64::MIN, f64::max);
        let fits = |bits: u32| ((0.5 + top * f64::from(1u32 << bits)) as i64) < 1 << 15;
        while axis.bits < MAX_BITS && fits(axis.bits + 1) {
            axis.bits += 1;
        }
        axis.whole = weights.iter().map(|w| fixed(*w, axis.bits)).collect();
        axis.low = axis.whole.iter().map(|w| *w as i16).collect();
        axis
    }

    /// Pillow's weights: 22 bits.
    pub(super) fn pillow(size_in: usize, size_out: usize) -> Self {
        let (mut axis, weights) = Self::windows(size_in, size_out);
        axis.bits = MAX_BITS;
        axis.whole = weights.iter().map(|w| fixed(*w, MAX_BITS)).collect();
        let mask = (1 << SPLIT_BITS) - 1;
        axis.low = axis.whole.iter().map(|w| (w & mask) as i16).collect();
        axis.high = Some(
            axis.whole
                .iter()
                .map(|w| (w >> SPLIT_BITS) as i16)
                .collect(),
        );
        axis
    }

    /// Windows and normalised weights; fixed-point fields still empty.
    fn windows(size_in: usize, size_out: usize) -> (Self, Vec<f64>) {
        let scale = size_in as f64 / size_out as f64;
        let stretch = scale.max(1.0);
        let support = SUPPORT * stretch;
        let inverse = 1.0 / stretch;
        let widest = support.ceil() as usize * 2 + 1;
        let stride = widest.next_multiple_of(GROUP);
        let mut weights = vec![0.0; stride * size_out];
        let (mut first, mut count) = (Vec::new(), Vec::new());
        for (i, row) in weights.chunks_exact_mut(stride).enumerate() {
            let center = (i as f64 + 0.5) * scale;
            // The cast truncates towards zero, as in the oracles; negative becomes 0.
            let low = (center - support + 0.5) as usize;
            let high = ((center + support + 0.5) as usize).min(size_in);
            let row = &mut row[..high - low];
            let mut total = 0.0;
            for (k, weight) in row.iter_mut().enumerate() {
                *weight = cubic(((k + low) as f64 - center + 0.5) * inverse);
                total += *weight;
            }
            if total != 0.0 {
                for weight in row.iter_mut() {
                    *weight /= total;
                }
            }
            first.push(low);
            count.push(high - low);
        }
        let axis = Self {
            first,
            count,
            stride,
            bits: 0,
            whole: Vec::new(),
            low: Vec::new(),
            high: None,
        };
        (axis, weights)
    }

    /// Output positions.
    pub(super) fn len(&self) -> usize {
        self.first.len()
    }
}
