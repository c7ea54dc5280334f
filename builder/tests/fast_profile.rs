//! How far the `fast` profile is from the exact one, on the photographs of the golden set.
//!
//! `cargo nextest run --workspace -E 'binary(fast_profile)' --no-capture` prints the figures of the README.

use std::fs;
use std::io::Write;
use std::path::Path;

use stoker_builder::image::{Generation, ImageRecipe, Preparer, Profile};
use stoker_builder::model::family::{Family, ImageConstants};

/// A usual limit of fine-tuning runs.
const MAX_PIXELS: u64 = 262_144;

const PHOTOGRAPHS: [&str; 7] = [
    "photo_large.jpg",
    "above_ft_max.jpg",
    "rgb_420_baseline.jpg",
    "rgb_420_progressive.jpg",
    "rgb_422.jpg",
    "rgb_444.jpg",
    "gray.jpg",
];

fn recipe(profile: Profile) -> ImageRecipe {
    let constants = ImageConstants {
        max_pixels: MAX_PIXELS,
        ..Family::Qwen3Vl.constants()
    };
    let family = Family::Qwen3Vl;
    ImageRecipe::new(profile, Generation::V5, family, &constants, None, None).unwrap()
}

#[test]
fn fast_has_the_same_shape_and_nearly_the_same_pixels() {
    let mut exact = Preparer::new(recipe(Profile::TvPath));
    let mut fast = Preparer::new(recipe(Profile::Fast));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images");
    let mut report = String::new();
    let mut different = 0;
    for name in PHOTOGRAPHS {
        let bytes = fs::read(folder.join(name)).unwrap();
        let right = exact.prepare(&bytes).unwrap();
        let quick = fast.prepare(&bytes).unwrap();
        assert_eq!(right.grid_thw, quick.grid_thw, "{name}");
        assert_eq!(right.size, quick.size, "{name}");
        let gaps = || {
            let pairs = right.patches.iter().zip(&quick.patches);
            pairs.map(|(right, quick)| u64::from(right.abs_diff(*quick)))
        };
        let mean = gaps().sum::<u64>() as f64 / right.patches.len() as f64;
        let changed = gaps().filter(|gap| *gap > 0).count();
        let largest = gaps().max().unwrap_or(0);
        different += usize::from(changed > 0);
        report.push_str(&format!(
            "{name:<24} {}x{}: {:>5.1} % of bytes differ, mean difference {mean:.2}, largest {largest}\n",
            right.size[1],
            right.size[0],
            100.0 * changed as f64 / right.patches.len() as f64,
        ));
        assert!(mean < 8.0, "{name}: mean difference {mean}");
    }
    // Unlike eprintln!, no lint forbids it; the harness shows it with --no-capture.
    std::io::stderr().write_all(report.as_bytes()).unwrap();
    // Were nothing different, the profile would not be doing what it is for.
    assert!(different > 0);
}
