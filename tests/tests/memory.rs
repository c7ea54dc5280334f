//! Too little memory ends a build in an error or a kill: never in a hang, never in other data. The next run ends right (promise H3).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stoker_builder::source::{Base, Policy, resolve};
use stoker_tests::cache::{committed, files};
use stoker_tests::clean::Clean;
use stoker_tests::command::{Ended, Run, repository};
use stoker_tests::corpus::{Corpus, vqa};

/// Limits that promise H3 asks for.
const STEPS: u64 = 16;

/// A build of this size takes a second; a hang takes for ever.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Address space of no use to any build, and more than enough, in MiB.
const RANGE: (u64, u64) = (16, 4096);

/// Runs of one build under the same limit: a later one looks into what an earlier one left.
const RUNS: usize = 2;

/// Enough for a builder that decodes nothing, too little for a picture of 100 million pixels.
const SUSPECT_MEBIBYTES: u64 = 900;

/// What ends a process without memory: its own abort, the system, a stack that cannot grow.
const KILLS: [i32; 3] = [6, 9, 11];

/// A valid progressive JPEG of one colour, `side` pixels square, a multiple of 64. Its decoder takes much memory of its own: 2
/// bytes a pixel for each of its `parts`, one for grey and three for colour.
fn progressive(side: u16, parts: u8) -> Vec<u8> {
    let [high, low] = side.to_be_bytes();
    let mut jpeg = vec![0xff, 0xd8, 0xff, 0xdb, 0, 67, 0];
    jpeg.extend([1; 64]);
    let frame = [0, 8 + 3 * parts, 8, high, low, high, low, parts];
    jpeg.extend([0xff, 0xc2].into_iter().chain(frame));
    jpeg.extend((1..=parts).flat_map(|part| [part, 0x11, 0]));
    // One code of one bit, for a block whose mean is that of the block before.
    jpeg.extend([0xff, 0xc4, 0, 20, 0, 1]);
    jpeg.extend([0; 16]);
    jpeg.extend([0xff, 0xda, 0, 6 + 2 * parts, parts]);
    jpeg.extend((1..=parts).flat_map(|part| [part, 0]));
    jpeg.extend([0; 3]);
    let blocks = usize::from(side / 8).pow(2) * usize::from(parts);
    jpeg.resize(jpeg.len() + blocks / 8, 0);
    jpeg.extend([0xff, 0xd9]);
    jpeg
}

/// Pictures of all kinds, some of them heavy, some of no use.
fn corpus() -> Corpus {
    let corpus = Corpus::mixed(12, 30);
    corpus.write("images/heavy.jpg", &progressive(4032, 1));
    let mut names = vec!["heavy.jpg".to_owned()];
    let golden = repository().join("tests/golden/images");
    for entry in fs::read_dir(golden).expect("the golden pictures") {
        let path = entry.expect("a picture").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        corpus.write(
            &format!("images/{name}"),
            &fs::read(&path).expect("a picture"),
        );
        names.push(name);
    }
    names.sort_unstable();
    let lines = names.iter();
    let lines = lines.map(|name| vqa(&format!("images/{name}"), "what?", "that"));
    corpus.write_lines("e.jsonl", &lines.collect::<Vec<_>>());
    corpus
}

/// The build with at most so many MiB of address space.
fn under(clean: &Clean, mebibytes: u64) -> Run {
    let limit = format!("--as={}", mebibytes << 20);
    let run = clean.corpus.build(&output(clean)).limit(TIME_MAX);
    run.under(&["prlimit".to_owned(), limit])
}

/// Builds with at most so many MiB of address space, then without a limit. Gives how the former ended.
fn limited(clean: &Clean, mebibytes: u64) -> Ended {
    let output = output(clean);
    let _ = fs::remove_dir_all(&output);
    let run = under(clean, mebibytes);
    let mut ended = run.end();
    for _ in 1..RUNS {
        if ended.code != Some(0) {
            check(&ended, &output, mebibytes);
            ended = run.end();
        }
    }
    check(&ended, &output, mebibytes);
    clean.finish(&output, &format!("after {mebibytes} MiB"));
    ended
}

/// The data set with its clean cache.
fn built(corpus: Corpus) -> Clean {
    let output = corpus.output("clean");
    let _ = corpus.build(&output).end().expect_code(0);
    Clean {
        files: files(&output),
        corpus,
    }
}

fn output(clean: &Clean) -> PathBuf {
    clean.corpus.output("cache")
}

/// Success, an error, a panic, or a kill; what is committed is whole.
fn check(ended: &Ended, output: &Path, mebibytes: u64) {
    // Exit code 1 would say that records are at fault.
    let good = match (ended.code, ended.signal) {
        (Some(code), _) => [0, 2, 101].contains(&code),
        (None, signal) => signal.is_some_and(|signal| KILLS.contains(&signal)),
    };
    assert!(good, "{mebibytes} MiB: {ended:?}");
    if output.is_dir() {
        let _ = committed(output);
    }
}

#[test]
fn any_limit_of_memory_ends_the_build_and_spoils_nothing() {
    let clean = built(corpus());
    let mut codes = Vec::new();
    let (mut less, mut enough) = RANGE;
    while enough - less > 8 {
        let middle = less.midpoint(enough);
        codes.push(limited(&clean, middle).code);
        match codes.last() {
            Some(Some(0)) => enough = middle,
            _ => less = middle,
        }
    }
    let steps = (1..=STEPS).map(|step| enough * (STEPS + step) / (2 * STEPS));
    codes.extend(steps.map(|step| limited(&clean, step).code));
    let successes = codes.iter().filter(|code| **code == Some(0)).count();
    assert!(successes >= 1 && codes.len() - successes >= 4, "{codes:?}");
}

/// A picture that was in preparation when a process died is tried in a child; one that has no memory for that says nothing of it.
#[test]
fn a_suspect_is_not_judged_without_memory() {
    let corpus = Corpus::good(13, 6);
    corpus.write("images/heavy.jpg", &progressive(9984, 3));
    corpus.write_lines("e.jsonl", &[vqa("images/heavy.jpg", "what?", "that")]);
    let clean = built(corpus);
    let output = output(&clean);
    fs::create_dir(&output).expect("a folder");
    let base = Base::parse(&clean.corpus.data().display().to_string()).expect("a folder");
    let link = resolve("images/heavy.jpg", &base, &Policy::default());
    let note = link.expect("a link").key();
    fs::write(output.join("in-flight"), note).expect("a note");
    let ended = under(&clean, SUSPECT_MEBIBYTES).end().expect_code(2);
    let said = &ended.stderr;
    assert!(
        said.contains("error: could not try an image with `"),
        "{said}"
    );
    assert!(
        said.contains("hint: give this process more memory"),
        "{said}"
    );
    clean.finish(&output, "with memory");
}
