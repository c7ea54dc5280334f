//! Growing, shrinking and losing a disk: the placement of now, a sync of what moves, and the same global batches from the saved cursor on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stoker_builder::build::lock::Lock;
use stoker_reader::{Reader, ReaderOptions};
use stoker_tests::cache::files;
use stoker_tests::command::Run;
use stoker_tests::parts::{is_shard, shards};
use stoker_tests::remote::{Scene, push, sync, through};
use stoker_tests::s3::Server;
use stoker_tests::strace::{Point, failed_at};
use tempfile::TempDir;

/// Samples of a global batch: a multiple of 4 and of 5.
const BATCH: u32 = 20;

/// 20 partitions of a few samples, and the split `val`.
fn samples() -> Vec<u64> {
    let mut samples: Vec<u64> = (0..20).map(|number| 10 + number % 3).collect();
    samples.push(5);
    samples
}

/// A cluster of nodes, each with a folder, that sync from S3.
struct Cluster {
    scene: Scene,
    server: Server,
    nodes: TempDir,
}

impl Cluster {
    fn new() -> Self {
        let scene = Scene::new(&samples());
        let server = scene.serve();
        let run = push(&scene.cache(), "s3://bucket/cache");
        let _ = through(run, &server.endpoint()).end().expect_code(0);
        Self {
            scene,
            server,
            nodes: tempfile::tempdir().expect("a folder"),
        }
    }

    fn node(&self, node: usize) -> PathBuf {
        self.nodes.path().join(format!("node-{node}"))
    }

    /// Places the cache on `nodes` nodes, as little as possible away from `current`.
    fn place(&self, nodes: usize, current: Option<&Path>) -> PathBuf {
        let mut run = Run::stoker(["place"]).args([self.scene.cache()]);
        run = run.args(["--nodes".to_owned(), nodes.to_string()]);
        if let Some(current) = current {
            run = run.args(["--current"]).args([current]);
        }
        let table = self.nodes.path().join(format!("placement-{nodes}.json"));
        fs::write(&table, run.end().expect_code(0).stdout).expect("a table");
        table
    }

    /// Syncs `nodes` nodes; gives the files that were brought to each.
    fn sync(&self, nodes: usize, table: &Path) -> Vec<u64> {
        let sync_one = |node: usize| {
            let run = sync("s3://bucket/cache", &self.node(node))
                .args([
                    "--prune",
                    "--json",
                    "--node",
                    &node.to_string(),
                    "--placement",
                ])
                .args([table]);
            let ended = through(run, &self.server.endpoint()).end().expect_code(0);
            ended.json()["files"].as_u64().expect("a number")
        };
        (0..nodes).map(sync_one).collect()
    }

    /// The global batches from the cursor on that these nodes read, each from its own folder.
    fn read(
        &self,
        nodes: usize,
        table: &Path,
        cursor: &Path,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let mut batches: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in 0..nodes {
            let own = self.nodes.path().join("cursor.json");
            fs::copy(cursor, &own).expect("a cursor");
            let run = Run::stoker(["read", "--json", "--ids", "--epochs", "2"])
                .args([self.node(node)])
                .args([
                    "--batch-size",
                    &BATCH.to_string(),
                    "--rank",
                    &node.to_string(),
                ])
                .args([
                    "--world-size",
                    &nodes.to_string(),
                    "--nodes",
                    &nodes.to_string(),
                ])
                .args(["--placement"])
                .args([table])
                .args(["--cursor"])
                .args([&own]);
            for line in run.end().expect_code(0).stdout.lines() {
                let batch: Value = serde_json::from_str(line).expect("a batch");
                let ids = batch["sample_ids"].as_array().expect("ids").iter();
                let place = format!("{}/{}", batch["epoch"], batch["position"]);
                let ids = ids.map(|id| id.as_str().expect("an id").to_owned());
                batches.entry(place).or_default().extend(ids);
            }
        }
        batches
    }
}

fn table(path: &Path) -> Vec<Vec<u64>> {
    serde_json::from_slice(&fs::read(path).expect("a table")).expect("a table")
}

/// Each node holds the shards of its partitions, and no others.
fn assert_held(cluster: &Cluster, table_path: &Path) {
    let all = shards(&cluster.scene.cache());
    for (node, partitions) in table(table_path).iter().enumerate() {
        let is_own = |name: &String| {
            let part = |partition: &u64| name.contains(&format!("/shards/p{partition:04}-"));
            partitions.iter().any(part)
        };
        let mut own = all.clone();
        own.retain(|name, _| is_own(name));
        let mut held = shards(&cluster.node(node));
        held.retain(|_, hash| !hash.is_empty());
        assert_eq!(own, held, "node {node}");
        let verify = Run::stoker(["verify"]).args([cluster.node(node)]).end();
        assert_eq!(verify.code, Some(0), "{}", verify.stdout);
    }
}

#[test]
fn nodes_come_and_go_and_the_global_batches_stay() {
    let cluster = Cluster::new();
    // In mid-epoch: three batches were delivered.
    let cursor = cluster.nodes.path().join("saved.json");
    let mut reader = Reader::open(ReaderOptions::new(cluster.scene.cache(), BATCH)).unwrap();
    reader.seek(u64::from(BATCH) * 3).unwrap();
    fs::write(&cursor, reader.cursor().unwrap().to_json()).unwrap();
    drop(reader);
    let four = cluster.place(4, None);
    let _ = cluster.sync(4, &four);
    assert_held(&cluster, &four);
    let batches = cluster.read(4, &four, &cursor);
    assert!(
        batches.len() > 10 && batches.contains_key("0/60"),
        "{:?}",
        batches.keys()
    );
    assert!(batches.values().all(|ids| ids.len() == BATCH as usize));
    // Grown to five: the others bring nothing.
    let five = cluster.place(5, Some(&four));
    let brought = cluster.sync(5, &five);
    assert_eq!(brought[..4], [0, 0, 0, 0], "{brought:?}");
    assert_held(&cluster, &five);
    assert_eq!(batches, cluster.read(5, &five, &cursor));
    // A disk is lost.
    fs::remove_dir_all(cluster.node(2)).unwrap();
    let brought = cluster.sync(5, &five);
    assert!(
        brought
            .iter()
            .enumerate()
            .all(|(node, files)| (node == 2) == (*files > 0))
    );
    assert_held(&cluster, &five);
    assert_eq!(batches, cluster.read(5, &five, &cursor));
    // Shrunk to four again.
    let back = cluster.place(4, Some(&five));
    let _ = cluster.sync(4, &back);
    assert_held(&cluster, &back);
    assert_eq!(batches, cluster.read(4, &back, &cursor));
}

#[test]
fn nothing_goes_that_the_remote_does_not_hold_and_nothing_without_being_asked() {
    let scene = Scene::new(&[9, 8, 7]);
    let remote = scene.path("remote");
    let place = remote.display().to_string();
    let _ = push(&scene.cache(), &place).end().expect_code(0);
    let output = scene.path("output");
    let _ = sync(&place, &output).end().expect_code(0);
    let before = shards(&output);
    let own = sync(&place, &output).args(["--node", "0", "--nodes", "3"]);
    let _ = own.end().expect_code(0);
    assert_eq!(before, shards(&output), "not asked");
    // In the remote one is damaged beyond its head and its end, one is gone.
    let pushed: Vec<String> = files(&remote)
        .into_keys()
        .filter(|name| is_shard(name))
        .collect();
    let of = |partition: &str| {
        pushed
            .iter()
            .find(|name| name.contains(partition) && name.ends_with(".zst"))
            .unwrap()
    };
    let damaged = of("/p0001-");
    let mut bytes = fs::read(remote.join(damaged)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 8;
    fs::remove_file(remote.join(damaged)).unwrap();
    fs::write(remote.join(damaged), bytes).unwrap();
    let gone = of("/p0002-");
    fs::remove_file(remote.join(gone)).unwrap();
    let report = own.args(["--prune", "--json"]).end().expect_code(0).json();
    let mut stay = [damaged, gone].map(|name| name.trim_end_matches(".zst").to_owned());
    stay.sort();
    assert_eq!(report["not_removed"], json!(stay));
    let mut kept = before.clone();
    kept.retain(|name, hash| hash.is_empty() || name.contains("/p0000-") || stay.contains(name));
    assert_eq!(kept, shards(&output));
}

/// Several nodes that prune at once each hold their own folder, and share the one that they sync from.
#[test]
fn nodes_that_prune_share_the_folder_that_they_sync_from() {
    let scene = Scene::new(&[9, 8, 7]);
    let remote = scene.path("remote");
    let place = remote.display().to_string();
    let _ = push(&scene.cache(), &place).end().expect_code(0);
    let output = scene.path("output");
    let whole = || sync(&place, &output).end().expect_code(0);
    let _ = whole();
    let prune = sync(&place, &output).args(["--node", "0", "--nodes", "3", "--prune", "--json"]);
    let builder = Lock::take(&remote).unwrap();
    let ended = prune.end().expect_code(2);
    assert!(ended.stderr.contains("another builder"), "{}", ended.stderr);
    drop(builder);
    let removed = |run: &Run| run.end().expect_code(0).json()["removed"].as_u64();
    let others = [Lock::share(&remote).unwrap(), Lock::share(&remote).unwrap()];
    assert!(others.iter().all(Option::is_some));
    assert!(removed(&prune) > Some(0));
    // Meanwhile nobody builds there, and no other node prunes by what is removed here.
    let ended = push(&scene.cache(), &place).end().expect_code(2);
    let what = "nodes that sync with --prune are reading";
    assert!(ended.stderr.contains(what), "{}", ended.stderr);
    drop(others);
    // Where nothing can be written nobody takes the lock, and nobody needs it: when its file is opened, and when it is made.
    for nth in [1, 2] {
        let _ = whole();
        let _ = fs::remove_file(remote.join("stoker.lock"));
        let point = Point {
            call: "openat".into(),
            path: "stoker.lock".into(),
            nth,
        };
        let run = failed_at(&prune, &remote, &point, "error=EROFS");
        assert!(removed(&run) > Some(0), "{nth}");
        assert!(!remote.join("stoker.lock").exists());
    }
}

/// The copy that lets a shard go must be another file than the shard.
#[test]
fn the_folder_itself_is_no_copy_of_it() {
    let scene = Scene::new(&[9, 8, 7]);
    let whole = scene.path("whole");
    let _ = sync(&scene.cache().display().to_string(), &whole)
        .end()
        .expect_code(0);
    let before = shards(&whole);
    let link = scene.path("link");
    std::os::unix::fs::symlink(&whole, &link).unwrap();
    let prune = ["--node", "0", "--nodes", "3", "--prune"];
    for name in [&whole, &link] {
        let run = sync(&name.display().to_string(), &whole).args(prune);
        let ended = run.end().expect_code(2);
        assert!(ended.stderr.contains("hint:"), "{}", ended.stderr);
        assert_eq!(before, shards(&whole));
    }
    // Folders of the cache that lead to those of the remote.
    let other = scene.path("other");
    fs::create_dir(&other).unwrap();
    fs::copy(whole.join("manifest.json"), other.join("manifest.json")).unwrap();
    for entry in fs::read_dir(&whole).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            std::os::unix::fs::symlink(entry.path(), other.join(entry.file_name())).unwrap();
        }
    }
    let run = sync(&whole.display().to_string(), &other).args(prune);
    let report = run.args(["--json"]).end().expect_code(0).json();
    assert_eq!(report["removed"], 0);
    assert_eq!(before, shards(&whole));
}

/// A folder that was brought whole is no share any more.
#[test]
fn a_share_that_was_made_whole_is_whole() {
    let scene = Scene::new(&[9, 8, 7]);
    let place = scene.cache().display().to_string();
    let output = scene.path("output");
    let own = sync(&place, &output).args(["--node", "0", "--nodes", "3"]);
    let _ = own.end().expect_code(0);
    assert!(output.join("parts").is_dir());
    let _ = sync(&place, &output).end().expect_code(0);
    assert!(!output.join("parts").exists());
}
