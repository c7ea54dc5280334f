//! Several workers build one cache: the same bytes as one machine, whoever builds what, in whatever order, interrupted or not
//! (J1-J3).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::MANIFEST_NAME;
use stoker_tests::cache::{assert_same, committed_without_shards, files};
use stoker_tests::command::Run;
use stoker_tests::corpus::{image_name, png, vqa};
use stoker_tests::crash::traced;
use stoker_tests::dice::Dice;
use stoker_tests::parts::{Scene, copy_small, is_shard, shards, small};
use stoker_tests::strace::{failed_at, injected, points, trace};

#[test]
fn any_workers_make_the_cache_of_one_machine() {
    let scene = Scene::new(60, &["--partitions", "8", "--split", "val=20%"]);
    let (clean_small, clean_shards) = scene.clean_files();
    let mut dice = Dice::new(5);
    for workers in [4, 7] {
        let mut order: Vec<u32> = (0..workers).collect();
        dice.shuffle(&mut order);
        let killed = order[1];
        let running: Vec<_> = order
            .iter()
            .map(|worker| {
                let run = scene.part(*worker, workers);
                let fault = "inject=fsync:signal=SIGKILL:when=5";
                let run = if *worker == killed {
                    injected(&run, "fsync", fault)
                } else {
                    run
                };
                (*worker, run.start())
            })
            .collect();
        for (worker, run) in running {
            let ended = run.wait();
            if worker == killed {
                assert_eq!(ended.signal, Some(9), "{}", ended.stderr);
            } else {
                let ended = ended.expect_code(0);
                assert!(ended.stdout.contains("stoker commit"), "{}", ended.stdout);
            }
        }
        let parts = scene.folders(workers);
        let output = scene.corpus.output(&format!("joined-{workers}"));
        let early = scene.commit(&parts, &output).end().expect_code(2);
        let unfinished = scene.folder(killed, workers).display().to_string();
        assert!(early.stderr.contains(&unfinished), "{}", early.stderr);
        let _ = scene.part(killed, workers).end().expect_code(0);

        // Each part holds its own shards, and together they are those of one machine.
        let mut all = BTreeMap::new();
        for part in &parts {
            assert!(!part.join(MANIFEST_NAME).exists());
            for (name, hash) in shards(part) {
                assert_eq!(all.insert(name.clone(), hash), None, "{name} twice");
            }
        }
        let mut expected = clean_shards.clone();
        expected.retain(|_, hash| !hash.is_empty());
        assert_same(&expected, &all, "shards");

        dice.shuffle(&mut order);
        let shuffled: Vec<PathBuf> = order
            .iter()
            .map(|worker| scene.folder(*worker, workers))
            .collect();
        let _ = scene.commit(&shuffled, &output).end().expect_code(0);
        assert_same(&clean_small, &small(&output), "the committed folder");
        // Again, and into a part.
        let _ = scene.commit(&parts, &output).end().expect_code(0);
        assert_same(&clean_small, &small(&output), "committed again");
        let _ = scene.commit(&parts, &parts[0]).end().expect_code(0);
        assert_same(&clean_small, &small(&parts[0]), "committed into a part");
        assert!(!parts[0].join("building.json").exists());
    }
}

#[test]
fn parts_without_shards_are_enough_and_one_folder_may_hold_several() {
    let scene = Scene::new(24, &["--partitions", "4"]);
    let (clean_small, _) = scene.clean_files();
    let parts = scene.parts(2);
    let copies: Vec<PathBuf> = (0..2)
        .map(|number| scene.corpus.output(&format!("copy-{number}")))
        .collect();
    for (part, copy) in parts.iter().zip(&copies) {
        copy_small(part, copy);
    }
    let output = scene.corpus.output("joined");
    let _ = scene.commit(&copies, &output).end().expect_code(0);
    assert_same(&clean_small, &small(&output), "from copies");

    // One after another into one folder, which then holds everything.
    let shared = scene.corpus.output("shared");
    for worker in ["1", "0"] {
        let run = scene
            .build(&shared)
            .args(["--worker", worker, "--workers", "2"]);
        let _ = run.end().expect_code(0);
    }
    let report = scene
        .commit(std::slice::from_ref(&shared), &shared)
        .args(["--json"]);
    let report = report.end().expect_code(0).json();
    assert_eq!(report["placement"], serde_json::json!([[0, 2], [1, 3]]));
    assert_eq!(report["not_held"], serde_json::json!([]));
    let mut left = files(&shared);
    left.retain(|name, _| !name.starts_with("parts"));
    assert_same(&files(&scene.clean), &left, "one folder");
    // A whole build finds everything done, and the folder is no share any more.
    let _ = scene.build(&shared).end().expect_code(0);
    assert_same(&files(&scene.clean), &files(&shared), "a whole build");
}

/// A run that builds several parts ends each when its partitions are done, whatever becomes of the next one, and they are those
/// that runs of their own make.
#[test]
fn one_run_builds_several_parts() {
    let scene = Scene::new(40, &["--partitions", "6", "--split", "val=20%"]);
    let (clean_small, clean_shards) = scene.clean_files();
    let single = scene.parts(7);
    let nodes = [
        ("6,2,0", scene.corpus.output("a")),
        ("1,3-", scene.corpus.output("b")),
        ("1,3,4,5", scene.corpus.output("b")),
    ];
    let run = |(workers, output): &(&str, PathBuf)| {
        let run = scene.build(output);
        run.args(["--worker", *workers, "--workers", "7"])
    };
    let ended = run(&nodes[1]).end().expect_code(2);
    assert!(
        ended.stderr.contains("with commas between"),
        "{}",
        ended.stderr
    );

    let output = &nodes[0].1;
    let (ended, calls) = trace(&run(&nodes[0]), &traced(), scene.corpus.path());
    let _ = ended.expect_code(0);
    let whole = files(output);
    let second = |path: &Path| path.to_string_lossy().contains("0002-of-0007.json");
    let mut points = points(&calls, output).into_iter();
    let point = points.find(|point| second(&point.path));
    let point = point.expect("the record of the second part");
    fs::remove_dir_all(output).expect("our own folder");
    let killed = failed_at(&run(&nodes[0]), output, &point, "signal=SIGKILL").end();
    assert_eq!(killed.signal, Some(9), "{}", killed.stderr);
    let record = |worker: u32| output.join(format!("parts/{worker:04}-of-0007.json"));
    assert_eq!(
        [0, 2, 6].map(|worker| record(worker).exists()),
        [true, false, false]
    );
    let report = run(&nodes[0]).args(["--json"]).end().expect_code(0).json();
    assert_eq!(report["part"]["worker"], serde_json::json!([0, 2, 6]));
    assert_same(&whole, &files(output), "the same command went on");
    let _ = run(&nodes[2]).end().expect_code(0);

    // Records, tables and shards are those of the single runs.
    let parts = [nodes[0].1.clone(), nodes[2].1.clone()];
    let of = |folders: &[PathBuf]| -> BTreeMap<String, String> {
        let all = folders.iter().flat_map(|folder| files(folder));
        all.filter(|(name, _)| name.starts_with("parts") || is_shard(name))
            .collect()
    };
    assert_same(&of(&single), &of(&parts), "parts");
    let mut expected = clean_shards;
    expected.retain(|_, hash| !hash.is_empty());
    let mut shards = of(&parts);
    shards.retain(|name, hash| is_shard(name) && !hash.is_empty());
    assert_same(&expected, &shards, "shards");
    let joined = scene.corpus.output("joined");
    let _ = scene.commit(&parts, &joined).end().expect_code(0);
    assert_same(&clean_small, &small(&joined), "committed");
    // Mended where it is committed.
    let _ = scene.commit(&parts, output).end().expect_code(0);
    let committed = files(output);
    fs::remove_file(find(output, "shards/p0002-000000.arrow")).expect("our own file");
    let _ = run(&nodes[0]).end().expect_code(0);
    assert_same(&committed, &files(output), "mended");
}

#[test]
fn missing_repeated_foreign_and_damaged_parts() {
    let scene = Scene::new(30, &["--partitions", "4"]);
    let parts = scene.parts(4);
    let output = scene.corpus.output("joined");
    let commit = |parts: &[PathBuf]| scene.commit(parts, &output).end();
    scene.check(
        "commit_missing",
        &commit(&[parts[0].clone(), parts[2].clone()]),
    );
    scene.check(
        "commit_no_part",
        &commit(&[parts[0].clone(), scene.clean.clone()]),
    );

    let foreign = scene.corpus.output("foreign");
    let other = |option: &str, value: &str| {
        let _ = fs::remove_dir_all(&foreign);
        let run = scene.build(&foreign).with(option, value);
        let _ = run
            .args(["--worker", "1", "--workers", "4"])
            .end()
            .expect_code(0);
        commit(&[
            parts[0].clone(),
            foreign.clone(),
            parts[2].clone(),
            parts[3].clone(),
        ])
    };
    scene.check("commit_other_seed", &other("--seed", "9"));
    scene.check(
        "commit_other_recipe",
        &other("--label-rule", "qwen_finetune"),
    );
    scene
        .corpus
        .write_lines("e.jsonl", &[vqa(&image_name(1), "new?", "yes")]);
    scene.check("commit_other_input", &other("--seed", "0"));
    fs::remove_file(scene.corpus.data().join("e.jsonl")).expect("our own file");

    // The same partitions twice: by other numbers of workers they are the same files.
    let half = scene.corpus.output("half");
    let run = scene.build(&half).args(["--worker", "1", "--workers", "2"]);
    let _ = run.end().expect_code(0);
    let mut repeated = parts.clone();
    repeated.insert(1, half.clone());
    let _ = commit(&repeated).expect_code(0);
    assert_same(&scene.clean_files().0, &small(&output), "a repeated part");
    // Built of other images under the same names they are not.
    fs::remove_dir_all(&half).expect("our own folder");
    let before: Vec<(PathBuf, Vec<u8>)> = images(&scene)
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).expect("an image")))
        .collect();
    let mut dice = Dice::new(77);
    for (path, _) in &before {
        fs::write(path, png(&mut dice, 40, 40)).expect("an image");
    }
    let run = scene.build(&half).args(["--worker", "1", "--workers", "2"]);
    let _ = run.end().expect_code(0);
    let ended = commit(&repeated).expect_code(2);
    assert!(
        ended.stderr.contains("differ in partition 1"),
        "{}",
        ended.stderr
    );
    for (path, bytes) in before {
        fs::write(path, bytes).expect("an image");
    }

    // A receipt, a table and a shard that are gone or damaged, each named.
    fs::remove_dir_all(&output).expect("our own folder");
    for kind in [
        "receipts/p0001-000000.json",
        "shards/p0001-000000.arrow",
        "index/p0001.arrow",
    ] {
        let path = find(&parts[1], kind);
        let hidden = path.with_extension("hidden");
        fs::rename(&path, &hidden).expect("our own file");
        let ended = commit(&parts).expect_code(2);
        assert!(ended.stderr.contains(kind), "{}", ended.stderr);
        fs::rename(&hidden, &path).expect("our own file");
    }
    let table = parts[1].join("parts/0001-of-0004-samples.parquet");
    let whole = fs::read(&table).expect("a table");
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    fs::remove_file(&table).expect("our own file");
    fs::write(&table, changed).expect("our own file");
    let ended = commit(&parts).expect_code(2);
    assert!(
        ended.stderr.contains("0001-of-0004-samples"),
        "{}",
        ended.stderr
    );
    assert!(!output.join(MANIFEST_NAME).exists());
    // The build command mends it.
    let _ = scene.part(1, 4).end().expect_code(0);
    let _ = commit(&parts).expect_code(0);
    assert_same(&scene.clean_files().0, &small(&output), "mended");
}

/// The images of the data set.
fn images(scene: &Scene) -> Vec<PathBuf> {
    let folders = ["images", "sub/images"].map(|name| scene.corpus.data().join(name));
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).expect("images"));
    let paths = entries.map(|entry| entry.expect("an image").path());
    let digits = |path: &PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        stem.bytes().all(|byte| byte.is_ascii_digit())
    };
    paths.filter(digits).collect()
}

/// The first file below a plan's folder of `root` that ends so.
fn find(root: &Path, end: &str) -> PathBuf {
    let names: Vec<String> = files(root).into_keys().collect();
    let name = names.iter().find(|name| name.ends_with(end));
    root.join(name.unwrap_or_else(|| panic!("no {end} in {names:?}")))
}

/// A part built anew with another text reads no image again, and the parts' new cache is that of one machine.
#[test]
fn another_text_costs_no_image() {
    let scene = Scene::new(24, &["--partitions", "4"]);
    let parts = scene.parts(2);
    for part in &parts {
        let _ = scene.commit(&parts, part).end().expect_code(0);
    }
    let pictures: Vec<_> = images(&scene);
    let hidden = |path: &Path| path.with_extension("hidden");
    for path in &pictures {
        fs::rename(path, hidden(path)).expect("our own file");
    }
    for worker in 0..2 {
        let run = scene
            .part(worker, 2)
            .args(["--label-rule", "qwen_finetune"]);
        let _ = run.end().expect_code(0);
    }
    for part in &parts {
        let run = scene.commit(&parts, part).args(["--prune"]);
        let _ = run.end().expect_code(0);
    }
    for path in &pictures {
        fs::rename(hidden(path), path).expect("our own file");
    }
    let one = scene.corpus.output("one");
    let run = scene.build(&one).args(["--label-rule", "qwen_finetune"]);
    let _ = run.end().expect_code(0);
    let mut expected = files(&one);
    expected.retain(|name, _| !is_shard(name));
    for part in &parts {
        assert_same(&expected, &small(part), "another text");
        let _ = Run::stoker(["verify", "--deep"])
            .args([part])
            .end()
            .expect_code(0);
    }
}

/// Whatever instant a commit dies at: no manifest, or a whole one, and a second run ends right.
#[test]
fn a_killed_commit_leaves_no_manifest_or_a_whole_one() {
    let scene = Scene::new(12, &["--partitions", "2", "--shard-bytes", "1MiB"]);
    let parts = scene.parts(2);
    let output = scene.corpus.output("joined");
    let commit = || scene.commit(&parts, &output);
    let (ended, calls) = trace(&commit(), &traced(), scene.corpus.path());
    let _ = ended.expect_code(0);
    let clean = files(&output);
    let mut kills = 0;
    for point in points(&calls, &output) {
        fs::remove_dir_all(&output).expect("our own folder");
        let ended = failed_at(&commit(), &output, &point, "signal=SIGKILL").end();
        kills += usize::from(ended.signal == Some(9));
        if output.is_dir() {
            let _ = committed_without_shards(&output);
        }
        let _ = commit().end().expect_code(0);
        assert_same(&clean, &files(&output), &format!("killed at {point}"));
    }
    assert!(kills >= 60, "{kills}");
}

/// Killed where a part ends, the same command ends it.
#[test]
fn a_part_killed_at_its_end_is_finished_by_the_same_command() {
    let scene = Scene::new(9, &["--partitions", "2"]);
    let output = scene.folder(1, 2);
    let (ended, calls) = trace(&scene.part(1, 2), &traced(), scene.corpus.path());
    let _ = ended.expect_code(0);
    let clean = files(&output);
    let mut kills = 0;
    let points = points(&calls, &output);
    let at_end = |path: &Path| path.starts_with("parts") || path.ends_with("in-flight");
    for point in points.into_iter().filter(|point| at_end(&point.path)) {
        fs::remove_dir_all(&output).expect("our own folder");
        let ended = failed_at(&scene.part(1, 2), &output, &point, "signal=SIGKILL").end();
        kills += usize::from(ended.signal == Some(9));
        let _ = scene.part(1, 2).end().expect_code(0);
        assert_same(&clean, &files(&output), &format!("killed at {point}"));
    }
    assert!(kills >= 12, "{kills}");
}
