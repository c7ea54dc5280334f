//! Pushes and syncs in bad weather: what passes leaves no trace, what does not is an error, and no wrong byte ever has a name.

use std::fs;
use std::path::Path;
use std::time::Duration;

use stoker_builder::push::{LEVEL, PushRequest, push};
use stoker_builder::remote::RemoteOptions;
use stoker_builder::source::{CredentialSource, Deadlines};
use stoker_builder::sync::{Share, SyncRequest, sync};
use stoker_builder::{Error, Result};
use stoker_formats::Folder;
use stoker_tests::cache::{assert_same, files};
use stoker_tests::remote::Scene;
use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY};
use stoker_tests::synthetic;
use tokio::runtime::Runtime;

const PASSING: [Fault; 14] = [
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
    Fault::OtherRange,
];

/// More than goes in one part of an upload.
const LARGE_BYTES: usize = 9 << 20;

fn options(proxy: &Proxy, tries: u32) -> RemoteOptions {
    RemoteOptions {
        endpoint: Some(proxy.endpoint()),
        credentials: CredentialSource::Fixed {
            access_key: ACCESS_KEY.into(),
            secret_key: SECRET_KEY.into(),
        },
        deadlines: Deadlines {
            first_byte: Duration::from_secs(2),
            stall: Duration::from_millis(500),
            backoff: Duration::from_millis(2),
            backoff_max: Duration::from_millis(50),
            tries,
            ..Deadlines::default()
        },
        ..RemoteOptions::default()
    }
}

fn push_to(cache: &Path, place: &str, options: RemoteOptions, runtime: &Runtime) -> Result<()> {
    let request = PushRequest {
        cache: cache.to_path_buf(),
        destination: place.into(),
        level: LEVEL,
        threads: 4,
        replace: false,
        options,
        show: false,
    };
    push(&request, runtime.handle().clone()).map(drop)
}

fn sync_to(place: &str, to: &Path, options: RemoteOptions, runtime: &Runtime) -> Result<()> {
    let request = SyncRequest {
        source: place.into(),
        destination: to.to_path_buf(),
        share: Share::All,
        max_disk: None,
        prune: false,
        threads: 4,
        options,
        show: false,
    };
    sync(&request, runtime.handle().clone()).map(drop)
}

/// Every file under a name of its own has the bytes of the cache's file; temp files do not count.
fn assert_no_wrong_bytes(scene: &Scene, root: &Path, what: &str) {
    let right = files(&scene.cache());
    for (name, hash) in files(root) {
        if !name.ends_with(".tmp") {
            assert_eq!(right.get(&name), Some(&hash), "{what}: {name}");
        }
    }
}

#[test]
fn faults_that_pass_leave_no_trace() {
    let scene = Scene::new(&[40, 7, 12]);
    let server = scene.serve();
    let runtime = Runtime::new().unwrap();
    let storm = vec![(Fault::SlowDown, 0.8)];
    let mut mixed: Vec<_> = PASSING.map(|fault| (fault, 0.03)).into();
    mixed.extend([(Fault::StalledBody, 0.005), (Fault::StalledHead, 0.005)]);
    for (name, rates) in [("storm", storm), ("mixed", mixed)] {
        let faults = Faults {
            seed: 11,
            rates: rates.clone(),
            per_path_max: 6,
            ..Faults::default()
        };
        let proxy = Proxy::start(server.address(), faults).unwrap();
        let place = format!("s3://bucket/{name}");
        push_to(&scene.cache(), &place, options(&proxy, 30), &runtime).unwrap();
        let to = scene.path(name);
        sync_to(&place, &to, options(&proxy, 30), &runtime).unwrap();
        assert_same(&files(&scene.cache()), &files(&to), name);
        let spoilt: u64 = rates.iter().map(|(fault, _)| proxy.spoilt(*fault)).sum();
        assert!(spoilt > 20, "{name}: {spoilt}");
    }
}

#[test]
fn large_shards_pass_through_the_same_faults() {
    let scene = Scene::big();
    let server = scene.serve();
    let runtime = Runtime::new().unwrap();
    // Of this one alone: small files have faults enough in the test before.
    let images = Folder::Images(scene.manifest.image_plan_id);
    let faults = Faults {
        seed: 3,
        per_path_max: 12,
        path_end: format!("{images}/shards/p0000-000000.arrow.zst"),
        ..Faults::each(&PASSING, 0.06)
    };
    let proxy = Proxy::start(server.address(), faults).unwrap();
    push_to(
        &scene.cache(),
        "s3://bucket/big",
        options(&proxy, 40),
        &runtime,
    )
    .unwrap();
    let to = scene.path("to");
    sync_to("s3://bucket/big", &to, options(&proxy, 40), &runtime).unwrap();
    assert_same(&files(&scene.cache()), &files(&to), "large shards");
    let spoilt: u64 = PASSING.iter().map(|fault| proxy.spoilt(*fault)).sum();
    assert!(spoilt > 0);
}

/// A server that is asked to end an upload again knows of none; what it holds tells that all is done.
#[test]
fn an_upload_whose_end_was_not_answered_is_done() {
    let scene = Scene::big();
    let server = scene.serve();
    let runtime = Runtime::new().unwrap();
    let cache = scene.path("large");
    let mut tables = synthetic::opaque_tables();
    tables[0].0 = vec![7; LARGE_BYTES];
    let content = synthetic::content_of(&[4, 4]);
    let mut manifest = synthetic::write_sized(&cache, &content, &tables, synthetic::recipe(), 4);
    manifest.inputs[0].name = "a".repeat(LARGE_BYTES);
    fs::write(cache.join("manifest.json"), manifest.to_bytes().unwrap()).unwrap();
    // A shard; a table and the manifest.
    for (cache, ends) in [(scene.cache(), 1), (cache, 2)] {
        let faults = Faults {
            per_path_max: 1,
            ..Faults::each(&[Fault::LostEnd], 1.0)
        };
        let proxy = Proxy::start(server.address(), faults).unwrap();
        // Short: the server keeps what it knows of an upload under the object's whole name.
        let place = format!("s3://bucket/{ends}");
        push_to(&cache, &place, options(&proxy, 3), &runtime).unwrap();
        assert_eq!(proxy.spoilt(Fault::LostEnd), ends);
        let to = scene.path(&format!("to-{ends}"));
        sync_to(&place, &to, options(&proxy, 3), &runtime).unwrap();
        assert_same(&files(&cache), &files(&to), &place);
    }
}

#[test]
fn faults_that_stay_are_errors_and_the_next_run_ends_right() {
    let scene = Scene::new(&[40, 7, 12]);
    let server = scene.serve();
    let runtime = Runtime::new().unwrap();
    let lasting = [
        Fault::SlowDown,
        Fault::TruncatedBody,
        Fault::StalledBody,
        Fault::LongBody,
        Fault::LengthTooSmall,
        Fault::Reset,
        Fault::Forbidden,
        Fault::NoSuchBucket,
        Fault::OtherEtag,
    ];
    let calm = Proxy::start(server.address(), Faults::default()).unwrap();
    push_to(
        &scene.cache(),
        "s3://bucket/good",
        options(&calm, 3),
        &runtime,
    )
    .unwrap();
    for (number, fault) in lasting.into_iter().enumerate() {
        let what = format!("{fault:?}");
        // Whatever ends so is spoilt every time, the rest passes.
        let faults = Faults {
            path_end: "p0000-000001.arrow.zst".into(),
            ..Faults::each(&[fault], 1.0)
        };
        let proxy = Proxy::start(server.address(), faults).unwrap();
        let to = scene.path(&what);
        let outcome = sync_to("s3://bucket/good", &to, options(&proxy, 3), &runtime);
        // What comes after a whole answer is nobody's.
        if fault != Fault::LongBody {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::Fetch { .. }), "{what}: {error}");
            assert!(!to.join("manifest.json").exists(), "{what}");
        }
        assert_no_wrong_bytes(&scene, &to, &what);
        sync_to("s3://bucket/good", &to, options(&calm, 3), &runtime).unwrap();
        assert_same(&files(&scene.cache()), &files(&to), &what);
        let place = format!("s3://bucket/put-{number}");
        if push_to(&scene.cache(), &place, options(&proxy, 3), &runtime).is_err() {
            let manifest = scene
                .objects(&format!("put-{number}"))
                .join("manifest.json");
            assert!(!manifest.exists(), "{what}");
            push_to(&scene.cache(), &place, options(&calm, 3), &runtime).unwrap();
        }
        let good = files(&scene.objects("good"));
        assert_same(
            &good,
            &files(&scene.objects(&format!("put-{number}"))),
            &what,
        );
    }
}

/// S3 sends no checksum with a range, so only the manifest's hash can tell.
#[test]
fn flipped_bits_never_get_a_name() {
    let scene = Scene::big();
    let server = scene.serve();
    let runtime = Runtime::new().unwrap();
    let proxy = Proxy::start(server.address(), Faults::default()).unwrap();
    push_to(
        &scene.cache(),
        "s3://bucket/big",
        options(&proxy, 3),
        &runtime,
    )
    .unwrap();
    proxy.set(Faults {
        path_end: "p0000-000000.arrow.zst".into(),
        ..Faults::each(&[Fault::FlippedBit], 1.0)
    });
    let to = scene.path("to");
    let error = sync_to("s3://bucket/big", &to, options(&proxy, 3), &runtime).unwrap_err();
    assert!(proxy.spoilt(Fault::FlippedBit) > 0);
    assert!(
        error.to_string().contains("p0000-000000.arrow.zst"),
        "{error}"
    );
    assert_no_wrong_bytes(&scene, &to, "flipped");
    assert!(fs::symlink_metadata(to.join("manifest.json")).is_err());
    proxy.set(Faults::default());
    sync_to("s3://bucket/big", &to, options(&proxy, 3), &runtime).unwrap();
    assert_same(&files(&scene.cache()), &files(&to), "after the flips");
}
