//! Whatever instant a build dies at, or whichever call fails: nothing wrong is ever visible, and the
//! next run ends with the bytes of an undisturbed build (promises A1, A4, A5, A7).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stoker_tests::crash::Scene;
use stoker_tests::strace::Call;

/// Records of the small build.
const RECORDS: usize = 36;

/// Instants that promise A1 asks for; the tests below die at every eighth of them, or at all (`STOKER_CRASH_EVERY=1`).
const POINTS_MIN: usize = 300;

const WRITES: [&str; 3] = ["write", "pwrite64", "ftruncate"];
const SYNCS: [&str; 3] = ["fsync", "fdatasync", "fchmod"];
const NAMES: [&str; 6] = [
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
];
const CREATIONS: [&str; 3] = ["openat", "mkdir", "mkdirat"];

#[test]
#[expect(clippy::print_stdout, reason = "the count is what promise A1 names")]
fn there_are_enough_points_to_die_at() {
    let scene = Scene::new(RECORDS);
    let counts =
        [&WRITES[..], &SYNCS, &NAMES, &CREATIONS].map(|names| scene.all_points(names).len());
    let all: usize = counts.iter().sum();
    println!("{all} points: writes, syncs, names, creations are {counts:?}");
    assert!(all >= POINTS_MIN, "{counts:?}");
}

#[test]
fn killed_at_writes() {
    let kills = Scene::new(RECORDS).kill_at_each(&WRITES);
    assert!(kills >= 4, "{kills}");
}

#[test]
fn killed_at_syncs() {
    let kills = Scene::new(RECORDS).kill_at_each(&SYNCS);
    assert!(kills >= 10, "{kills}");
}

#[test]
fn killed_at_renames_and_removals() {
    let kills = Scene::new(RECORDS).kill_at_each(&NAMES);
    assert!(kills >= 4, "{kills}");
}

#[test]
fn killed_at_creations() {
    let kills = Scene::new(RECORDS).kill_at_each(&CREATIONS);
    assert!(kills >= 4, "{kills}");
}

/// A failed call is reported by what and where, costs nothing, and nothing depends on it.
#[test]
fn failed_calls_stop_the_build_and_harm_nothing() {
    let scene = Scene::new(RECORDS);
    let names = [
        "fsync",
        "write",
        "rename",
        "renameat",
        "renameat2",
        "close",
        "mkdir",
        "openat",
    ];
    let mut failures = 0;
    for point in scene.points(&names) {
        let (output, ended) = scene.fail(&point, "error=EIO");
        let what = format!("EIO at {point}");
        // Some call came from another thread this time, or its failure is of no account.
        if ended.code == Some(0) {
            continue;
        }
        failures += 1;
        assert_eq!(ended.code, Some(2), "{what}: {}", ended.stderr);
        let folder = output.display().to_string();
        assert!(
            ended.stderr.starts_with("error: could not ") && ended.stderr.contains(&folder),
            "{what}: {}",
            ended.stderr
        );
        if output.is_dir() {
            let _ = stoker_tests::cache::committed(&output);
            let left = stoker_tests::cache::files(&output);
            let temp = left.keys().find(|name| name.ends_with(".tmp"));
            assert_eq!(temp, None, "{what} left a temp file");
        }
        scene.finish(&output, &what);
    }
    assert!(failures >= 20, "{failures}");
}

/// The order of calls that a power cut needs: a file is synced before its rename, its folder after it and before the
/// next file of the same thread (a shard's receipt), and everything before the manifest.
#[test]
fn durable_in_the_right_order() {
    let scene = Scene::new(RECORDS);
    let calls: Vec<&Call> = scene.calls.iter().filter(|call| call.good).collect();
    let renames: Vec<(&Call, PathBuf, PathBuf)> = calls
        .iter()
        // Spooled inputs are scratch: whole or made again.
        .filter(|call| call.name.starts_with("rename") && !call.args.contains("/spool/"))
        .map(|call| {
            let paths = call.paths();
            (*call, paths[0].into(), paths[paths.len() - 1].into())
        })
        .collect();
    let manifest = renames
        .iter()
        .find(|(_, _, to)| to.ends_with("manifest.json"))
        .map(|(call, _, _)| call.begin)
        .expect("the manifest is renamed into place");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (call, from, to) in &renames {
        let name = to.display();
        let wrote = last(
            &calls,
            from,
            call.begin,
            &["write", "pwrite64", "fchmod", "ftruncate"],
        );
        let synced = last(&calls, from, call.begin, &["fsync"]);
        assert!(
            wrote < synced && synced.is_some(),
            "{name}: not synced before its rename"
        );
        let folder = to.parent().expect("a folder");
        let after = calls
            .iter()
            .find(|other| other.name == "fsync" && other.begin > call.end && on(other, folder))
            .unwrap_or_else(|| panic!("{name}: folder not synced after the rename"));
        if to.ends_with("manifest.json") {
            continue;
        }
        assert!(
            after.end < manifest,
            "{name}: folder not synced before the manifest"
        );
        let next = renames
            .iter()
            .map(|(next, _, _)| next)
            .find(|next| next.thread == call.thread && next.begin > call.end)
            .map(|next| next.begin);
        assert!(
            next.is_none_or(|next| after.end < next),
            "{name}: the next file came first"
        );
        let kind = folder.file_name().map(|name| name.display().to_string());
        *seen.entry(kind.unwrap_or_default()).or_default() += 1;
    }
    for kind in ["shards", "receipts", "index", "tables"] {
        assert!(seen.get(kind).is_some_and(|count| *count >= 3), "{seen:?}");
    }
    for call in calls.iter().filter(|call| call.name.starts_with("mkdir")) {
        let folder = PathBuf::from(call.paths()[0]);
        if folder == scene.output {
            continue;
        }
        let parent = folder.parent().expect("a parent");
        let synced = calls.iter().any(|other| {
            other.name == "fsync"
                && other.begin > call.end
                && other.end < manifest
                && on(other, parent)
        });
        assert!(
            synced,
            "{}: made, but its parent not synced",
            folder.display()
        );
    }
}

fn on(call: &Call, path: &Path) -> bool {
    call.paths().iter().any(|other| Path::new(other) == path)
}

/// The end of the last call of these names on `path` that ended before `before`.
fn last(calls: &[&Call], path: &Path, before: usize, names: &[&str]) -> Option<usize> {
    calls
        .iter()
        .filter(|call| names.contains(&call.name.as_str()) && call.end < before && on(call, path))
        .map(|call| call.end)
        .max()
}
