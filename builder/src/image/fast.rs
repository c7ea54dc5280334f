//! The `fast` profile: decode a JPEG at reduced scale, resize with `fast_image_resize`.
//!
//! Owns the choice of scale and that resizer. **Not exact**: its pixels differ from every oracle's.
//! Invariant: same target size and same patch order as the exact profiles.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use turbojpeg::ScalingFactor;

use super::reserve;
use crate::reject::{Reason, Reject};

/// The smallest of libjpeg-turbo's quick scales at which neither side falls below the target's.
pub(super) fn scale(stored: (u32, u32), target: (u32, u32)) -> ScalingFactor {
    [
        ScalingFactor::ONE_EIGHTH,
        ScalingFactor::ONE_QUARTER,
        ScalingFactor::ONE_HALF,
    ]
    .into_iter()
    .find(|factor| {
        factor.scale(stored.0 as usize) >= target.0 as usize
            && factor.scale(stored.1 as usize) >= target.1 as usize
    })
    .unwrap_or(ScalingFactor::ONE)
}

/// Resizes `src` (`from` = height x width, RGB) into `dst` (`to` = height x width).
pub(super) fn resize(
    resizer: &mut Resizer,
    src: &[u8],
    from: (u32, u32),
    dst: &mut Vec<u8>,
    to: (u32, u32),
) -> Result<(), Reject> {
    let failed = || Reject::new(Reason::DecoderCrash, "the fast resizer refused the image");
    let bytes = |size: (u32, u32)| size.0 as usize * size.1 as usize * 3;
    reserve(dst, bytes(to));
    let source = ImageRef::new(from.1, from.0, &src[..bytes(from)], PixelType::U8x3)
        .map_err(|_| failed())?;
    let mut target = Image::from_slice_u8(to.1, to.0, &mut dst[..bytes(to)], PixelType::U8x3)
        .map_err(|_| failed())?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
        .use_alpha(false);
    resizer
        .resize(&source, &mut target, &options)
        .map_err(|_| failed())
}
