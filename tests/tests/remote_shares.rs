//! What a synced folder knows of its share: a partition that is lost whole is damage, and one that was never brought is not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stoker_formats::{ContentHash, PartFile, ShareRecord};
use stoker_tests::cache::{assert_same, files, flip};
use stoker_tests::command::{Ended, Run};
use stoker_tests::remote::{Scene, on_node, push, sync};
use stoker_tests::synthetic;

/// The last partition is the split `val`.
const SAMPLES: [u64; 6] = [12, 7, 9, 8, 10, 5];

/// A cache that was pushed, and a node's folder.
struct Node {
    scene: Scene,
    remote: String,
    folder: PathBuf,
}

impl Node {
    fn new() -> Self {
        let scene = Scene::new(&SAMPLES);
        let remote = scene.path("remote").display().to_string();
        let _ = push(&scene.cache(), &remote).end().expect_code(0);
        let folder = scene.path("node");
        Self {
            scene,
            remote,
            folder,
        }
    }

    /// The sync of the share of node `node` of `nodes`.
    fn sync(&self, node: usize, nodes: usize) -> Run {
        on_node(sync(&self.remote, &self.folder), node, nodes)
    }

    fn run(&self, command: &str) -> Run {
        Run::stoker([command]).args([&self.folder])
    }

    /// What `verify` ends with, and says.
    fn verify(&self, code: i32) -> Value {
        let ended = self.run("verify").args(["--json"]).end();
        ended.expect_code(code).json()
    }

    fn read(&self, code: i32) -> Ended {
        let run = self.run("read").args(["--batch-size", "2"]);
        run.end().expect_code(code)
    }

    /// Removes all shards of a partition; gives how many there were.
    fn lose(&self, partition: u32) -> usize {
        let part = format!("/shards/p{partition:04}-");
        let all = files(&self.folder).into_keys();
        let shards: Vec<String> = all.filter(|name| name.contains(&part)).collect();
        for name in &shards {
            fs::remove_file(self.folder.join(name)).expect("ours");
        }
        assert!(!shards.is_empty());
        shards.len()
    }

    /// The records of shares in the folder, by the caches that they are of.
    fn records(&self) -> Vec<(ContentHash, ShareRecord)> {
        let listed = fs::read_dir(self.folder.join("parts"))
            .into_iter()
            .flatten();
        let names = listed.map(|entry| entry.expect("an entry").path());
        names.map(|path| (of(&path), record(&path))).collect()
    }

    /// Where the record of this cache lies.
    fn record(&self) -> PathBuf {
        let name = PartFile::Share(self.scene.manifest.fingerprint).to_string();
        self.folder.join("parts").join(name)
    }
}

fn of(path: &Path) -> ContentHash {
    match PartFile::parse(path.file_name().unwrap().to_str().unwrap()) {
        Ok(PartFile::Share(fingerprint)) => fingerprint,
        other => panic!("{other:?} in {}", path.display()),
    }
}

fn record(path: &Path) -> ShareRecord {
    ShareRecord::parse(&fs::read(path).expect("a record")).expect("a record")
}

#[test]
fn a_partition_that_is_lost_whole_is_damage_and_comes_back() {
    let node = Node::new();
    let _ = node.sync(1, 3).end().expect_code(0);
    let whole = files(&node.folder);
    let elsewhere = json!([0, 2, 3, 5]);
    for command in ["verify", "inspect", "stats"] {
        let report = node.run(command).args(["--json"]).end().expect_code(0);
        assert_eq!(report.json()["not_held"], elsewhere, "{command}");
    }
    let text = node.run("inspect").end().expect_code(0).stdout;
    assert!(text.contains("partitions 0, 2-3, 5: on other"), "{text}");
    let ended = node.read(2);
    let what = "the shards of partitions 0, 2, 3 are on other nodes";
    assert!(ended.stderr.contains(what), "{}", ended.stderr);
    assert!(ended.stderr.contains("placement"), "{}", ended.stderr);
    let lost = node.lose(4);
    let report = node.verify(1);
    assert_eq!(report["not_held"], elsewhere);
    assert_eq!(report["damages"].as_array().map(Vec::len), Some(lost));
    assert_eq!(report["lost_samples"], SAMPLES[4]);
    // The source's build would make the whole cache here.
    let text = node.run("verify").end().expect_code(1).stdout;
    let hint = "`stoker repair CACHE --from REMOTE`, or run `stoker sync` again\n";
    assert!(text.ends_with(hint), "{text}");
    let ended = node.read(2);
    let hint = "`stoker repair CACHE --from REMOTE`";
    assert!(ended.stderr.contains(hint), "{}", ended.stderr);
    assert!(ended.stderr.contains("/shards/p0004-"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("/shards/p0000-"), "{}", ended.stderr);
    let other = node.scene.path("other").display().to_string();
    let _ = push(&node.folder, &other).end().expect_code(2);
    let repair = node.run("repair").args(["--from", &node.remote]);
    let _ = repair.end().expect_code(0);
    assert_same(&whole, &files(&node.folder), "mended");
    // What was in the folder before is known as well.
    node.lose(1);
    let report = node.sync(1, 3).args(["--json"]).end().expect_code(0);
    assert!(report.json()["files"].as_u64() > Some(0));
    assert_same(&whole, &files(&node.folder), "synced again");
}

#[test]
fn samples_that_are_here_are_shown_and_measured_and_others_are_named() {
    let node = Node::new();
    let _ = node.sync(1, 3).end().expect_code(0);
    let whole = |args: &[&str]| {
        let run = Run::stoker(["inspect", "--json"]).args([node.scene.cache()]);
        run.args(args).end().expect_code(0).json()
    };
    let here = SAMPLES[0].to_string();
    let shown = whole(&["--row", &here]);
    assert_eq!(shown["partition"], 1);
    let id = shown["sample_id"].as_str().expect("an id").to_owned();
    for args in [["--row", &here], ["--sample", &id]] {
        let ended = node.run("inspect").args(args).args(["--json"]).end();
        assert_eq!(ended.expect_code(0).json(), shown);
    }
    let ended = node
        .run("inspect")
        .args(["--row", "0"])
        .end()
        .expect_code(2);
    let what = "the shards of partition 0 are on other nodes";
    assert!(ended.stderr.contains(what), "{}", ended.stderr);
    let id = whole(&["--row", "0"])["sample_id"].clone();
    let run = node.run("inspect").args(["--sample", id.as_str().unwrap()]);
    let ended = run.end().expect_code(2);
    assert!(
        ended.stderr.contains("no sample that is here"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("partitions 0, 2-3, 5"),
        "{}",
        ended.stderr
    );
    let bench = |split: &str| {
        let run = node
            .run("bench")
            .args(["--batch-size", "2", "--seconds", "0.05"]);
        run.args(["--json", "--split", split]).end()
    };
    let report = bench("train").expect_code(0).json();
    assert!(report["reader_batches_s"].as_f64() > Some(0.0), "{report}");
    let ended = bench("val").expect_code(2);
    assert!(
        ended.stderr.contains("split val are on other nodes"),
        "{}",
        ended.stderr
    );
}

/// Earlier releases left no record: what is there is all that is known.
#[test]
fn a_share_without_a_record_works_as_it_did_and_gets_one() {
    let node = Node::new();
    let _ = node.sync(1, 3).end().expect_code(0);
    let whole = files(&node.folder);
    fs::remove_file(node.record()).unwrap();
    assert_eq!(node.verify(0)["not_held"], json!([0, 2, 3, 5]));
    let lost = node.lose(4);
    assert_eq!(node.verify(0)["not_held"], json!([0, 2, 3, 4, 5]));
    let report = node.sync(1, 3).args(["--json"]).end().expect_code(0);
    assert_eq!(report.json()["files"], lost);
    assert_same(&whole, &files(&node.folder), "synced again");
    assert_eq!(record(&node.record()).partitions, [1, 4]);
}

#[test]
fn another_placement_and_another_cache_have_records_of_their_own() {
    let node = Node::new();
    let _ = node.sync(1, 3).end().expect_code(0);
    // What belongs elsewhere now is said, and counts as long as all of it is there.
    let _ = node.sync(0, 2).end().expect_code(0);
    assert_eq!(record(&node.record()).partitions, [0, 2, 4]);
    for command in ["verify", "inspect"] {
        let report = node.run(command).args(["--json"]).end().expect_code(0);
        let report = report.json();
        assert_eq!(report["not_held"], json!([3, 5]), "{command}");
        assert_eq!(report["extra"], json!([1]), "{command}");
        let text = node.run(command).end().expect_code(0).stdout;
        let what = "shards of partitions 1, which the last sync put on other nodes";
        assert!(text.contains(what), "{text}");
    }
    let part = "/shards/p0001-";
    let all = files(&node.folder).into_keys();
    let shards: Vec<String> = all.filter(|name| name.contains(part)).collect();
    let last = node.folder.join(shards.last().expect("a shard"));
    let whole = fs::read(&last).unwrap();
    flip(&last);
    let report = node.verify(1);
    assert_eq!(report["damages"].as_array().map(Vec::len), Some(1));
    // What lacks some of it is no damage, and nothing that could be read.
    fs::remove_file(&last).unwrap();
    let report = node.verify(0);
    assert_eq!(report["not_held"], json!([1, 3, 5]));
    assert_eq!(report["extra"], json!([1]));
    fs::write(&last, whole).unwrap();
    assert_eq!(node.verify(0)["not_held"], json!([3, 5]));
    node.lose(1);
    let report = node.verify(0);
    assert_eq!(report["not_held"], json!([1, 3, 5]));
    assert_eq!(report["extra"], Value::Null);
    let _ = node.sync(1, 2).args(["--prune"]).end().expect_code(0);
    assert_eq!(record(&node.record()).partitions, [1, 3, 5]);
    assert_eq!(node.verify(0)["not_held"], json!([0, 2, 4]));
    // A cache that follows it: the record of the one that is committed stays until the other one is.
    let mut recipe = synthetic::recipe();
    recipe["note"] = "another text".into();
    let content = synthetic::content_of(&SAMPLES);
    let next = node.scene.path("next");
    let tables = synthetic::opaque_tables();
    let manifest = synthetic::write_sized(&next, &content, &tables, recipe, 4);
    let both = [node.scene.manifest.fingerprint, manifest.fingerprint];
    let from_next = || on_node(sync(&next.display().to_string(), &node.folder), 2, 3);
    let hidden = next.join("hidden");
    let shard = files(&next).into_keys().find(|name| {
        let is_new = !files(&node.folder).contains_key(name);
        is_new && name.contains("/shards/p0002-")
    });
    let shard = next.join(shard.expect("a shard of the new cache alone"));
    fs::rename(&shard, &hidden).unwrap();
    let _ = from_next().end().expect_code(2);
    let mut found: Vec<ContentHash> = node.records().into_iter().map(|(of, _)| of).collect();
    found.sort();
    let mut wanted = both;
    wanted.sort();
    assert_eq!(found, wanted);
    assert_eq!(record(&node.record()).partitions, [1, 3, 5]);
    fs::rename(&hidden, &shard).unwrap();
    let _ = from_next().end().expect_code(0);
    let records = node.records();
    assert_eq!((records.len(), records[0].0), (1, both[1]));
    assert_eq!(records[0].1.partitions, [2, 5]);
    node.lose(2);
    let _ = node.verify(1);
}

#[test]
fn a_damaged_record_is_said_and_the_sync_writes_it_again() {
    let node = Node::new();
    let _ = node.sync(1, 3).end().expect_code(0);
    let good = files(&node.folder);
    let path = node.record();
    let bytes = fs::read(&path).unwrap();
    let mut flipped = bytes.clone();
    flipped[60] ^= 1;
    // The record of another cache under this name, as somebody could leave it.
    let mut other = record(&path);
    other.fingerprint = ContentHash([7; 32]);
    for bad in [flipped, other.to_bytes().unwrap(), Vec::new()] {
        fs::write(&path, bad).unwrap();
        let report = node.verify(1);
        let damages = report["damages"].as_array().expect("a list");
        assert_eq!(damages.len(), 1, "{report}");
        assert!(path.ends_with(damages[0]["file"].as_str().unwrap()));
        let text = node.run("verify").end().expect_code(1).stdout;
        assert!(text.contains("run `stoker sync` again"), "{text}");
        let repair = node.run("repair").args(["--from", &node.remote]);
        let text = repair.end().expect_code(1).stdout;
        assert!(text.contains("`stoker sync` writes it again"), "{text}");
        let _ = node.sync(1, 3).end().expect_code(0);
        assert_same(&good, &files(&node.folder), "written again");
    }
    // Nor is it read through a link.
    let aside = node.scene.path("aside.json");
    fs::rename(&path, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &path).unwrap();
    let _ = node.verify(1);
    fs::remove_file(&path).unwrap();
    // What a newer release says is not ours to judge.
    let newer = String::from_utf8(bytes).unwrap();
    let newer = newer.replace("\"major\":1", "\"major\":2");
    let (text, _) = newer.split_once(",\"seal\"").unwrap();
    let seal = ContentHash::of(text.as_bytes());
    fs::write(&path, format!("{text},\"seal\":\"{seal}\"}}\n")).unwrap();
    let ended = node.run("verify").end().expect_code(2);
    assert!(ended.stderr.contains("version 2.0"), "{}", ended.stderr);
}
