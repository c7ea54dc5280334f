//! Bytes of patches to the values that a model takes.
//!
//! Owns the float table and its rounding to bfloat16. Invariant: row `r` of the result is, for each channel, the
//! channel's table entries of the patch's bytes, `temporal` times over (section 2 of `formats/FORMAT.md`).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Channels of a patch.
const CHANNELS: usize = 3;

/// What a byte of a patch becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pixels {
    /// The byte itself, the frame not repeated.
    U8,
    /// The table's float32.
    F32,
    /// The table's float32 rounded to the nearest bfloat16, ties to even.
    #[default]
    BF16,
}

impl Pixels {
    /// Bytes of one value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 => 4,
            Self::BF16 => 2,
        }
    }

    /// How often each frame stands in the result.
    #[must_use]
    pub fn frames(self, temporal: usize) -> usize {
        match self {
            Self::U8 => 1,
            Self::F32 | Self::BF16 => temporal,
        }
    }

    /// PyTorch's name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::F32 => "float32",
            Self::BF16 => "bfloat16",
        }
    }
}

impl fmt::Display for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pixels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::U8, Self::F32, Self::BF16]
            .into_iter()
            .find(|pixels| pixels.name() == text)
            .ok_or_else(|| format!("pixels are uint8, float32 or bfloat16, not `{text}`"))
    }
}

/// The value of each byte, for each channel. A clone is a reference.
#[derive(Clone)]
pub struct FloatTable(Arc<Entries>);

struct Entries {
    f32: [[f32; 256]; CHANNELS],
    bf16: [[u16; 256]; CHANNELS],
}

impl fmt::Debug for FloatTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FloatTable").finish_non_exhaustive()
    }
}

impl PartialEq for FloatTable {
    /// Bit for bit: NaN equals itself, the two zeros differ.
    fn eq(&self, other: &Self) -> bool {
        let bits = |table: &Self| table.0.f32.map(|row| row.map(f32::to_bits));
        Arc::ptr_eq(&self.0, &other.0) || bits(self) == bits(other)
    }
}

impl Eq for FloatTable {}

impl FloatTable {
    /// From the values.
    #[must_use]
    pub fn new(table: [[f32; 256]; CHANNELS]) -> Self {
        Self(Arc::new(Entries {
            bf16: table.map(|row| row.map(to_bf16)),
            f32: table,
        }))
    }

    /// The float32 values.
    #[must_use]
    pub fn f32(&self) -> &[[f32; 256]; CHANNELS] {
        &self.0.f32
    }

    /// The bits of the bfloat16 values.
    #[must_use]
    pub fn bf16(&self) -> &[[u16; 256]; CHANNELS] {
        &self.0.bf16
    }
}

/// Round to nearest, ties to even; a NaN stays one.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    // Cannot overflow: the largest that is no NaN is infinity, whose low half is zero.
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Expands patches of `patch_area` bytes a channel to float32.
///
/// # Panics
/// When `patches` is not made of whole patches or `out` has not `temporal` values for each byte.
pub fn expand_f32(
    table: &FloatTable,
    patches: &[u8],
    patch_area: usize,
    temporal: usize,
    out: &mut [f32],
) {
    expand(table.f32(), patches, patch_area, temporal, out);
}

/// Expands patches of `patch_area` bytes a channel to the bits of bfloat16.
///
/// # Panics
/// When `patches` is not made of whole patches or `out` has not `temporal` values for each byte.
pub fn expand_bf16(
    table: &FloatTable,
    patches: &[u8],
    patch_area: usize,
    temporal: usize,
    out: &mut [u16],
) {
    expand(table.bf16(), patches, patch_area, temporal, out);
}

/// Expands patches of `patch_area` bytes a channel to the bytes of `pixels` in memory; `out` needs no alignment.
/// The table is only needed for floats.
///
/// # Panics
/// When `patches` is not made of whole patches, or `out` has not the bytes of `pixels.frames(temporal)` values for
/// each byte of them.
pub fn expand_bytes(
    table: &FloatTable,
    pixels: Pixels,
    patches: &[u8],
    patch_area: usize,
    temporal: usize,
    out: &mut [u8],
) {
    match pixels {
        Pixels::U8 => out.copy_from_slice(patches),
        Pixels::F32 => {
            let (values, rest) = out.as_chunks_mut::<4>();
            assert!(rest.is_empty(), "float32 values have 4 bytes");
            let table = table.f32().map(|row| row.map(f32::to_ne_bytes));
            expand(&table, patches, patch_area, temporal, values);
        }
        Pixels::BF16 => {
            let (values, rest) = out.as_chunks_mut::<2>();
            assert!(rest.is_empty(), "bfloat16 values have 2 bytes");
            let table = table.bf16().map(|row| row.map(u16::to_ne_bytes));
            expand(&table, patches, patch_area, temporal, values);
        }
    }
}

fn expand<T: Copy>(
    table: &[[T; 256]; CHANNELS],
    patches: &[u8],
    patch_area: usize,
    temporal: usize,
    out: &mut [T],
) {
    assert_eq!(
        patches.len() % (CHANNELS * patch_area).max(1),
        0,
        "whole patches"
    );
    assert_eq!(out.len(), patches.len() * temporal, "the expanded size");
    if out.is_empty() {
        return;
    }
    let planes = patches.chunks_exact(patch_area);
    let frames = out.chunks_exact_mut(patch_area * temporal);
    for ((plane, frames), row) in planes.zip(frames).zip(table.iter().cycle()) {
        let (first, others) = frames.split_at_mut(patch_area);
        for (value, byte) in first.iter_mut().zip(plane) {
            *value = row[usize::from(*byte)];
        }
        // The first frame is still in the nearest cache: a copy costs less than another look-up.
        for frame in others.chunks_exact_mut(patch_area) {
            frame.copy_from_slice(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> FloatTable {
        FloatTable::new(std::array::from_fn(|channel| {
            std::array::from_fn(|byte| (byte as f32 - 127.3) / (31.7 + channel as f32))
        }))
    }

    #[test]
    fn rows_are_channel_frame_y_x() {
        let table = table();
        for (area, temporal) in [(1, 1), (4, 2), (196, 2), (256, 2), (16, 3)] {
            let patches: Vec<u8> = (0..5 * 3 * area).map(|i| (i * 37 % 251) as u8).collect();
            let mut floats = vec![0.0; patches.len() * temporal];
            let mut halves = vec![0; patches.len() * temporal];
            expand_f32(&table, &patches, area, temporal, &mut floats);
            expand_bf16(&table, &patches, area, temporal, &mut halves);
            let mut at = 0;
            for patch in patches.chunks_exact(3 * area) {
                for channel in 0..3 {
                    for _ in 0..temporal {
                        for i in 0..area {
                            let byte = usize::from(patch[channel * area + i]);
                            assert_eq!(floats[at], table.f32()[channel][byte]);
                            assert_eq!(halves[at], table.bf16()[channel][byte]);
                            at += 1;
                        }
                    }
                }
            }
            // One byte off any alignment.
            for (pixels, expected) in [
                (Pixels::U8, patches.clone()),
                (
                    Pixels::F32,
                    floats.iter().flat_map(|v| v.to_ne_bytes()).collect(),
                ),
                (
                    Pixels::BF16,
                    halves.iter().flat_map(|v| v.to_ne_bytes()).collect(),
                ),
            ] {
                let mut out = vec![0; expected.len() + 1];
                expand_bytes(&table, pixels, &patches, area, temporal, &mut out[1..]);
                assert_eq!(out[1..], expected);
            }
        }
        expand_f32(&table, &[], 256, 2, &mut []);
    }

    #[test]
    fn bfloat16_rounds_to_nearest_even() {
        for (bits, rounded) in [
            (0x3f80_0000u32, 0x3f80u16),
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f80_8001, 0x3f81),
            (0x3f81_8000, 0x3f82),
            (0xbf81_8000, 0xbf82),
            (0x7f7f_ffff, 0x7f80),
            (0x7f80_0000, 0x7f80),
            (0x8000_0000, 0x8000),
            (0x0000_8000, 0x0000),
            (0x0000_8001, 0x0001),
            (0x7f80_0001, 0x7fc0),
        ] {
            assert_eq!(to_bf16(f32::from_bits(bits)), rounded, "{bits:08x}");
        }
        // Against the definition: no other bfloat16 is nearer.
        for i in 0..20_000u32 {
            let value = f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0xbfff_ffff);
            let near = |bits: u16| {
                (f64::from(f32::from_bits(u32::from(bits) << 16)) - f64::from(value)).abs()
            };
            let rounded = to_bf16(value);
            assert!(near(rounded) <= near(rounded ^ 1), "{value}");
            assert!(near(rounded) <= near(rounded + 1), "{value}");
        }
    }

    #[test]
    fn tables_are_equal_bit_for_bit() {
        let mut other = *table().f32();
        assert_eq!(FloatTable::new(other), table());
        other[2][255] = -other[2][255];
        assert_ne!(FloatTable::new(other), table());
    }

    #[test]
    fn pixels_are_named_as_torch_names_them() {
        for pixels in [Pixels::U8, Pixels::F32, Pixels::BF16] {
            assert_eq!(pixels.to_string().parse(), Ok(pixels));
        }
        assert!(
            "float16"
                .parse::<Pixels>()
                .unwrap_err()
                .contains("`float16`")
        );
    }
}
