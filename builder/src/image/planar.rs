//! Sixteen interleaved RGB pixels to three runs of sixteen bytes: the inner step of patching.
//!
//! Owns that one step, in plain Rust and in SSSE3. Invariant: both give the same bytes.

/// Pixels taken apart at once.
pub(super) const PIXELS: usize = 16;

/// Takes pixels apart with the best code this processor has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Splitter {
    #[cfg(target_arch = "x86_64")]
    ssse3: bool,
}

impl Splitter {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            ssse3: std::is_x86_feature_detected!("ssse3"),
        }
    }

    /// Red, green and blue of sixteen pixels.
    #[inline]
    pub(super) fn split(self, pixels: &[u8; 3 * PIXELS]) -> [[u8; PIXELS]; 3] {
        #[cfg(target_arch = "x86_64")]
        if self.ssse3 {
            #[expect(unsafe_code, reason = "SSSE3 intrinsics")]
            // SAFETY: `ssse3` is set only where the processor was found to have it.
            return unsafe { split_ssse3(pixels) };
        }
        split_scalar(pixels)
    }
}

fn split_scalar(pixels: &[u8; 3 * PIXELS]) -> [[u8; PIXELS]; 3] {
    let mut planes = [[0; PIXELS]; 3];
    for (i, pixel) in pixels.chunks_exact(3).enumerate() {
        for (plane, byte) in planes.iter_mut().zip(pixel) {
            plane[i] = *byte;
        }
    }
    planes
}

/// For each plane and each third of the input: which byte goes where, -128 for none.
const SHUFFLES: [[[i8; PIXELS]; 3]; 3] = {
    let mut table = [[[-128i8; PIXELS]; 3]; 3];
    let mut at = 0;
    while at < 3 * PIXELS {
        table[at % 3][at / PIXELS][at / 3] = (at % PIXELS) as i8;
        at += 1;
    }
    table
};

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
#[expect(unsafe_code, reason = "SSSE3 intrinsics")]
fn split_ssse3(pixels: &[u8; 3 * PIXELS]) -> [[u8; PIXELS]; 3] {
    use std::arch::x86_64::*;
    let mut planes = [[0; PIXELS]; 3];
    // SAFETY: every load and store is of 16 bytes inside an array of at least that length.
    unsafe {
        let third = |i: usize| _mm_loadu_si128(pixels.as_ptr().add(i * PIXELS).cast());
        let thirds = [third(0), third(1), third(2)];
        for (plane, shuffles) in planes.iter_mut().zip(&SHUFFLES) {
            let pick = |i: usize| {
                _mm_shuffle_epi8(thirds[i], _mm_loadu_si128(shuffles[i].as_ptr().cast()))
            };
            let bytes = _mm_or_si128(_mm_or_si128(pick(0), pick(1)), pick(2));
            _mm_storeu_si128(plane.as_mut_ptr().cast(), bytes);
        }
    }
    planes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_codes_agree() {
        let pixels: [u8; 48] = std::array::from_fn(|i| i as u8);
        let planes = split_scalar(&pixels);
        assert_eq!(planes[1][2], 7);
        assert_eq!(Splitter::new().split(&pixels), planes);
    }
}
