//! Reading what a node lacks from a real remote: a server of S3, shards compressed or not, through the command and the library.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stoker_builder::remote::{RemoteOptions, fallbacks};
use stoker_builder::source::CredentialSource;
use stoker_reader::{Error, Fallback, Reader, ReaderOptions, RemoteFault, Step};
use stoker_tests::command::Run;
use stoker_tests::remote::{Scene, copy, through};

use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY, Server};

/// A remote of a scene's cache, every second shard of it compressed.
fn serve(scene: &Scene) -> Server {
    let objects = scene.objects("run/cache");
    copy(&scene.cache(), &objects);
    for plan in fs::read_dir(&objects).expect("a folder").flatten() {
        let shards = fs::read_dir(plan.path().join("shards"));
        for shard in shards.into_iter().flatten().flatten().step_by(2) {
            let (path, bytes) = (shard.path(), fs::read(shard.path()).expect("a shard"));
            let packed = zstd::encode_all(bytes.as_slice(), 3).expect("zstd");
            fs::write(format!("{}.zst", path.display()), packed).expect("written");
            fs::remove_file(path).expect("our own file");
        }
    }
    scene.serve()
}

fn fallback(endpoint: String) -> Arc<dyn Fallback> {
    let options = RemoteOptions {
        endpoint: Some(endpoint),
        credentials: CredentialSource::Fixed {
            access_key: ACCESS_KEY.into(),
            secret_key: SECRET_KEY.into(),
        },
        ..RemoteOptions::default()
    };
    let uris = ["s3://bucket/run/cache".to_owned()];
    fallbacks(&uris, &options).expect("a remote").remove(0)
}

fn reader(path: &Path, fallback: Arc<dyn Fallback>) -> Reader {
    let mut options = ReaderOptions::new(path, 4);
    options.caches[0].fallback = Some(fallback);
    options.remote.cache_disk = Some(1 << 30);
    options.sample_ids = true;
    Reader::open(options).expect("opened")
}

#[test]
fn the_command_reads_from_s3_what_is_not_here() {
    let scene = Scene::new(&[40, 31, 37, 3]);
    let server = serve(&scene);
    let read = |folder: &Path| {
        Run::stoker([
            "read",
            "--json",
            "--ids",
            "--batch-size",
            "4",
            "--tail",
            "all",
        ])
        .args([folder])
    };
    let expected = read(&scene.cache()).end().expect_code(0).stdout;
    let brought = scene.path("brought");
    for name in ["empty", "again"] {
        let node = scene.path(name);
        let run = read(&node)
            .with("--fallback", "s3://bucket/run/cache")
            .with("--cache-disk", "1GiB")
            .with("--cache-folder", &brought.display().to_string());
        let before = server.count("GetObject", |path| path.contains("shards"));
        let ended = through(run, &server.endpoint()).end().expect_code(0);
        assert_eq!(ended.stdout, expected);
        let asked = server.count("GetObject", |path| path.contains("shards")) - before;
        // The second node has the first one's disk.
        assert_eq!(asked == 0, name == "again", "{asked}");
    }
    let refused = read(&scene.path("none"))
        .with("--fallback", "s3://bucket/run/cache")
        .end();
    assert!(refused.expect_code(2).stderr.contains("--cache-disk"));
    let elsewhere = read(&scene.path("none"))
        .with("--fallback", "s3://bucket/nothing")
        .with("--cache-disk", "1GiB");
    let ended = through(elsewhere, &server.endpoint()).end();
    assert!(
        ended.stderr.contains("s3://bucket/nothing"),
        "{}",
        ended.stderr
    );
    assert_ne!(ended.code, Some(0));
}

/// While answers stall in the middle, a reader that is dropped does not wait for them, nor do its threads.
#[test]
fn fetches_that_stall_are_given_up() {
    let scene = Scene::new(&[40, 31, 37, 3]);
    let server = serve(&scene);
    let proxy = Proxy::start(server.address(), Faults::default()).expect("a proxy");
    let node = scene.path("node");
    let fallback = fallback(proxy.endpoint());
    let mut reader = reader(&node, Arc::clone(&fallback));
    let mut faults = Faults::each(&[Fault::StalledHead], 1.0);
    faults.path_end = ".arrow".into();
    proxy.set(faults);
    let step = reader
        .next_batch(Some(Duration::ZERO))
        .expect("nothing yet");
    assert!(matches!(step, Step::TimedOut));
    while proxy.spoilt(Fault::StalledHead) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let started = Instant::now();
    drop(reader);
    assert!(started.elapsed() < Duration::from_secs(15));
    // Its threads have gone: nobody else holds the fallback.
    assert_eq!(Arc::strong_count(&fallback), 1);
}

#[test]
fn what_a_remote_lacks_is_an_error_that_names_it() {
    let scene = Scene::new(&[40, 31, 37, 3]);
    let server = serve(&scene);
    let shards = scene.objects("run/cache");
    let plan = fs::read_dir(&shards).expect("a folder").flatten();
    let plan = plan
        .map(|entry| entry.path())
        .find(|path| path.display().to_string().contains("text-"));
    for shard in fs::read_dir(plan.expect("a plan").join("shards"))
        .expect("a folder")
        .flatten()
    {
        if shard
            .file_name()
            .to_string_lossy()
            .starts_with("p0001-000002")
        {
            fs::remove_file(shard.path()).expect("our own file");
        }
    }
    let mut reader = reader(&scene.path("node"), fallback(server.endpoint()));
    let fault = loop {
        match reader.next_batch(None) {
            Ok(Step::Batch(_)) => {}
            Ok(step) => panic!("{step:?}"),
            Err(fault) => break fault,
        }
    };
    let text = fault.to_string();
    assert!(
        text.contains("p0001-000002") && text.contains("s3://bucket/run/cache"),
        "{text}"
    );
    assert!(text.contains("lacks a file"), "{text}");
    let hint = fault.hint().expect("a hint");
    assert!(
        hint.contains("push it again") && !hint.contains("network"),
        "{hint}"
    );
    let Error::Row { error, .. } = fault else {
        panic!("{text}");
    };
    let fault = matches!(
        *error,
        Error::Fallback {
            fault: RemoteFault::Incomplete(_),
            ..
        }
    );
    assert!(fault, "{text}");
}
