//! The same input and recipe give the same bytes, whatever the surroundings; what matters changes the
//! fingerprint, and nothing else does; new text leaves old pixels alone (B1, B3, B4).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stoker_formats::Folder;
use stoker_tests::cache::{assert_same, committed, files, table};
use stoker_tests::command::{Run, faulty_binary};
use stoker_tests::corpus::{Corpus, chat, image_name, model, png_of, vqa};
use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY, Server};
use stoker_tests::strace::trace;

const SEED: u64 = 21;
const RECORDS: usize = 18;

#[test]
fn surroundings_reach_no_byte() {
    let corpus = Corpus::mixed(SEED, RECORDS);
    let output = corpus.output("plain");
    let _ = corpus.build(&output).end().expect_code(0);
    let plain = files(&output);
    let data = corpus.data();
    let listed: Vec<_> = ["d.jsonl", "sub/c.jsonl", "b.jsonl", "a.jsonl"]
        .map(|name| data.join(name))
        .into();
    let shell = ["sh", "-c", "umask 077; exec \"$@\"", "sh"];
    let other = corpus.output("other place");
    let build = || corpus.build(&other);
    let from_data = corpus
        .build_of(&[".".into()], Path::new("../../other place"))
        .folder(&data);
    let variants: [(&str, Run); 12] = [
        ("2 threads", build().with("--threads", "2")),
        ("4 threads", build().with("--threads", "4")),
        (
            "a small budget",
            build()
                .with("--memory-budget", "1MiB")
                .with("--threads", "4"),
        ),
        ("time zone", build().env("TZ", "Pacific/Kiritimati")),
        (
            "language",
            build()
                .env("LANG", "tr_TR.UTF-8")
                .env("LC_ALL", "tr_TR.UTF-8"),
        ),
        ("umask", build().under(&shell)),
        (
            "no network at all",
            build().under(&["unshare", "--net", "--"]),
        ),
        ("relative paths", from_data),
        ("files in another order", corpus.build_of(&listed, &other)),
        (
            "a glob and a file",
            corpus.build_of(&[data.join("*.jsonl"), data.join("sub/c.jsonl")], &other),
        ),
        ("json and prune", build().args(["--json", "--prune"])),
        ("the unoptimised program", build().by(faulty_binary())),
    ];
    for (what, run) in variants {
        let _ = run.end().expect_code(0);
        assert_same(&plain, &files(&other), what);
        for name in plain.keys().filter(|name| name.ends_with(".arrow")) {
            let meta = fs::metadata(other.join(name)).expect("a shard");
            assert_eq!(meta.mode() & 0o777, 0o444, "{what}: {name}");
        }
        fs::remove_dir_all(&other).expect("the cache");
    }
}

/// Shards and indexes only: receipts and tables say where the data came from.
fn rows(root: &Path) -> BTreeMap<String, String> {
    files(root)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".arrow"))
        .collect()
}

#[test]
fn the_place_of_the_data_and_the_order_in_folders_reach_no_row() {
    let (one, two) = (Corpus::mixed(SEED, RECORDS), Corpus::empty());
    let mut names: Vec<String> = files(&one.data()).into_keys().collect();
    names.reverse();
    for name in names {
        let from = one.data().join(&name);
        if from.is_file() {
            two.write(&name, &fs::read(from).expect("a file of the data set"));
        }
    }
    let (left, right) = (one.output("cache"), two.output("cache"));
    let _ = one.build(&left).end().expect_code(0);
    let _ = two.build(&right).end().expect_code(0);
    assert_same(&rows(&left), &rows(&right), "another place");
    let fingerprint = |root| committed(root).expect("a cache").fingerprint;
    assert_eq!(fingerprint(&left), fingerprint(&right));
}

/// The build from the S3 server behind `endpoint`.
fn from_s3(corpus: &Corpus, endpoint: &str, output: &Path) -> Run {
    corpus
        .build_of(&["s3://data/set/".into()], output)
        .with("--s3-endpoint", endpoint)
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .env("AWS_REGION", "us-east-1")
}

#[test]
fn latency_and_faults_of_s3_reach_no_row() {
    let corpus = Corpus::mixed(SEED, RECORDS);
    let local = corpus.output("local");
    let report = corpus
        .build(&local)
        .args(["--json"])
        .end()
        .expect_code(0)
        .json();
    let server = Server::start(corpus.path()).expect("the S3 server");
    let mut all = None;
    for (seed, threads) in [(1, "1"), (2, "2"), (3, "4"), (4, "4")] {
        // None that spoils a body: it would also take the code from the answer about the missing image,
        // and a 404 that says nothing stops a build.
        let passing = [Fault::SlowDown, Fault::InternalError, Fault::Reset];
        let mut faults = Faults::each(&passing, 0.1);
        faults.rates.push((Fault::SlowStart, 0.3));
        let proxy = Proxy::start(
            server.address(),
            Faults {
                seed,
                per_path_max: 2,
                ..faults
            },
        );
        let proxy = proxy.expect("the proxy");
        let output = corpus.output(&format!("s3-{seed}"));
        let run = from_s3(&corpus, &proxy.endpoint(), &output).with("--threads", threads);
        let remote = run.args(["--json"]).end().expect_code(0).json();
        for key in ["fingerprint", "rejects", "tokens", "images"] {
            assert_eq!(remote[key], report[key], "{key}, seed {seed}");
        }
        assert_same(&rows(&local), &rows(&output), "from S3");
        let files = files(&output);
        if let Some(first) = &all {
            assert_same(first, &files, "another latency");
        }
        all = Some(files);
    }
    let output = corpus.output("s3-1");
    let before = server.image_gets();
    let again = from_s3(&corpus, &server.endpoint(), &output).with("--image-tag", "inplace");
    let _ = again.end().expect_code(0);
    assert_eq!(server.image_gets() - before, 0, "a retext fetched an image");
}

/// What a change does to an id.
#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Same,
    Other,
    Any,
}
use To::{Any, Other, Same};

type Edit = fn(&Corpus, Run) -> Run;

/// Each change, and what it does to fingerprint, image plan and text plan.
const CHANGES: [(&str, [To; 3], Edit); 34] = [
    ("nothing", [Same, Same, Same], |_, run| run),
    ("threads", [Same, Same, Same], |_, run| {
        run.with("--threads", "2")
    }),
    ("budget", [Same, Same, Same], |_, run| {
        run.with("--memory-budget", "64MiB")
    }),
    ("reject limit", [Same, Same, Same], |_, run| {
        run.with("--max-rejects", "9")
    }),
    ("skip", [Same, Same, Same], |_, run| {
        run.with("--on-reject", "skip")
    }),
    ("json", [Same, Same, Same], |_, run| run.args(["--json"])),
    ("schema auto", [Same, Same, Same], |_, run| {
        run.with("--schema", "auto")
    }),
    ("allowed bucket", [Same, Same, Same], |_, run| {
        run.with("--allow-bucket", "other")
    }),
    ("endpoint", [Same, Same, Same], |_, run| {
        run.with("--s3-endpoint", "http://127.0.0.1:9")
    }),
    ("prune", [Same, Same, Same], |_, run| {
        run.args(["--prune", "--restart"])
    }),
    ("seed", [Other, Other, Other], |_, run| {
        run.with("--seed", "1")
    }),
    ("partitions", [Other, Other, Other], |_, run| {
        run.with("--partitions", "3")
    }),
    ("shard size", [Other, Other, Other], |_, run| {
        run.with("--shard-bytes", "48KiB")
    }),
    ("split", [Other, Other, Other], |_, run| {
        run.with("--split", "val=20%")
    }),
    ("least pixels", [Other, Other, Other], |_, run| {
        run.with("--min-pixels", "2048")
    }),
    ("most pixels", [Other, Other, Other], |_, run| {
        run.with("--max-pixels", "9216")
    }),
    ("profile", [Other, Other, Other], |_, run| {
        run.with("--profile", "pil_path")
    }),
    ("fast profile", [Other, Other, Other], |_, run| {
        run.with("--profile", "fast")
    }),
    ("image tag", [Other, Same, Other], |_, run| {
        run.with("--image-tag", "inplace")
    }),
    ("label rule", [Other, Same, Other], |_, run| {
        run.with("--label-rule", "qwen_finetune")
    }),
    ("token limit", [Other, Same, Other], |_, run| {
        run.with("--max-tokens", "4000")
    }),
    ("overlong rule", [Other, Same, Other], |_, run| {
        run.with("--max-tokens", "4000")
            .with("--overlong", "truncate-turns")
    }),
    ("a word", [Other, Same, Other], |corpus, run| {
        edit(corpus, "b.jsonl", |text| text.replacen("cat", "dog", 1));
        run
    }),
    (
        "a text-only record more",
        [Other, Same, Other],
        |corpus, run| {
            edit(corpus, "a.jsonl", |text| {
                format!("{text}{}\n", chat("new?", "yes"))
            });
            run
        },
    ),
    (
        "a record more of a known picture",
        [Other, Same, Other],
        |corpus, run| {
            edit(corpus, "d.jsonl", |text| {
                format!("{text}{}\n", vqa(&image_name(0), "new?", "yes"))
            });
            run
        },
    ),
    (
        "a record more of a new picture",
        [Other, Other, Other],
        |corpus, run| {
            corpus.write("images/new.png", &flat(30, 0));
            edit(corpus, "d.jsonl", |text| {
                format!("{text}{}\n", vqa("images/new.png", "new?", "yes"))
            });
            run
        },
    ),
    ("pixels of an image", [Other, Same, Same], |corpus, run| {
        corpus.write(&image_name(0), &flat(64, 1));
        run
    }),
    ("name of a file", [Other, Same, Other], |corpus, run| {
        let data = corpus.data();
        fs::rename(data.join("b.jsonl"), data.join("bb.jsonl")).expect("rename");
        run
    }),
    ("order of lines", [Other, Any, Other], |corpus, run| {
        edit(corpus, "a.jsonl", |text| {
            let lines: Vec<&str> = text.lines().rev().collect();
            lines.join("\n") + "\n"
        });
        run
    }),
    (
        "an empty line at the end",
        [Same, Same, Other],
        |corpus, run| {
            edit(corpus, "a.jsonl", |text| format!("{text}\n"));
            run
        },
    ),
    ("carriage returns", [Same, Same, Other], |corpus, run| {
        edit(corpus, "a.jsonl", |text| text.replace('\n', "\r\n"));
        run
    }),
    (
        "a file that nobody names",
        [Same, Same, Same],
        |corpus, run| {
            corpus.write("images/unused.png", b"unused");
            run
        },
    ),
    ("times of files", [Same, Same, Same], |corpus, run| {
        for name in ["a.jsonl", "images/000.png"] {
            let file = fs::File::options()
                .append(true)
                .open(corpus.data().join(name));
            let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
            file.and_then(|file| file.set_times(times))
                .expect("set times");
        }
        run
    }),
    ("chat template", [Other, Same, Other], |corpus, run| {
        let folder = corpus.output("model");
        fs::create_dir(&folder).expect("a model folder");
        for entry in fs::read_dir(model()).expect("the model") {
            let entry = entry.expect("the model");
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("a model file");
        }
        let path = folder.join("chat_template.jinja");
        let text = fs::read_to_string(&path).expect("the template");
        fs::write(&path, format!("{{#- another one -#}}{text}")).expect("the template");
        run.with("--model", &folder.display().to_string())
    }),
];

fn edit(corpus: &Corpus, name: &str, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(corpus.data().join(name)).expect("a file of the data set");
    corpus.write(name, change(text).as_bytes());
}

/// A square of one colour.
fn flat(side: usize, value: u8) -> Vec<u8> {
    png_of(
        side,
        side,
        png::ColorType::Grayscale,
        &vec![value; side * side],
    )
}

fn ids(corpus: &Corpus, edit: Edit) -> [String; 3] {
    let output = corpus.output("cache");
    let _ = edit(corpus, corpus.build(&output)).end().expect_code(0);
    let manifest = committed(&output).expect("a cache");
    [
        manifest.fingerprint.to_string(),
        manifest.image_plan_id.to_string(),
        manifest.text_plan_id.to_string(),
    ]
}

#[test]
fn what_matters_changes_the_ids_and_nothing_else_does() {
    let base = ids(&Corpus::mixed(SEED, RECORDS), |_, run| run);
    let mut wrong = Vec::new();
    for (what, expected, edit) in CHANGES {
        let found = ids(&Corpus::mixed(SEED, RECORDS), edit);
        for ((name, expected), (found, base)) in ["fingerprint", "image plan", "text plan"]
            .iter()
            .zip(expected)
            .zip(found.iter().zip(&base))
        {
            let changed = if found == base { Same } else { Other };
            if expected != Any && expected != changed {
                wrong.push(format!(
                    "{what}: {name} should be {expected:?}, is {changed:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_same_pixels_in_another_file_change_nothing() {
    let (one, two) = (Corpus::mixed(SEED, RECORDS), Corpus::mixed(SEED, RECORDS));
    one.write(&image_name(0), &flat(64, 7));
    // The same colour, three channels.
    two.write(
        &image_name(0),
        &png_of(64, 64, png::ColorType::Rgb, &[7; 3 * 64 * 64]),
    );
    assert_eq!(ids(&one, |_, run| run), ids(&two, |_, run| run));
}

/// Inode and times of every image file.
fn pixels(root: &Path) -> BTreeMap<String, (u64, i64, i64)> {
    let manifest = committed(root).expect("a cache");
    let folder = Folder::Images(manifest.image_plan_id).to_string();
    let names = files(root)
        .into_keys()
        .filter(|name| name.starts_with(&folder));
    names
        .map(|name| {
            let meta = fs::metadata(root.join(&name)).expect("an image file");
            (name, (meta.ino(), meta.mtime(), meta.mtime_nsec()))
        })
        .collect()
}

#[test]
fn new_text_touches_no_picture() {
    let corpus = Corpus::mixed(SEED, RECORDS);
    let (output, fresh) = (corpus.output("cache"), corpus.output("fresh"));
    let _ = corpus.build(&output).end().expect_code(0);
    let before = committed(&output).expect("a cache");
    let pixels_before = pixels(&output);
    let rejects_before = table(&output, "rejects").len();
    let changes: [&[&str]; 3] = [
        &["--image-tag", "inplace"],
        &["--label-rule", "qwen_finetune"],
        &["--max-tokens", "3000"],
    ];
    for change in changes {
        let _ = corpus.build(&fresh).args(change).end().expect_code(0);
        let images = corpus.data().join("images");
        let hidden = corpus.output("hidden");
        fs::rename(&images, &hidden).expect("hide the images");
        let run = corpus.build(&output).args(change);
        let (ended, calls) = trace(&run, &["openat", "openat2", "open"], corpus.path());
        fs::rename(&hidden, &images).expect("show the images");
        let _ = ended.expect_code(0);
        let opened = calls.iter().filter(|call| {
            call.args.contains(".png")
                || call
                    .paths()
                    .iter()
                    .any(|path| Path::new(path).starts_with(&images))
        });
        assert_eq!(
            opened.map(|call| call.args.clone()).collect::<Vec<_>>(),
            [""; 0]
        );
        let after = committed(&output).expect("a cache");
        assert_eq!(after.image_plan_id, before.image_plan_id);
        assert_ne!(after.text_plan_id, before.text_plan_id);
        assert_ne!(after.fingerprint, before.fingerprint);
        assert_eq!(pixels(&output), pixels_before, "an image file was touched");
        assert_eq!(table(&output, "rejects").len(), rejects_before);
        let old_text = output.join(Folder::Text(before.text_plan_id).to_string());
        assert!(
            old_text.join("shards").is_dir(),
            "old folders go only by --prune"
        );
        assert_same(
            &rows(&fresh),
            &with_one_text(&output, after.text_plan_id),
            "retext",
        );
        fs::remove_dir_all(&fresh).expect("the fresh cache");
    }
    let _ = corpus.build(&output).args(["--prune"]).end().expect_code(0);
    let _ = corpus.build(&fresh).end().expect_code(0);
    assert_same(
        &files(&fresh),
        &files(&output),
        "back to the first text, pruned",
    );
}

/// The rows of a cache, without the folders of other texts.
fn with_one_text(root: &Path, id: stoker_formats::PlanId) -> BTreeMap<String, String> {
    let folder = Folder::Text(id).to_string();
    let kept = |name: &String| !name.starts_with("text-") || name.starts_with(&folder);
    rows(root)
        .into_iter()
        .filter(|(name, _)| kept(name))
        .collect()
}
