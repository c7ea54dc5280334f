//! A push or a sync that is killed at any step leaves nothing wrong, and the next one ends right.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use stoker_formats::{PartFile, ShareRecord};
use stoker_tests::cache::{assert_same, committed, files};
use stoker_tests::command::Run;
use stoker_tests::crash::{every, traced};
use stoker_tests::remote::{Scene, copy, on_node, push, sync, through};
use stoker_tests::s3::{Fault, Faults, Proxy, Server};
use stoker_tests::strace::{failed_at, points, trace};
use stoker_tests::synthetic;

const SAMPLES: [u64; 3] = [7, 6, 4];

/// Kills `run`, which writes to a copy of `before` at `output`, at points of what changes there; looks at what is left with `check`,
/// and runs it again. Gives the kills.
#[expect(clippy::print_stdout, reason = "the count is what promise K5 names")]
fn kill_at_each(
    scene: &Scene,
    before: Option<&Path>,
    output: &Path,
    run: &Run,
    check: &dyn Fn(&str),
) -> usize {
    let reset = || {
        let _ = fs::remove_dir_all(output);
        if let Some(before) = before {
            copy(before, output);
        }
    };
    reset();
    let (ended, calls) = trace(run, &traced(), &scene.path(""));
    let _ = ended.expect_code(0);
    let clean = files(output);
    let mut kills = 0;
    for point in points(&calls, output).into_iter().step_by(every()) {
        reset();
        let ended = failed_at(run, output, &point, "signal=SIGKILL").end();
        let what = format!("killed at {point}");
        if ended.signal == Some(9) {
            kills += 1;
        }
        if output.is_dir() {
            check(&what);
        }
        let ended = run.end();
        assert_eq!(ended.code, Some(0), "{what}: {}", ended.stderr);
        assert_same(&clean, &files(output), &what);
    }
    println!("{kills} kills");
    kills
}

fn one_thread(run: Run) -> Run {
    run.args(["--threads", "1"])
}

/// Every file with a name of its own has the bytes of one of these.
fn assert_named_are_right(root: &Path, right: &[BTreeMap<String, String>], what: &str) {
    for (name, hash) in files(root) {
        let is_right = right.iter().any(|files| files.get(&name) == Some(&hash));
        let is_record = name.starts_with("parts/share-");
        assert!(
            is_right || is_record || name.ends_with(".tmp") || hash.is_empty(),
            "{what}: {name}"
        );
    }
}

/// The partitions that the record of a share names, if it is there.
fn share(scene: &Scene, root: &Path) -> Option<Vec<u32>> {
    let name = PartFile::Share(scene.manifest.fingerprint).to_string();
    let bytes = fs::read(root.join("parts").join(name)).ok()?;
    Some(ShareRecord::parse(&bytes).expect("a record").partitions)
}

/// Whether a shard is there, finished or not.
fn has_shards(root: &Path) -> bool {
    files(root).keys().any(|name| name.contains("/shards/"))
}

#[test]
fn a_killed_sync_leaves_nothing_wrong() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote").display().to_string();
    let _ = push(&scene.cache(), &remote).end().expect_code(0);
    let output = scene.path("output");
    let run = one_thread(on_node(sync(&remote, &output), 1, 2));
    let right = [files(&scene.cache())];
    let kills = kill_at_each(&scene, None, &output, &run, &|what| {
        assert_named_are_right(&output, &right, what);
        let named = share(&scene, &output);
        let is_whole = named.as_deref() == Some(&[1]);
        assert!(
            is_whole || named.is_none() && !has_shards(&output),
            "{what}"
        );
    });
    assert!(kills >= 10, "{kills}");
}

/// The cache before, whose image shards are those of the one that comes: only the text differs.
fn versions() -> (Scene, PathBuf, [BTreeMap<String, String>; 2]) {
    let scene = Scene::new(&SAMPLES);
    let mut recipe = synthetic::recipe();
    recipe["note"] = "another text".into();
    let next = scene.path("next");
    let content = synthetic::content_of(&SAMPLES);
    let _ = synthetic::write_sized(&next, &content, &synthetic::opaque_tables(), recipe, 4);
    let both = [files(&scene.cache()), files(&next)];
    (scene, next, both)
}

#[test]
fn a_killed_update_leaves_the_earlier_cache_or_the_new_one() {
    let (scene, next, both) = versions();
    let remote = scene.path("remote").display().to_string();
    let _ = push(&next, &remote).end().expect_code(0);
    let output = scene.path("output");
    let run = one_thread(sync(&remote, &output)).args(["--prune"]);
    let kills = kill_at_each(&scene, Some(&scene.cache()), &output, &run, &|what| {
        assert!(committed(&output).is_some(), "{what}");
        assert_named_are_right(&output, &both, what);
    });
    assert!(kills >= 1, "{kills}");
}

#[test]
fn a_killed_prune_loses_nothing_that_is_its_own() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote").display().to_string();
    let _ = push(&scene.cache(), &remote).end().expect_code(0);
    let output = scene.path("output");
    let run = one_thread(on_node(sync(&remote, &output), 0, 3)).args(["--prune"]);
    let right = [files(&scene.cache())];
    let own = |name: &String| name.contains("/shards/p0000-");
    let kills = kill_at_each(&scene, Some(&scene.cache()), &output, &run, &|what| {
        assert_named_are_right(&output, &right, what);
        let there = files(&output);
        assert!(
            right[0]
                .keys()
                .filter(|name| own(name))
                .all(|name| there.contains_key(name))
        );
        // Before anything goes, it is written what is to stay.
        let is_whole = right[0].keys().all(|name| there.contains_key(name));
        assert!(
            is_whole || share(&scene, &output) == Some(vec![0]),
            "{what}"
        );
    });
    assert!(kills >= 1, "{kills}");
}

#[test]
fn a_killed_push_leaves_no_manifest_or_a_whole_remote() {
    let scene = Scene::new(&SAMPLES);
    let output = scene.path("remote");
    let run = one_thread(push(&scene.cache(), &output.display().to_string()));
    let clean = scene.path("clean");
    let _ = push(&scene.cache(), &clean.display().to_string())
        .end()
        .expect_code(0);
    let right = [files(&clean)];
    let kills = kill_at_each(&scene, None, &output, &run, &|what| {
        assert_named_are_right(&output, &right, what);
        if output.join("manifest.json").exists() {
            let there = files(&output);
            assert!(
                right[0].keys().all(|name| there.contains_key(name)),
                "{what}"
            );
        }
    });
    assert!(kills >= 10, "{kills}");
}

/// Kills at some requests rather than at calls: what changes lies on the other side.
#[test]
#[expect(clippy::print_stdout, reason = "the count is what promise K5 names")]
fn a_killed_push_to_s3_leaves_no_manifest_or_a_whole_remote() {
    let scene = Scene::new(&SAMPLES);
    let to = |prefix: &str, server: &Server| {
        let run = push(&scene.cache(), &format!("s3://bucket/{prefix}"));
        one_thread(through(run, &server.endpoint()))
    };
    let _ = to("clean", &scene.serve()).end().expect_code(0);
    let clean = files(&scene.objects("clean"));
    let right = [clean.clone()];
    let puts = clean.values().filter(|hash| !hash.is_empty()).count() as u64;
    let mut kills = 0;
    for (number, after) in (1..puts).step_by(every()).enumerate() {
        let (prefix, what) = (format!("killed-{number}"), format!("killed after {after}"));
        let server = scene.serve();
        let mut running = to(&prefix, &server).start();
        let part = format!("/bucket/{prefix}/");
        while !running.is_over() && server.count("Other", |path| path.starts_with(&part)) < after {
            std::thread::sleep(Duration::from_micros(200));
        }
        running.signal(Signal::KILL);
        kills += usize::from(running.wait().signal == Some(9));
        // With it ends what it was still doing for the killed one.
        drop(server);
        let objects = scene.objects(&prefix);
        fs::create_dir_all(&objects).expect("a folder");
        let there = files(&objects);
        assert_named_are_right(&objects, &right, &what);
        if there.contains_key("manifest.json") {
            assert_same(&clean, &there, &what);
        }
        let ended = to(&prefix, &scene.serve()).end();
        assert_eq!(ended.code, Some(0), "{what}: {}", ended.stderr);
        assert_same(&clean, &files(&objects), &what);
    }
    println!("{kills} kills");
    assert!(kills >= 3, "{kills}");
}

/// Ctrl-C: the exit code says so, nothing half written is left, and the same command goes on.
#[test]
fn a_sync_that_is_interrupted_goes_on() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    let place = "s3://bucket/cache";
    let _ = through(push(&scene.cache(), place), &server.endpoint())
        .end()
        .expect_code(0);
    let stalled = Faults {
        path_end: "p0001-000001.arrow.zst".into(),
        ..Faults::each(&[Fault::StalledBody], 1.0)
    };
    let proxy = Proxy::start(server.address(), stalled).expect("a proxy");
    let output = scene.path("output");
    let from = |endpoint: &str| {
        let run = through(on_node(sync(place, &output), 1, 2), endpoint);
        one_thread(run).args(["--json"])
    };
    for (signal, code, name) in [(Signal::INT, 130, "SIGINT"), (Signal::TERM, 143, "SIGTERM")] {
        let before = proxy.spoilt(Fault::StalledBody);
        let mut running = from(&proxy.endpoint()).start();
        while proxy.spoilt(Fault::StalledBody) == before && !running.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.signal(signal);
        let ended = running.wait().expect_code(code);
        let stopped = format!("stopped by {name}");
        assert!(ended.stderr.contains(&stopped), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("same command again"),
            "{}",
            ended.stderr
        );
        assert_eq!(ended.stdout, "");
        let left = files(&output);
        let temporary = left.keys().filter(|name| name.ends_with(".tmp"));
        assert_eq!(temporary.count(), 0, "{left:?}");
        assert!(!left.contains_key("manifest.json"));
        assert_eq!(share(&scene, &output), Some(vec![1]));
    }
    let there = files(&output).into_iter();
    let there = there.filter(|(name, hash)| !hash.is_empty() && !name.starts_with("parts"));
    let report = from(&server.endpoint()).end().expect_code(0).json();
    assert_eq!(report["files_kept"], there.count() as u64);
    assert!(report["files_kept"].as_u64() > Some(10), "{report}");
    let clean = scene.path("clean");
    let run = on_node(sync(place, &clean), 1, 2);
    let _ = through(run, &server.endpoint()).end().expect_code(0);
    assert_same(&files(&clean), &files(&output), "gone on");
}
