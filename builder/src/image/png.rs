//! PNG: the png crate for the stream, Pillow's rules for what the samples mean.
//!
//! Owns the conversion of every colour type and depth to 8-bit RGB, and transparency in all its
//! forms. Animations count as their default image. Invariant: no sample is scaled where Pillow
//! clamps it, nor clamped where Pillow cuts it.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, DecodeOptions, Decoder, DecodingError, Info};

use super::decode::{Pixels, blend};
use super::header::{Header, corrupt, truncated};
use super::profile::AlphaRule;
use super::reserve;
use crate::reject::Reject;

/// Decodes into `rgb`, through `raw` where the samples need converting.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    alpha: AlphaRule,
    rgb: &mut Vec<u8>,
    raw: &mut Vec<u8>,
) -> Result<Pixels, Reject> {
    let mut options = DecodeOptions::default();
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    options.set_ignore_adler32(false);
    let mut reader = Decoder::new_with_options(Cursor::new(bytes), options)
        .read_info()
        .map_err(|error| reject(&error))?;
    if reader.info().size() != (header.width, header.height) {
        return Err(corrupt("PNG"));
    }
    let size = reader.output_buffer_size().ok_or_else(|| corrupt("PNG"))?;
    reserve(rgb, header.pixels() * 3);
    let plain =
        (reader.info().color_type, reader.info().bit_depth) == (ColorType::Rgb, BitDepth::Eight);
    let target = if plain {
        &mut rgb[..size]
    } else {
        reserve(raw, size);
        &mut raw[..size]
    };
    let frame = reader.next_frame(target).map_err(|error| reject(&error))?;
    if (frame.width, frame.height) != (header.width, header.height) {
        return Err(corrupt("PNG"));
    }
    let pixels = &mut rgb[..header.pixels() * 3];
    let key = if plain {
        let key = rgb_key(reader.info());
        if let (AlphaRule::White, Some(key)) = (alpha, key) {
            super::decode::whiten(pixels, key);
        }
        key
    } else {
        let width = header.width as usize;
        convert(
            reader.info(),
            &raw[..size],
            frame.line_size,
            width,
            alpha,
            pixels,
        )
    };
    Ok(Pixels {
        width: header.width,
        height: header.height,
        key,
    })
}

fn reject(error: &DecodingError) -> Reject {
    match error {
        DecodingError::IoError(_) => truncated(),
        _ => corrupt("PNG"),
    }
}

/// Low bytes of the transparent colour of an RGB image: Pillow compares with these, at any depth.
fn rgb_key(info: &Info<'_>) -> Option<[u8; 3]> {
    let trns = info.trns.as_deref()?;
    match *trns {
        [_, r, _, g, _, b, ..] => Some([r, g, b]),
        // The png crate keeps the low bytes alone at 8 bits.
        [r, g, b, ..] => Some([r, g, b]),
        _ => None,
    }
}

/// Converts raw samples; returns the colour that stays transparent in Pillow's RGB image.
fn convert(
    info: &Info<'_>,
    raw: &[u8],
    line: usize,
    width: usize,
    alpha: AlphaRule,
    rgb: &mut [u8],
) -> Option<[u8; 3]> {
    let rows = raw.chunks_exact(line).zip(rgb.chunks_exact_mut(width * 3));
    let white = alpha == AlphaRule::White;
    match (info.color_type, info.bit_depth) {
        (ColorType::Rgb, _) => {
            for (from, to) in rows {
                for (sample, byte) in from.chunks_exact(2).zip(to) {
                    *byte = sample[0];
                }
            }
            let key = rgb_key(info);
            if let (true, Some(key)) = (white, key) {
                super::decode::whiten(rgb, key);
            }
            key
        }
        (ColorType::Indexed, depth) => {
            let (table, key) = palette(info, white);
            for (from, to) in rows {
                for (index, pixel) in samples(from, depth).zip(to.chunks_exact_mut(3)) {
                    pixel.copy_from_slice(&table[usize::from(index)]);
                }
            }
            key
        }
        (ColorType::Grayscale, BitDepth::Sixteen) => {
            let clear = info.trns.as_deref().and_then(|trns| trns.get(1).copied());
            for (from, to) in rows {
                for (sample, pixel) in from.chunks_exact(2).zip(to.chunks_exact_mut(3)) {
                    // Pillow's 16-bit grey clamps, it does not scale.
                    let level = if sample[0] == 0 { sample[1] } else { 255 };
                    pixel.fill(if white && clear == Some(level) {
                        255
                    } else {
                        level
                    });
                }
            }
            number_key(clear)
        }
        (ColorType::Grayscale, depth) => {
            let (table, key) = greys(info, depth, white);
            for (from, to) in rows {
                for (index, pixel) in samples(from, depth).zip(to.chunks_exact_mut(3)) {
                    pixel.fill(table[usize::from(index)]);
                }
            }
            key
        }
        (color, depth) => {
            with_alpha(rows, color, depth, alpha);
            None
        }
    }
}

/// Grey and RGB with an alpha channel of its own, at 8 or 16 bits.
fn with_alpha<'a>(
    rows: impl Iterator<Item = (&'a [u8], &'a mut [u8])>,
    color: ColorType,
    depth: BitDepth,
    alpha: AlphaRule,
) {
    let grey = color == ColorType::GrayscaleAlpha;
    let step = if depth == BitDepth::Sixteen { 2 } else { 1 };
    // Pillow opens 16-bit grey with alpha as RGBA, 8-bit as LA.
    let white = match alpha {
        AlphaRule::Drop => false,
        AlphaRule::White => true,
        AlphaRule::WhiteIfRgba => !grey || step == 2,
    };
    let channels = if grey { 2 } else { 4 };
    for (from, to) in rows {
        for (pixel, out) in from
            .chunks_exact(channels * step)
            .zip(to.chunks_exact_mut(3))
        {
            for (channel, byte) in out.iter_mut().enumerate() {
                let color = pixel[if grey { 0 } else { channel * step }];
                *byte = if white {
                    blend(color, pixel[(channels - 1) * step])
                } else {
                    color
                };
            }
        }
    }
}

/// The values of packed samples of one row.
fn samples(row: &[u8], depth: BitDepth) -> impl Iterator<Item = u8> {
    let bits = (depth as u8).min(8);
    let per_byte = 8 / bits;
    let mask = if bits == 8 { 0xff } else { (1 << bits) - 1 };
    row.iter().flat_map(move |byte| {
        (0..per_byte).map(move |i| (byte >> ((per_byte - 1 - i) * bits)) & mask)
    })
}

/// Grey level of each sample value, and the colour that stays transparent.
fn greys(info: &Info<'_>, depth: BitDepth, white: bool) -> ([u8; 256], Option<[u8; 3]>) {
    let scale = match depth {
        BitDepth::One => 255,
        BitDepth::Two => 85,
        BitDepth::Four => 17,
        _ => 1u8,
    };
    let mut table = [0; 256];
    for (value, level) in table.iter_mut().enumerate() {
        *level = (value as u8).wrapping_mul(scale);
    }
    let clear = info.trns.as_deref().and_then(|trns| trns.first().copied());
    // Pillow compares the value with scaled pixels, and scales it itself at one bit only.
    let (clear, key) = match depth {
        BitDepth::One => {
            let level = clear.map(|value| if value == 0 { 0 } else { 255 });
            (level, number_key(level))
        }
        _ => (clear, clear.map(|level| [level; 3])),
    };
    for level in &mut table {
        if white && clear == Some(*level) {
            *level = 255;
        }
    }
    (table, key)
}

/// The transparent colour of modes for which Pillow keeps a bare number: it stands for red, and
/// green and blue are 0, so among greys only black can match.
fn number_key(clear: Option<u8>) -> Option<[u8; 3]> {
    clear.filter(|level| *level == 0).map(|_| [0; 3])
}

/// Colour of each index, blended if `white`, and the colour that stays transparent: only a single
/// fully transparent entry does.
fn palette(info: &Info<'_>, white: bool) -> ([[u8; 3]; 256], Option<[u8; 3]>) {
    let mut table = [[0; 3]; 256];
    let colors = info.palette.as_deref().unwrap_or_default();
    for (entry, color) in table.iter_mut().zip(colors.chunks_exact(3)) {
        entry.copy_from_slice(color);
    }
    let trns = info.trns.as_deref().unwrap_or_default();
    let clear = |alpha: &&u8| **alpha == 0;
    let single =
        trns.iter().all(|alpha| matches!(alpha, 0 | 255)) && trns.iter().filter(clear).count() == 1;
    let key = trns
        .iter()
        .position(|alpha| *alpha == 0)
        .filter(|_| single)
        .and_then(|index| table.get(index).copied());
    if white {
        for (entry, alpha) in table.iter_mut().zip(trns) {
            *entry = entry.map(|color| blend(color, *alpha));
        }
    }
    (table, key)
}
