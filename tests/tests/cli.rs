//! Every message of the command line, as users see it, and its exit code (H1).

use std::fs;
use std::path::{Path, PathBuf};

use stoker_tests::command::Run;
use stoker_tests::corpus::{Corpus, chat, model};
use stoker_tests::snapshot;
use stoker_tests::strace::injected;

/// A data set in a folder whose path is masked.
struct Scene {
    corpus: Corpus,
}

impl Scene {
    fn new() -> Self {
        Self {
            corpus: Corpus::mixed(51, 9),
        }
    }

    fn build(&self) -> Run {
        self.corpus.build(&self.output())
    }

    fn output(&self) -> PathBuf {
        self.corpus.output("cache")
    }

    fn check(&self, name: &str, run: &Run) {
        let folder = self.corpus.path().display().to_string();
        snapshot::check(name, &run.end(), &[(&folder, "[FOLDER]")]);
    }

    fn on_cache(&self, command: &str) -> Run {
        Run::stoker([command]).args([self.output()])
    }
}

#[test]
fn help() {
    for (name, args) in [
        ("help", &["--help"][..]),
        ("help_build", &["build", "--help"]),
        ("help_verify", &["verify", "--help"]),
        ("help_inspect", &["inspect", "--help"]),
        ("help_stats", &["stats", "--help"]),
        ("help_read", &["read", "--help"]),
        ("help_bench", &["bench", "--help"]),
        ("help_simulate", &["simulate", "--help"]),
        ("help_push", &["push", "--help"]),
        ("help_sync", &["sync", "--help"]),
        ("help_repair", &["repair", "--help"]),
        ("version", &["--version"]),
        ("no_command", &[]),
    ] {
        snapshot::check(name, &Run::stoker(args).end(), &[]);
    }
}

#[test]
fn usage() {
    let scene = Scene::new();
    for (name, option, value) in [
        ("bad_profile", "--profile", "best"),
        ("bad_schema", "--schema", "parquet"),
        ("bad_image_tag", "--image-tag", "keep"),
        ("bad_label_rule", "--label-rule", "all"),
        ("bad_size", "--shard-bytes", "1.5GiB"),
        ("bad_split", "--split", "val"),
        ("bad_split_name", "--split", "train=1%"),
        ("bad_split_share", "--split", "val=100%"),
        ("bad_reject_limit", "--max-rejects", "101%"),
        ("bad_partitions", "--partitions", "0"),
        ("bad_threads", "--threads", "0"),
        ("overlong_alone", "--overlong", "reject"),
        ("splits_leave_nothing", "--split", "val=99.99999%"),
        ("pixels_contradict", "--max-pixels", "100"),
        (
            "image_root_http",
            "--image-root",
            "http://example.org/images",
        ),
        ("image_root_missing", "--image-root", "/nonexistent/images"),
        ("bad_bucket", "--allow-bucket", "s3://bucket"),
    ] {
        scene.check(name, &scene.build().with(option, value));
    }
    scene.check(
        "two_splits",
        &scene.build().args(["--split", "val=1%", "val=2%"]),
    );
    scene.check("nothing_given", &Run::stoker(["build"]));
    let output = scene.output();
    assert!(
        !output.join("manifest.json").exists(),
        "a refused build left a manifest"
    );
}

#[test]
fn inputs() {
    let scene = Scene::new();
    let data = scene.corpus.data();
    let of = |name: &str| scene.corpus.build_of(&[data.join(name)], &scene.output());
    scene.corpus.write("other/empty.jsonl", b"");
    scene.corpus.write("other/blank.jsonl", b"\n\n");
    scene
        .corpus
        .write("other/noise.jsonl", b"not json\nat all\n");
    scene
        .corpus
        .write("other/strange.jsonl", b"{\"text\": \"no known shape\"}\n");
    scene
        .corpus
        .write("other/cut.jsonl.gz", b"\x1f\x8b\x08\x00\x00");
    fs::create_dir(data.join("nothing")).expect("a folder");
    for (name, input) in [
        ("input_missing", "missing.jsonl"),
        ("input_glob_empty", "*.nothing"),
        ("input_folder_empty", "nothing"),
        ("input_empty", "other/empty.jsonl"),
        ("input_blank", "other/blank.jsonl"),
        ("input_noise", "other/noise.jsonl"),
        ("input_strange", "other/strange.jsonl"),
        ("input_gzip_cut", "other/cut.jsonl.gz"),
        ("input_image", "images/000.png"),
    ] {
        scene.check(name, &of(input));
    }
    for (name, uri) in [
        ("input_http", "http://example.org/a.jsonl"),
        ("input_bucket_alone", "s3://"),
    ] {
        scene.check(name, &scene.corpus.build_of(&[uri.into()], &scene.output()));
    }
    let mixed = [data.join("a.jsonl"), "s3://bucket/a.jsonl".into()];
    scene.check(
        "input_mixed",
        &scene.corpus.build_of(&mixed, &scene.output()),
    );
}

#[test]
fn models() {
    let scene = Scene::new();
    let folder = scene.corpus.output("model");
    let run = || scene.build().with("--model", &folder.display().to_string());
    scene.check("model_missing", &run());
    let copy = |without: &str| {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).expect("a model folder");
        for entry in fs::read_dir(model()).expect("the model") {
            let entry = entry.expect("the model");
            if entry.file_name() != without {
                fs::copy(entry.path(), folder.join(entry.file_name())).expect("a model file");
            }
        }
    };
    for (name, without) in [
        ("model_no_tokenizer", "tokenizer.json"),
        ("model_no_template", "chat_template.jinja"),
        ("model_no_config", "config.json"),
        ("model_no_preprocessor", "preprocessor_config.json"),
    ] {
        copy(without);
        scene.check(name, &run());
    }
    let replaced = |name: &str, file: &str, text: &str| {
        copy("");
        fs::write(folder.join(file), text).expect("a model file");
        scene.check(name, &run());
    };
    replaced(
        "model_other_family",
        "config.json",
        "{\"model_type\": \"llava_next\"}",
    );
    replaced("model_config_broken", "config.json", "{");
    replaced("model_tokenizer_broken", "tokenizer.json", "{}");
    replaced("model_template_broken", "chat_template.jinja", "{% for %}");
}

#[test]
fn builds() {
    let scene = Scene::new();
    scene.check("dry_run", &scene.build().args(["--dry-run"]));
    scene.check(
        "too_many_rejects",
        &scene.build().with("--max-rejects", "1"),
    );
    let fails = scene.build().with("--on-reject", "fail");
    scene.check("reject_fails", &fails.clone().without("--max-rejects"));
    scene.check("reject_fails_and_limit", &fails);
    let folder = scene.corpus.output("file");
    fs::write(&folder, b"a file").expect("a file");
    scene.check("output_is_a_file", &scene.corpus.build(&folder));
    // An unfinished build: more rejects are found when the images are read. Images and text find them at the same time, so
    // how many are counted when it stops is not always the same.
    let later = scene.build().with("--max-rejects", "3").end();
    assert_eq!(later.code, Some(1), "{}", later.stderr);
    let message = "of 16 records rejected, more than the allowed 3: bad_json 1";
    assert!(later.stderr.contains(message), "{}", later.stderr);
    assert!(
        later
            .stderr
            .contains("hint: mend the records, or raise --max-rejects")
    );
    scene.check("other_seed", &scene.build().args(["--seed", "9"]));
    scene.check("build", &scene.build());
    scene.check("build_again", &scene.build());
    scene.check("build_again_json", &scene.build().args(["--json"]));
    scene.check("restart_nothing", &scene.build().args(["--restart"]));
    let other_text = scene.build().with("--max-tokens", "4096");
    scene.check(
        "too_many_rejects_kept",
        &other_text.with("--max-rejects", "1"),
    );
    scene.check("build_split", &scene.build().args(["--split", "val=20%"]));
    fs::write(scene.output().join("building.json"), b"{").expect("a damaged state");
    scene.check("state_damaged", &scene.build());
    let _ = scene.build().args(["--restart"]).end().expect_code(0);
    assert!(!scene.output().join("building.json").exists());
}

/// What another try may mend, or a word with the administrator.
#[test]
fn weather() {
    let scene = Scene::new();
    for (name, error) in [
        ("picture_denied", "EACCES"),
        ("picture_unreadable", "EIO"),
        ("picture_no_descriptor", "EMFILE"),
        ("picture_no_call", "ENOSYS"),
    ] {
        let injection = format!("inject=openat2:error={error}");
        scene.check(name, &injected(&scene.build(), "openat2", &injection));
    }
    let _ = scene.build().end().expect_code(0);
}

#[test]
fn interrupted_and_locked() {
    let scene = Scene::new();
    let lock = scene.output();
    fs::create_dir(&lock).expect("the output");
    // Another process holds the lock.
    let holder = Run::program("flock", ["-x"])
        .args([lock.join("stoker.lock")])
        .args(["sleep", "60"]);
    let holder = holder.start();
    while !lock.join("stoker.lock").exists() || !is_locked(&lock.join("stoker.lock")) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    fs::write(lock.join("stoker.lock"), b"{\"pid\":17,\"host\":\"box\"}").expect("a holder");
    scene.check("locked", &scene.build());
    drop(holder);
}

fn is_locked(path: &Path) -> bool {
    let file = fs::File::open(path).expect("the lock");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
}

#[test]
fn looking_at_caches() {
    let scene = Scene::new();
    for command in ["verify", "inspect", "stats"] {
        scene.check(&format!("{command}_missing"), &scene.on_cache(command));
    }
    let _ = scene.build().end().expect_code(0);
    scene.check("verify", &scene.on_cache("verify"));
    scene.check("verify_deep", &scene.on_cache("verify").args(["--deep"]));
    scene.check("verify_json", &scene.on_cache("verify").args(["--json"]));
    scene.check("stats", &scene.on_cache("stats"));
    let predicted = |args: &[&str]| scene.on_cache("stats").args(["--balance"]).args(args);
    let even = ["--ranks", "2", "--batch-size", "8"];
    scene.check("stats_balance", &predicted(&even));
    scene.check(
        "stats_balance_json",
        &predicted(&even).args(["--nodes", "2", "--json"]),
    );
    scene.check(
        "stats_balance_odd",
        &predicted(&["--ranks", "3", "--batch-size", "8"]),
    );
    scene.check("inspect", &scene.on_cache("inspect"));
    scene.check(
        "inspect_row",
        &scene.on_cache("inspect").args(["--row", "0"]),
    );
    scene.check(
        "inspect_sample",
        &scene.on_cache("inspect").args(["--sample", "b.jsonl:1"]),
    );
    scene.check(
        "inspect_no_row",
        &scene.on_cache("inspect").args(["--row", "999"]),
    );
    scene.check(
        "inspect_no_sample",
        &scene.on_cache("inspect").args(["--sample", "nobody"]),
    );
    fs::write(scene.output().join("manifest.json"), b"{}").expect("a damaged manifest");
    for command in ["verify", "inspect", "stats"] {
        scene.check(&format!("{command}_damaged"), &scene.on_cache(command));
    }
}

#[test]
fn text_only_data_needs_no_image() {
    let scene = Scene::new();
    let corpus = Corpus::empty();
    corpus.write_lines("a.jsonl", &[chat("hello?", "yes"), chat("bye?", "yes")]);
    let run = corpus.build(&corpus.output("cache"));
    let folder = corpus.path().display().to_string();
    snapshot::check("build_text_only", &run.end(), &[(&folder, "[FOLDER]")]);
    drop(scene);
}

#[test]
fn simulating_a_cluster() {
    let scene = Scene::new();
    let simulate = || Run::stoker(["simulate", "--steps", "10", "--nodes", "1,8,1024"]);
    scene.check("simulate", &simulate());
    for (name, word) in [
        ("simulate_no_such", "speed=3"),
        ("simulate_no_number", "nic_gb_s=fast"),
        ("simulate_too_little", "nic_gb_s=0"),
    ] {
        scene.check(name, &simulate().args(["--set", word]));
    }
    let plot = scene.corpus.path().join("plot.svg");
    let report = simulate()
        .args(["--set", "nic_gb_s=1", "--json", "--plot"])
        .args([&plot])
        .end()
        .expect_code(0)
        .json();
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(3 * 7));
    let svg = fs::read_to_string(&plot).expect("a plot");
    assert_eq!(svg.matches("<polyline").count(), 3 * 7);

    // What was printed can be given back.
    let constants = scene.corpus.path().join("constants.json");
    fs::write(&constants, report["constants"].to_string()).expect("constants");
    let again = simulate()
        .args(["--json", "--constants"])
        .args([&constants]);
    assert_eq!(again.end().expect_code(0).json(), report);
}

#[test]
fn what_bench_measures_feeds_a_simulation() {
    let scene = Scene::new();
    let _ = scene.build().end().expect_code(0);
    let images = scene.corpus.path().join("pictures");
    fs::create_dir(&images).expect("a folder");
    let bench = || {
        scene
            .on_cache("bench")
            .args([
                "--batch-size",
                "1",
                "--seconds",
                "0.05",
                "--json",
                "--images",
            ])
            .args([&images])
    };
    scene.check("bench_no_images", &bench());
    let picture = scene.corpus.data().join("images/000.png");
    fs::copy(&picture, images.join("000.png")).expect("a picture");
    let ended = bench().end().expect_code(0);
    let report = ended.json();
    let bytes = fs::metadata(&picture).expect("a picture").len();
    assert_eq!(report["source_bytes"].as_f64(), Some(bytes as f64));

    let file = scene.corpus.path().join("bench.json");
    fs::write(&file, &ended.stdout).expect("a report");
    let simulate = Run::stoker([
        "simulate", "--nodes", "1", "--steps", "2", "--json", "--bench",
    ]);
    let constants = &simulate.args([&file]).end().expect_code(0).json()["constants"];
    for (name, of) in [
        ("prepare_seconds", "prepare_seconds"),
        ("source_bytes", "source_bytes"),
        ("cached_bytes", "sample_bytes"),
        ("copy_gb_s", "memcpy_gb_s"),
        ("open_seconds", "first_batch_seconds"),
    ] {
        assert!(report[of].as_f64().is_some_and(|value| value > 0.0), "{of}");
        assert_eq!(constants[name], report[of], "{name}");
    }
    fs::write(images.join("001.png"), b"no picture").expect("a file");
    scene.check("bench_bad_image", &bench());
}
