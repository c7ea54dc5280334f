//! Every fuzz body over its seeds and some thousand seeded mutations of them, on the stable compiler
//! (D6). The long runs are cargo-fuzz's, in `tests/fuzz`.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use stoker_formats::{ContentHash, ShareRecord, VERSION};
use stoker_tests::cache::files;
use stoker_tests::command::repository;
use stoker_tests::corpus::{Corpus, image_name};
use stoker_tests::dice::Dice;
use stoker_tests::fuzz::{Body, TARGETS, canary, packed};
use stoker_tests::mutate::mutated;

/// Mutations of each target, as far as the time goes.
const MUTATIONS: usize = 4_000;
/// Time of each target: ten of them stay within a minute.
const TIME_MAX: Duration = Duration::from_secs(6);
/// Seeds larger than this only slow the mutations down.
const SEED_BYTES_MAX: usize = 64 << 10;

/// The record of a part, for the target `manifest`.
const PART: &str = "part/parts/0000-of-0002.json";

const JSON: [&[u8]; 8] = [
    b"{",
    b"]",
    b"\"",
    b",",
    b"null",
    b"1e999",
    b"\\ud800",
    b"[[[[[[[[",
];
const LINKS: [&[u8]; 9] = [
    b"../",
    b"./",
    b"//",
    b"s3://bucket/",
    b"data:",
    b"%2e%2e/",
    b"\\",
    b"\0",
    b"file://",
];

/// The record of a share.
fn share() -> Vec<u8> {
    let record = ShareRecord {
        format_version: VERSION,
        created_by: "stoker".into(),
        fingerprint: ContentHash([3; 32]),
        partitions: vec![1, 4, 7],
    };
    record.to_bytes().expect("a record")
}

/// Runs `body` over seeds and mutations; gives the first input that breaks it.
fn hunt(body: Body, seeds: &[Vec<u8>], tokens: &[&[u8]]) -> Option<Vec<u8>> {
    let breaks = |input: &[u8]| catch_unwind(AssertUnwindSafe(|| body(input))).is_err();
    if let Some(seed) = seeds.iter().find(|seed| breaks(seed)) {
        return Some(seed.clone());
    }
    let started = Instant::now();
    let mut dice = Dice::new(seeds.len() as u64);
    for _ in 0..MUTATIONS {
        let input = mutated(&mut dice, seeds, tokens);
        if breaks(&input) {
            return Some(input);
        }
        if started.elapsed() > TIME_MAX {
            break;
        }
    }
    None
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).expect("a seed")
}

/// Seeds of a target: from a small cache, a small data set, and files of the repository.
fn seeds(target: &str, corpus: &Corpus, cache: &Path) -> Vec<Vec<u8>> {
    let of_cache = |part: &str| -> Vec<Vec<u8>> {
        files(cache)
            .into_keys()
            .filter(|name| name.contains(part) && cache.join(name).is_file())
            .map(|name| read(&cache.join(name)))
            .filter(|bytes| bytes.len() <= SEED_BYTES_MAX)
            .collect()
    };
    match target {
        "shard" => of_cache("/shards/"),
        "index" => of_cache("/index/"),
        "receipt" => of_cache("/receipts/"),
        "manifest" => [
            of_cache("manifest.json"),
            vec![read(&corpus.output(PART)), share()],
        ]
        .concat(),
        "pack_table" => vec![packed().0],
        "pack_entry" => vec![packed().1.to_bytes().expect("an entry")],
        "recipe" => {
            let manifest: serde_json::Value =
                serde_json::from_slice(&read(&cache.join("manifest.json"))).expect("JSON");
            let recipe = &manifest["recipe"];
            [&recipe["image"], &recipe["text"]]
                .map(|half| half.to_string().into_bytes())
                .into()
        }
        "record" => ["a.jsonl", "b.jsonl", "sub/c.jsonl", "d.jsonl"]
            .iter()
            .flat_map(|name| {
                let text = read(&corpus.data().join(name));
                text.split(|byte| *byte == b'\n')
                    .map(<[u8]>::to_vec)
                    .collect::<Vec<_>>()
            })
            .collect(),
        "link" => [
            "images/a.png",
            "../b.jpg",
            "s3://bucket/prefix/c.png",
            "data:image/png;base64,iVBORw0K",
        ]
        .map(|link| link.as_bytes().to_vec())
        .into(),
        _ => {
            let golden =
                fs::read_dir(repository().join("tests/golden/images")).expect("golden images");
            golden
                .map(|entry| read(&entry.expect("a golden image").path()))
                .chain([read(&corpus.data().join(image_name(0)))])
                .filter(|bytes| bytes.len() <= SEED_BYTES_MAX)
                .collect()
        }
    }
}

#[test]
fn no_target_breaks() {
    let corpus = Corpus::mixed(41, 12);
    let cache = corpus.output("cache");
    let _ = corpus.build(&cache).end().expect_code(0);
    let part = corpus.build(&corpus.output("part"));
    let part = part.args(["--worker", "0", "--workers", "2"]);
    let _ = part.end().expect_code(0);
    for (target, body) in TARGETS {
        let seeds = seeds(target, &corpus, &cache);
        assert!(!seeds.is_empty(), "{target} has no seeds");
        let tokens: &[&[u8]] = match target {
            "link" => &LINKS,
            "record" | "recipe" | "receipt" | "manifest" | "pack_entry" => &JSON,
            _ => &[],
        };
        if let Some(input) = hunt(body, &seeds, tokens) {
            let path = std::env::temp_dir().join(format!("stoker-fuzz-{target}"));
            fs::write(&path, &input).expect("the input");
            panic!(
                "target {target} breaks on {} bytes: {}",
                input.len(),
                path.display()
            );
        }
    }
}

#[test]
fn the_canary_is_found() {
    let found = hunt(canary, &[b"STOKES".to_vec()], &[b"R"]);
    assert!(found.is_some_and(|input| input.starts_with(b"STOKER")));
}
