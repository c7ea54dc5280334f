//! GIF: the first frame, placed as Pillow places it.
//!
//! Owns the canvas rules: a frame that reaches beyond the logical screen enlarges it; what the
//! frame leaves uncovered is the transparent index, or index 0. Invariant: the frame lies inside
//! the canvas whose size passed the limits.

use ::gif::{ColorOutput, DecodeOptions, Decoder, DecodingError, MemoryLimit};

use super::decode::{Pixels, blend};
use super::header::{Header, corrupt, truncated};
use super::profile::AlphaRule;
use super::reserve;
use crate::reject::Reject;

/// Most bytes the decoder may keep of metadata; pixels go to our own buffer.
const METADATA_BYTES: u64 = 1 << 20;

fn open(bytes: &[u8]) -> Result<Decoder<&[u8]>, Reject> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    if let Some(limit) = std::num::NonZeroU64::new(METADATA_BYTES) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    options.read_info(bytes).map_err(|error| reject(&error))
}

/// (width, height) of the canvas with the first frame on it.
pub(super) fn dimensions(bytes: &[u8]) -> Result<(u32, u32), Reject> {
    let mut decoder = open(bytes)?;
    let screen = (u32::from(decoder.width()), u32::from(decoder.height()));
    let frame = decoder.next_frame_info().map_err(|error| reject(&error))?;
    let frame = frame.ok_or_else(truncated)?;
    Ok((
        screen.0.max(u32::from(frame.left) + u32::from(frame.width)),
        screen.1.max(u32::from(frame.top) + u32::from(frame.height)),
    ))
}

/// Decodes the first frame into `rgb`, through its indexes in `raw`.
pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    alpha: AlphaRule,
    rgb: &mut Vec<u8>,
    raw: &mut Vec<u8>,
) -> Result<Pixels, Reject> {
    let mut decoder = open(bytes)?;
    let frame = decoder.next_frame_info().map_err(|error| reject(&error))?;
    let frame = frame.ok_or_else(truncated)?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let (wide, high) = (usize::from(frame.width), usize::from(frame.height));
    let clear = frame.transparent;
    if wide == 0 || high == 0 {
        return Err(corrupt("GIF"));
    }
    reserve(raw, wide * high);
    reserve(rgb, header.pixels() * 3);
    decoder
        .read_into_buffer(&mut raw[..wide * high])
        .map_err(|error| reject(&error))?;
    let colors = decoder.palette().map_err(|error| reject(&error))?;
    let mut table = color_table(colors);
    let key = clear.map(|index| table[usize::from(index)]);
    if let (AlphaRule::White, Some(index)) = (alpha, clear) {
        let entry = &mut table[usize::from(index)];
        *entry = entry.map(|color| blend(color, 0));
    }
    let width = header.width as usize;
    let canvas = &mut rgb[..header.pixels() * 3];
    let ground = table[usize::from(clear.unwrap_or(0))];
    if (wide, high) != (width, header.height as usize) {
        for pixel in canvas.chunks_exact_mut(3) {
            pixel.copy_from_slice(&ground);
        }
    }
    for (y, row) in raw[..wide * high].chunks_exact(wide).enumerate() {
        let start = ((top + y) * width + left) * 3;
        let line = canvas
            .get_mut(start..start + wide * 3)
            .ok_or_else(|| corrupt("GIF"))?;
        for (index, pixel) in row.iter().zip(line.chunks_exact_mut(3)) {
            pixel.copy_from_slice(&table[usize::from(*index)]);
        }
    }
    Ok(Pixels {
        width: header.width,
        height: header.height,
        key,
    })
}

/// The colour of each index. Pillow takes a palette that counts the greys from black for none at
/// all; indexes beyond any other palette are black.
fn color_table(colors: &[u8]) -> [[u8; 3]; 256] {
    let greys = std::array::from_fn(|index| [index as u8; 3]);
    let entries = colors.chunks_exact(3);
    if entries
        .clone()
        .zip(&greys)
        .all(|(color, grey)| color == grey)
    {
        return greys;
    }
    let mut table = [[0; 3]; 256];
    for (entry, color) in table.iter_mut().zip(entries) {
        entry.copy_from_slice(color);
    }
    table
}

fn reject(error: &DecodingError) -> Reject {
    match error {
        DecodingError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            truncated()
        }
        _ => corrupt("GIF"),
    }
}
