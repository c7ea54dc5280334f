//! Patch 14 and CLIP's mean and std (Qwen2-VL, Qwen2.5-VL), against a plain second implementation, and against the Pillow processor
//! of transformers, of whose rows `tests/golden/expected/patch14.jsonl` holds the hashes.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use stoker_builder::image::{Generation, ImageRecipe, Preparer, Profile, expand, unpatchify};
use stoker_builder::model::family::Family;

const MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];

fn recipe() -> ImageRecipe {
    let constants = Family::Qwen25Vl.constants();
    let family = Family::Qwen25Vl;
    ImageRecipe::new(
        Profile::TvPath,
        Generation::V5,
        family,
        &constants,
        None,
        None,
    )
    .unwrap()
}

/// Rows of `pixel_values`, straight from the written rule: block row, block column, row in block, column in
/// block; inside a row channel, frame, y, x; each value normalised by itself.
fn pixel_values(rgb: &[u8], height: usize, width: usize) -> Vec<f32> {
    let (patch, merge) = (14, 2);
    let block = patch * merge;
    let mut values = Vec::new();
    for block_row in 0..height / block {
        for block_column in 0..width / block {
            for inner in 0..merge * merge {
                let top = block_row * block + inner / merge * patch;
                let left = block_column * block + inner % merge * patch;
                for channel in 0..3 {
                    let mean = (MEAN[channel] as f32) * 255.0;
                    let std = (STD[channel] as f32) * 255.0;
                    for _frame in 0..2 {
                        for y in top..top + patch {
                            for x in left..left + patch {
                                let byte = rgb[(y * width + x) * 3 + channel];
                                values.push((f32::from(byte) - mean) / std);
                            }
                        }
                    }
                }
            }
        }
    }
    values
}

/// Every picture that the library takes, to the last bit; every other is rejected.
#[test]
fn every_golden_picture_is_that_of_the_pillow_processor() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let rows = fs::read_to_string(golden.join("expected/patch14.jsonl")).unwrap();
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 30);
    for family in [Family::Qwen2Vl, Family::Qwen25Vl] {
        let (profile, constants) = (Profile::PilPath, family.constants());
        let recipe = ImageRecipe::new(profile, Generation::V4, family, &constants, None, None);
        let mut preparer = Preparer::new(recipe.unwrap());
        let mut good = 0;
        for row in &rows {
            let name = row["image"].as_str().unwrap();
            let prepared = preparer.prepare(&fs::read(golden.join(name)).unwrap());
            if row.get("error").is_some() {
                assert!(prepared.is_err(), "{name}");
                continue;
            }
            let prepared = prepared.unwrap();
            assert_eq!(
                serde_json::json!(prepared.grid_thw),
                row["grid_thw"],
                "{name}"
            );
            let values = expand(&prepared.patches, preparer.recipe());
            let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
            let hash: String = Sha256::digest(&bytes)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(hash, row["pixel_values_sha256"].as_str().unwrap(), "{name}");
            good += 1;
        }
        assert_eq!(good, 26);
    }
}

#[test]
fn patches_of_14_pixels_follow_the_same_rules() {
    let recipe = recipe();
    let mut preparer = Preparer::new(recipe.clone());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images");
    for name in ["rgb_422.jpg", "gray.jpg", "tiny_1x1.png"] {
        let bytes = fs::read(folder.join(name)).unwrap();
        let prepared = preparer.prepare(&bytes).unwrap();
        let [frames, rows, columns] = prepared.grid_thw;
        assert_eq!(frames, 1, "{name}");
        assert_eq!([rows * 14, columns * 14], prepared.size, "{name}");
        assert!(rows % 2 == 0 && columns % 2 == 0, "{name}");
        assert_eq!(
            prepared.patches.len(),
            (rows * columns) as usize * 588,
            "{name}"
        );
        let (height, width, rgb) =
            unpatchify(&prepared.patches, prepared.grid_thw, &recipe).unwrap();
        let expected = pixel_values(&rgb, height, width);
        let values = expand(&prepared.patches, &recipe);
        assert_eq!(values.len(), expected.len(), "{name}");
        // The order must be exact; the last bit of a value depends on how mean * 255 is rounded, which
        // the float table settles.
        for (value, expected) in values.iter().zip(&expected) {
            assert!(
                (value - expected).abs() <= 1e-6,
                "{name}: {value} {expected}"
            );
        }
    }
}
