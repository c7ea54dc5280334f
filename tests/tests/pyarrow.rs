//! An independent reader, written from FORMAT.md with pyarrow, sees every value that ours sees.

use std::env;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stoker_builder::build::Stop;
use stoker_builder::pack::{Request, WINDOW, pack};
use stoker_formats::{
    PACKS_FOLDER, PackEntry, PackFile, PackOptions, PackOverlong, PackStrategy, PackTable,
};
use stoker_reader::{Cache, Place};
use stoker_tests::synthetic;

/// The lines that `formats/tests/python/<script>` prints.
fn by_pyarrow(script: &str, cache: &Path) -> Vec<Value> {
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
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/python");
    let output = Command::new(&python)
        .arg("-B")
        .arg(scripts.join(script))
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

/// The lines of `read_cache.py`, by our reader.
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

/// The lines of `read_packs.py` for packs, by our reader, and how many samples are left out.
fn packs_by_us(path: &Path) -> (Vec<Value>, u64) {
    let folder = path.join(PACKS_FOLDER);
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    names.sort();
    let (mut lines, mut left_out) = (Vec::new(), 0);
    for name in names {
        let entry = PackEntry::parse(&std::fs::read(name).unwrap()).unwrap();
        let file = folder.join(PackFile::table(entry.table.hash).to_string());
        let table = PackTable::open(std::fs::File::open(file).unwrap(), &entry).unwrap();
        for partition in 0..entry.packs.len() as u32 {
            let counts = table.counts(partition).unwrap();
            let members = table.members(partition).unwrap();
            lines.extend(counts.iter().zip(members.iter()).map(|(counts, rows)| {
                json!({
                    "table": entry.name,
                    "partition": partition,
                    "tokens": counts.tokens,
                    "loss_tokens": counts.loss_tokens,
                    "images": counts.images,
                    "patches": counts.patches,
                    "rows": rows,
                })
            }));
        }
        left_out += entry.overlong.map_or(0, |file| file.rows);
    }
    (lines, left_out)
}

/// Both readers see the same packs and left-out samples.
fn check_packs(path: &Path) {
    let (ours, left_out) = packs_by_us(path);
    let (theirs, listed): (Vec<Value>, Vec<Value>) = by_pyarrow("read_packs.py", path)
        .into_iter()
        .partition(|line| line["rows"].is_array());
    assert_eq!(ours, theirs, "{}", path.display());
    assert_eq!(listed.len() as u64, left_out);
    assert!(!ours.is_empty() && left_out > 0);
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
    let theirs = by_pyarrow("read_cache.py", folder.path());
    let ours = by_us(folder.path());
    assert_eq!(ours.len(), 23);
    assert_eq!(ours, theirs);
}

#[test]
fn pyarrow_reads_the_packs_that_we_read() {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[900, 0, 400]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    for (max_tokens, overlong) in [(40, PackOverlong::Alone), (20, PackOverlong::Reject)] {
        let request = Request {
            cache: folder.path().to_path_buf(),
            name: None,
            options: PackOptions {
                max_tokens,
                max_patches: Some(40),
                max_samples: None,
                by_modality: false,
                strategy: PackStrategy::BestFit,
                seed: 1,
                window: WINDOW,
                overlong,
            },
            threads: 1,
            show: false,
        };
        pack(&request, &Stop::default()).unwrap();
    }
    check_packs(folder.path());
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
        let theirs = by_pyarrow("read_cache.py", &cache);
        assert_eq!(theirs, expected, "{}", cache.display());
        check_packs(&cache);
        versions += 1;
    }
    assert_eq!(versions, 1, "a released version's cache is missing");
}
