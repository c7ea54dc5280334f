//! Resizing: the two exact bicubic kernels, torchvision's and Pillow's.
//!
//! Owns the passes, their order and the choice between scalar, AVX2 and AVX-512 code. The non-exact kernel
//! is elsewhere. Invariant: the choice of code never shows in a byte.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;
mod weights;

use std::ops::Range;

use super::profile::PassOrder;
use super::{SLACK_BYTES, reserve};
use weights::Axis;

/// Number of channels: images are RGB, interleaved.
const CHANNELS: usize = 3;

/// Rows that the vector code filters at once, at least.
const ROWS: usize = 4;

/// Rows of the result made at once: what lies between the passes stays in the second cache.
pub(super) const BLOCK: usize = 16;

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
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit vectors, with permutes of bytes (VBMI) and dot products (VNNI): Ice Lake, Zen 4 and later ones.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Code {
    /// What this processor can run, the best one last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Scalar];
        #[cfg(target_arch = "x86_64")]
        if avx2::is_there() {
            all.push(Self::Avx2);
            if avx512::is_there() {
                all.push(Self::Avx512);
            }
        }
        all
    }

    /// The best that this processor can run.
    #[must_use]
    pub fn best() -> Self {
        Self::all().pop().unwrap_or(Self::Scalar)
    }
}

/// Resizes `src` (`from` = height x width, RGB) into `dst` (`to` = height x width); `between` is
/// scratch. `dst` is grown to hold the result and [`SLACK_BYTES`] more; if the size does not change
/// the pixels are copied.
///
/// # Panics
/// If `src` is shorter than `from` demands, a side is zero, or the processor cannot run `code`.
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
        (true, true) => pass.both(src, from, dst, to, between),
    }
}

struct Pass {
    kernel: Exact,
    code: Code,
}

/// The axis of a horizontal pass.
struct Across {
    axis: Axis,
    /// Its windows as the widest code takes them; none where other code runs.
    #[cfg(target_arch = "x86_64")]
    blocks: Option<avx512::Blocks>,
}

impl Pass {
    fn axis(&self, size_in: usize, size_out: usize) -> Axis {
        match self.kernel {
            Exact::Torchvision => Axis::torchvision(size_in, size_out),
            Exact::Pillow(_) => Axis::pillow(size_in, size_out),
        }
    }

    /// The axis of the horizontal pass.
    fn across(&self, size_in: usize, size_out: usize) -> Across {
        let axis = self.axis(size_in, size_out);
        Across {
            #[cfg(target_arch = "x86_64")]
            blocks: (self.code == Code::Avx512)
                .then(|| avx512::Blocks::new(&axis))
                .flatten(),
            axis,
        }
    }

    fn horizontal(&self, src: &[u8], from: (usize, usize), dst: &mut Vec<u8>, width: usize) {
        let across = self.across(from.1, width);
        reserve(dst, from.0 * width * CHANNELS);
        self.rows(src, from, &mut dst[..from.0 * width * CHANNELS], &across);
    }

    fn vertical(&self, src: &[u8], from: (usize, usize), dst: &mut Vec<u8>, height: usize) {
        let axis = self.axis(from.0, height);
        let line = from.1 * CHANNELS;
        reserve(dst, height * line);
        let src = &src[..from.0 * line];
        self.columns(src, line, &mut dst[..height * line], &axis, 0..height, 0);
    }

    /// The horizontal pass, then the vertical one, some rows of the result at a time. `between` holds the rows of the
    /// source that the next of them need, filtered.
    fn both(
        &self,
        src: &[u8],
        from: (usize, usize),
        dst: &mut Vec<u8>,
        to: (usize, usize),
        between: &mut Vec<u8>,
    ) {
        let (across, down) = (self.across(from.1, to.1), self.axis(from.0, to.0));
        let (line_in, line) = (from.1 * CHANNELS, to.1 * CHANNELS);
        let blocks = (0..to.0).step_by(BLOCK).map(|start| {
            let end = (start + BLOCK).min(to.0);
            // Windows follow each other as their positions do.
            let needed = down.first[start]..down.first[end - 1] + down.count[end - 1];
            (start..end, needed)
        });
        let most = blocks.clone().map(|(_, needed)| needed.len()).max();
        reserve(between, most.unwrap_or(0) * line);
        reserve(dst, to.0 * line);
        let (mut base, mut done) = (0, 0);
        for (rows, needed) in blocks {
            let kept = needed.start.min(done);
            between.copy_within((kept - base) * line..(done - base) * line, 0);
            done = done.max(needed.start);
            base = needed.start;
            // A few rows are made again where the vector code needs more of them.
            let first = done.min(needed.end.saturating_sub(ROWS)).max(base);
            let fresh = &mut between[(first - base) * line..(needed.end - base) * line];
            let source = &src[first * line_in..];
            self.rows(source, (needed.end - first, from.1), fresh, &across);
            done = needed.end;
            let out = &mut dst[rows.start * line..rows.end * line];
            self.columns(
                &between[..needed.len() * line],
                line,
                out,
                &down,
                rows,
                base,
            );
        }
    }

    /// Filters along each row.
    fn rows(&self, src: &[u8], from: (usize, usize), dst: &mut [u8], across: &Across) {
        // The vector code reads whole groups of pixels, up to a vector past the last one.
        #[cfg(target_arch = "x86_64")]
        if self.code != Code::Scalar
            && from.0 >= ROWS
            && src.len() >= from.0 * from.1 * CHANNELS + SLACK_BYTES
        {
            match &across.blocks {
                Some(blocks) => avx512::horizontal(src, from, dst, &across.axis, blocks),
                None => avx2::horizontal(src, from, dst, &across.axis),
            }
            return;
        }
        scalar::horizontal(src, from, dst, &across.axis);
    }

    /// Filters along each column, for the output rows `rows` of the axis; `src` begins with its row `base`.
    fn columns(
        &self,
        src: &[u8],
        line: usize,
        dst: &mut [u8],
        axis: &Axis,
        rows: Range<usize>,
        base: usize,
    ) {
        let one_row = match self.code {
            #[cfg(target_arch = "x86_64")]
            Code::Avx512 if line >= avx512::COLUMNS => avx512::columns,
            #[cfg(target_arch = "x86_64")]
            Code::Avx2 if line >= avx2::COLUMNS => avx2::columns,
            _ => scalar::columns,
        };
        for (y, out) in rows.zip(dst.chunks_exact_mut(line)) {
            let window = &src[(axis.first[y] - base) * line..][..axis.count[y] * line];
            one_row(window, line, out, axis, y);
        }
    }
}

#[cfg(test)]
mod tests;
