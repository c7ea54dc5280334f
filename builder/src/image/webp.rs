//! WebP: still images through image-webp (memory-safe, equal to libwebp in its pixels).
//!
//! Owns the chunk walk. Animations are refused. Invariant: the frame inside an extended file has
//! the size of its canvas, so the decoder allocates no more than the limits allow.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::decode::{Pixels, blend};
use super::header::{Header, corrupt, truncated};
use super::profile::AlphaRule;
use super::reserve;
use crate::reject::{Reason, Reject};

const ANIMATION_FLAG: u8 = 0x02;

/// The chunks of a WebP file: (name, payload). A last chunk that ends early is given as far as it goes.
pub(super) fn chunks(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut at = 12usize;
    std::iter::from_fn(move || {
        let name = bytes.get(at..at + 4)?;
        let field = bytes.get(at + 4..at + 8)?;
        let length = u32::from_le_bytes([field[0], field[1], field[2], field[3]]) as usize;
        let start = at + 8;
        let end = start.checked_add(length)?;
        at = end.checked_add(length & 1)?;
        Some((name, &bytes[start..end.min(bytes.len())]))
    })
}

/// (width, height), the same in canvas and frame.
pub(super) fn dimensions(bytes: &[u8]) -> Result<(u32, u32), Reject> {
    let (name, payload) = chunks(bytes).next().ok_or_else(truncated)?;
    if name != b"VP8X" {
        return frame(name, payload)?.ok_or_else(|| corrupt("WebP"));
    }
    let [flags, _, _, _, w0, w1, w2, h0, h1, h2, ..] = *payload else {
        return Err(truncated());
    };
    if flags & ANIMATION_FLAG != 0 {
        return Err(Reject::new(
            Reason::UnsupportedImage,
            "animated WebP is not supported",
        ));
    }
    let canvas = (
        1 + u32::from_le_bytes([w0, w1, w2, 0]),
        1 + u32::from_le_bytes([h0, h1, h2, 0]),
    );
    // A prefix may end before the frame: then the canvas speaks alone, and decoding will refuse it.
    for (name, payload) in chunks(bytes).skip(1) {
        if let Ok(Some(inner)) = frame(name, payload)
            && inner != canvas
        {
            return Err(corrupt("WebP"));
        }
    }
    Ok(canvas)
}

/// The size in a frame chunk; `None` if the chunk is none.
fn frame(name: &[u8], payload: &[u8]) -> Result<Option<(u32, u32)>, Reject> {
    match name {
        b"VP8 " => {
            let [_, _, _, _, _, _, w0, w1, h0, h1, ..] = *payload else {
                return Err(truncated());
            };
            let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
            Ok(Some((side(w0, w1), side(h0, h1))))
        }
        b"VP8L" => {
            let [_, b0, b1, b2, b3, ..] = *payload else {
                return Err(truncated());
            };
            let packed = u32::from_le_bytes([b0, b1, b2, b3]);
            Ok(Some((1 + (packed & 0x3fff), 1 + ((packed >> 14) & 0x3fff))))
        }
        _ => Ok(None),
    }
}

/// Decodes into `rgb`, through `raw` if there is an alpha channel.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    alpha: AlphaRule,
    rgb: &mut Vec<u8>,
    raw: &mut Vec<u8>,
) -> Result<Pixels, Reject> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| reject(&error))?;
    if decoder.is_animated() || decoder.dimensions() != (header.width, header.height) {
        return Err(corrupt("WebP"));
    }
    let pixels = header.pixels();
    reserve(rgb, pixels * 3);
    if decoder.has_alpha() {
        reserve(raw, pixels * 4);
        let rgba = &mut raw[..pixels * 4];
        decoder.read_image(rgba).map_err(|error| reject(&error))?;
        for (from, to) in rgba.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
            for (byte, color) in to.iter_mut().zip(from) {
                *byte = match alpha {
                    AlphaRule::Drop => *color,
                    AlphaRule::White | AlphaRule::WhiteIfRgba => blend(*color, from[3]),
                };
            }
        }
    } else {
        decoder
            .read_image(&mut rgb[..pixels * 3])
            .map_err(|error| reject(&error))?;
    }
    Ok(Pixels {
        width: header.width,
        height: header.height,
        key: None,
    })
}

fn reject(error: &DecodingError) -> Reject {
    match error {
        DecodingError::IoError(_) => truncated(),
        _ => corrupt("WebP"),
    }
}
