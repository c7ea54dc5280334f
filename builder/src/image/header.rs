//! Headers: format and size of an image, read by content and without any decoder.
//!
//! Owns sniffing and the first size check. It allocates nothing that depends on the input and
//! decodes no pixel. Invariant: what a decoder gets later has passed [`Header::read`] and
//! [`Header::check`].

use super::recipe::ImageRecipe;
use super::{gif, jpeg, webp};
use crate::reject::{Reason, Reject};

/// A format that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Jpeg,
    Png,
    Gif,
    Webp,
}

/// Size as stored (before orientation) and format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) format: Format,
    pub(super) width: u32,
    pub(super) height: u32,
}

const PNG_MAGIC: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Signatures of formats that are images but not supported.
const OTHERS: [(&[u8], &str); 8] = [
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"8BPS", "PSD"),
    (b"\0\0\x01\0", "ICO"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\0\0\0\x0cJXL ", "JPEG XL"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
];

/// The format by content: the first signature that matches, in a fixed order.
pub(super) fn sniff(bytes: &[u8]) -> Result<Format, Reject> {
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Ok(Format::Jpeg);
    }
    if bytes.starts_with(PNG_MAGIC) {
        return Ok(Format::Png);
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return Ok(Format::Gif);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Format::Webp);
    }
    let heic = bytes.get(4..8) == Some(b"ftyp").as_ref().map(|b| &b[..]);
    let other = OTHERS
        .iter()
        .find(|(magic, _)| bytes.starts_with(magic))
        .map(|(_, name)| *name)
        .or(heic.then_some("HEIF or AVIF"));
    Err(match other {
        Some(name) => Reject::new(
            Reason::UnsupportedImage,
            format!("image format not supported, use JPEG, PNG, WebP or GIF: `{name}`"),
        ),
        None => Reject::new(
            Reason::NotAnImage,
            "the bytes are no JPEG, PNG, WebP or GIF image",
        ),
    })
}

impl Header {
    /// Reads the header.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Reject> {
        let format = sniff(bytes)?;
        let (width, height) = match format {
            Format::Jpeg => jpeg::dimensions(bytes)?,
            Format::Png => png_dimensions(bytes)?,
            Format::Gif => gif::dimensions(bytes)?,
            Format::Webp => webp::dimensions(bytes)?,
        };
        if width == 0 || height == 0 {
            return Err(Reject::new(Reason::CorruptImage, "an image side is zero"));
        }
        Ok(Self {
            format,
            width,
            height,
        })
    }

    /// Refuses an image above the recipe's pixel limit.
    pub(super) fn check(&self, recipe: &ImageRecipe) -> Result<(), Reject> {
        if u64::from(self.width) * u64::from(self.height) > recipe.max_source_pixels {
            return Err(Reject::new(
                Reason::TooManyPixels,
                format!(
                    "more than {} pixels: `{}x{}`",
                    recipe.max_source_pixels, self.width, self.height
                ),
            ));
        }
        Ok(())
    }

    /// Pixels as stored.
    pub(super) fn pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }
}

/// The reject of an image that ends before it should.
pub(super) fn truncated() -> Reject {
    Reject::new(Reason::TruncatedImage, "the image ends early")
}

/// The reject of an image whose data contradicts itself.
pub(super) fn corrupt(format: &str) -> Reject {
    Reject::new(
        Reason::CorruptImage,
        format!("the image data is damaged: `{format}`"),
    )
}

/// Big-endian u32 at `at`.
pub(super) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(field.try_into().ok()?))
}

fn png_dimensions(bytes: &[u8]) -> Result<(u32, u32), Reject> {
    if bytes.get(12..16).is_some_and(|name| name != b"IHDR") {
        return Err(corrupt("PNG"));
    }
    match (be32(bytes, 16), be32(bytes, 20)) {
        (Some(width), Some(height)) => Ok((width, height)),
        _ => Err(truncated()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sniffs_by_content_only() {
        assert_eq!(sniff(b"\xff\xd8\xff\xe0").unwrap(), Format::Jpeg);
        assert_eq!(sniff(b"RIFF1234WEBPVP8 ").unwrap(), Format::Webp);
        let reason = |bytes: &[u8]| sniff(bytes).unwrap_err().reason;
        assert_eq!(reason(b"BM123456"), Reason::UnsupportedImage);
        assert_eq!(reason(b"\0\0\0\x20ftypheic"), Reason::UnsupportedImage);
        assert_eq!(reason(b"RIFF1234WAVE"), Reason::NotAnImage);
        assert_eq!(reason(b"<html>"), Reason::NotAnImage);
        assert_eq!(reason(b""), Reason::NotAnImage);
    }
}
