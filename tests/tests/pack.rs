//! `stoker pack` as users meet it: its messages, any number of threads, a text that changes, and a kill (H1).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stoker_tests::cache::{assert_same, files};
use stoker_tests::clean::wait_for;
use stoker_tests::command::{Run, send};
use stoker_tests::corpus::Corpus;
use stoker_tests::crash::traced;
use stoker_tests::snapshot;
use stoker_tests::strace::{failed_at, injected, points, trace};

struct Scene {
    corpus: Corpus,
}

impl Scene {
    /// A cache of some forty samples in two splits.
    fn new() -> Self {
        let scene = Self {
            corpus: Corpus::good(77, 40),
        };
        let _ = scene.build().end().expect_code(0);
        scene
    }

    fn build(&self) -> Run {
        let run = self.corpus.build(&self.output());
        run.args(["--split", "val=20%"])
    }

    fn output(&self) -> PathBuf {
        self.corpus.output("cache")
    }

    fn on_cache(&self, args: &[&str]) -> Run {
        Run::stoker(&args[..1])
            .args([self.output()])
            .args(&args[1..])
    }

    fn pack(&self, args: &[&str]) -> Run {
        self.on_cache(&["pack"]).args(args)
    }

    /// Names of tables follow from their bytes, which a new version of a library may change.
    fn check(&self, name: &str, run: &Run) {
        let ended = run.end();
        let folder = self.corpus.path().display().to_string();
        let tables: Vec<String> = packs(&self.output())
            .into_keys()
            .filter(|name| name.ends_with(".parquet"))
            .collect();
        let mut masks = vec![(folder.as_str(), "[FOLDER]")];
        masks.extend(tables.iter().map(|table| (table.as_str(), "[TABLE]")));
        snapshot::check(name, &ended, &masks);
    }
}

/// The files of pack tables, with their hashes.
fn packs(root: &Path) -> BTreeMap<String, String> {
    let all = files(root).into_iter();
    all.filter_map(|(path, hash)| Some((path.strip_prefix("packs/")?.to_owned(), hash)))
        .collect()
}

#[test]
fn messages() {
    let scene = Scene::new();
    snapshot::check("help_pack", &Run::stoker(["pack", "--help"]).end(), &[]);
    scene.check("pack_no_tokens", &scene.pack(&[]));
    for (name, args) in [
        ("pack_zero_tokens", &["--max-tokens", "0"][..]),
        (
            "pack_zero_patches",
            &["--max-tokens", "9", "--max-patches", "0"],
        ),
        ("pack_bad_name", &["--max-tokens", "9", "--name", "../8k"]),
        (
            "pack_bad_strategy",
            &["--max-tokens", "9", "--strategy", "worst"],
        ),
        ("pack_bad_rule", &["--max-tokens", "9", "--overlong", "cut"]),
        ("pack_fail", &["--max-tokens", "60", "--overlong", "fail"]),
    ] {
        scene.check(name, &scene.pack(args));
    }
    let nowhere = Run::stoker(["pack", "--max-tokens", "8192"]).args([scene.corpus.output("none")]);
    scene.check("pack_missing", &nowhere);
    assert!(
        !scene.output().join("packs").exists(),
        "a refused run left something"
    );

    scene.check("pack", &scene.pack(&["--max-tokens", "1024"]));
    scene.check("pack_again", &scene.pack(&["--max-tokens", "1024"]));
    scene.check(
        "pack_other_options",
        &scene.pack(&["--max-tokens", "1024", "--by-modality"]),
    );
    scene.check("pack_reject", &scene.pack(&["--max-tokens", "60"]));
    let alone = [
        "--max-tokens",
        "60",
        "--overlong",
        "alone",
        "--name",
        "alone",
        "--json",
    ];
    scene.check("pack_alone_json", &scene.pack(&alone));
    let dealt = |pack| {
        [
            "stats",
            "--balance",
            "--ranks",
            "2",
            "--batch-size",
            "4",
            "--pack",
            pack,
        ]
    };
    scene.check("pack_balance", &scene.on_cache(&dealt("alone")));
    scene.check("pack_balance_missing", &scene.on_cache(&dealt("2k")));
    scene.check("pack_inspect", &scene.on_cache(&["inspect"]));
    scene.check("pack_verify", &scene.on_cache(&["verify", "--deep"]));
    let stats = scene.on_cache(&["stats"]).end().expect_code(0);
    assert!(
        stats.stdout.contains("pack table   1k: "),
        "{}",
        stats.stdout
    );

    let entry = scene.output().join("packs/1k.json");
    let bytes = fs::read(&entry).expect("the entry");
    fs::remove_file(&entry).expect("our own file");
    fs::write(&entry, &bytes[..300]).expect("our own file");
    scene.check("pack_damaged", &scene.pack(&["--max-tokens", "1024"]));
    scene.check("pack_verify_damaged", &scene.on_cache(&["verify"]));
}

#[test]
fn threads_change_nothing() {
    let scene = Scene::new();
    let mut first = None;
    for threads in ["1", "2", "4"] {
        let run = scene.pack(&["--max-tokens", "200", "--threads", threads]);
        let _ = run.end().expect_code(0);
        let found = packs(&scene.output());
        fs::remove_dir_all(scene.output().join("packs")).expect("our own folder");
        assert_same(first.get_or_insert(found.clone()), &found, threads);
    }
}

#[test]
fn a_table_outlives_builds_of_the_same_cache_and_no_other() {
    let scene = Scene::new();
    let _ = scene.pack(&["--max-tokens", "1024"]).end().expect_code(0);
    let before = packs(&scene.output());
    let again = scene
        .build()
        .args(["--prune", "--json"])
        .end()
        .expect_code(0);
    assert_eq!(again.json()["earlier_packs"], serde_json::json!([]));
    assert_same(&packs(&scene.output()), &before, "after the same build");

    // Another text is another cache: the table says nothing about it.
    let retext = || scene.build().args(["--label-rule", "qwen_finetune"]);
    let run = retext().end().expect_code(0);
    assert!(
        run.stdout.contains("pack tables  of an earlier cache"),
        "{}",
        run.stdout
    );
    let verify = scene
        .on_cache(&["verify", "--json"])
        .end()
        .expect_code(0)
        .json();
    assert_eq!(verify["pack_tables"], serde_json::json!([]));
    let notes = verify["notes"].as_array().expect("notes").iter();
    assert!(
        notes
            .clone()
            .any(|note| note["path"] == "packs/1k.json" && note["kind"] == "earlier_plan"),
        "{notes:?}"
    );
    let _ = retext().args(["--prune"]).end().expect_code(0);
    assert!(!scene.output().join("packs").exists());
    let _ = scene.pack(&["--max-tokens", "1024"]).end().expect_code(0);

    // A table of the same name that was made for another cache is replaced.
    let _ = scene.build().end().expect_code(0);
    let made = scene
        .pack(&["--max-tokens", "1024", "--json"])
        .end()
        .expect_code(0);
    assert_eq!(made.json()["made"], true);
    assert_same(&packs(&scene.output()), &before, "made again");
}

/// Killed at each call that changes the folder of pack tables: there is a whole table or none, and the next run ends with
/// the files of an undisturbed one.
#[test]
fn a_killed_run_leaves_the_cache_as_it_was() {
    let scene = Scene::new();
    let cache = files(&scene.output());
    let folder = scene.output().join("packs");
    // One thread, so that every run makes the same calls; over-long samples, so that there are three files.
    let pack = || scene.pack(&["--max-tokens", "64", "--threads", "1"]);
    let (ended, calls) = trace(&pack(), &traced(), scene.corpus.path());
    let _ = ended.expect_code(0);
    let clean = packs(&scene.output());
    assert_eq!(clean.len(), 3);
    let mut kills = 0;
    for point in points(&calls, &folder) {
        fs::remove_dir_all(&folder).expect("our own folder");
        let ended = failed_at(&pack(), &folder, &point, "signal=SIGKILL").end();
        kills += usize::from(ended.signal == Some(9));
        let mut left = files(&scene.output());
        left.retain(|name, _| !name.starts_with("packs"));
        assert_same(&left, &cache, &format!("killed at {point}"));
        let verify = scene.on_cache(&["verify", "--deep", "--json"]).end();
        let tables = verify.expect_code(0).json()["pack_tables"].clone();
        assert!(tables == serde_json::json!([]) || tables == serde_json::json!(["64"]));
        let _ = pack().end().expect_code(0);
        assert_same(&packs(&scene.output()), &clean, &format!("after {point}"));
    }
    assert!(kills >= 12, "{kills}");
}

/// What is found is checked by its bytes, made durable, and what dead runs left beside it goes.
#[test]
fn a_table_that_is_found_is_whole_and_durable() {
    let scene = Scene::new();
    // Over-long samples, so that there are two tables.
    let pack = || scene.pack(&["--max-tokens", "64", "--json"]);
    let _ = pack().end().expect_code(0);
    let clean = packs(&scene.output());
    let folder = scene.output().join("packs");
    for name in [".table.tmp", ".64.json.tmp", "0123456789abcdef.parquet"] {
        fs::write(folder.join(name), b"left").expect("a leftover");
    }
    fs::write(folder.join("notes.txt"), b"mine").expect("a stranger's file");
    let (ended, calls) = trace(&pack(), &traced(), scene.corpus.path());
    assert_eq!(ended.expect_code(0).json()["made"], false);
    for folder in [&folder, &scene.output()] {
        let synced = calls.iter().any(|call| {
            let path = call.paths().first().map(|path| Path::new(*path) == *folder);
            call.name == "fsync" && path == Some(true)
        });
        assert!(synced, "{}", folder.display());
    }
    // Under the lock the manifest is read once more: until then another cache may have been committed.
    let opened = |name: &str| {
        let path = scene.output().join(name);
        let opens = calls.iter().filter(|call| call.name == "openat");
        opens
            .filter(|call| call.paths().iter().any(|found| Path::new(found) == path))
            .map(|call| call.begin)
            .max()
    };
    assert!(opened("stoker.lock") < opened("manifest.json"));
    let mut left = packs(&scene.output());
    assert!(left.remove("notes.txt").is_some());
    assert_same(&left, &clean, "after a table was found");

    fs::remove_file(folder.join("notes.txt")).expect("our own file");
    for name in clean.keys().filter(|name| name.ends_with(".parquet")) {
        let path = folder.join(name);
        let mut bytes = fs::read(&path).expect("a table");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::remove_file(&path).expect("a table");
        fs::write(&path, bytes).expect("a table");
        assert_eq!(pack().end().expect_code(0).json()["made"], true, "{name}");
        assert_same(&packs(&scene.output()), &clean, name);
    }
}

/// Ids of left-out samples stand in shards, which a node may lack.
#[test]
fn ids_that_are_not_here_are_said() {
    let scene = Scene::new();
    let shards = files(&scene.output());
    let shard = |name: &&String| name.starts_with("text-") && name.contains("shards/p");
    for name in shards.keys().filter(shard) {
        fs::remove_file(scene.output().join(name)).expect("a shard");
    }
    let ended = scene.pack(&["--max-tokens", "64"]).end().expect_code(2);
    assert!(
        ended
            .stderr
            .contains("a shard with ids of left-out samples is not here")
            && ended.stderr.contains("--overlong alone"),
        "{}",
        ended.stderr
    );
    assert!(!scene.output().join("packs").exists());
    let alone = ["--max-tokens", "64", "--overlong", "alone"];
    let _ = scene.pack(&alone).end().expect_code(0);
}

/// Reading the ids of many samples that are left out takes no request to stop away.
#[test]
fn listing_ids_stops_on_request() {
    let scene = Scene::new();
    // Each sample is read in several pieces: at this pace the list takes half a minute.
    let slow = "inject=pread64:delay_enter=250ms";
    let run = injected(&scene.pack(&["--max-tokens", "9"]), "pread64", slow).start();
    let list = scene.output().join("packs/.overlong.tmp");
    wait_for("list", || list.exists().then_some(()));
    let lock = fs::read(scene.output().join("stoker.lock")).expect("the lock");
    let holder: serde_json::Value = serde_json::from_slice(&lock).expect("the holder");
    let pid = holder["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    let sent = Instant::now();
    send(pid.expect("a process"), Signal::INT);
    let ended = run.wait();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(
        sent.elapsed() < Duration::from_secs(5),
        "{:?}",
        sent.elapsed()
    );
    assert!(!scene.output().join("packs").exists());
}

/// Where there is no cache, there is no lock either.
#[test]
fn a_refused_folder_gets_no_lock() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = Run::stoker(["pack", "--max-tokens", "64"]).args([folder.path()]);
    let _ = run.end().expect_code(2);
    assert_eq!(files(folder.path()).len(), 0);
    assert!(!folder.path().join("stoker.lock").exists());
}

#[test]
fn a_write_that_fails_is_an_error_and_leaves_nothing() {
    let scene = Scene::new();
    let before = files(&scene.output());
    // No file can become larger than this.
    let limited = scene.pack(&["--max-tokens", "64"]);
    let limited = limited.under(&["prlimit", "--fsize=600"]);
    let ended = limited.end().expect_code(2);
    let told = ["packs/.", ".tmp", "File too large"];
    assert!(
        told.iter().all(|text| ended.stderr.contains(text)),
        "{}",
        ended.stderr
    );
    assert_same(&files(&scene.output()), &before, "after a failed write");
    let _ = scene.pack(&["--max-tokens", "64"]).end().expect_code(0);
    let _ = scene.on_cache(&["verify", "--deep"]).end().expect_code(0);
}

#[test]
fn a_builder_at_work_is_waited_for() {
    let scene = Scene::new();
    let lock = scene.output().join("stoker.lock");
    let holder = Run::program("flock", ["-x"])
        .args([&lock])
        .args(["sleep", "60"]);
    let holder = holder.start();
    let is_locked = || {
        let file = fs::File::open(&lock).expect("the lock");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
    };
    while !is_locked() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let refused = scene.pack(&["--max-tokens", "64"]).end().expect_code(2);
    assert!(
        refused.stderr.contains("another builder"),
        "{}",
        refused.stderr
    );
    drop(holder);
}
