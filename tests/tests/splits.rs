//! Every record once, no picture in two splits, splits in partitions of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_tests::cache::{committed, sample_ids, table};
use stoker_tests::corpus::{Corpus, chat, image_name, png};
use stoker_tests::dice::Dice;

/// Distinct images of a random data set.
const IMAGES: usize = 12;

/// A record by its images: none, some that exist, or one that does not.
fn record(images: &[usize], number: usize) -> Value {
    if images.is_empty() {
        return chat(&format!("number {number}?"), "yes");
    }
    let links: Vec<String> = images.iter().map(|image| image_name(*image)).collect();
    json!({"messages": [
        {"role": "user", "content": "<image>".repeat(links.len()) + "what?"},
        {"role": "assistant", "content": "that"},
    ], "images": links})
}

struct Case {
    corpus: Corpus,
    /// The images of every record, by sample id.
    images: BTreeMap<String, Vec<usize>>,
    unusable: BTreeSet<String>,
}

impl Case {
    /// `records` holds the images of each; images from [`IMAGES`] on do not exist.
    fn new(records: &[Vec<usize>]) -> Self {
        let corpus = Corpus::empty();
        let mut dice = Dice::new(1);
        for image in 0..IMAGES {
            corpus.write(&image_name(image), &png(&mut dice, 32, 32));
        }
        let lines: Vec<Value> = records
            .iter()
            .enumerate()
            .map(|(at, images)| record(images, at))
            .collect();
        corpus.write_lines("all.jsonl", &lines);
        let name = |at: usize| format!("all.jsonl:{}", at + 1);
        let bad = |images: &Vec<usize>| images.iter().any(|image| *image >= IMAGES);
        Self {
            corpus,
            images: (0..).map(name).zip(records.iter().cloned()).collect(),
            unusable: (0..)
                .map(name)
                .zip(records)
                .filter(|(_, images)| bad(images))
                .map(|(id, _)| id)
                .collect(),
        }
    }

    fn check(&self, output: &Path, splits: usize) {
        let by_split = sample_ids(output);
        assert_eq!(by_split.len(), splits);
        let rejects: Vec<String> = table(output, "rejects")
            .into_iter()
            .map(|row| row["sample_id"].clone())
            .collect();
        let mut all: Vec<&String> = by_split.values().flatten().chain(&rejects).collect();
        all.sort();
        let mut expected: Vec<&String> = self.images.keys().collect();
        expected.sort();
        assert_eq!(all, expected, "every record once");
        assert_eq!(
            rejects.iter().cloned().collect::<BTreeSet<_>>(),
            self.unusable
        );
        let mut split_of: BTreeMap<usize, &String> = BTreeMap::new();
        for (split, ids) in &by_split {
            for id in ids {
                for image in &self.images[id] {
                    let other = split_of.entry(*image).or_insert(split);
                    assert_eq!(*other, split, "image {image} stands in two splits");
                }
            }
        }
        let manifest = committed(output).expect("a cache");
        let mut next = 0;
        for split in &manifest.splits {
            assert_eq!(split.first_partition, next);
            assert_eq!(split.samples, by_split[&split.name].len() as u64);
            next += split.partitions;
        }
    }
}

fn records() -> impl Strategy<Value = Vec<Vec<usize>>> {
    // One in 13 images does not exist.
    let images = prop::collection::vec(0..=IMAGES, 0..3);
    prop::collection::vec(images, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_record_once_and_no_picture_twice(
        records in records(),
        partitions in 1u32..6,
        seed in 0u64..1000,
        shares in prop::sample::select(vec![&[][..], &["val=10%"], &["val=0.2", "test=30%"]]),
    ) {
        let case = Case::new(&records);
        let output = case.corpus.output("cache");
        let mut run = case
            .corpus
            .build(&output)
            .with("--partitions", &partitions.to_string())
            .args(["--seed", &seed.to_string(), "--schema", "swift"]);
        run = run.args(shares.iter().flat_map(|share| ["--split", *share]));
        let _ = run.end().expect_code(0);
        case.check(&output, 1 + shares.len());
    }
}

#[test]
fn shares_are_kept_by_first_images() {
    let records: Vec<Vec<usize>> = (0..100).map(|at| vec![at % 10]).collect();
    let case = Case::new(&records);
    let output = case.corpus.output("cache");
    let run = case
        .corpus
        .build(&output)
        .args(["--split", "val=20%", "--json"]);
    let report = run.end().expect_code(0).json();
    case.check(&output, 2);
    assert_eq!(report["splits"][0]["name"], "train");
    assert_eq!(report["splits"][0]["samples"], 80);
    assert_eq!(report["splits"][1]["name"], "val");
    assert_eq!(report["splits"][1]["samples"], 20);
}

#[test]
fn who_shares_a_second_picture_is_drawn_together() {
    // Four pairs of records; the second picture of both is the same.
    let records: Vec<Vec<usize>> = (0..8).map(|at| vec![at, 8 + at / 2]).collect();
    let case = Case::new(&records);
    let output = case.corpus.output("cache");
    let run = case
        .corpus
        .build(&output)
        .args(["--schema", "swift", "--split", "val=25%", "--json"]);
    let report = run.end().expect_code(0).json();
    case.check(&output, 2);
    assert_eq!(report["splits"][1]["samples"], 2);
}

/// The share is kept, so a split may come out empty; a warning says why.
#[test]
fn a_split_that_gets_no_pictures_is_warned_about() {
    for (records, share, warning) in [
        // One picture in all records but one.
        (
            (0..20).map(|at| vec![at % 10, 10]).collect::<Vec<_>>(),
            "val=20%",
            Some("warning: no records with pictures in split `val`: those that share a picture"),
        ),
        (
            (0..8).map(|at| vec![at]).collect(),
            "val=10%",
            Some("warning: no records in split `val`: its share is less than one of them"),
        ),
        ((0..8).map(|at| vec![at]).collect(), "val=20%", None),
    ] {
        let case = Case::new(&records);
        let output = case.corpus.output("cache");
        let run = case.corpus.build(&output).args(["--schema", "swift"]);
        let run = run.args(["--split", share, "--json"]);
        for run in [run.clone().args(["--dry-run"]), run] {
            let ended = run.end().expect_code(0);
            let split = &ended.json()["splits"][1];
            assert_eq!(split["samples"] == 0, warning.is_some(), "{split}");
            match warning {
                Some(warning) => assert!(ended.stderr.starts_with(warning), "{}", ended.stderr),
                None => assert_eq!(ended.stderr, ""),
            }
        }
        case.check(&output, 2);
    }
}

#[test]
fn shares_that_leave_nothing_and_names_that_repeat_are_refused() {
    let case = Case::new(&[vec![0], vec![1]]);
    let output = case.corpus.output("cache");
    for shares in [["a=60%", "b=40%"], ["a=10%", "a=20%"]] {
        let run = case.corpus.build(&output).args(["--split"]).args(shares);
        let ended = run.end().expect_code(2);
        assert!(ended.stderr.contains("--split"), "{}", ended.stderr);
        assert!(!output.join("manifest.json").exists());
    }
}
