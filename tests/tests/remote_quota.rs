//! The quota of a sync: what the folder's files have together is within it after every single call, temp files counted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use stoker_tests::cache::{assert_same, files};
use stoker_tests::crash::traced;
use stoker_tests::remote::{Scene, on_node, push, sync};
use stoker_tests::strace::{Call, trace};

const SAMPLES: [u64; 6] = [40, 7, 12, 9, 16, 5];

/// Sizes of all files below `root`, by path.
fn sizes(root: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sizes(&path));
        } else {
            let bytes = fs::metadata(&path).expect("a file").len();
            found.insert(path.display().to_string(), bytes);
        }
    }
    found
}

/// Most bytes that the files below `root` had together while `calls` were made, from `sizes` on.
fn peak(calls: &[Call], root: &Path, mut sizes: BTreeMap<String, u64>) -> u64 {
    let mut peak: u64 = sizes.values().sum();
    for call in calls.iter().filter(|call| call.good && call.changes(root)) {
        let paths = call.paths();
        let result = call
            .args
            .rsplit_once(" = ")
            .map_or("", |(_, result)| result);
        match (call.name.as_str(), paths.as_slice()) {
            ("write" | "pwrite64", [path]) => {
                let count: u64 = result
                    .split(' ')
                    .next()
                    .unwrap_or("")
                    .parse()
                    .expect("a count");
                *sizes.entry((*path).to_owned()).or_default() += count;
            }
            ("rename" | "renameat" | "renameat2", [.., from, to]) => {
                let bytes = sizes.remove(*from).expect("a file that was written");
                sizes.insert((*to).to_owned(), bytes);
            }
            ("unlink" | "unlinkat", [.., path]) => {
                sizes.remove(*path);
            }
            ("ftruncate", [path]) => {
                sizes.insert((*path).to_owned(), 0);
            }
            _ => {}
        }
        peak = peak.max(sizes.values().sum());
    }
    peak
}

#[test]
fn the_quota_holds_at_every_call() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote").display().to_string();
    let _ = push(&scene.cache(), &remote).end().expect_code(0);
    let output = scene.path("output");
    let _ = on_node(sync(&remote, &output), 0, 3).end().expect_code(0);
    // A file that must be made good needs room beside what it replaces.
    let name = files(&output)
        .into_keys()
        .find(|name| name.contains("shards/p0003"))
        .unwrap();
    let bytes = fs::read(output.join(&name)).unwrap();
    fs::remove_file(output.join(&name)).unwrap();
    fs::write(output.join(&name), vec![0; bytes.len()]).unwrap();
    fs::write(output.join("notes.txt"), "of a stranger").unwrap();
    let lock = |sizes: &BTreeMap<String, u64>| -> u64 {
        let locks = sizes
            .iter()
            .filter(|(name, _)| name.ends_with("stoker.lock"));
        locks.map(|(_, bytes)| *bytes).sum()
    };
    let before = sizes(&output);
    let all: u64 = sizes(&scene.cache()).values().sum();
    // The record of the share, beside the one that replaces it.
    let records = before.iter().filter(|(name, _)| name.contains("/share-"));
    let records = 2 * records.map(|(_, bytes)| *bytes).sum::<u64>();
    // What stays, what comes, what is replaced until then, a lock file and a record whose texts may grow by some digits.
    let quota = all + 13 + lock(&before) + records + bytes.len() as u64 + 64;
    let limited = |quota: u64| {
        sync(&remote, &output)
            .args(["--threads", "8", "--max-disk"])
            .args([quota.to_string()])
    };
    let (ended, calls) = trace(&limited(quota), &traced(), &scene.path(""));
    let ended = ended.expect_code(0);
    let peak = peak(&calls, &output, before);
    assert!(
        peak <= quota && peak + 4096 > all,
        "{peak} of {quota}\n{}",
        ended.stderr
    );
    fs::remove_file(output.join("notes.txt")).unwrap();
    let synced = files(&output);
    assert_same(&files(&scene.cache()), &synced, "within the quota");
}

#[test]
fn what_does_not_fit_is_refused_before_it_begins() {
    let scene = Scene::new(&SAMPLES);
    let remote = scene.path("remote").display().to_string();
    let _ = push(&scene.cache(), &remote).end().expect_code(0);
    let output = scene.path("output");
    let _ = on_node(sync(&remote, &output), 0, 3).end().expect_code(0);
    let before = files(&output);
    let all: u64 = sizes(&scene.cache()).values().sum();
    let run = sync(&remote, &output)
        .args(["--max-disk"])
        .args([(all - 1).to_string()]);
    let ended = run.end().expect_code(2);
    assert!(
        ended.stderr.contains("more than --max-disk"),
        "{}",
        ended.stderr
    );
    assert_same(&before, &files(&output), "refused");
    // Shards of other nodes make room, if the remote holds them.
    let share: u64 = sizes(&output).values().sum();
    let is_next = |name: &str| name.contains("/shards/p0001-") || name.contains("/shards/p0004-");
    let next = sizes(&scene.cache())
        .into_iter()
        .filter(|(name, _)| is_next(name));
    // The lock file's text is longer or shorter by some digits.
    let quota = share + next.map(|(_, bytes)| bytes).sum::<u64>() - 64;
    let run = on_node(sync(&remote, &output), 1, 3)
        .args(["--max-disk"])
        .args([quota.to_string()]);
    let _ = run.end().expect_code(2);
    let _ = run.args(["--prune"]).end().expect_code(0);
    assert!(sizes(&output).values().sum::<u64>() <= quota);
}
