//! Decoding: the one door through which hostile image bytes pass.
//!
//! Owns the order of checks (bytes, format, header, limits) and the dispatch to the decoders. It
//! resizes nothing. Invariant: no decoder runs, and nothing is allocated, before the header's size
//! has passed the recipe's limits; and no panic gets out.

use turbojpeg::ScalingFactor;

use super::header::{Format, Header};
use super::jpeg::JpegDecoder;
use super::recipe::ImageRecipe;
use super::{gif, png, webp};
use crate::quiet::caught;
use crate::reject::{Reason, Reject};

/// What a decoder made: the pixels themselves lie in [`Decoder::rgb`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Pixels {
    pub(super) width: u32,
    pub(super) height: u32,
    /// The colour that Pillow would still call transparent after the conversion to RGB.
    pub(super) key: Option<[u8; 3]>,
}

/// The decoders and their buffers, reused from image to image.
pub(super) struct Decoder {
    jpeg: JpegDecoder,
    /// The decoded image, interleaved, with slack behind it.
    pub(super) rgb: Vec<u8>,
    raw: Vec<u8>,
}

/// Reads the header and checks all limits.
pub(super) fn inspect(bytes: &[u8], recipe: &ImageRecipe) -> Result<Header, Reject> {
    #[cfg(feature = "fault-injection")]
    if bytes.starts_with(b"STOKER-ABORT") {
        std::process::abort();
    }
    if bytes.len() as u64 > recipe.max_source_bytes {
        return Err(Reject::new(
            Reason::TooManyBytes,
            format!(
                "more than {} bytes: `{}`",
                recipe.max_source_bytes,
                bytes.len()
            ),
        ));
    }
    let header = guarded(|| {
        #[cfg(feature = "fault-injection")]
        assert!(!bytes.starts_with(b"STOKER-PANIC"), "planted");
        Header::read(bytes)
    })?;
    header.check(recipe)?;
    Ok(header)
}

/// Runs `work`; a panic inside becomes a reject.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Reject>) -> Result<T, Reject> {
    // Whatever the panic left behind in buffers is overwritten or replaced before its next use.
    caught(work).unwrap_or_else(|said| {
        Err(Reject::new(
            Reason::DecoderCrash,
            format!("the image decoder panicked: `{said}`"),
        ))
    })
}

impl Decoder {
    pub(super) fn new() -> Result<Self, Reject> {
        Ok(Self {
            jpeg: JpegDecoder::new()?,
            rgb: Vec::new(),
            raw: Vec::new(),
        })
    }

    /// Decodes an image whose header passed [`inspect`] into `self.rgb`. `scale` is for JPEG only.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        recipe: &ImageRecipe,
        scale: ScalingFactor,
    ) -> Result<Pixels, Reject> {
        let (rgb, raw, alpha) = (&mut self.rgb, &mut self.raw, recipe.alpha);
        match header.format {
            Format::Jpeg => {
                let (width, height) = self.jpeg.decode(bytes, header, scale, rgb)?;
                Ok(Pixels {
                    width,
                    height,
                    key: None,
                })
            }
            Format::Png => png::decode(bytes, header, alpha, rgb, raw),
            Format::Gif => gif::decode(bytes, header, alpha, rgb, raw),
            Format::Webp => webp::decode(bytes, header, alpha, rgb, raw),
        }
    }

    /// Buffers worth shrinking between images.
    pub(super) fn buffers(&mut self) -> [&mut Vec<u8>; 3] {
        let [cmyk] = self.jpeg.buffers();
        [&mut self.rgb, &mut self.raw, cmyk]
    }
}

/// `color` over white, seen through `alpha`.
pub(super) fn blend(color: u8, alpha: u8) -> u8 {
    let (color, alpha) = (u32::from(color), u32::from(alpha));
    super::jpeg::div255(color * alpha + 255 * (255 - alpha))
}

/// Turns pixels of exactly the colour `key` white.
pub(super) fn whiten(rgb: &mut [u8], key: [u8; 3]) {
    for pixel in rgb.chunks_exact_mut(3) {
        if *pixel == key {
            pixel.fill(255);
        }
    }
}
