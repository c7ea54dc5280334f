//! An image that takes the decoding process down costs its records, not the build (G4).
//!
//! Needs a `stoker` binary with the feature `fault-injection`, which aborts at the planted bytes.

use std::fs;

use serde_json::Value;
use stoker_tests::cache::{files, table};
use stoker_tests::command::{Ended, faulty_binary};
use stoker_tests::corpus::{Corpus, vqa};

/// Runs that may die before the guilty image is known: one for each planted image, and one spare.
const RUNS_MAX: usize = 4;

fn with_planted(count: usize) -> Corpus {
    let corpus = Corpus::good(61, 15);
    let mut lines: Vec<Value> = Vec::new();
    for number in 0..count {
        let name = format!("images/planted{number}.png");
        corpus.write(&name, format!("STOKER-ABORT {number}").as_bytes());
        lines.push(vqa(&name, "what kills?", "this"));
        lines.push(vqa("images/000.png", &format!("and {number}?"), "not this"));
    }
    corpus.write_lines("planted.jsonl", &lines);
    corpus
}

fn check(count: usize, threads: &str) {
    let corpus = with_planted(count);
    let output = corpus.output("cache");
    let run = corpus
        .build(&output)
        .by(faulty_binary())
        .with("--threads", threads)
        .args(["--json"]);
    let mut deaths = 0;
    let ended: Ended = loop {
        let ended = run.end();
        if ended.signal != Some(6) {
            break ended;
        }
        deaths += 1;
        assert!(deaths < RUNS_MAX, "no end of deaths");
    };
    let report = ended.expect_code(0).json();
    assert!(
        deaths > 0,
        "nothing died: build the binary with `--features stoker-builder/fault-injection`"
    );
    assert_eq!(report["rejected"], count);
    assert_eq!(report["rejects"]["decoder_crash"], count);
    let rejects = table(&output, "rejects");
    for row in &rejects {
        assert!(row["link"].starts_with("images/planted"), "{row:?}");
    }
    let left: Vec<String> = files(&output)
        .into_keys()
        .filter(|name| !name.contains('/'))
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name == "crashers.json" || name == "in-flight"),
        "{left:?}"
    );
    // The finished cache is stable, though the images would kill again.
    let again = run.end().expect_code(0).json();
    assert_eq!(again["fingerprint"], report["fingerprint"]);
}

/// What a caught panic said stands with the reject, and nowhere else.
#[test]
fn a_panic_in_a_decoder_costs_its_records_and_says_nothing_on_stderr() {
    let corpus = Corpus::good(61, 15);
    corpus.write("images/planted.png", b"STOKER-PANIC");
    corpus.write_lines(
        "planted.jsonl",
        &[vqa("images/planted.png", "what panics?", "this")],
    );
    let output = corpus.output("cache");
    let run = corpus.build(&output).by(faulty_binary());
    let ended = run.env("RUST_BACKTRACE", "1").end().expect_code(0);
    for word in ["planted", "panicked", "backtrace"] {
        assert!(!ended.stderr.contains(word), "{}", ended.stderr);
    }
    let rejects = table(&output, "rejects");
    let messages: Vec<&String> = rejects.iter().map(|row| &row["message"]).collect();
    assert_eq!(messages, ["the image decoder panicked: `planted`"]);
    assert_eq!(rejects[0]["reason"], "decoder_crash");
}

#[test]
fn one_planted_image_costs_one_record() {
    check(1, "1");
}

#[test]
fn several_planted_images_cost_their_records() {
    check(3, "2");
}

#[test]
fn a_plan_learns_of_planted_images_too() {
    let corpus = with_planted(2);
    let output = corpus.output("cache");
    let run = corpus
        .build(&output)
        .by(faulty_binary())
        .args(["--dry-run", "--json"]);
    let deaths = (0..RUNS_MAX)
        .take_while(|_| run.end().signal == Some(6))
        .count();
    assert!((1..RUNS_MAX).contains(&deaths), "{deaths} deaths");
    let plan = run.end().expect_code(0).json();
    assert_eq!(plan["records"], 15 + 4);
    let _ = fs::remove_dir_all(output);
}
