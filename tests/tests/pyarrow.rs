//! An independent reader, written from FORMAT.md with pyarrow, sees every value that ours sees.

use std::env;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker_reader::{Cache, Place};
use stoker_tests::synthetic;

/// One line for each sample, as `formats/tests/python/read_cache.py` prints them.
fn by_pyarrow(cache: &Path) -> Vec<Value> {
    let python = env::var_os("STOKER_PYTHON").unwrap_or_else(|| "python3".into());
    let has_pyarrow = Command::new(&python)
        .args(["-c", "import pyarrow"])
        .output()
        .is_ok_and(|output| output.status.success());
    assert!(
        has_pyarrow,
        "`{}` has no pyarrow: run scripts/test, which makes an environment with it, or set STOKER_PYTHON",
        python.display()
    );
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/python/read_cache.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(cache)
        .output()
        .unwrap();
    let faults = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{faults}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The same lines, by our reader.
fn by_us(path: &Path) -> Vec<Value> {
    let cache = Cache::open(path).unwrap();
    let mut lines = Vec::new();
    for number in 0..cache.len() {
        let Place { partition, row } = cache.place(number).unwrap();
        let sample = cache.sample(partition, row).unwrap();
        let images: Vec<Value> = sample
            .images
            .iter()
            .map(|image| {
                let image = cache.image(partition, u64::from(*image)).unwrap();
                json!({
                    "key": image.key.to_string(),
                    "grid_thw": image.grid_thw,
                    "size": image.size,
                    "patches_sha256": sha256(&image.patches),
                })
            })
            .collect();
        lines.push(json!({
            "split": cache.split_of(partition).unwrap().name,
            "sample_id": sample.sample_id,
            "record_id": sample.record_id,
            "input_ids": sample.input_ids,
            "labels": sample.labels,
            "images": sample.images,
            "image_grid_thw": sample.image_grid_thw,
            "partition": partition,
            "row": row,
            "image_rows": images,
        }));
    }
    lines
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn pyarrow_reads_what_we_read() {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(
        folder.path(),
        &synthetic::content(),
        &synthetic::opaque_tables(),
    );
    let (ours, theirs) = (by_us(folder.path()), by_pyarrow(folder.path()));
    assert_eq!(ours.len(), 23);
    assert_eq!(ours, theirs);
}

#[test]
fn caches_of_every_released_version_are_read_as_they_were() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata");
    let mut versions = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let cache = entry.unwrap().path();
        if !cache.is_dir() {
            continue;
        }
        let text = std::fs::read_to_string(cache.with_extension("jsonl")).unwrap();
        let expected: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(!expected.is_empty());
        assert_eq!(by_us(&cache), expected, "{}", cache.display());
        assert_eq!(by_pyarrow(&cache), expected, "{}", cache.display());
        versions += 1;
    }
    assert_eq!(versions, 1, "a released version's cache is missing");
}
