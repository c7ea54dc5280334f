//! `stoker repair`: every kind of damage is mended byte for byte, nothing else is touched, and what cannot be mended is said.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::json;
use stoker_tests::cache::{assert_same, files};
use stoker_tests::command::{Ended, Run};
use stoker_tests::remote::{Scene, copy, on_node, push, sync, through};
use stoker_tests::snapshot;

const SAMPLES: [u64; 3] = [40, 7, 12];

fn repair(cache: &Path, from: &str) -> Run {
    Run::stoker(["repair"]).args([cache]).args(["--from", from])
}

fn check(scene: &Scene, name: &str, ended: &Ended) {
    let folder = scene.path("").display().to_string();
    snapshot::check(name, ended, &[(folder.trim_end_matches('/'), "[FOLDER]")]);
}

/// Inode and time of change of every file.
fn stamps(root: &Path) -> BTreeMap<String, (u64, i64, i64)> {
    let stamp = |name: &String| {
        let found = fs::metadata(root.join(name)).expect("a file");
        (found.ino(), found.ctime(), found.ctime_nsec())
    };
    let named = files(root).into_iter().filter(|(_, hash)| !hash.is_empty());
    named
        .map(|(name, _)| (name.clone(), stamp(&name)))
        .collect()
}

fn write(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).expect("a file");
}

/// Damages a file of each kind in each way; gives their names.
fn damage(root: &Path) -> Vec<String> {
    let all: Vec<String> = files(root).into_keys().collect();
    let mut ways = 0;
    let mut damaged = Vec::new();
    for kind in [
        "shards/p0000",
        "shards/p0001",
        "receipts/p0002",
        "index/p0001",
        "tables/r",
        "tokenizer",
        "shards/p0002",
    ] {
        for name in all.iter().filter(|name| name.contains(kind)) {
            let path = root.join(name);
            let mut bytes = fs::read(&path).expect("a file");
            ways += 1;
            match ways % 4 {
                0 => fs::remove_file(&path).expect("ours"),
                1 => {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 16;
                    write(&path, &bytes);
                }
                2 => write(&path, &bytes[..bytes.len() / 3]),
                _ => {
                    bytes.push(7);
                    write(&path, &bytes);
                }
            }
            damaged.push(name.clone());
        }
    }
    assert!(damaged.len() > 20);
    damaged
}

#[test]
fn every_damage_is_mended_and_nothing_else_is_touched() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let good = files(&scene.cache());
    let folder = scene.path("remote").display().to_string();
    for place in [folder.as_str(), "s3://bucket/remote"] {
        let _ = through(push(&scene.cache(), place), &server.endpoint())
            .end()
            .expect_code(0);
    }
    let twin = scene.cache().display().to_string();
    for (number, place) in [folder.as_str(), "s3://bucket/remote", &twin]
        .iter()
        .enumerate()
    {
        let hurt = scene.path(&format!("hurt-{number}"));
        copy(&scene.cache(), &hurt);
        let damaged = damage(&hurt);
        let before = stamps(&hurt);
        let run = through(repair(&hurt, place), &server.endpoint()).args(["--json"]);
        let report = run.end().expect_code(0).json();
        assert_eq!(
            report["damages"].as_array().map(Vec::len),
            Some(damaged.len())
        );
        assert_same(&good, &files(&hurt), place);
        let after = stamps(&hurt);
        for (name, stamp) in &before {
            let same = after.get(name) == Some(stamp);
            assert_eq!(same, !damaged.contains(name), "{name}");
        }
        let again = run.end().expect_code(0).json();
        assert_eq!(again["damages"], json!([]));
        assert_eq!(after, stamps(&hurt));
    }
}

#[test]
fn a_share_is_mended_by_what_it_holds() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote").display().to_string();
    let _ = push(&scene.cache(), &remote).end().expect_code(0);
    let share = scene.path("share");
    let _ = on_node(sync(&remote, &share), 0, 3).end().expect_code(0);
    let whole = files(&share);
    for name in whole
        .keys()
        .filter(|name| name.contains("shards/p0000-000001"))
    {
        fs::remove_file(share.join(name)).unwrap();
    }
    check(&scene, "repair_share", &repair(&share, &remote).end());
    assert_same(&whole, &files(&share), "the share");
}

#[test]
fn what_cannot_be_mended_is_said_and_the_rest_is_mended() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote");
    let place = remote.display().to_string();
    let _ = push(&scene.cache(), &place).end().expect_code(0);
    let hurt = scene.path("hurt");
    copy(&scene.cache(), &hurt);
    let names: Vec<String> = files(&hurt)
        .into_keys()
        .filter(|name| name.contains("shards/p0001"))
        .collect();
    let mut bytes = fs::read(hurt.join(&names[0])).unwrap();
    bytes[5000] ^= 1;
    write(&hurt.join(&names[0]), &bytes);
    fs::remove_file(hurt.join(&names[1])).unwrap();
    // The remote lacks the first one, so the damaged file stays as it is.
    fs::remove_file(remote.join(names[0].clone() + ".zst")).unwrap();
    check(&scene, "repair_remains", &repair(&hurt, &place).end());
    assert_eq!(fs::read(hurt.join(&names[0])).unwrap(), bytes);
    assert!(hurt.join(&names[1]).is_file());
    fs::copy(scene.cache().join(&names[0]), remote.join(&names[0])).unwrap();
    let _ = repair(&hurt, &place).end().expect_code(0);
    // What stands in the place of a file is not removed.
    fs::remove_file(hurt.join(&names[1])).unwrap();
    fs::create_dir(hurt.join(&names[1])).unwrap();
    let ended = repair(&hurt, &place).end().expect_code(1);
    assert!(
        ended.stdout.contains("could not rename"),
        "{}",
        ended.stdout
    );
    fs::remove_dir(hurt.join(&names[1])).unwrap();
    let _ = repair(&hurt, &place).end().expect_code(0);
    // A damaged manifest is mended too.
    let mut manifest = fs::read(hurt.join("manifest.json")).unwrap();
    manifest[100] ^= 1;
    write(&hurt.join("manifest.json"), &manifest);
    check(&scene, "repair_manifest", &repair(&hurt, &place).end());
    assert_same(&files(&scene.cache()), &files(&hurt), "the manifest");
    check(&scene, "repair_sound", &repair(&hurt, &place).end());
}

#[test]
fn another_cache_and_no_cache_are_refused() {
    let scene = Scene::new(&SAMPLES);
    let other = Scene::new(&[4, 4, 4]);
    let before = files(&scene.cache());
    let place = other.cache().display().to_string();
    let ended = repair(&scene.cache(), &place).end().expect_code(2);
    assert!(
        ended.stderr.contains("holds another cache"),
        "{}",
        ended.stderr
    );
    assert_same(&before, &files(&scene.cache()), "refused");
    check(
        &scene,
        "repair_no_cache",
        &repair(&scene.path("none"), &scene.cache().display().to_string()).end(),
    );
}
