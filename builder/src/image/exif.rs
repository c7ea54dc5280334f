//! Orientation: the one piece of metadata that changes pixels.
//!
//! Owns the search through JPEG, PNG and WebP and the few bytes of TIFF behind it. Fail-soft: what
//! cannot be read says nothing. Invariant: reads inside the given bytes only, allocates nothing.

use super::header::{Format, be32};
use super::profile::ExifRule;
use super::{jpeg, webp};

/// TIFF tag of the orientation.
const ORIENTATION: u16 = 0x0112;
const EXIF_PREFIX: &[u8] = b"Exif\0\0";
const XMP_PREFIX: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
const XMP_KEYWORD: &[u8] = b"XML:com.adobe.xmp\0\0\0";

/// The orientation to undo, 1 to 8; 1 means nothing to do.
pub(super) fn orientation(bytes: &[u8], format: Format, rule: ExifRule) -> u8 {
    let (exif, xmp) = match (rule, format) {
        (ExifRule::Ignore, _) | (_, Format::Gif) => return 1,
        (ExifRule::Torchvision, Format::Webp) => return 1,
        (_, Format::Jpeg) => jpeg_blocks(bytes),
        (_, Format::Png) => png_blocks(bytes),
        (_, Format::Webp) => webp_blocks(bytes),
    };
    let mut found = exif.and_then(tiff_orientation);
    if rule == ExifRule::Pillow {
        found = found.or_else(|| xmp.and_then(xmp_orientation));
    }
    found
        .and_then(|value| u8::try_from(value).ok())
        .filter(|value| (1..=8).contains(value))
        .unwrap_or(1)
}

type Blocks<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn jpeg_blocks(bytes: &[u8]) -> Blocks<'_> {
    let block = |prefix: &'static [u8]| {
        jpeg::segments(bytes)
            .filter(|(marker, _)| *marker == 0xe1)
            .find_map(|(_, payload)| payload.strip_prefix(prefix))
    };
    (block(EXIF_PREFIX), block(XMP_PREFIX))
}

fn png_blocks(bytes: &[u8]) -> Blocks<'_> {
    let (mut exif, mut xmp) = (None, None);
    let mut at = 8usize;
    while let (Some(length), Some(name)) = (be32(bytes, at), bytes.get(at + 4..at + 8)) {
        let Some(payload) = bytes.get(at + 8..at + 8 + length as usize) else {
            break;
        };
        match name {
            b"eXIf" if exif.is_none() => exif = Some(payload),
            b"iTXt" if xmp.is_none() => xmp = payload.strip_prefix(XMP_KEYWORD),
            _ => {}
        }
        at += 12 + length as usize;
    }
    (exif, xmp)
}

fn webp_blocks(bytes: &[u8]) -> Blocks<'_> {
    let block = |wanted: &'static [u8]| {
        webp::chunks(bytes)
            .find(|(name, _)| *name == wanted)
            .map(|(_, payload)| payload)
    };
    (block(b"EXIF"), block(b"XMP "))
}

/// Field values of either byte order.
struct Tiff<'a> {
    bytes: &'a [u8],
    little: bool,
}

impl Tiff<'_> {
    fn u16(&self, at: usize) -> Option<u16> {
        let field = self.bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.little {
            u16::from_le_bytes(field)
        } else {
            u16::from_be_bytes(field)
        })
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let (first, second) = (self.u16(at)?, self.u16(at.checked_add(2)?)?);
        let (low, high) = if self.little {
            (first, second)
        } else {
            (second, first)
        };
        Some(u32::from(high) << 16 | u32::from(low))
    }
}

/// The orientation tag of the first directory.
fn tiff_orientation(mut bytes: &[u8]) -> Option<u32> {
    while let Some(rest) = bytes.strip_prefix(EXIF_PREFIX) {
        bytes = rest;
    }
    let little = match bytes.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let tiff = Tiff { bytes, little };
    let directory = tiff.u32(4)? as usize;
    let entries = usize::from(tiff.u16(directory)?);
    let mut found = None;
    for entry in 0..entries {
        let at = directory.checked_add(2 + entry * 12)?;
        let Some(tag) = tiff.u16(at) else { break };
        if tag == ORIENTATION {
            found = match tiff.u16(at + 2)? {
                1 => bytes.get(at + 8).map(|byte| u32::from(*byte)),
                3 => tiff.u16(at + 8).map(u32::from),
                4 => tiff.u32(at + 8),
                _ => None,
            };
        }
    }
    found
}

/// The digit after `tiff:Orientation="` or `tiff:Orientation>`.
fn xmp_orientation(xmp: &[u8]) -> Option<u32> {
    const NAME: &[u8] = b"tiff:Orientation";
    xmp.windows(NAME.len())
        .enumerate()
        .filter(|(_, window)| *window == NAME)
        .find_map(|(at, _)| {
            let rest = &xmp[at + NAME.len()..];
            let value = rest.strip_prefix(b"=\"").or(rest.strip_prefix(b">"))?;
            let digit = value.first()?;
            digit.is_ascii_digit().then(|| u32::from(digit - b'0'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tiff(little: bool, kind: u16, value: u16) -> Vec<u8> {
        let two = |v: u16| {
            if little {
                v.to_le_bytes()
            } else {
                v.to_be_bytes()
            }
        };
        let four = |v: u32| {
            if little {
                v.to_le_bytes()
            } else {
                v.to_be_bytes()
            }
        };
        let mut bytes = if little {
            b"II".to_vec()
        } else {
            b"MM".to_vec()
        };
        bytes.extend(two(42));
        bytes.extend(four(8));
        bytes.extend(two(1));
        bytes.extend(two(ORIENTATION));
        bytes.extend(two(kind));
        bytes.extend(four(1));
        bytes.extend(two(value));
        bytes.extend([0; 6]);
        bytes
    }

    fn jpeg_with(prefix: &[u8], block: &[u8]) -> Vec<u8> {
        let mut bytes = b"\xff\xd8\xff\xe1".to_vec();
        bytes.extend(((prefix.len() + block.len() + 2) as u16).to_be_bytes());
        bytes.extend(prefix);
        bytes.extend(block);
        bytes
    }

    #[test]
    fn finds_both_byte_orders_and_ignores_nonsense() {
        for little in [true, false] {
            let bytes = jpeg_with(EXIF_PREFIX, &tiff(little, 3, 6));
            for rule in [ExifRule::Pillow, ExifRule::Torchvision] {
                assert_eq!(orientation(&bytes, Format::Jpeg, rule), 6);
            }
            assert_eq!(orientation(&bytes, Format::Jpeg, ExifRule::Ignore), 1);
            let wild = jpeg_with(EXIF_PREFIX, &tiff(little, 3, 9));
            assert_eq!(orientation(&wild, Format::Jpeg, ExifRule::Pillow), 1);
            let odd = jpeg_with(EXIF_PREFIX, &tiff(little, 7, 6));
            assert_eq!(orientation(&odd, Format::Jpeg, ExifRule::Pillow), 1);
        }
    }

    #[test]
    fn xmp_counts_for_pillow_only() {
        let bytes = jpeg_with(XMP_PREFIX, b"<x tiff:Orientation=\"8\"/>");
        assert_eq!(orientation(&bytes, Format::Jpeg, ExifRule::Pillow), 8);
        assert_eq!(orientation(&bytes, Format::Jpeg, ExifRule::Torchvision), 1);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..3usize) {
            let format = [Format::Jpeg, Format::Png, Format::Webp][kind];
            let value = orientation(&bytes, format, ExifRule::Pillow);
            prop_assert!((1..=8).contains(&value));
            let mut exif = b"II*\0".to_vec();
            exif.extend(&bytes);
            tiff_orientation(&exif);
        }
    }
}
