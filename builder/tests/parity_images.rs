//! Every golden row of the real libraries: grid, resized bytes and float values must be equal.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest, Sha256};
use stoker_builder::Reason;
use stoker_builder::image::{
    Generation, ImageRecipe, Preparer, Profile, expand, probe, unpatchify,
};
use stoker_builder::model::family::Family;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

fn recipe(profile: Profile, generation: Generation) -> ImageRecipe {
    let constants = Family::Qwen3Vl.constants();
    ImageRecipe::new(profile, generation, Family::Qwen3Vl, &constants, None, None).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn reason(row: &Value) -> Reason {
    match row["image"].as_str().unwrap() {
        "images/not_an_image.jpg" => Reason::NotAnImage,
        "images/truncated.jpg" => Reason::TruncatedImage,
        "images/too_extreme.png" => Reason::ExtremeAspect,
        // transformers 4's PIL processor takes it for channels first.
        "images/tiny_1x1.png" => Reason::UnsupportedImage,
        other => panic!("no reason known for {other}"),
    }
}

/// Float hashes computed so far, by pixels and table rule: hashing floats is most of the time.
type Hashes = HashMap<String, String>;

/// Checks one row; what differs, if anything does.
fn check(row: &Value, preparer: &mut Preparer, hashes: &mut Hashes) -> Result<(), String> {
    let bytes = fs::read(golden().join(row["image"].as_str().unwrap())).unwrap();
    let recipe = preparer.recipe().clone();
    let prepared = preparer.prepare(&bytes);
    if row.get("error").is_some() {
        let reject = prepared.err().ok_or("accepted")?;
        if reject.reason != reason(row) {
            return Err(format!("rejected as {:?}", reject.reason));
        }
        return Ok(());
    }
    let prepared = prepared.map_err(|reject| format!("{reject:?}"))?;
    let grid: Vec<i32> = serde_json::from_value(row["grid_thw"].clone()).unwrap();
    if grid != prepared.grid_thw {
        return Err(format!("grid {:?} instead of {grid:?}", prepared.grid_thw));
    }
    let probe = probe(&bytes, &recipe).map_err(|reject| format!("{reject:?}"))?;
    if probe.grid_thw != prepared.grid_thw
        || probe.target.map(|side| side as i32) != prepared.size
        || probe.scratch_bytes < prepared.patches.len() as u64
    {
        return Err(format!("probe says {probe:?}"));
    }
    if row.get("note").is_some() {
        return Ok(());
    }
    let (_, _, rgb) =
        unpatchify(&prepared.patches, prepared.grid_thw, &recipe).ok_or("no picture")?;
    if hex(&rgb) != row["resized_u8_sha256"].as_str().unwrap() {
        return Err("resized bytes differ".into());
    }
    let known = format!("{:?} {}", recipe.table, row["resized_u8_sha256"]);
    let hash = hashes.entry(known).or_insert_with(|| {
        let values: Vec<u8> = expand(&prepared.patches, &recipe)
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        hex(&values)
    });
    if hash != row["pixel_values_sha256"].as_str().unwrap() {
        return Err("pixel values differ".into());
    }
    Ok(())
}

fn every_row(folder: &str, generation: Generation) {
    let text = fs::read_to_string(golden().join("expected").join(folder).join("images.jsonl"));
    let rows: Vec<Value> = text
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows.len(), 150);
    let mut wrong = Vec::new();
    let mut hashes = Hashes::new();
    for profile in Profile::ALL
        .into_iter()
        .filter(|profile| profile.is_exact())
    {
        let mut preparer = Preparer::new(recipe(profile, generation));
        let mut seen = 0;
        for row in rows.iter().filter(|row| row["profile"] == profile.name()) {
            seen += 1;
            if let Err(what) = check(row, &mut preparer, &mut hashes) {
                wrong.push(format!("{} {profile}: {what}", row["image"]));
            }
        }
        assert_eq!(seen, 30);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn transformers_4() {
    every_row("hf4", Generation::V4);
}

#[test]
fn transformers_5() {
    every_row("hf5", Generation::V5);
}

/// The 16-bit images that transformers 5 spoils on the torchvision path follow transformers 4.
#[test]
fn spoiled_rows_follow_transformers_4() {
    for name in ["gray16.png", "rgb16.png"] {
        let bytes = fs::read(golden().join("images").join(name)).unwrap();
        for profile in [Profile::TvPath, Profile::TvPathFt] {
            let [four, five] = [Generation::V4, Generation::V5]
                .map(|generation| Preparer::new(recipe(profile, generation)).prepare(&bytes));
            assert_eq!(four.unwrap(), five.unwrap());
        }
    }
}

/// Scalar and vector code, and a used and a fresh preparer, give one result.
#[test]
fn code_and_history_do_not_show() {
    let mut used = Preparer::new(recipe(Profile::PilPath, Generation::V5));
    for entry in fs::read_dir(golden().join("images")).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let mut fresh = Preparer::new(used.recipe().clone()).scalar();
        assert_eq!(used.prepare(&bytes), fresh.prepare(&bytes));
    }
}
