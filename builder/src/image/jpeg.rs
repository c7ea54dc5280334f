//! JPEG: libjpeg-turbo with the defaults of Pillow and torchvision (accurate DCT, smooth upsampling).
//!
//! Owns the marker walk and the conversion of CMYK. Strict: whatever makes the decoder warn is a
//! reject. Invariant: the decoder's own idea of the size equals the one that passed the limits.

use std::alloc::{Layout, handle_alloc_error};

use turbojpeg::{Colorspace, Decompressor, Image, PixelFormat, ScalingFactor};

use super::header::{Header, corrupt, truncated};
use super::reserve;
use crate::reject::{Reason, Reject};

/// Most scans of a progressive JPEG: encoders write about 10, and each scan costs a whole pass.
const MAX_SCANS: u32 = 100;

/// The marker before a scan's header.
const SCAN: u8 = 0xda;

/// Frames of progressive files.
const PROGRESSIVE: [u8; 4] = [0xc2, 0xc6, 0xca, 0xce];

/// Bytes of a coefficient in the library.
const COEFFICIENT_BYTES: u64 = 2;

/// Bytes of the lines that the library works on, for each column.
const COLUMN_BYTES: u64 = 160;

/// Bytes of the library's tables, whatever the size.
const LIBRARY_BYTES: u64 = 256 << 10;

/// The JPEG decoder and its buffer, reused from image to image.
pub(super) struct JpegDecoder {
    inner: Decompressor,
    cmyk: Vec<u8>,
}

impl JpegDecoder {
    pub(super) fn new() -> Result<Self, Reject> {
        Ok(Self {
            inner: start()?,
            cmyk: Vec::new(),
        })
    }

    /// Buffers worth shrinking between images.
    pub(super) fn buffers(&mut self) -> [&mut Vec<u8>; 1] {
        [&mut self.cmyk]
    }

    /// Decodes into `rgb`, scaled by `scale`; returns (width, height).
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        scale: ScalingFactor,
        rgb: &mut Vec<u8>,
    ) -> Result<(u32, u32), Reject> {
        let result = self.attempt(bytes, header, scale, rgb);
        if result.is_err() {
            // After a failure the library goes on where it stopped, with the next image's bytes.
            self.inner = start()?;
        }
        result
    }

    fn attempt(
        &mut self,
        bytes: &[u8],
        header: &Header,
        scale: ScalingFactor,
        rgb: &mut Vec<u8>,
    ) -> Result<(u32, u32), Reject> {
        let found = self.inner.read_header(bytes).map_err(reject)?;
        if (found.width, found.height) != (header.width as usize, header.height as usize) {
            return Err(corrupt("JPEG"));
        }
        // A lossless file cannot be scaled.
        let scale = if found.is_lossless {
            ScalingFactor::ONE
        } else {
            scale
        };
        self.inner.set_scaling_factor(scale).map_err(reject)?;
        let (width, height) = (scale.scale(found.width), scale.scale(found.height));
        reserve(rgb, width * height * 3);
        match found.colorspace {
            Colorspace::CMYK | Colorspace::YCCK => {
                reserve(&mut self.cmyk, width * height * 4);
                self.run(bytes, width, height, PixelFormat::CMYK, None)?;
                cmyk_to_rgb(&self.cmyk[..width * height * 4], rgb);
            }
            _ => self.run(bytes, width, height, PixelFormat::RGB, Some(rgb))?,
        }
        Ok((width as u32, height as u32))
    }

    /// Runs the decoder into `target`, or into the own CMYK buffer.
    fn run(
        &mut self,
        bytes: &[u8],
        width: usize,
        height: usize,
        format: PixelFormat,
        target: Option<&mut Vec<u8>>,
    ) -> Result<(), Reject> {
        let pitch = width * format.size();
        let buffer = target.unwrap_or(&mut self.cmyk);
        let output = Image {
            pixels: &mut buffer[..pitch * height],
            width,
            pitch,
            height,
            format,
        };
        self.inner.decompress(bytes, output).map_err(reject)
    }
}

fn start() -> Result<Decompressor, Reject> {
    Decompressor::new()
        .and_then(|mut inner| inner.set_scan_limit(MAX_SCANS).map(|()| inner))
        .map_err(|_| out_of_memory())
}

/// Too little memory is no fact about an image: the process ends, as wherever else memory cannot be had.
fn out_of_memory() -> ! {
    handle_alloc_error(Layout::new::<JpegDecoder>())
}

/// Sorts the decoder's complaint; its text is not repeated.
fn reject(error: turbojpeg::Error) -> Reject {
    let text = error.to_string();
    if text.contains("Insufficient memory") || text.contains("Memory allocation") {
        out_of_memory()
    } else if text.contains("Premature end") {
        truncated()
    } else if text.contains("nsupported") || text.contains("more than") {
        Reject::new(
            Reason::UnsupportedImage,
            "this variant of JPEG is not supported",
        )
    } else {
        corrupt("JPEG")
    }
}

/// CMYK as stored by Adobe's encoders (inverted), to RGB: the product of colour and black, rounded.
fn cmyk_to_rgb(cmyk: &[u8], rgb: &mut [u8]) {
    for (from, to) in cmyk.chunks_exact(4).zip(rgb.chunks_exact_mut(3)) {
        let black = u32::from(from[3]);
        for (channel, ink) in to.iter_mut().zip(from) {
            *channel = div255(u32::from(*ink) * black);
        }
    }
}

/// `value / 255`, rounded, for products of two bytes.
pub(super) fn div255(value: u32) -> u8 {
    let biased = value + 128;
    (((biased >> 8) + biased) >> 8) as u8
}

/// The marker segments up to the header of the first scan: (marker, payload). Ends at the first fault.
pub(super) fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut at = 2;
    std::iter::from_fn(move || {
        loop {
            // Any number of fill bytes may stand before a marker.
            while *bytes.get(at)? != 0xff {
                at += 1;
            }
            while *bytes.get(at)? == 0xff {
                at += 1;
            }
            let marker = *bytes.get(at)?;
            at += 1;
            match marker {
                0x00 | 0x01 | 0xd0..=0xd8 => {}
                0xd9 => return None,
                _ => {
                    let field = bytes.get(at..at + 2)?;
                    let length = usize::from(u16::from_be_bytes([field[0], field[1]]));
                    let payload = bytes.get(at + 2..at + length.max(2))?;
                    at += length.max(2);
                    if marker == SCAN {
                        at = bytes.len();
                    }
                    return Some((marker, payload));
                }
            }
        }
    })
}

fn is_frame(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}

/// (width, height) of the frame header.
pub(super) fn dimensions(bytes: &[u8]) -> Result<(u32, u32), Reject> {
    let frame = segments(bytes).find(|(marker, _)| is_frame(*marker));
    let (_, payload) = frame.ok_or_else(truncated)?;
    let [precision, h1, h0, w1, w0, parts, ..] = *payload else {
        return Err(corrupt("JPEG"));
    };
    if precision != 8 || !matches!(parts, 1 | 3 | 4) {
        return Err(Reject::new(
            Reason::UnsupportedImage,
            format!("JPEG of {parts} components with {precision} bits is not supported"),
        ));
    }
    Ok((
        u32::from(u16::from_be_bytes([w1, w0])),
        u32::from(u16::from_be_bytes([h1, h0])),
    ))
}

/// What decoding `bytes` takes at most by its headers, in bytes: the pixels with what a CMYK file is converted from; and,
/// until they are there, the library's lines, and all coefficients where they come in several scans, as in progressive files.
pub(super) fn decoder_bytes(bytes: &[u8]) -> (u64, u64) {
    let (mut size, mut parts) = ([0; 2], &[][..]);
    let (mut progressive, mut in_scan) = (false, None);
    for (marker, payload) in segments(bytes) {
        match (marker, payload) {
            (SCAN, [count, ..]) => in_scan = Some(usize::from(*count)),
            (_, [_, h1, h0, w1, w0, _, rest @ ..]) if is_frame(marker) => {
                size = [[*h1, *h0], [*w1, *w0]].map(|side| u64::from(u16::from_be_bytes(side)));
                parts = rest.as_chunks::<3>().0;
                progressive = PROGRESSIVE.contains(&marker);
            }
            _ => {}
        }
    }
    let [height, width] = size;
    let several_scans = progressive || in_scan.is_some_and(|count| count < parts.len());
    let coefficients = if several_scans {
        coefficients(height, width, parts)
    } else {
        0
    };
    let colors = if parts.len() == 4 { 3 + 4 } else { 3 };
    let lines = LIBRARY_BYTES + COLUMN_BYTES * width;
    (colors * height * width, lines + coefficients)
}

/// Bytes of all coefficients of an image with such `parts`: id, sampling factors, table.
fn coefficients(height: u64, width: u64, parts: &[[u8; 3]]) -> u64 {
    let factors = |part: &[u8; 3]| {
        (
            u64::from(part[1] & 15).max(1),
            u64::from(part[1] >> 4).max(1),
        )
    };
    let down = parts.iter().map(|part| factors(part).0).max().unwrap_or(1);
    let across = parts.iter().map(|part| factors(part).1).max().unwrap_or(1);
    // Whole blocks of 8 by 8 pixels, and whole groups of those.
    let groups = height.div_ceil(8 * down) * width.div_ceil(8 * across);
    let blocks: u64 = parts
        .iter()
        .map(factors)
        .map(|(down, across)| down * across)
        .sum();
    groups * blocks * 64 * COEFFICIENT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn div255_rounds_every_product() {
        for a in 0..=255u32 {
            for b in 0..=255u32 {
                let expected = (f64::from(a * b) / 255.0).round() as u8;
                assert_eq!(div255(a * b), expected);
            }
        }
    }

    #[test]
    fn walks_segments_and_stops_at_faults() {
        let bytes = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc0\x00\x03x\xff\xda\x00\x02";
        let found: Vec<_> = segments(bytes).collect();
        let scan = (SCAN, &b""[..]);
        assert_eq!(found, [(0xe0, &b"ab"[..]), (0xc0, &b"x"[..]), scan]);
        assert_eq!(segments(b"\xff\xd8\xff\xe0\xff\xff").count(), 0);
        assert_eq!(segments(b"\xff\xd8").count(), 0);
    }
}
