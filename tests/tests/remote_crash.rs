//! A push or a sync that is killed at any step leaves nothing wrong, and the next one ends right.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::{PartFile, ShareRecord};
use stoker_tests::cache::{assert_same, committed, files};
use stoker_tests::command::Run;
use stoker_tests::crash::{every, traced};
use stoker_tests::remote::{Scene, copy, on_node, push, sync};
use stoker_tests::strace::{failed_at, points, trace};
use stoker_tests::synthetic;

const SAMPLES: [u64; 3] = [7, 6, 4];

/// Kills `run`, which writes to a copy of `before` at `output`, at points of what changes there; looks at what is left with `check`,
/// and runs it again. Gives the kills.
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
