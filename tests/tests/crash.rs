//! Whatever instant a build dies at, or whichever call fails: nothing wrong is ever visible, and the
//! next run ends with the bytes of an undisturbed build (promises A1, A4, A5, A7).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::ImageReceipt;
use stoker_tests::cache::files;
use stoker_tests::crash::{Scene, traced};
use stoker_tests::strace::{Call, failed_at, points, trace};

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

/// A committed cache that lost files, and what it lost.
struct Lossy {
    scene: Scene,
    lost: BTreeSet<String>,
}

impl Lossy {
    /// Without the first image shard of the first partition, and without what speaks of it if `all`.
    fn new(all: bool) -> Self {
        let scene = Scene::new(RECORDS);
        let names = scene.clean.keys().filter(|name| {
            let first = name.ends_with("shards/p0000-000000.arrow");
            let speaks = name.ends_with("p0000-000000.json") || name.ends_with("index/p0000.arrow");
            name.starts_with("images-") && (first || all && speaks)
        });
        let lost: BTreeSet<String> = names.cloned().collect();
        assert_eq!(lost.len(), if all { 3 } else { 1 });
        Self { scene, lost }
    }

    /// A copy of the cache without what is lost.
    fn cache(&self) -> PathBuf {
        let output = self.scene.corpus.output("lossy");
        let _ = fs::remove_dir_all(&output);
        for (name, hash) in &self.scene.clean {
            let path = output.join(name);
            if hash.is_empty() {
                fs::create_dir_all(path).expect("a folder");
            } else if !self.lost.contains(name) {
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::copy(self.scene.output.join(name), path).expect("a file of the cache");
            }
        }
        output
    }

    /// The picture behind the first row of the lost shard.
    fn picture(&self) -> PathBuf {
        let receipt = "receipts/p0000-000000.json";
        let name = |name: &&String| name.starts_with("images-") && name.ends_with(receipt);
        let name = self.scene.clean.keys().find(name).expect("a receipt");
        let bytes = fs::read(self.scene.output.join(name)).expect("a receipt");
        let receipt = ImageReceipt::parse(&bytes).expect("a receipt");
        let source = receipt
            .sources
            .iter()
            .find(|source| source.item == receipt.items[0]);
        let uri = &source.expect("what was read").uri;
        PathBuf::from(uri.strip_prefix("file://").unwrap_or(uri))
    }

    /// Every file of the clean cache is there with its bytes, or was lost before.
    fn check(&self, output: &Path, what: &str) {
        let now = files(output);
        for (name, hash) in &self.scene.clean {
            match now.get(name) {
                Some(found) => assert_eq!(found, hash, "{what}: {name}"),
                None => assert!(self.lost.contains(name), "{what}: {name} is gone"),
            }
        }
    }

    /// Kills the repair at every third rename; gives the kills and how an undisturbed one ends.
    fn repair(&self) -> (usize, stoker_tests::command::Ended) {
        let output = self.cache();
        let run = self.scene.build(&output);
        let (ended, calls) = trace(&run, &traced(), self.scene.corpus.path());
        self.check(&output, "repaired");
        let mut renames = points(&calls, &output);
        renames.retain(|point| point.call.starts_with("rename"));
        let mut kills = 0;
        for point in renames.into_iter().step_by(3) {
            let output = self.cache();
            let killed = failed_at(&run, &output, &point, "signal=SIGKILL").end();
            kills += usize::from(killed.signal == Some(9));
            self.check(&output, &format!("killed at {point}"));
        }
        (kills, ended)
    }
}

/// What a committed manifest names is made again as it was, whenever the repair dies.
#[test]
fn a_repair_changes_nothing_that_is_committed() {
    let lossy = Lossy::new(false);
    let (kills, ended) = lossy.repair();
    let _ = ended.expect_code(0);
    assert!(kills >= 2, "{kills}");
    lossy.scene.finish(&lossy.cache(), "repaired");
}

/// If its source has changed since, it is not made at all.
#[test]
fn what_cannot_be_made_again_is_left_alone() {
    for all in [false, true] {
        let lossy = Lossy::new(all);
        let picture = lossy.picture();
        let bytes = fs::read(&picture).expect("a picture");
        fs::remove_file(&picture).expect("a picture");
        let (kills, ended) = lossy.repair();
        assert!(kills >= 1, "{kills}");
        let ended = ended.expect_code(2);
        assert!(
            ended.stderr.contains("cannot be made again") && ended.stderr.contains("p0000-000000"),
            "{}",
            ended.stderr
        );
        fs::write(&picture, bytes).expect("a picture");
        lossy.scene.finish(&lossy.cache(), "with the picture again");
    }
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
