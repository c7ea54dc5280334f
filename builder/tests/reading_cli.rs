//! The reading commands as a user runs them: exit codes, streams, messages.

#[path = "../../tests/src/synthetic.rs"]
#[expect(unreachable_pub, reason = "the tests crate owns it")]
mod synthetic;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(
        folder.path(),
        &synthetic::content(),
        &synthetic::opaque_tables(),
    );
    folder
}

/// Runs `stoker COMMAND CACHE ARGS...`.
fn stoker(command: &str, cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stoker"))
        .arg(command)
        .arg(cache)
        .args(args)
        .output()
        .unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A stream, with the cache's folder as CACHE.
fn text(bytes: &[u8], cache: &Path) -> String {
    String::from_utf8(bytes.to_vec())
        .unwrap()
        .replace(cache.to_str().unwrap(), "CACHE")
}

#[test]
fn verify_exits_0_1_or_2() {
    let folder = made();
    let cache = folder.path();
    let sound = stoker("verify", cache, &["--deep", "--json"]);
    assert_eq!(sound.status.code(), Some(0));
    assert_eq!(json(&sound)["sound"], true);
    fs::remove_file(cache.join(format!(
        "text-{}/receipts/p0002-000000.json",
        "22".repeat(16)
    )))
    .unwrap();
    let damaged = stoker("verify", cache, &["--json"]);
    assert_eq!(damaged.status.code(), Some(1));
    assert_eq!(json(&damaged)["damages"][0]["fault"], "missing");
    fs::remove_file(cache.join("manifest.json")).unwrap();
    let none = stoker("verify", cache, &[]);
    assert_eq!(none.status.code(), Some(2));
    assert_eq!(
        text(&none.stderr, cache),
        "error: no cache: there is no manifest.json in `CACHE`\n\n\
         hint: give the folder that `stoker build` wrote; an unfinished build has no manifest yet\n"
    );
    assert!(none.stdout.is_empty());
}

#[test]
fn inspect_shows_a_sample_without_colour_in_a_pipe() {
    let folder = made();
    let cache = folder.path();
    let by_id = stoker("inspect", cache, &["--sample", "train.jsonl:6"]);
    let by_row = stoker("inspect", cache, &["--row", "5"]);
    assert_eq!(by_id.status.code(), Some(0));
    assert_eq!(by_id.stdout, by_row.stdout);
    let shown = text(&by_id.stdout, cache);
    assert!(
        shown.contains("{+this is <|im_end|>+}") && !shown.contains('\u{1b}'),
        "{shown}"
    );
    let value = json(&stoker("inspect", cache, &["--row", "5", "--json"]));
    assert_eq!(
        (&value["record_id"], &value["n_tokens"]),
        (&"record-6".into(), &19.into())
    );
}

#[test]
fn inspect_says_what_it_needs() {
    let folder = made();
    let cache = folder.path();
    let failed = stoker("inspect", cache, &["--image", "a.png"]);
    assert_eq!(failed.status.code(), Some(2));
    assert_eq!(
        text(&failed.stderr, cache),
        "error: --image needs a sample\n\nhint: add --sample ID or --row N\n"
    );
    let failed = stoker("inspect", cache, &["--row", "99"]);
    assert_eq!(
        text(&failed.stderr, cache),
        "error: no row 99: the cache has `23` samples\n\nhint: rows count from 0\n"
    );
    assert_eq!(
        json(&stoker("inspect", cache, &["--json"]))["splits"][0]["samples"],
        18
    );
}

#[test]
fn stats_prints_text_or_json() {
    let folder = made();
    let cache = folder.path();
    let shown = stoker("stats", cache, &[]);
    assert_eq!(shown.status.code(), Some(0));
    let shown = text(&shown.stdout, cache);
    assert!(shown.starts_with("cache        CACHE\n"), "{shown}");
    assert_eq!(
        json(&stoker("stats", cache, &["--json"]))["samples"]["tokens"]["count"],
        23
    );
}

#[test]
fn read_prints_the_batches_of_every_rank_and_goes_on_at_a_cursor() {
    let folder = made();
    let cache = folder.path();
    let read = |args: &[&str]| {
        let all = [
            &[
                "--batch-size",
                "4",
                "--tail",
                "all",
                "--last",
                "pad",
                "--ids",
                "--json",
            ],
            args,
        ]
        .concat();
        let output = stoker("read", cache, &all);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            text(&output.stderr, cache)
        );
        let lines = text(&output.stdout, cache);
        let batches = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        batches.collect::<Vec<serde_json::Value>>()
    };
    let ids = |batch: &serde_json::Value| {
        let ids = batch["sample_ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_str().unwrap().to_owned())
            .filter(|id| !id.is_empty())
            .collect::<Vec<_>>()
    };
    // 18 samples of `train` in batches of 4.
    let whole = read(&[]);
    assert_eq!(whole.len(), 5);
    assert_eq!(whole[4]["padding_rows"], 2);
    let mut seen: Vec<String> = whole.iter().flat_map(&ids).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 18);
    let ranks = [
        read(&["--world-size", "2", "--rank", "0"]),
        read(&["--world-size", "2", "--rank", "1"]),
    ];
    for (number, batch) in whole.iter().enumerate() {
        let mut both = [ids(&ranks[0][number]), ids(&ranks[1][number])].concat();
        let mut alone = ids(batch);
        both.sort();
        alone.sort();
        assert_eq!(both, alone);
        assert_eq!(batch["n_loss_tokens"], ranks[1][number]["n_loss_tokens"]);
    }
    let cursor = folder.path().join("cursor.json");
    let cursor = cursor.to_str().unwrap();
    let first = read(&["--cursor", cursor]);
    let second = read(&["--cursor", cursor]);
    let both = read(&["--epochs", "2"]);
    assert_eq!([first, second].concat(), both);
}

#[test]
fn read_prints_packs() {
    let folder = made();
    let cache = folder.path();
    for (tokens, name) in [("64", "small"), ("256", "large")] {
        let packed = stoker("pack", cache, &["--max-tokens", tokens, "--name", name]);
        assert_eq!(
            packed.status.code(),
            Some(0),
            "{}",
            text(&packed.stderr, cache)
        );
    }
    let read = |args: &[&str]| {
        let all = ["--batch-size", "1", "--tail", "all", "--ids", "--json"];
        let output = stoker("read", cache, &[&all, args].concat());
        let lines = text(&output.stdout, cache);
        let batches = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        (
            output.status.code(),
            batches.collect::<Vec<serde_json::Value>>(),
            text(&output.stderr, cache),
        )
    };
    let sum = |batches: &[serde_json::Value], of: &str| -> u64 {
        let values = batches.iter().map(|batch| batch[of].as_u64().unwrap());
        values.sum()
    };
    let (_, samples, _) = read(&[]);
    let (code, packs, _) = read(&["--pack", "small"]);
    assert_eq!(code, Some(0));
    assert!(packs.len() < samples.len() / 2);
    // Padding counts nowhere.
    for of in ["tokens", "n_loss_tokens", "images", "patches"] {
        assert_eq!(sum(&packs, of), sum(&samples, of), "{of}");
    }
    assert!(sum(&packs, "tokens") < 64 * packs.len() as u64);
    let cursor = cache.join("cursor.json");
    let cursor = cursor.to_str().unwrap();
    assert_eq!(read(&["--pack", "small", "--cursor", cursor]).0, Some(0));
    let (code, _, message) = read(&["--pack", "large", "--cursor", cursor]);
    assert_eq!(code, Some(2));
    assert!(
        message.contains("another kind of unit: pack small, here it is `pack large`"),
        "{message}"
    );
    let (code, _, message) = read(&["--pack", "8k"]);
    assert_eq!(code, Some(2));
    assert!(
        message.contains("no pack table `8k` in `CACHE`; there are `large`, `small`"),
        "{message}"
    );
    assert!(message.contains("hint: "), "{message}");
}

#[test]
fn read_says_what_is_wrong() {
    let folder = made();
    let cache = folder.path();
    for (args, message) in [
        (
            &["--batch-size", "4", "--split", "test"][..],
            "no split `test`",
        ),
        (
            &["--batch-size", "5", "--world-size", "2"],
            "does not divide",
        ),
        (
            &["--batch-size", "4", "--seed", "1", "--cursor", "CURSOR"],
            "seed",
        ),
    ] {
        let cursor = cache.join("cursor.json");
        let saved = stoker(
            "read",
            cache,
            &["--batch-size", "4", "--cursor", cursor.to_str().unwrap()],
        );
        assert_eq!(saved.status.code(), Some(0));
        let args: Vec<&str> = args
            .iter()
            .map(|arg| {
                if *arg == "CURSOR" {
                    cursor.to_str().unwrap()
                } else {
                    arg
                }
            })
            .collect();
        let output = stoker("read", cache, &args);
        let stderr = text(&output.stderr, cache);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
fn bench_measures_and_judges_a_step() {
    let folder = made();
    let args = ["--batch-size", "2", "--seconds", "0.05", "--json", "--step"];
    let judged = |step: &str| {
        let output = stoker("bench", folder.path(), &[&args[..], &[step]].concat());
        assert_eq!(
            output.status.code(),
            Some(0),
            "{}",
            text(&output.stderr, folder.path())
        );
        json(&output)
    };
    let report = judged("3600");
    assert!(report["memcpy_gb_s"].as_f64().unwrap() > 0.0);
    assert!(report["reader_batches_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["starves"], false);
    assert_eq!(judged("0.000000001")["starves"], true);
    let refused = stoker("bench", folder.path(), &["--seconds", "0"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn read_stops_when_nobody_listens_and_saves_what_was_printed() {
    let folder = made();
    let cursor = folder.path().join("cursor.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .arg("read")
        .arg(folder.path())
        .args(["--batch-size", "1", "--epochs", "1000000000", "--cursor"])
        .arg(&cursor)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // It would go on for years.
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let saved: serde_json::Value = serde_json::from_slice(&fs::read(&cursor).unwrap()).unwrap();
    assert!(saved["epoch"].as_u64().unwrap() < 1000, "{saved}");
}
