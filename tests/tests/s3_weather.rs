//! Whole builds from S3 in bad weather: what passes leaves no trace, what does not stops the build, and
//! a later run ends right without reading again what is done. No credential shows in any of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use stoker_builder::build::options::RejectLimit;
use stoker_builder::build::{BuildOptions, Progress, Stop, build};
use stoker_builder::image::profile::{Generation, Profile};
use stoker_builder::source::Deadlines;
use stoker_tests::cache::{assert_same, committed, files, table};
use stoker_tests::command::Run;
use stoker_tests::corpus::{Corpus, model};
use stoker_tests::dice::Dice;
use stoker_tests::s3::scene::{Scene, assert_secretless, receipted, rows, with_credentials};
use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY};

const SECRETS: [&str; 2] = [ACCESS_KEY, SECRET_KEY];
/// What a kill may cost: the images of the estimate's 48 records, and a few in the shard in hand and on
/// their way.
const LOST_MAX: u64 = 50;
/// Images that a run with one thread can leave in preparation: one in it, one in the fetching thread.
const SLOTS: u64 = 2;
/// Where [`child_builds`] finds what to do.
const JOB: &str = "STOKER_TEST_BUILD";

/// The build of the data set in `s3://data/set/` with short deadlines and `tries` for each object, as a
/// process with an environment of its own.
fn hasty(endpoint: &str, output: &Path, tries: u32) -> Run {
    let job = json!({"endpoint": endpoint, "output": output, "tries": tries});
    let args = ["--exact", "child_builds", "--ignored", "--nocapture"];
    let test = std::env::current_exe().expect("the test executable");
    with_credentials(Run::program(test, args)).env(JOB, job.to_string())
}

#[test]
#[ignore = "the body of other tests, which run it in a process of its own"]
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the parent reads it"
)]
fn child_builds() {
    let job: Value = serde_json::from_str(&std::env::var(JOB).expect("a job")).expect("a job");
    let text = |key: &str| job[key].as_str().expect("a text").to_owned();
    let options = BuildOptions {
        inputs: vec!["s3://data/set/".into()],
        model: model(),
        output: text("output").into(),
        image_root: None,
        shape: None,
        image_tag: Default::default(),
        profile: Profile::TvPath,
        generation: Generation::V5,
        min_pixels: Some(1024),
        max_pixels: Some(6144),
        max_tokens: None,
        overlong: Default::default(),
        label_rule: Default::default(),
        seed: 0,
        partitions: Some(2),
        shard_bytes: 24 << 10,
        splits: Vec::new(),
        max_rejects: RejectLimit::Millionths(1_000_000),
        threads: 1,
        memory_budget_bytes: 2 << 30,
        s3_endpoint: Some(text("endpoint")),
        allowed_buckets: Vec::new(),
        deadlines: Deadlines {
            first_byte: Duration::from_secs(1),
            stall: Duration::from_millis(500),
            backoff: Duration::from_millis(2),
            backoff_max: Duration::from_millis(50),
            tries: job["tries"]
                .as_u64()
                .and_then(|tries| tries.try_into().ok())
                .expect("tries"),
            ..Deadlines::default()
        },
        parts: Vec::new(),
        trial_program: None,
        repair: None,
        restart: false,
        prune: false,
    };
    match build(&options, &Stop::default(), &Progress::silent(1)) {
        Ok(report) => println!("\n{}", serde_json::to_string(&report).expect("JSON")),
        Err(error) => {
            eprintln!(
                "error: {error}\nhint: {}\n{error:?}",
                error.hint().unwrap_or_default()
            );
            std::process::exit(error.exit_code().into());
        }
    }
}

fn start(scene: &Scene, faults: Faults) -> Proxy {
    Proxy::start(scene.server.address(), faults).expect("the proxy")
}

#[test]
fn faults_that_pass_leave_no_trace() {
    let scene = Scene::new(Corpus::good(41, 600));
    let corpus = &scene.corpus;
    let local = corpus.output("local");
    let _ = corpus.build(&local).end().expect_code(0);
    let storm = vec![(Fault::SlowDown, 0.8)];
    let all = [
        Fault::SlowDown,
        Fault::InternalError,
        Fault::BadGateway,
        Fault::TooManyRequests,
        Fault::RequestTimeout,
        Fault::ErrorDocument,
        Fault::TruncatedBody,
        Fault::LongBody,
        Fault::LengthTooLarge,
        Fault::LengthTooSmall,
        Fault::NoLength,
        Fault::Reset,
        Fault::ResetInBody,
        Fault::FlippedBit,
        Fault::OtherRange,
        Fault::SlowStart,
    ];
    let mut mixed: Vec<_> = all.map(|fault| (fault, 0.03)).into();
    mixed.extend([(Fault::StalledBody, 0.005), (Fault::StalledHead, 0.005)]);
    for (name, rates, per_path_max) in [("storm", storm, 3), ("mixed", mixed, 4)] {
        let faults = Faults {
            seed: 5,
            rates: rates.clone(),
            per_path_max,
            ..Faults::default()
        };
        let proxy = start(&scene, faults);
        let output = corpus.output(name);
        let ended = hasty(&proxy.endpoint(), &output, 30).end().expect_code(0);
        for (fault, _) in &rates {
            // A range is asked for few times: its fault may not be drawn.
            let rare = matches!(fault, Fault::StalledBody | Fault::StalledHead);
            assert!(rare || proxy.spoilt(*fault) > 0, "{name}: no {fault:?}");
        }
        assert_same(&rows(&local), &rows(&output), name);
        let fingerprint = |root: &Path| committed(root).expect("a cache").fingerprint;
        assert_eq!(fingerprint(&local), fingerprint(&output), "{name}");
        assert!(table(&output, "rejects").is_empty(), "{name}");
        assert_secretless(&ended, &output, &SECRETS);
    }
}

/// A data set in S3, its clean cache, and an image that is read late, in the last partition alone.
struct Late {
    scene: Scene,
    clean: PathBuf,
    image: String,
}

impl Late {
    fn new(seed: u64, records: usize) -> Self {
        let scene = Scene::new(Corpus::mixed(seed, records));
        let clean = scene.corpus.output("clean");
        let _ = scene
            .build(&scene.server.endpoint(), &clean)
            .end()
            .expect_code(0);
        let all = receipted(&clean);
        let image = files(&clean)
            .into_keys()
            .filter(|name| name.starts_with("images-") && name.contains("receipts/p0001-"))
            .flat_map(|name| {
                let text = std::fs::read(clean.join(name)).expect("a receipt");
                let receipt: Value = serde_json::from_slice(&text).expect("a receipt");
                receipt["sources"].as_array().cloned().unwrap_or_default()
            })
            .filter_map(|source| source["uri"].as_str().map(str::to_owned))
            .rfind(|uri| all[uri] == 1)
            .expect("an image of the last partition alone");
        Self {
            scene,
            clean,
            image,
        }
    }

    /// Goes on in `output`, and checks that it ends as the clean build and reads only what is missing.
    fn finish(&self, output: &Path, what: &str) {
        let done = receipted(output);
        let before = self.gets();
        let run = self.scene.build(&self.scene.server.endpoint(), output);
        let ended = run.end().expect_code(0);
        let mut suspects = 0;
        for (uri, times) in receipted(&self.clean) {
            let left = times - done.get(&uri).copied().unwrap_or(0);
            let read = self.scene.gets(&uri) - before[&uri];
            // One that was in preparation is tried in a child process first.
            let tried = u64::from(left > 0 && read == left + 1);
            assert_eq!(read, left + tried, "{what}: {uri}");
            suspects += tried;
        }
        assert!(suspects <= SLOTS, "{what}: {suspects}");
        assert_same(&files(&self.clean), &files(output), what);
        assert_secretless(&ended, output, &SECRETS);
    }

    fn gets(&self) -> BTreeMap<String, u64> {
        let uris = receipted(&self.clean).into_keys();
        uris.map(|uri| (uri.clone(), self.scene.gets(&uri)))
            .collect()
    }
}

#[test]
fn faults_that_do_not_pass_stop_the_build_and_become_no_reject() {
    let late = Late::new(42, 90);
    let corpus = &late.scene.corpus;
    let key = late.image.rsplit_once("set/").expect("a key").1;
    for (fault, said) in [
        (Fault::Forbidden, "AccessDenied (status 403)"),
        (Fault::ExpiredToken, "ExpiredToken"),
        (Fault::NoSuchBucket, "NoSuchBucket"),
        (Fault::SlowDown, "SlowDown (status 503)"),
        (Fault::InternalError, "InternalError"),
        (Fault::TruncatedBody, "end"),
        (Fault::LengthTooLarge, "end"),
        (Fault::FlippedBit, "checksum"),
        (Fault::StalledBody, "no byte of the body for 500ms"),
        (Fault::StalledHead, "no answer within 1s"),
        (Fault::Reset, "connection"),
        (Fault::ErrorDocument, "status 200"),
    ] {
        let path_end = key.to_owned();
        let proxy = start(
            &late.scene,
            Faults {
                path_end,
                ..Faults::each(&[fault], 1.0)
            },
        );
        let output = corpus.output(&format!("{fault:?}"));
        let ended = hasty(&proxy.endpoint(), &output, 3).end().expect_code(2);
        let error = format!("error: could not fetch `{}` after", late.image);
        assert!(ended.stderr.contains(&error), "{fault:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{fault:?}: {}", ended.stderr);
        let hint = ended
            .stderr
            .lines()
            .find_map(|line| line.strip_prefix("hint: "));
        assert!(
            hint.is_some_and(|hint| hint.len() > 20),
            "{fault:?}: {}",
            ended.stderr
        );
        assert_secretless(&ended, &output, &SECRETS);
        assert!(committed(&output).is_none(), "{fault:?}");
        // The first partition is done, the image is nowhere, and nothing new was rejected.
        assert!(!receipted(&output).contains_key(&late.image), "{fault:?}");
        let clean = files(&late.clean);
        let left = files(&output);
        let done: Vec<_> = left
            .iter()
            .filter(|(name, _)| name.contains("/receipts/"))
            .collect();
        assert!(
            done.iter().any(|(name, _)| name.starts_with("text-")),
            "{fault:?}"
        );
        assert!(
            done.iter()
                .all(|(name, hash)| clean.get(*name) == Some(*hash)),
            "{fault:?}"
        );
        late.finish(&output, &format!("{fault:?}"));
    }
}

#[test]
fn the_command_line_says_what_to_do_and_shows_no_secret() {
    let late = Late::new(43, 30);
    let scene = &late.scene;
    let denied = start(scene, Faults::each(&[Fault::Forbidden], 1.0));
    let list_only = Faults {
        path_end: ".png".into(),
        ..Faults::each(&[Fault::Forbidden], 1.0)
    };
    let images_denied = start(scene, list_only);
    let canaries = [
        "CANARYKEY00000000001",
        "canary-secret",
        "canary-token",
        "canary-password",
    ];
    let output = scene.corpus.output("cache");
    let good = |endpoint: &str| scene.build(endpoint, &output);
    let bad = |endpoint: &str| {
        good(endpoint)
            .env("AWS_ACCESS_KEY_ID", canaries[0])
            .env("AWS_SECRET_ACCESS_KEY", canaries[1])
            .env("AWS_SESSION_TOKEN", canaries[2])
    };
    let address = scene.server.address();
    for (what, run, said) in [
        ("wrong keys", bad(&scene.server.endpoint()), "status 403"),
        (
            "nothing may be read",
            good(&denied.endpoint()),
            "AccessDenied (status 403)",
        ),
        (
            "no image may be read",
            good(&images_denied.endpoint()),
            ".png` after 1 try: AccessDenied",
        ),
        (
            "a user in the endpoint",
            bad(&format!("http://user:canary-password@{address}")),
            "endpoint",
        ),
        (
            "a query in the endpoint",
            bad(&format!("http://{address}/?key=canary-password")),
            "endpoint",
        ),
    ] {
        let ended = run.end().expect_code(2);
        assert!(
            ended
                .stderr
                .contains("error: could not fetch `s3://data/set/"),
            "{what}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains(said), "{what}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("\nhint: "),
            "{what}: {}",
            ended.stderr
        );
        assert!(committed(&output).is_none(), "{what}");
        let secrets: Vec<&str> = SECRETS.into_iter().chain(canaries).collect();
        assert_secretless(&ended, &output, &secrets);
    }
    late.finish(&output, "after all refusals");
}

#[test]
fn ten_kills_read_nothing_again_that_is_done() {
    let late = Late::new(44, 240);
    let scene = &late.scene;
    let latency = Duration::from_millis(40);
    let slow = start(
        scene,
        Faults {
            latency,
            ..Faults::default()
        },
    );
    let output = scene.corpus.output("killed");
    let run = scene
        .build(&slow.endpoint(), &output)
        .with("--memory-budget", "1MiB");
    let mut dice = Dice::new(9);
    let (mut kills, mut again) = (0, 0);
    for _ in 0..10 {
        let (done, before) = (receipted(&output_or_empty(&output)), late.gets());
        let running = run.start();
        let wait = Duration::from_millis(300 + dice.below(900) as u64);
        std::thread::sleep(wait);
        running.signal(Signal::KILL);
        let ended = running.wait();
        kills += usize::from(ended.signal == Some(9));
        assert_secretless(&ended, &output_or_empty(&output), &SECRETS);
        let after = late.gets();
        for (uri, times) in receipted(&late.clean) {
            let read = after[&uri] - before[&uri];
            if done.get(&uri) == Some(&times) {
                assert_eq!(read, 0, "{uri} was done");
            }
            again += read;
        }
    }
    assert!(kills >= 5, "{kills}");
    let all: u64 = receipted(&late.clean).values().sum();
    let done: u64 = receipted(&output).values().sum();
    let lost = again.saturating_sub(done);
    assert!(
        lost <= kills as u64 * LOST_MAX,
        "{lost} of {all} read again in {kills} kills"
    );
    late.finish(&output, "after the kills");
}

fn output_or_empty(output: &Path) -> PathBuf {
    std::fs::create_dir_all(output).expect("a folder");
    output.to_path_buf()
}

#[test]
fn a_signal_ends_every_wait_for_a_silent_server() {
    let scene = Scene::new(Corpus::good(45, 30));
    for path_end in ["/data/", "/a.jsonl", ".png"] {
        let silence = Faults::each(&[Fault::StalledHead], 1.0);
        let silent = start(
            &scene,
            Faults {
                path_end: path_end.into(),
                ..silence
            },
        );
        let output = scene.corpus.output("cache");
        let running = scene.build(&silent.endpoint(), &output).start();
        let started = Instant::now();
        while silent.spoilt(Fault::StalledHead) == 0 {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{path_end}: no request"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        running.signal(Signal::TERM);
        let asked = Instant::now();
        let ended = running.wait().expect_code(143);
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "{path_end}: {:?}",
            asked.elapsed()
        );
        assert!(
            ended.stderr.contains("error: stopped by SIGTERM"),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains("run the same command again"),
            "{}",
            ended.stderr
        );
    }
    let output = scene.corpus.output("cache");
    let _ = scene
        .build(&scene.server.endpoint(), &output)
        .end()
        .expect_code(0);
}
