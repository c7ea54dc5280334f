//! Target size: both flavours of `smart_resize`.
//!
//! Owns the arithmetic and its order of operations, which is part of the contract: all in f64,
//! ties to even. Invariant: sides returned are positive multiples of the factor.

use super::profile::SizeRule;
use super::recipe::ImageRecipe;
use crate::reject::{Reason, Reject};

/// Above this ratio of the sides the oracles refuse an image.
pub const MAX_ASPECT: u64 = 200;

/// The size (height, width) an image of `height` x `width` pixels is resized to.
///
/// # Errors
/// A reject if a side is zero, the aspect ratio is above [`MAX_ASPECT`], or the limits leave
/// nothing of a side.
pub fn target_size(height: u32, width: u32, recipe: &ImageRecipe) -> Result<(u32, u32), Reject> {
    let (long, short) = (height.max(width), height.min(width));
    if short == 0 {
        return Err(Reject::new(Reason::CorruptImage, "an image side is zero"));
    }
    // The oracle compares the float ratio; for integers of this size that is the same.
    if u64::from(long) > MAX_ASPECT * u64::from(short) {
        return Err(Reject::new(
            Reason::ExtremeAspect,
            format!("one side is more than {MAX_ASPECT} times the other: `{width}x{height}`"),
        ));
    }
    let factor = f64::from(recipe.factor());
    let (h, w) = (f64::from(height), f64::from(width));
    let (min, max) = (recipe.min_pixels as f64, recipe.max_pixels as f64);
    let least = match recipe.size_rule {
        SizeRule::Transformers => 0.0,
        SizeRule::QwenVlUtils => factor,
    };
    let mut to_h = ((h / factor).round_ties_even() * factor).max(least);
    let mut to_w = ((w / factor).round_ties_even() * factor).max(least);
    if to_h * to_w > max {
        let beta = (h * w / max).sqrt();
        to_h = (h / beta / factor).floor() * factor;
        to_w = (w / beta / factor).floor() * factor;
        if recipe.size_rule == SizeRule::Transformers {
            to_h = to_h.max(factor);
            to_w = to_w.max(factor);
        }
    } else if to_h * to_w < min {
        let beta = (min / (h * w)).sqrt();
        to_h = (h * beta / factor).ceil() * factor;
        to_w = (w * beta / factor).ceil() * factor;
    }
    if to_h < factor || to_w < factor {
        return Err(Reject::new(
            Reason::ExtremeAspect,
            format!("the pixel limits leave nothing of a side: `{width}x{height}`"),
        ));
    }
    // Far below 2^31: the recipe bounds the area and the aspect ratio bounds each side.
    Ok((to_h as u32, to_w as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Generation, Profile};
    use crate::model::family::{Family, ImageConstants};
    use proptest::prelude::*;

    fn recipe(profile: Profile, patch: u32, limits: Option<(u64, u64)>) -> ImageRecipe {
        let constants = ImageConstants {
            patch_size: patch,
            merge_size: 2,
            temporal_patch_size: 2,
            image_mean: [0.5; 3],
            image_std: [0.5; 3],
            min_pixels: 65536,
            max_pixels: 16_777_216,
        };
        ImageRecipe::new(
            profile,
            Generation::V4,
            Family::Qwen3Vl,
            &constants,
            limits.map(|l| l.0),
            limits.map(|l| l.1),
        )
        .unwrap()
    }

    #[test]
    fn known_sizes() {
        let tv = recipe(Profile::TvPath, 16, None);
        let ft = recipe(Profile::TvPathFt, 16, None);
        let qv = recipe(Profile::Qwenvl, 16, None);
        assert_eq!(target_size(272, 304, &tv).unwrap(), (256, 320));
        assert_eq!(target_size(1, 1, &tv).unwrap(), (256, 256));
        assert_eq!(target_size(688, 688, &ft).unwrap(), (672, 672));
        assert_eq!(target_size(1490, 10, &qv).unwrap(), (1504, 32));
        assert_eq!(target_size(1490, 10, &tv).unwrap(), (3136, 32));
        assert_eq!(
            target_size(5, 1005, &tv).unwrap_err().reason,
            Reason::ExtremeAspect
        );
        assert!(target_size(5, 1000, &tv).is_ok());
    }

    proptest! {
        #[test]
        fn sides_and_area_within_bounds(
            h in 1u32..6000, w in 1u32..6000,
            patch in prop::sample::select(vec![14u32, 16]),
            profile in prop::sample::select(vec![Profile::TvPath, Profile::TvPathFt, Profile::Qwenvl]),
        ) {
            prop_assume!(u64::from(h.max(w)) <= MAX_ASPECT * u64::from(h.min(w)));
            let recipe = recipe(profile, patch, None);
            let f = recipe.factor();
            let (th, tw) = target_size(h, w, &recipe).unwrap();
            prop_assert!(th >= f && tw >= f && th % f == 0 && tw % f == 0);
            let area = u64::from(th) * u64::from(tw);
            prop_assert!(area >= recipe.min_pixels);
            // Only a side held up at one factor may exceed the largest area.
            prop_assert!(area <= recipe.max_pixels || th == f || tw == f);
        }
    }
}
