//! Lines of interleaved RGB pixels to lines of planes: the inner step of patching, in plain Rust and in AVX2.
//!
//! Owns the step for one patch. Invariant: both codes give the same bytes.

/// Side of the patches that the vector code takes: one line of a plane is one vector lane.
pub(super) const LANE: usize = 16;

/// How patches are taken out of pixels on this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Code {
    /// The best code for patches of `side` pixels.
    pub(super) fn best(side: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if side == LANE && std::is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        let _ = side;
        Self::Scalar
    }

    /// Writes the patch at the start of `pixels`, whose lines are `stride` bytes apart: three planes of
    /// `side` lines.
    ///
    /// # Panics
    /// If `pixels` end before the patch does, or `patch` is not `3 * side * side` bytes.
    pub(super) fn patch(self, pixels: &[u8], stride: usize, side: usize, patch: &mut [u8]) {
        let pixels = &pixels[..(side - 1) * stride + 3 * side];
        assert!(patch.len() == 3 * side * side && stride >= 3 * side);
        #[cfg(target_arch = "x86_64")]
        if self == Self::Avx2 {
            assert!(side == LANE);
            #[expect(unsafe_code, reason = "AVX2 intrinsics")]
            // SAFETY: AVX2 was found when this code was chosen; the lengths were checked above.
            unsafe {
                patch_avx2(pixels, stride, patch);
            }
            return;
        }
        scalar(pixels, stride, side, patch);
    }
}

fn scalar(pixels: &[u8], stride: usize, side: usize, patch: &mut [u8]) {
    for (channel, plane) in patch.chunks_exact_mut(side * side).enumerate() {
        for (line, out) in pixels.chunks(stride).zip(plane.chunks_exact_mut(side)) {
            for (byte, pixel) in out.iter_mut().zip(line.chunks_exact(3)) {
                *byte = pixel[channel];
            }
        }
    }
}

/// For each plane and each third of a line: which byte goes where, -128 for none. Twice, once a lane.
#[cfg(target_arch = "x86_64")]
const SHUFFLES: [[[i8; 2 * LANE]; 3]; 3] = {
    let mut table = [[[-128i8; 2 * LANE]; 3]; 3];
    let mut at = 0;
    while at < 3 * LANE {
        let from = (at % LANE) as i8;
        table[at % 3][at / LANE][at / 3] = from;
        table[at % 3][at / LANE][LANE + at / 3] = from;
        at += 1;
    }
    table
};

/// One patch of 16 by 16 pixels, two lines at a time: they are neighbours in their plane.
///
/// # Safety
/// AVX2 must be there; `pixels` must hold 15 strides and 48 bytes, `patch` 768 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[expect(unsafe_code, reason = "AVX2 intrinsics")]
unsafe fn patch_avx2(pixels: &[u8], stride: usize, patch: &mut [u8]) {
    use std::arch::x86_64::*;
    // SAFETY: every table is 32 bytes long; line `y + 1` is at most the 16th, of which 48 bytes are
    // read; each of the three planes is 256 bytes long, of which 32 from line `y` on are written.
    unsafe {
        // Loops, because closures with vector arguments are not inlined into the library's functions.
        let mut tables = [[_mm256_setzero_si256(); 3]; 3];
        for (tables, shuffles) in tables.iter_mut().zip(&SHUFFLES) {
            for (table, shuffle) in tables.iter_mut().zip(shuffles) {
                *table = _mm256_loadu_si256(shuffle.as_ptr().cast::<__m256i>());
            }
        }
        for y in (0..LANE).step_by(2) {
            let third = |third: usize| {
                let at = pixels.as_ptr().add(y * stride + third * LANE);
                let upper = _mm_loadu_si128(at.cast::<__m128i>());
                let lower = _mm_loadu_si128(at.add(stride).cast::<__m128i>());
                _mm256_set_m128i(lower, upper)
            };
            let thirds = [third(0), third(1), third(2)];
            for (plane, tables) in tables.iter().enumerate() {
                let pick = |i: usize| _mm256_shuffle_epi8(thirds[i], tables[i]);
                let bytes = _mm256_or_si256(_mm256_or_si256(pick(0), pick(1)), pick(2));
                let to = patch.as_mut_ptr().add(plane * LANE * LANE + y * LANE);
                _mm256_storeu_si256(to.cast::<__m256i>(), bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_codes_agree() {
        let stride = 3 * LANE + 7;
        let pixels: Vec<u8> = (0..15 * stride + 48)
            .map(|i| (i * 31 % 251) as u8)
            .collect();
        let mut patches = [vec![0; 768], vec![1; 768]];
        Code::Scalar.patch(&pixels, stride, LANE, &mut patches[0]);
        Code::best(LANE).patch(&pixels, stride, LANE, &mut patches[1]);
        assert_eq!(patches[0], patches[1]);
        // Green of the third pixel of the second line.
        assert_eq!(patches[0][256 + 16 + 2], pixels[stride + 7]);
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_patch_beyond_the_pixels_is_a_panic() {
        Code::best(LANE).patch(&[0; 767], 3 * LANE, LANE, &mut [0; 768]);
    }
}
