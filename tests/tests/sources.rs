//! Sources that change, or are mended, while a build is unfinished.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use stoker_tests::cache::{assert_same, committed, files, sample_ids};
use stoker_tests::clean::{Clean, slowed, wait_for};
use stoker_tests::corpus::{Corpus, chat};
use stoker_tests::snapshot;

/// Receipts of images.
fn receipts(output: &Path) -> usize {
    let list = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let named =
        |entry: &fs::DirEntry, start: &str| entry.file_name().to_string_lossy().starts_with(start);
    let plans = list(output).filter(|entry| named(entry, "images-"));
    plans
        .flat_map(|plan| list(&plan.path().join("receipts")))
        .filter(|entry| named(entry, "p"))
        .count()
}

#[test]
fn rejects_of_a_source_that_was_mended_stay_until_restart() {
    let clean = Clean::new(24);
    let output = clean.corpus.output("cache");
    let images = clean.corpus.data().join("images");
    let away = clean.corpus.path().join("away");
    fs::rename(&images, &away).unwrap();
    // A limit that one of the two partitions keeps: its receipts are durable when the other one goes over it.
    let ended = (3..31).find_map(|limit| {
        let _ = fs::remove_dir_all(&output);
        let run = clean
            .corpus
            .build(&output)
            .with("--max-rejects", &format!("{limit}"));
        let ended = run.end();
        (ended.code == Some(1) && receipts(&output) > 0).then_some(ended)
    });
    let ended = ended.expect("a limit between the partitions");
    assert!(ended.stderr.contains("(first: `"), "{}", ended.stderr);
    assert!(ended.stderr.contains("--restart"), "{}", ended.stderr);
    assert!(committed(&output).is_none());
    fs::rename(&away, &images).unwrap();
    let _ = clean
        .corpus
        .build(&output)
        .args(["--restart"])
        .end()
        .expect_code(0);
    assert_same(&clean.files, &files(&output), "after --restart");
}

#[test]
fn an_input_that_is_written_to_stops_the_build() {
    let clean = Clean::new(40);
    let output = clean.corpus.output("cache");
    let input = clean.corpus.data().join("a.jsonl");
    let before = fs::read(&input).unwrap();
    let run = slowed(&clean.corpus.build(&output), 30).start();
    wait_for("image receipt", || (receipts(&output) > 0).then_some(()));
    // The same length and the same links: only the text differs.
    let text = String::from_utf8(before.clone())
        .unwrap()
        .replace("the", "teh");
    assert_ne!(text.as_bytes(), before);
    let mut file = OpenOptions::new().write(true).open(&input).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let ended = run.wait();
    let folder = clean.corpus.path().display().to_string();
    snapshot::check("input_changed", &ended, &[(&folder, "[FOLDER]")]);
    assert!(committed(&output).is_none());
    fs::write(&input, before).unwrap();
    clean.finish(&output, "with the input as it was");
}

/// A cache, and the state of its build, as a kill between the commit and the removal of that leaves it.
fn committed_with_state() -> (Clean, PathBuf, PathBuf) {
    let clean = Clean::new(15);
    let output = clean.corpus.output("cache");
    let state = output.join("building.json");
    let run = slowed(&clean.corpus.build(&output), 20).start();
    let left = wait_for("state", || fs::read(&state).ok());
    let _ = run.wait().expect_code(0);
    assert!(!state.exists());
    fs::write(&state, left).unwrap();
    (clean, output, state)
}

#[test]
fn the_state_of_a_committed_build_is_in_nobodys_way() {
    let (clean, output, state) = committed_with_state();
    let _ = clean
        .corpus
        .build(&output)
        .args(["--seed", "7"])
        .end()
        .expect_code(0);
    assert!(!state.exists());
}

/// The same with a manifest that names nothing any more.
#[test]
fn a_damaged_manifest_is_in_no_restarts_way() {
    let (clean, output, _) = committed_with_state();
    fs::write(output.join("manifest.json"), b"{}").unwrap();
    let anew = clean.corpus.build(&output).args(["--restart"]);
    let _ = anew.end().expect_code(0);
    assert_same(&clean.files, &files(&output), "after --restart");
}

#[test]
fn an_input_that_changes_before_it_is_spooled_whole_stops_the_build() {
    let corpus = Corpus::empty();
    let packed = |text: &str| {
        let line = format!("{}\n", chat(text, "yes"));
        zstd::encode_all(line.as_bytes(), 1).unwrap()
    };
    corpus.write("a.jsonl.zst", &packed("one?"));
    let output = corpus.output("cache");
    let run = slowed(&corpus.build(&output), 300).start();
    // All of it is written: only its sync is on the way.
    wait_for("copy", || {
        let mut copies = fs::read_dir(output.join("spool")).ok()?;
        let copy = copies.next()?.ok()?.metadata().ok()?;
        (copy.len() > 0).then_some(())
    });
    corpus.write("a.jsonl.zst", &packed("another one?"));
    let folder = corpus.path().display().to_string();
    snapshot::check("input_changed_early", &run.wait(), &[(&folder, "[FOLDER]")]);
    let _ = corpus.build(&output).end().expect_code(0);
}

/// A data set of `count` inputs of one record.
fn many(count: usize) -> Corpus {
    let corpus = Corpus::empty();
    for number in 0..count {
        let record = chat(&format!("which is {number}?"), "this");
        corpus.write_lines(&format!("part-{number:04}.jsonl"), &[record]);
    }
    corpus
}

#[test]
fn a_thousand_inputs_need_few_descriptors() {
    let corpus = many(1200);
    let fingerprint = |name: &str, wrapper: &[&str]| {
        let output = corpus.output(name);
        let run = corpus.build(&output).args(["--json"]).under(wrapper);
        run.end().expect_code(0).json()["fingerprint"].clone()
    };
    let of_all = fingerprint("all", &["prlimit", "--nofile=4096:4096"]);
    for (name, limit) in [
        ("few", "--nofile=1024:1024"),
        ("raised", "--nofile=64:1024"),
        ("fewest", "--nofile=64:64"),
    ] {
        assert_eq!(fingerprint(name, &["prlimit", limit]), of_all, "{limit}");
    }
}

/// Of many inputs the last ones are not open all the time.
#[test]
fn an_input_among_many_that_is_replaced_stops_the_build() {
    let corpus = many(300);
    let output = corpus.output("cache");
    let run = slowed(&corpus.build(&output), 100).start();
    wait_for("state", || {
        output.join("building.json").exists().then_some(())
    });
    let last = corpus.data().join("part-0299.jsonl");
    let other = corpus.path().join("other");
    fs::copy(&last, &other).unwrap();
    fs::rename(&other, &last).unwrap();
    let ended = run.wait().expect_code(2);
    let what = format!("input changed while it was read: `{}`", last.display());
    assert!(ended.stderr.contains(&what), "{}", ended.stderr);
    let _ = corpus.build(&output).end().expect_code(0);
}

/// A first line that is no record, and none that is whole within the first MiB.
#[test]
fn the_shape_of_a_file_is_found_behind_its_first_mebibyte() {
    let corpus = Corpus::empty();
    let lines = format!("\n{}\n", chat(&"why? ".repeat(300_000), "because"));
    corpus.write("a.jsonl", lines.as_bytes());
    let output = corpus.output("cache");
    let _ = corpus.build(&output).end().expect_code(0);
    let ids = sample_ids(&output);
    assert_eq!(ids.values().flatten().collect::<Vec<_>>(), ["a.jsonl:2"]);
}
