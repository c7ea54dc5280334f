//! Whole builds from S3 give what local ones give; new text reads no image; every image is read once.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use stoker_tests::cache::{assert_same, committed, files, table};
use stoker_tests::command::Ended;
use stoker_tests::corpus::{Corpus, chat, model, vqa};
use stoker_tests::s3::scene::{Scene, receipted, rows, with_credentials};
use stoker_tests::s3::{Faults, Proxy};

fn fingerprint(root: &Path) -> String {
    committed(root)
        .expect("a committed cache")
        .fingerprint
        .to_string()
}

/// Writes the packed twins of the first three files of `corpus` as the data set `packed`, and gives its folder.
fn pack(corpus: &Corpus) -> std::path::PathBuf {
    let packed = corpus.path().join("data/packed");
    let link = |name: &str| {
        for entry in fs::read_dir(corpus.data().join(name)).expect("images") {
            let from = entry.expect("an image").path();
            let to = packed.join(name).join(from.file_name().expect("a name"));
            fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            fs::copy(from, to).expect("a copy");
        }
    };
    link("images");
    link("sub/images");
    let text = |name: &str| fs::read(corpus.data().join(name)).expect("a JSONL file");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&text("a.jsonl")).expect("gzip");
    fs::write(packed.join("a.jsonl.gz"), gzip.finish().expect("gzip")).expect("a file");
    let zstd = zstd::encode_all(&text("b.jsonl")[..], 3).expect("zstd");
    fs::write(packed.join("b.jsonl.zst"), zstd).expect("a file");
    fs::write(packed.join("sub/c.jsonl"), text("sub/c.jsonl")).expect("a file");
    packed
}

#[test]
fn the_same_cache_from_disk_and_from_s3() {
    let scene = Scene::new(Corpus::mixed(31, 60));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    let local = corpus.output("local");
    let _ = corpus.build(&local).end().expect_code(0);
    let every = ["d", "sub/c", "b", "a"].map(|name| format!("s3://data/set/{name}.jsonl"));
    let every: Vec<&str> = every.iter().map(String::as_str).collect();
    for (name, inputs) in [("folder", &["s3://data/set/"][..]), ("files", &every)] {
        let remote = corpus.output(name);
        let _ = scene
            .build_of(inputs, &endpoint, &remote)
            .end()
            .expect_code(0);
        assert_eq!(fingerprint(&local), fingerprint(&remote), "{name}");
        assert_same(&rows(&local), &rows(&remote), name);
        assert_eq!(
            table(&local, "rejects").len(),
            table(&remote, "rejects").len()
        );
        let inputs = |root| committed(root).expect("a cache").inputs;
        assert_eq!(
            format!("{:?}", inputs(&local)),
            format!("{:?}", inputs(&remote))
        );
        assert!(!remote.join("spool").exists(), "spooled inputs are left");
    }
}

#[test]
fn packed_inputs_give_the_same_rows_under_their_own_names() {
    let scene = Scene::new(Corpus::good(32, 45));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    let packed = pack(corpus);
    let [plain, local, remote] = ["plain", "local", "remote"].map(|name| corpus.output(name));
    let _ = corpus.build(&plain).end().expect_code(0);
    let _ = corpus.build_of(&[packed], &local).end().expect_code(0);
    let _ = scene
        .build_of(&["s3://data/packed/"], &endpoint, &remote)
        .end()
        .expect_code(0);
    assert_eq!(fingerprint(&local), fingerprint(&remote));
    assert_same(&rows(&local), &rows(&remote), "packed");
    // A sample is named `file:line`, so the texts differ in their names, and the pictures in nothing.
    let (plain_cache, packed_cache) = (committed(&plain), committed(&local));
    let (plain_cache, packed_cache) = (
        plain_cache.expect("a cache"),
        packed_cache.expect("a cache"),
    );
    assert_eq!(plain_cache.image_plan_id, packed_cache.image_plan_id);
    assert_ne!(plain_cache.text_plan_id, packed_cache.text_plan_id);
    let images = |root| {
        let rows = rows(root).into_iter();
        rows.filter(|(name, _)| name.starts_with("images-"))
            .collect::<BTreeMap<_, _>>()
    };
    assert_same(&images(&plain), &images(&local), "packed images");
    let tokens = |cache: &stoker_formats::Manifest| {
        cache
            .splits
            .iter()
            .map(|split| (split.samples, split.tokens, split.loss_tokens))
            .collect::<Vec<_>>()
    };
    assert_eq!(tokens(&plain_cache), tokens(&packed_cache));
    let names = |root: &Path| {
        let rows = table(root, "samples").into_iter();
        rows.map(|row| row["sample_id"].replace(".gz", "").replace(".zst", ""))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&plain), names(&local));
}

#[test]
fn image_roots_are_equal_wherever_they_lie() {
    let scene = Scene::new(Corpus::good(33, 30));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    let lists = corpus.path().join("data/lists");
    fs::create_dir(&lists).expect("a folder");
    fs::copy(corpus.data().join("b.jsonl"), lists.join("b.jsonl")).expect("a file");
    let local = corpus.output("local");
    let root = corpus.data().display().to_string();
    let run = corpus
        .build_of(std::slice::from_ref(&lists), &local)
        .with("--image-root", &root);
    let _ = run.end().expect_code(0);
    assert!(table(&local, "rejects").is_empty());
    let lists = lists.display().to_string();
    for (name, input, root) in [
        ("all in S3", "s3://data/lists/", "s3://data/set"),
        ("images in S3", &*lists, "s3://data/set/"),
        ("text in S3", "s3://data/lists/b.jsonl", &*root),
    ] {
        let output = corpus.output(name);
        let run = scene
            .build_of(&[input], &endpoint, &output)
            .with("--image-root", root);
        let _ = run.end().expect_code(0);
        assert_eq!(fingerprint(&local), fingerprint(&output), "{name}");
        assert_same(&rows(&local), &rows(&output), name);
    }
}

#[test]
fn links_reach_allowed_buckets_only() {
    let scene = Scene::new(Corpus::good(34, 9));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    for bucket in ["pictures", "closed"] {
        let folder = corpus.path().join(bucket).join("a");
        fs::create_dir_all(&folder).expect("a bucket");
        fs::copy(corpus.data().join("images/000.png"), folder.join("0.png")).expect("a file");
    }
    fs::create_dir(corpus.path().join("lists")).expect("a bucket");
    let links = [
        "s3://pictures/a/0.png",
        "s3://closed/a/0.png",
        "s3://pictures/../closed/a/0.png",
        "s3://data/set/images/001.png",
    ];
    let lines: String = links
        .iter()
        .map(|link| format!("{}\n", vqa(link, "what?", "that")))
        .collect();
    let list = corpus.path().join("lists/x.jsonl");
    fs::write(&list, lines).expect("a file");
    let [local, remote] = ["local", "remote"].map(|name| corpus.output(name));
    for (output, input) in [
        (&local, list.to_str().expect("a path")),
        (&remote, "s3://lists/x.jsonl"),
    ] {
        let run = scene.build_of(&[input], &endpoint, output);
        let _ = run
            .args(["--allow-bucket", "pictures", "data"])
            .end()
            .expect_code(0);
        let rejects = table(output, "rejects");
        let reasons: Vec<&str> = rejects.iter().map(|row| &*row["reason"]).collect();
        assert_eq!(reasons, ["forbidden_link", "forbidden_link"], "{rejects:?}");
    }
    assert_eq!(fingerprint(&local), fingerprint(&remote));
    assert_eq!(
        scene
            .server
            .count("GetObject", |path| path.starts_with("/closed")),
        0
    );
    assert_eq!((scene.gets(links[0]), scene.gets(links[3])), (2, 2));
}

/// Inode and time of the last change of every file below the image folders.
fn marks(root: &Path) -> BTreeMap<String, (u64, i64, i64)> {
    let names = files(root)
        .into_keys()
        .filter(|name| name.starts_with("images-"));
    names
        .map(|name| {
            let meta = fs::metadata(root.join(&name)).expect("a file");
            (name, (meta.ino(), meta.mtime(), meta.mtime_nsec()))
        })
        .collect()
}

#[test]
fn every_image_is_read_once_and_new_text_reads_none() {
    let scene = Scene::new(Corpus::mixed(35, 120));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    let output = corpus.output("cache");
    let stages = |ended: Ended| ended.expect_code(0).json()["cpu_seconds"].clone();
    let cost = stages(scene.build(&endpoint, &output).args(["--json"]).end());
    for stage in ["decode", "tokenise", "write"] {
        assert!(cost[stage].as_f64() > Some(0.0), "{stage}: {cost}");
    }
    let read = receipted(&output);
    assert!(read.len() > 40, "{}", read.len());
    for (uri, times) in &read {
        assert_eq!(scene.gets(uri), *times, "{uri}");
    }
    // One more that is not there.
    assert_eq!(scene.server.image_gets(), read.values().sum::<u64>() + 1);
    let first = committed(&output).expect("a cache");
    let marked = marks(&output);
    let edited = corpus.output("edited model");
    fs::create_dir(&edited).expect("a folder");
    for entry in fs::read_dir(model()).expect("the model") {
        let path = entry.expect("a file").path();
        let mut text = fs::read(&path).expect("a file");
        if path.ends_with("chat_template.jinja") {
            text.extend_from_slice(b"{{- '' -}}");
        }
        fs::write(edited.join(path.file_name().expect("a name")), text).expect("a file");
    }
    let edited = edited.display().to_string();
    let gets = scene.server.image_gets();
    let mut seen = vec![first.text_plan_id];
    for (option, value) in [
        ("--image-tag", "inplace"),
        ("--label-rule", "qwen_finetune"),
        ("--model", &edited),
        ("--max-tokens", "60"),
    ] {
        let cost = stages(
            scene
                .build(&endpoint, &output)
                .with(option, value)
                .args(["--json"])
                .end(),
        );
        assert_eq!(cost["decode"], 0.0, "{option}: an image was decoded");
        assert!(cost["tokenise"].as_f64() > Some(0.0), "{option}: {cost}");
        assert_eq!(
            scene.server.image_gets(),
            gets,
            "{option}: an image was read"
        );
        assert_eq!(
            marks(&output),
            marked,
            "{option}: an image file was touched"
        );
        let cache = committed(&output).expect("a cache");
        assert_eq!(cache.image_plan_id, first.image_plan_id, "{option}");
        assert!(!seen.contains(&cache.text_plan_id), "{option}");
        seen.push(cache.text_plan_id);
    }
    // An edited record too: the links are the same.
    let text = fs::read_to_string(corpus.data().join("b.jsonl")).expect("a file");
    corpus.write("b.jsonl", text.replace("harbour", "port").as_bytes());
    let _ = scene.build(&endpoint, &output).end().expect_code(0);
    assert_eq!(scene.server.image_gets(), gets);
    assert_eq!(marks(&output), marked);
}

/// A plan of `corpus` asks a slow server for several things at once.
fn asks_for_several_at_once(corpus: Corpus) {
    let scene = Scene::new(corpus);
    let slow = Proxy::start(
        scene.server.address(),
        Faults {
            latency: Duration::from_millis(100),
            ..Faults::default()
        },
    );
    let slow = slow.expect("the proxy");
    let run = scene.build(&slow.endpoint(), &scene.corpus.output("cache"));
    let _ = run.args(["--dry-run"]).end().expect_code(0);
    assert!(slow.held_max() > 3, "{}", slow.held_max());
}

/// One after another its sample would take as many round trips as it has images.
#[test]
fn the_estimate_asks_for_several_images_at_once() {
    asks_for_several_at_once(Corpus::good(36, 90));
}

/// The same of the inputs.
#[test]
fn small_inputs_come_several_at_once() {
    let corpus = Corpus::empty();
    for number in 0..20 {
        let record = chat(&format!("which is {number}?"), "this");
        corpus.write_lines(&format!("part-{number:02}.jsonl"), &[record]);
    }
    asks_for_several_at_once(corpus);
}

#[test]
fn latency_and_threads_reach_no_byte() {
    let scene = Scene::new(Corpus::mixed(36, 90));
    let corpus = &scene.corpus;
    let local = corpus.output("local");
    let _ = corpus.build(&local).end().expect_code(0);
    let latency = Duration::from_millis(30);
    let slow = Proxy::start(
        scene.server.address(),
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let slow = slow.expect("the proxy");
    let mut first = None;
    for threads in ["1", "4"] {
        let output = corpus.output(&format!("threads {threads}"));
        let run = scene
            .build(&slow.endpoint(), &output)
            .with("--threads", threads);
        let _ = run.end().expect_code(0);
        assert_same(&rows(&local), &rows(&output), threads);
        let all = files(&output);
        assert_same(first.get_or_insert_with(|| all.clone()), &all, threads);
    }
}

#[test]
fn endpoints_come_from_the_environment_too() {
    let scene = Scene::new(Corpus::good(37, 9));
    let (corpus, endpoint) = (&scene.corpus, scene.server.endpoint());
    let inputs = ["s3://data/set/".into()];
    for (name, variables) in [
        ("general", [("AWS_ENDPOINT_URL", &*endpoint), ("X", "")]),
        (
            "for S3",
            [
                ("AWS_ENDPOINT_URL_S3", &*endpoint),
                ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ],
        ),
    ] {
        let run = with_credentials(corpus.build_of(&inputs, &corpus.output(name)));
        let run = variables
            .iter()
            .fold(run, |run, (name, value)| run.env(*name, *value));
        let _ = run.end().expect_code(0);
    }
}
