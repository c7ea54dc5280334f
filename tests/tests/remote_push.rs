//! From a cache to a remote and back: whole and in shares, through folders and S3, byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stoker_tests::cache::{assert_same, committed, files};
use stoker_tests::command::{Ended, Run};
use stoker_tests::parts::{is_shard, shards, small};
use stoker_tests::remote::{Scene, copy, on_node, push, sync, through};
use stoker_tests::s3::Server;
use stoker_tests::{snapshot, synthetic};

const SAMPLES: [u64; 6] = [40, 7, 12, 9, 16, 5];

/// Where `name` is pushed to: a folder, or a prefix behind the server.
fn places(scene: &Scene, name: &str) -> [String; 2] {
    [
        scene
            .objects(&format!("folder-{name}"))
            .display()
            .to_string(),
        format!("s3://bucket/{name}"),
    ]
}

fn report(run: &Run) -> Value {
    run.clone().args(["--json"]).end().expect_code(0).json()
}

fn check(scene: &Scene, name: &str, ended: &Ended) {
    let folder = scene.path("").display().to_string();
    snapshot::check(name, ended, &[(folder.trim_end_matches('/'), "[FOLDER]")]);
}

/// Without the marker of a share and the lock.
fn content(root: &Path) -> BTreeMap<String, String> {
    let mut found = files(root);
    found.remove("parts");
    found
}

#[test]
fn a_cache_goes_to_a_remote_and_comes_back_whole_and_in_shares() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let cache = scene.cache();
    let all = files(&cache);
    let put = all.values().filter(|hash| !hash.is_empty()).count();
    for (number, place) in places(&scene, "all").iter().enumerate() {
        let run = through(push(&cache, place), &server.endpoint());
        let first = report(&run);
        assert_eq!(first["files"], put, "{first}");
        assert!(
            first["ratio"].as_f64().is_some_and(|ratio| ratio > 2.0),
            "{first}"
        );
        let again = report(&run);
        assert_eq!(
            (&again["files"], &again["files_there"]),
            (&json!(0), &json!(put))
        );
        let whole = scene.path(&format!("whole-{number}"));
        let run = through(sync(place, &whole), &server.endpoint());
        let first = report(&run);
        assert_eq!(first["files"], put - 1, "{first}");
        assert_same(&all, &files(&whole), place);
        assert!(committed(&whole).is_some());
        let again = report(&run);
        assert_eq!(
            (&again["files"], &again["files_kept"]),
            (&json!(0), &json!(put - 1))
        );
        let mut found = BTreeMap::new();
        for node in 0..3 {
            let share = scene.path(&format!("node-{number}-{node}"));
            let run = on_node(through(sync(place, &share), &server.endpoint()), node, 3);
            assert_eq!(report(&run)["partitions"], json!([node, node + 3]));
            assert_same(&small(&cache), &small(&share), "small files");
            assert!(share.join("parts").is_dir());
            let held = shards(&share);
            let own = [format!("/p{node:04}-"), format!("/p{:04}-", node + 3)];
            let is_own = |name: &String| own.iter().any(|part| name.contains(part));
            assert!(
                held.iter()
                    .all(|(name, hash)| hash.is_empty() || is_own(name))
            );
            found.extend(held);
            let _ = Run::stoker(["verify"]).args([&share]).end().expect_code(0);
        }
        assert_same(&shards(&cache), &found, "all nodes together");
    }
    // Another node's disk is a remote too, of what it holds.
    let twin = scene.path("twin");
    let node = scene.path("node-0-1").display().to_string();
    let _ = on_node(sync(&node, &twin), 1, 3).end().expect_code(0);
    assert_same(
        &content(Path::new(&node)),
        &content(&twin),
        "from a node's disk",
    );
    let other = on_node(sync(&node, &scene.path("other")), 0, 3)
        .args(["--threads", "1"])
        .end();
    check(&scene, "sync_lacking", &other);
}

/// Nodes that push their shares at the same time put the same small files and the same manifest, and all shards are there.
#[test]
fn two_nodes_push_to_one_place_at_once() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let cache = scene.cache().display().to_string();
    let nodes = [0, 1].map(|node| {
        let share = scene.path(&format!("half-{node}"));
        let _ = on_node(sync(&cache, &share), node, 2).end().expect_code(0);
        share
    });
    for round in 0..3 {
        let place = format!("s3://bucket/both-{round}");
        let run = |node: &Path| {
            let run = through(push(node, &place), &server.endpoint());
            run.args(["--json", "--threads", "3"])
        };
        let running = nodes.each_ref().map(|node| run(node).start());
        let reports = running.map(|run| run.wait().expect_code(0).json());
        // Who came last found the other's shards there.
        let lacking = reports.iter().map(|report| report["lacking"].clone());
        assert!(
            lacking.clone().any(|lacking| lacking == json!([])),
            "{reports:?}"
        );
        for node in &nodes {
            let again = run(node).end().expect_code(0).json();
            assert_eq!(
                (&again["files"], &again["lacking"]),
                (&json!(0), &json!([]))
            );
        }
        let whole = scene.path(&format!("both-{round}"));
        let _ = through(sync(&place, &whole), &server.endpoint())
            .end()
            .expect_code(0);
        assert_same(&files(&scene.cache()), &files(&whole), "both halves");
    }
}

#[test]
fn a_push_puts_what_is_missing_or_not_whole() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let run = |place: &str| through(push(&scene.cache(), place), &server.endpoint());
    for (place, root) in places(&scene, "again")
        .iter()
        .zip(["folder-again", "again"])
    {
        let _ = report(&run(place));
        let pushed = files(&scene.objects(root));
        let mut shards = pushed.keys().filter(|name| name.ends_with(".zst"));
        let mut shard = || scene.objects(root).join(shards.next().expect("a shard"));
        fs::remove_file(shard()).expect("ours");
        let cut = shard();
        let bytes = fs::read(&cut).expect("a shard");
        fs::remove_file(&cut).expect("ours");
        fs::write(&cut, &bytes[..bytes.len() - 1]).expect("a file");
        let other = shard();
        fs::remove_file(&other).expect("ours");
        fs::copy(shard(), &other).expect("a file");
        let again = report(&run(place));
        assert_eq!(again["files"], 3, "{again}");
        assert_same(&pushed, &files(&scene.objects(root)), place);
        // Before the manifest is there, small files count only by their content.
        fs::remove_file(scene.objects(root).join("manifest.json")).expect("ours");
        let receipt = pushed
            .keys()
            .find(|name| name.contains("receipts/p"))
            .expect("one");
        let receipt = scene.objects(root).join(receipt);
        let mut bytes = fs::read(&receipt).expect("a receipt");
        bytes[20] ^= 1;
        fs::remove_file(&receipt).expect("ours");
        fs::write(&receipt, bytes).expect("a file");
        // The server's own checksum would tell too.
        for entry in fs::read_dir(scene.path("s3")).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                fs::remove_file(path).expect("the server's");
            }
        }
        assert_eq!(report(&run(place))["files"], 2);
        assert_same(&pushed, &files(&scene.objects(root)), place);
    }
}

#[test]
fn a_damaged_file_is_never_pushed() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let bad = scene.path("bad");
    copy(&scene.cache(), &bad);
    let name = files(&bad)
        .into_keys()
        .find(|name| name.ends_with("p0002-000001.arrow"))
        .unwrap();
    let mut bytes = fs::read(bad.join(&name)).unwrap();
    bytes[4000] ^= 2;
    fs::remove_file(bad.join(&name)).unwrap();
    fs::write(bad.join(&name), bytes).unwrap();
    for (place, root) in places(&scene, "bad").iter().zip(["folder-bad", "bad"]) {
        let ended = through(push(&bad, place), &server.endpoint())
            .end()
            .expect_code(1);
        assert!(ended.stderr.contains(&name), "{}", ended.stderr);
        let there = files(&scene.objects(root));
        assert!(!there.keys().any(|found| found.starts_with(&name)));
        assert!(!there.contains_key("manifest.json"));
    }
    check(
        &scene,
        "push_damaged",
        &push(&bad, &scene.path("dest").display().to_string()).end(),
    );
}

#[test]
fn another_cache_in_the_remote_is_not_overwritten() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let mut recipe = synthetic::recipe();
    recipe["note"] = json!("another text");
    let other = Scene::of(&synthetic::content_of(&SAMPLES), recipe, 4);
    let changed = Scene::new(&[40, 7, 12, 9, 16, 6]);
    for (place, root) in places(&scene, "taken")
        .iter()
        .zip(["folder-taken", "taken"])
    {
        let at = |run: Run| through(run, &server.endpoint());
        let _ = at(push(&scene.cache(), place)).end().expect_code(0);
        let there = files(&scene.objects(root));
        let ended = at(push(&other.cache(), place)).end().expect_code(2);
        check(
            &scene,
            if root == "taken" {
                "push_taken_s3"
            } else {
                "push_taken"
            },
            &ended,
        );
        // It would change shards that the manifest there names.
        let ended = at(push(&changed.cache(), place).args(["--replace"]))
            .end()
            .expect_code(2);
        assert!(
            ended.stderr.contains("names other bytes"),
            "{}",
            ended.stderr
        );
        assert_same(&there, &files(&scene.objects(root)), "nothing changed");
        let ended = at(push(&other.cache(), place).args(["--replace"])).end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let back = scene.path(&format!("back-{root}"));
        let _ = at(sync(place, &back)).end().expect_code(0);
        assert_same(&files(&other.cache()), &files(&back), "the other cache");
    }
}

#[test]
fn nodes_push_their_shares_to_one_place() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let at = |run: Run| through(run, &server.endpoint());
    let whole = scene.cache().display().to_string();
    let nodes = [scene.path("node-0"), scene.path("node-1")];
    for (number, node) in nodes.iter().enumerate() {
        let _ = on_node(sync(&whole, node), number, 2).end().expect_code(0);
    }
    for (place, root) in places(&scene, "shares")
        .iter()
        .zip(["folder-shares", "shares"])
    {
        let first = at(push(&nodes[0], place)).end();
        if root == "shares" {
            check(&scene, "push_share", &first);
        }
        let back = scene.path(&format!("back-{root}"));
        let ended = at(sync(place, &back)).end().expect_code(2);
        assert!(ended.stderr.contains("lacks a file"), "{}", ended.stderr);
        assert!(!back.join("manifest.json").exists());
        let last = report(&at(push(&nodes[1], place)));
        assert_eq!(last["lacking"], json!([]));
        let _ = at(sync(place, &back)).end().expect_code(0);
        assert_same(&files(&scene.cache()), &files(&back), place);
    }
}

#[test]
fn large_shards_go_in_parts_and_come_in_ranges() {
    let scene = Scene::big();
    let server = scene.serve();
    let at = |run: Run| through(run, &server.endpoint());
    let _ = at(push(&scene.cache(), "s3://bucket/big"))
        .end()
        .expect_code(0);
    let is_large =
        |path: &str| path.contains("/big/images-") && path.ends_with("p0000-000000.arrow.zst");
    // Begin, at least two parts, end.
    assert!(uploads(&server, is_large) >= 4);
    let back = scene.path("back");
    let _ = at(sync("s3://bucket/big", &back)).end().expect_code(0);
    assert!(server.count("GetObject", is_large) >= 3);
    assert_same(&files(&scene.cache()), &files(&back), "large shards");
    // An upload that ends early leaves no parts behind.
    let bad = scene.path("bad");
    copy(&scene.cache(), &bad);
    let name = files(&bad)
        .into_keys()
        .find(|name| {
            name.starts_with("images-") && is_shard(name) && name.ends_with("p0000-000000.arrow")
        })
        .unwrap();
    let mut bytes = fs::read(bad.join(&name)).unwrap();
    let last = bytes.len() - 5000;
    bytes[last] ^= 2;
    fs::remove_file(bad.join(&name)).unwrap();
    fs::write(bad.join(&name), bytes).unwrap();
    let _ = at(push(&bad, "s3://bucket/aborted")).end().expect_code(1);
    let parts = |name: &String| name.contains("upload");
    let left: Vec<String> = files(&scene.path("s3")).into_keys().filter(parts).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn uploads(server: &Server, path: impl Fn(&str) -> bool) -> u64 {
    server.count("Other", path)
}

#[test]
fn messages() {
    let scene = Scene::new(&SAMPLES);
    let place = scene.path("remote").display().to_string();
    check(&scene, "push", &push(&scene.cache(), &place).end());
    check(
        &scene,
        "push_again",
        &push(&scene.cache(), &place).args(["--level", "9"]).end(),
    );
    let back = scene.path("back");
    check(&scene, "sync", &sync(&place, &back).end());
    let share = scene.path("share");
    check(
        &scene,
        "sync_share",
        &on_node(sync(&place, &share), 1, 4).end(),
    );
    check(
        &scene,
        "sync_prune",
        &on_node(sync(&place, &back), 1, 4).args(["--prune"]).end(),
    );
    check(
        &scene,
        "sync_no_node",
        &on_node(sync(&place, &share), 4, 4).end(),
    );
    check(
        &scene,
        "sync_how_many",
        &sync(&place, &share).args(["--node", "1"]).end(),
    );
    check(
        &scene,
        "sync_quota",
        &sync(&place, &share).args(["--max-disk", "50KiB"]).end(),
    );
    let changed = scene.path("changed");
    copy(&Scene::new(&[40, 7, 12, 9, 16, 6]).cache(), &changed);
    let before = files(&changed);
    check(&scene, "sync_changed", &sync(&place, &changed).end());
    assert_same(&before, &files(&changed), "refused");
    let table = scene.path("table.json");
    fs::write(&table, "[[0, 9], [1]]").unwrap();
    let placed = sync(&place, &share)
        .args(["--node", "0", "--placement"])
        .args([&table]);
    check(&scene, "sync_bad_placement", &placed.clone().end());
    check(
        &scene,
        "sync_other_nodes",
        &placed.args(["--nodes", "3"]).end(),
    );
    check(
        &scene,
        "sync_no_remote",
        &sync(&scene.path("none").display().to_string(), &share).end(),
    );
    check(&scene, "sync_usage", &sync("ftp://host/x", &share).end());
}
