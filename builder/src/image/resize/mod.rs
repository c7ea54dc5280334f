//! Resizing: the two exact bicubic kernels, torchvision's and Pillow's.
//!
//! Owns the passes, their order and the choice between scalar and AVX2 code. The non-exact kernel
//! is elsewhere. Invariant: the choice of code never shows in a byte.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;
mod weights;

use super::profile::PassOrder;
use super::{SLACK_BYTES, reserve};
use weights::Axis;

/// Number of channels: images are RGB, interleaved.
const CHANNELS: usize = 3;

/// An exact kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exact {
    /// torchvision's uint8 kernel: 16-bit weights, horizontal pass first.
    Torchvision,
    /// Pillow's kernel: 22-bit weights, passes in this order.
    Pillow(PassOrder),
}

/// Which code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Plain Rust.
    Scalar,
    /// AVX2 where the processor has it, plain Rust elsewhere.
    Best,
}

impl Code {
    fn use_avx2(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            self == Self::Best && std::is_x86_feature_detected!("avx2")
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = self;
            false
        }
    }
}

/// Resizes `src` (`from` = height x width, RGB) into `dst` (`to` = height x width); `between` is
/// scratch. `dst` is grown to hold the result and [`SLACK_BYTES`] more; if the size does not change
/// the pixels are copied.
///
/// # Panics
/// If `src` is shorter than `from` demands or a side is zero.
pub fn resize(
    src: &[u8],
    from: (usize, usize),
    dst: &mut Vec<u8>,
    to: (usize, usize),
    between: &mut Vec<u8>,
    kernel: Exact,
    code: Code,
) {
    let vertical_first = match kernel {
        Exact::Torchvision => false,
        Exact::Pillow(order) => order.vertical_first(from, to),
    };
    assert!(from.0 > 0 && from.1 > 0 && to.0 > 0 && to.1 > 0);
    assert!(src.len() >= from.0 * from.1 * CHANNELS);
    let pass = Pass { kernel, code };
    match (from.0 != to.0, from.1 != to.1) {
        (false, false) => {
            let bytes = from.0 * from.1 * CHANNELS;
            reserve(dst, bytes);
            dst[..bytes].copy_from_slice(&src[..bytes]);
        }
        (false, true) => pass.horizontal(src, from, dst, to.1),
        (true, false) => pass.vertical(src, from, dst, to.0),
        (true, true) if vertical_first => {
            pass.vertical(src, from, between, to.0);
            pass.horizontal(between, (to.0, from.1), dst, to.1);
        }
        (true, true) => {
            pass.horizontal(src, from, between, to.1);
            pass.vertical(between, (from.0, to.1), dst, to.0);
        }
    }
}

struct Pass {
    kernel: Exact,
    code: Code,
}

impl Pass {
    fn axis(&self, size_in: usize, size_out: usize) -> Axis {
        match self.kernel {
            Exact::Torchvision => Axis::torchvision(size_in, size_out),
            Exact::Pillow(_) => Axis::pillow(size_in, size_out),
        }
    }

    fn horizontal(&self, src: &[u8], from: (usize, usize), dst: &mut Vec<u8>, width: usize) {
        let axis = self.axis(from.1, width);
        reserve(dst, from.0 * width * CHANNELS);
        let dst = &mut dst[..from.0 * width * CHANNELS];
        // The vector code reads whole groups of pixels, up to 16 bytes past the last one.
        #[cfg(target_arch = "x86_64")]
        if self.code.use_avx2() && src.len() >= from.0 * from.1 * CHANNELS + SLACK_BYTES {
            avx2::horizontal(src, from, dst, &axis);
            return;
        }
        scalar::horizontal(src, from, dst, &axis);
    }

    fn vertical(&self, src: &[u8], from: (usize, usize), dst: &mut Vec<u8>, height: usize) {
        let axis = self.axis(from.0, height);
        let line = from.1 * CHANNELS;
        reserve(dst, height * line);
        let dst = &mut dst[..height * line];
        #[cfg(target_arch = "x86_64")]
        if self.code.use_avx2() && line >= avx2::COLUMNS {
            avx2::vertical(&src[..from.0 * line], line, dst, &axis);
            return;
        }
        scalar::vertical(&src[..from.0 * line], line, dst, &axis);
    }
}

#[cfg(test)]
mod tests;
