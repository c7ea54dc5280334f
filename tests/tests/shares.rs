//! What a command says of parts and shares, and what nodes read of theirs (H1, J4, J5).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_formats::MANIFEST_NAME;
use stoker_tests::cache::files;
use stoker_tests::command::Run;
use stoker_tests::corpus::{Corpus, image_name, png, vqa};
use stoker_tests::dice::Dice;
use stoker_tests::parts::{Scene, is_shard};
use stoker_tests::strace::trace;

#[test]
fn messages() {
    let scene = Scene::new(9, &["--partitions", "2"]);
    for command in ["commit", "place"] {
        scene.check(
            &format!("help_{command}"),
            &Run::stoker([command, "--help"]).end(),
        );
    }
    scene.check("part_dry_run", &scene.part(1, 2).args(["--dry-run"]).end());
    scene.check("part", &scene.part(1, 2).end());
    scene.check("part_json", &scene.part(0, 2).args(["--json"]).end());
    let slurm = scene
        .build(&scene.folder(1, 2))
        .args(["--worker", "auto"])
        .env("SLURM_PROCID", "1")
        .env("SLURM_NTASKS", "2");
    scene.check("part_slurm", &slurm.end());
    // Variables alone mean nothing.
    let whole = scene
        .build(&scene.corpus.output("whole"))
        .env("SLURM_PROCID", "1")
        .env("SLURM_NTASKS", "2");
    let _ = whole.end().expect_code(0);
    assert!(scene.corpus.output("whole").join(MANIFEST_NAME).exists());
    scene.check(
        "part_no_number",
        &scene
            .build(&scene.folder(1, 2))
            .args(["--worker", "auto"])
            .end(),
    );
    scene.check("part_no_such", &scene.part(2, 2).end());
    scene.check(
        "part_bad_worker",
        &scene.part(1, 2).with("--worker", "one").end(),
    );
    scene.check("part_prune", &scene.part(1, 2).args(["--prune"]).end());
    scene.check(
        "part_other_seed",
        &scene.part(1, 2).with("--seed", "9").end(),
    );
    let several = scene.build(&scene.corpus.output("several"));
    let several = several.args(["--worker", "3,1,0", "--workers", "4"]);
    scene.check("part_several", &several.end());
    // More workers than partitions: nothing to do is no fault.
    scene.check("part_empty", &scene.part(2, 3).end());
    // One of the two rejected records is in a part: a percentage is one of the part's own records.
    scene.check(
        "part_rejects",
        &scene.part(1, 4).with("--max-rejects", "1%").end(),
    );
    let parts = scene.folders(2);
    let output = scene.corpus.output("joined");
    scene.check("commit", &scene.commit(&parts, &output).end());
    scene.check(
        "commit_json",
        &scene.commit(&parts, &output).args(["--json"]).end(),
    );
    let _ = scene.commit(&parts, &parts[1]).end().expect_code(0);
    let on = |command: &str| Run::stoker([command]).args([&parts[1]]);
    scene.check("part_verify", &on("verify").end());
    scene.check("part_verify_deep", &on("verify").args(["--deep"]).end());
    scene.check("part_stats", &on("stats").end());
    scene.check("place", &on("place").args(["--nodes", "2"]).end());
    let table = scene.corpus.output("table.json");
    fs::write(&table, "[[0,1]]").expect("a table");
    let current = on("place")
        .args(["--nodes", "2", "--current"])
        .args([&table]);
    scene.check("place_current", &current.end());
    fs::write(&table, "[0,1]").expect("a table");
    scene.check("place_bad_table", &current.end());
    scene.check("place_no_nodes", &on("place").args(["--nodes", "0"]).end());
}

/// Each node holds its own shards and reads nothing but its own folder; together all ranks read each sample once.
#[test]
fn nodes_read_their_own_shards_and_each_sample_once() {
    let corpus = Corpus::empty();
    let mut dice = Dice::new(3);
    let records: Vec<Value> = (0..64)
        .map(|number| {
            corpus.write(&image_name(number), &png(&mut dice, 40, 40));
            vqa(
                &image_name(number),
                &format!("what is {number}?"),
                "a picture",
            )
        })
        .collect();
    corpus.write_lines("a.jsonl", &records);
    let scene = Scene::of(corpus, &["--partitions", "8"]);
    let nodes = scene.parts(4);
    let mut placement = Value::Null;
    for node in &nodes {
        let report = scene.commit(&nodes, node).args(["--json"]).end();
        let report = report.expect_code(0).json();
        assert_eq!(report["not_held"].as_array().map(Vec::len), Some(6));
        placement = report["placement"].clone();
    }
    assert_eq!(
        placement,
        serde_json::json!([[0, 4], [1, 5], [2, 6], [3, 7]])
    );
    let table = scene.corpus.output("placement.json");
    fs::write(&table, placement.to_string()).expect("a table");
    let mut seen = BTreeMap::new();
    for rank in 0..8u32 {
        let node = &nodes[rank as usize / 2];
        let run = Run::stoker(["read", "--json", "--ids", "--tail", "all"])
            .args([node])
            .args(["--batch-size", "8", "--world-size", "8", "--nodes", "4"])
            .args(["--rank", &rank.to_string(), "--placement"])
            .args([&table]);
        let (ended, calls) = trace(&run, &["openat", "open"], scene.corpus.path());
        let ended = ended.expect_code(0);
        for line in ended.stdout.lines() {
            let batch: Value = serde_json::from_str(line).expect("a batch");
            for id in batch["sample_ids"].as_array().expect("ids") {
                *seen.entry(id.to_string()).or_insert(0) += 1;
            }
        }
        let opened: BTreeSet<PathBuf> = calls
            .iter()
            .filter(|call| call.good)
            .flat_map(|call| call.paths().into_iter().map(PathBuf::from))
            .filter(|path| path.starts_with(scene.corpus.path()) && path.is_file())
            .collect();
        assert!(
            opened.iter().any(
                |path| path.starts_with(node.join("")) && is_shard(&path.display().to_string())
            )
        );
        let outside: Vec<&PathBuf> = opened
            .iter()
            .filter(|path| !path.starts_with(node) && **path != table)
            .collect();
        assert!(outside.is_empty(), "{outside:?}");
    }
    assert_eq!(seen.len(), 64);
    assert!(seen.values().all(|count| *count == 1), "{seen:?}");
    // A node knows what it holds; a shard of its own that is gone is damage.
    let verify = |node: &Path| {
        Run::stoker(["verify", "--deep", "--json"])
            .args([node])
            .end()
    };
    let report = verify(&nodes[1]).expect_code(0).json();
    assert_eq!(report["not_held"], serde_json::json!([0, 2, 3, 4, 6, 7]));
    for kind in ["shards/p0001-000000.arrow", "shards/p0005-000000.arrow"] {
        while let Some(name) = files(&nodes[1])
            .into_keys()
            .find(|name| name.ends_with(kind))
        {
            fs::remove_file(nodes[1].join(name)).expect("our own file");
        }
    }
    let report = verify(&nodes[1]).expect_code(1).json();
    assert_eq!(
        report["damages"].as_array().map(Vec::len),
        Some(4),
        "{report}"
    );
    assert_eq!(report["lost_samples"], 16);
}
