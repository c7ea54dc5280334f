//! What part builds and commits leave alone, and what they do not believe (J2, J5, J7).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::PartRecord;
use stoker_tests::cache::{assert_same, files, flip};
use stoker_tests::command::{Ended, Run};
use stoker_tests::corpus::png;
use stoker_tests::dice::Dice;
use stoker_tests::parts::{Scene, copy_small};
use stoker_tests::remote::{push, sync};

fn scene() -> Scene {
    Scene::new(24, &["--partitions", "4"])
}

fn verify(root: &Path) -> Ended {
    Run::stoker(["verify", "--json"]).args([root]).end()
}

/// The first file below a plan's folder of `root` that ends so.
fn find(root: &Path, end: &str) -> PathBuf {
    let names: Vec<String> = files(root).into_keys().collect();
    let name = names.iter().find(|name| name.ends_with(end));
    root.join(name.unwrap_or_else(|| panic!("no {end} in {names:?}")))
}

/// Commits the parts in the folder of each.
fn commit_all(scene: &Scene, parts: &[PathBuf]) {
    for part in parts {
        let _ = scene.commit(parts, part).end().expect_code(0);
    }
}

/// Part 1 of 2, built in `output` while all pictures are others.
fn other_part(scene: &Scene, output: &Path) {
    let mut dice = Dice::new(77);
    let folder = scene.corpus.data();
    let pictures: Vec<PathBuf> = files(&folder)
        .into_keys()
        .filter(|name| name.ends_with(".png") && !name.contains("cut") && !name.contains("text"))
        .map(|name| folder.join(name))
        .collect();
    let before: Vec<Vec<u8>> = pictures
        .iter()
        .map(|path| fs::read(path).expect("a picture"))
        .collect();
    for path in &pictures {
        fs::write(path, png(&mut dice, 40, 40)).expect("a picture");
    }
    let run = scene
        .build(output)
        .args(["--worker", "1", "--workers", "2"]);
    let _ = run.end().expect_code(0);
    for (path, bytes) in pictures.iter().zip(before) {
        fs::write(path, bytes).expect("a picture");
    }
}

/// Writes a record anew, as somebody could.
fn forge(path: &Path, change: impl FnOnce(&mut PartRecord)) {
    let mut record = PartRecord::parse(&fs::read(path).expect("a record")).expect("a record");
    change(&mut record);
    fs::remove_file(path).expect("our own file");
    fs::write(path, record.to_bytes().expect("a record")).expect("our own file");
}

#[test]
fn a_refused_commit_changes_nothing() {
    let scene = scene();
    let parts = scene.parts(2);
    let other = scene.corpus.output("other");
    other_part(&scene, &other);
    // What the output has built itself: finished, and not.
    let given = [parts[0].clone(), other];
    let record = parts[1].join("parts/0001-of-0002.json");
    let hidden = record.with_extension("hidden");
    let refused = || {
        let before = files(&parts[1]);
        let ended = scene.commit(&given, &parts[1]).end().expect_code(2);
        assert!(ended.stderr.contains("has built"), "{}", ended.stderr);
        assert_same(&before, &files(&parts[1]), "a refused commit");
    };
    refused();
    fs::rename(&record, &hidden).expect("our own file");
    refused();
    fs::rename(&hidden, &record).expect("our own file");
    // Parts that lack a file, and an output without any.
    let receipt = find(&parts[1], "receipts/p0003-000000.json");
    let hidden = receipt.with_extension("hidden");
    fs::rename(&receipt, &hidden).expect("our own file");
    let output = scene.corpus.output("joined");
    let _ = scene.commit(&parts, &output).end().expect_code(2);
    assert_eq!(files(&output), BTreeMap::new());
    fs::rename(&hidden, &receipt).expect("our own file");
    commit_all(&scene, &parts);
    let _ = verify(&parts[1]).expect_code(0);
}

/// A new cache in a folder that held a share of an old one.
#[test]
fn records_of_another_plan_say_nothing_of_a_cache() {
    let scene = scene();
    let old = scene.parts(2);
    commit_all(&scene, &old);
    let name = "parts/0000-of-0002.json";
    let stale = fs::read(old[0].join(name)).expect("a record");
    let new: Vec<PathBuf> = ["0", "1"]
        .into_iter()
        .map(|worker| {
            let output = scene.corpus.output(&format!("new-{worker}"));
            let run = scene.build(&output).with("--max-pixels", "4096");
            let run = run.args(["--worker", worker, "--workers", "2"]);
            let _ = run.end().expect_code(0);
            output
        })
        .collect();
    let _ = scene.commit(&new, &old[0]).end().expect_code(0);
    assert!(!old[0].join(name).exists());
    for _ in 0..2 {
        let report = verify(&old[0]).expect_code(0).json();
        assert_eq!(report["not_held"], serde_json::json!([0, 1, 2, 3]));
        // Copied back, as a careless rsync would.
        fs::write(old[0].join(name), &stale).expect("a record");
    }
}

#[test]
fn dropping_a_build_leaves_a_committed_share_one() {
    let scene = scene();
    let parts = scene.parts(2);
    commit_all(&scene, &parts);
    let other = || scene.part(0, 2).with("--max-pixels", "4096");
    let _ = other().end().expect_code(0);
    assert!(parts[0].join("building.json").exists());
    let restart = scene.part(0, 2).with("--max-rejects", "0");
    let _ = restart.args(["--restart"]).end().expect_code(1);
    assert!(!parts[0].join("building.json").exists());
    assert!(!parts[0].join("parts/0000-of-0002.json").exists());
    let _ = verify(&parts[0]).expect_code(0);
}

#[test]
fn sources_under_another_name_mend_a_cache() {
    let scene = scene();
    let before = files(&scene.clean);
    for kind in ["shards/p0000-000000.arrow", "shards/p0001-000001.arrow"] {
        fs::remove_file(find(&scene.clean, kind)).expect("our own file");
    }
    let moved = scene.corpus.output("moved");
    fs::rename(scene.corpus.data(), &moved).expect("our own folder");
    let run = scene.corpus.build_of(&[moved], &scene.clean);
    let _ = run.with("--partitions", "4").end().expect_code(0);
    let rows = |files: BTreeMap<String, String>| -> BTreeMap<String, String> {
        let is_rows = |name: &str| !name.contains("tables") && !name.starts_with("manifest");
        files
            .into_iter()
            .filter(|(name, _)| is_rows(name))
            .collect()
    };
    assert_same(&rows(before), &rows(files(&scene.clean)), "mended");
    let _ = verify(&scene.clean).expect_code(0);
}

#[test]
fn no_part_is_built_where_a_whole_cache_is() {
    let scene = scene();
    let before = files(&scene.clean);
    let run = scene.build(&scene.clean);
    let ended = run.args(["--worker", "0", "--workers", "2"]).end();
    let ended = ended.expect_code(2);
    assert!(ended.stderr.contains("a whole cache"), "{}", ended.stderr);
    assert_same(&before, &files(&scene.clean), "a refused part");
    // Nor does a commit of the same cache make it a share.
    let parts = scene.parts(2);
    let _ = scene.commit(&parts, &scene.clean).end().expect_code(0);
    assert_same(&before, &files(&scene.clean), "committed again");
}

#[test]
fn a_mended_share_is_no_unfinished_build() {
    let scene = scene();
    let parts = scene.parts(2);
    commit_all(&scene, &parts);
    let before = files(&parts[1]);
    fs::remove_file(find(&parts[1], "shards/p0003-000000.arrow")).expect("our own file");
    let _ = verify(&parts[1]).expect_code(1);
    let _ = scene.part(1, 2).end().expect_code(0);
    assert_same(&before, &files(&parts[1]), "mended");
    let other = scene.part(1, 2).with("--max-pixels", "4096");
    let _ = other.end().expect_code(0);
}

/// Records are read where anybody may have put them.
#[test]
fn odd_records_are_not_read() {
    let scene = scene();
    let parts = scene.parts(2);
    let odd = parts[1].join("parts/0007-of-0008.json");
    let refused = || scene.commit(&parts, &parts[0]).end().expect_code(2);
    let status = std::process::Command::new("mkfifo").arg(&odd).status();
    assert!(status.expect("mkfifo").success());
    let ended = refused();
    assert!(ended.stderr.contains("0007-of-0008"), "{}", ended.stderr);
    let _ = scene.part(1, 2).end().expect_code(0);
    assert!(odd.exists());
    fs::remove_file(&odd).expect("our own file");
    std::os::unix::fs::symlink("/dev/zero", &odd).expect("a link");
    let _ = refused();
    fs::remove_file(&odd).expect("our own file");

    // One of a newer version is not ours to remove.
    let text = fs::read_to_string(parts[1].join("parts/0001-of-0002.json")).expect("a record");
    let newer = text.replacen("\"major\":1", "\"major\":2", 1);
    let newer = newer.split_once(",\"seal\":").expect("a seal").0;
    let seal = stoker_formats::ContentHash::of(newer.as_bytes());
    fs::write(&odd, format!("{newer},\"seal\":\"{seal}\"}}\n")).expect("a record");
    let _ = scene.part(1, 2).end().expect_code(0);
    assert!(odd.exists());
    fs::remove_file(&odd).expect("our own file");

    commit_all(&scene, &parts);
}

#[test]
fn forged_records_are_refused_and_cannot_move_the_cursor() {
    type Change = fn(&mut PartRecord);
    let scene = scene();
    let parts = scene.parts(2);
    let output = scene.corpus.output("joined");
    let changes: [(Change, &str); 5] = [
        (|record| record.inputs[0].bytes += 1, "another build"),
        (|record| record.tokenizer.rows += 1, "another build"),
        (|record| record.created_by.push('\u{1b}'), "was built by"),
        (
            |record| record.inputs[0].name.push('\u{1b}'),
            "another build",
        ),
        (
            |record| {
                for entry in &mut record.partitions {
                    entry.rejected_images = u64::MAX;
                }
            },
            "than a number can hold",
        ),
    ];
    for (number, (change, message)) in changes.into_iter().enumerate() {
        let copy = scene.corpus.output(&format!("copy-{number}"));
        copy_small(&parts[1], &copy);
        forge(&copy.join("parts/0001-of-0002.json"), change);
        let given = [parts[0].clone(), copy];
        let ended = scene.commit(&given, &output).end().expect_code(2);
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
        assert!(!ended.stderr.contains('\u{1b}'), "change {number}");
        assert!(!output.join("manifest.json").exists(), "change {number}");
    }
}

/// Copies of the sources that workers name otherwise make other receipts of a partition, though not other shards.
#[test]
fn parts_that_saw_the_sources_elsewhere_are_told_so() {
    let scene = scene();
    let parts = scene.parts(2);
    let moved = scene.corpus.output("moved");
    fs::rename(scene.corpus.data(), &moved).expect("our own folder");
    let other = scene.corpus.output("other");
    let run = scene.corpus.build_of(&[moved], &other);
    let run = run.with("--partitions", "4");
    let run = run.args(["--worker", "1", "--workers", "4"]);
    let _ = run.end().expect_code(0);
    let given = [parts[0].clone(), parts[1].clone(), other];
    let ended = scene.commit(&given, &scene.corpus.output("joined")).end();
    let ended = ended.expect_code(2);
    assert!(
        ended.stderr.contains("differ in partition 1")
            && ended.stderr.contains("under other names"),
        "{}",
        ended.stderr
    );
}

/// A record says what a folder shall hold: one that is damaged is said, until the part is built again.
#[test]
fn a_damaged_record_of_a_committed_part_is_damage() {
    let scene = scene();
    let parts = scene.parts(2);
    commit_all(&scene, &parts);
    let name = "parts/0001-of-0002.json";
    let path = parts[1].join(name);
    let good = files(&parts[1]);
    let newer = {
        let text = fs::read_to_string(&path).expect("a record");
        let text = text.replacen("\"major\":1", "\"major\":2", 1);
        let text = text.split_once(",\"seal\":").expect("a seal").0.to_owned();
        let seal = stoker_formats::ContentHash::of(text.as_bytes());
        format!("{text},\"seal\":\"{seal}\"}}\n")
    };
    flip(&path);
    let report = verify(&parts[1]).expect_code(1).json();
    let damages = report["damages"].as_array().expect("a list");
    assert_eq!(damages.len(), 1, "{report}");
    assert_eq!(damages[0]["file"], name);
    let ended = Run::stoker(["verify"]).args([&parts[1]]).end();
    let text = ended.expect_code(1).stdout;
    for what in [
        "will count as another node's",
        "run the build command of that part again",
    ] {
        assert!(text.contains(what), "{text}");
    }
    let ended = scene.corpus.rebuild(&parts[1]).end().expect_code(1);
    let why = "the build command of that part writes it again";
    assert!(ended.stdout.contains(why), "{}", ended.stdout);
    let _ = scene.part(1, 2).end().expect_code(0);
    let _ = verify(&parts[1]).expect_code(0);
    assert_same(&good, &files(&parts[1]), "built again");
    // What a newer release says is not ours to judge.
    fs::remove_file(&path).expect("our own file");
    fs::write(&path, newer).expect("a record");
    let _ = verify(&parts[1]).expect_code(0);
}

/// Shards that moved to another node, and the giver's records removed.
#[test]
fn a_node_that_gave_shards_away_is_sound_without_its_records() {
    let scene = scene();
    let parts = scene.parts(2);
    commit_all(&scene, &parts);
    for name in files(&parts[0]).into_keys() {
        if name.contains("shards/p0002-") {
            fs::copy(parts[0].join(&name), parts[1].join(&name)).expect("a shard");
            fs::remove_file(parts[0].join(&name)).expect("our own file");
        }
    }
    let _ = verify(&parts[0]).expect_code(1);
    for file in fs::read_dir(parts[0].join("parts")).expect("a folder") {
        fs::remove_file(file.expect("a file").path()).expect("our own file");
    }
    for (part, elsewhere) in parts.iter().zip([vec![1, 2, 3], vec![0]]) {
        let report = verify(part).expect_code(0).json();
        assert_eq!(report["not_held"], serde_json::json!(elsewhere));
    }
}

/// The record of a part goes with the shards that it names, also where these went before without it.
#[test]
fn a_sync_that_prunes_removes_the_record_of_what_belongs_elsewhere() {
    let scene = scene();
    let parts = scene.parts(2);
    commit_all(&scene, &parts);
    let remote = scene.corpus.output("remote").display().to_string();
    for part in &parts {
        let _ = push(part, &remote).end().expect_code(0);
    }
    let record = parts[0].join("parts/0000-of-0002.json");
    let table = scene.corpus.output("placement.json");
    let prune = |placement: &str| {
        fs::write(&table, placement).expect("a table");
        let run = sync(&remote, &parts[0]).args(["--prune", "--node", "0", "--placement"]);
        let _ = run.args([&table]).end().expect_code(0);
    };
    // What is of the node's share alone is needed to make it again.
    prune("[[0,2],[1,3]]");
    assert!(record.exists());
    for name in files(&parts[0]).into_keys() {
        if name.contains("shards/p0002-") {
            fs::remove_file(parts[0].join(&name)).expect("our own file");
        }
    }
    prune("[[0],[1,2,3]]");
    assert!(!record.exists());
    let report = verify(&parts[0]).expect_code(0).json();
    assert_eq!(report["not_held"], serde_json::json!([1, 2, 3]));
}

/// A commit that fails late makes no share of the whole cache that the output holds.
#[test]
fn a_commit_that_fails_in_its_tables_leaves_another_cache_whole() {
    let scene = scene();
    let parts = scene.parts(2);
    let output = scene.corpus.output("other");
    let other = scene.build(&output).with("--seed", "9");
    let _ = other.end().expect_code(0);
    let table = "parts/0001-of-0002-samples.parquet";
    flip(&parts[1].join(table));
    let ended = scene.commit(&parts, &output).end().expect_code(2);
    assert!(ended.stderr.contains(table), "{}", ended.stderr);
    let _ = verify(&output).expect_code(0);
    for name in files(&output).into_keys() {
        if name.contains("shards/p0001-") {
            fs::remove_file(output.join(&name)).expect("our own file");
        }
    }
    let report = verify(&output).expect_code(1).json();
    assert_eq!(report["not_held"], serde_json::Value::Null);
}
