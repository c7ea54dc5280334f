//! Weather in S3 never becomes data: no wrong byte and no reject, whatever passes; a stop with a
//! hint and bounded tries, whatever does not.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use stoker_builder::reject::Reason;
use stoker_builder::source::{
    Base, CredentialSource, Deadlines, FetchError, Policy, Source, SourceOptions, resolve,
};
use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY, Server};

const BUCKET: &str = "data-set";

struct Bench {
    folder: tempfile::TempDir,
    server: Server,
    proxy: Proxy,
    source: Source,
    runtime: tokio::runtime::Runtime,
}

fn content(n: u32) -> Vec<u8> {
    let mut bytes = vec![0; 20 + (n as usize * 37) % 3000];
    let mut reader = blake3::Hasher::new()
        .update(&n.to_le_bytes())
        .finalize_xof();
    reader.fill(&mut bytes);
    bytes
}

fn quick() -> Deadlines {
    Deadlines {
        stall: Duration::from_secs(5),
        first_byte: Duration::from_secs(10),
        total: Duration::from_secs(50),
        backoff: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        ..Deadlines::default()
    }
}

fn write_objects(root: &Path, objects: u32) {
    let folder = root.join(BUCKET).join("img");
    fs::create_dir_all(&folder).unwrap();
    for n in 0..objects {
        fs::write(folder.join(format!("{n:05}.bin")), content(n)).unwrap();
    }
}

impl Bench {
    fn new(objects: u32, faults: Faults, deadlines: Deadlines) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_objects(folder.path(), objects);
        let server = Server::start(folder.path()).unwrap();
        let proxy = Proxy::start(server.address(), faults).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let options = SourceOptions {
            endpoint: Some(proxy.endpoint()),
            credentials: CredentialSource::Fixed {
                access_key: ACCESS_KEY.into(),
                secret_key: SECRET_KEY.into(),
            },
            image_bytes_max: 10_000,
            deadlines,
            ..SourceOptions::default()
        };
        let source = Source::new(options, runtime.handle().clone());
        Self {
            folder,
            server,
            proxy,
            source,
            runtime,
        }
    }

    fn fetch(&self, name: &str) -> Result<bytes::Bytes, FetchError> {
        let base = Base::parse(&format!("s3://{BUCKET}/img")).unwrap();
        let link = resolve(name, &base, &Policy::default()).unwrap();
        let fetched = self.runtime.block_on(self.source.fetch(&link))?;
        Ok(fetched.bytes)
    }

    /// Fetches all objects at once and compares every byte.
    fn fetch_all(&self, objects: u32) {
        let base = Base::parse(&format!("s3://{BUCKET}/img")).unwrap();
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..objects {
                let source = self.source.clone();
                let link = resolve(&format!("{n:05}.bin"), &base, &Policy::default()).unwrap();
                tasks.spawn(async move { (n, source.fetch(&link).await) });
            }
            while let Some(done) = tasks.join_next().await {
                let (n, result) = done.unwrap();
                let fetched = result.unwrap_or_else(|error| panic!("object {n}: {error:?}"));
                assert!(fetched.bytes == content(n), "object {n} has wrong bytes");
            }
        });
    }
}

/// Fetches `objects` objects while each of `faults` hits `rate` of the requests.
fn survive(objects: u32, faults: &[Fault], rate: f64, deadlines: Deadlines) {
    let faults_set = Faults {
        per_path_max: 6,
        ..Faults::each(faults, rate)
    };
    let bench = Bench::new(objects, faults_set, deadlines);
    bench.fetch_all(objects);
    for fault in faults {
        let spoilt = bench.proxy.spoilt(*fault);
        let want = (f64::from(objects) * rate * 0.5) as u64;
        assert!(spoilt >= want, "{fault:?} hit {spoilt} times only");
    }
    assert!(bench.server.image_gets() >= u64::from(objects));
}

#[test]
fn throttling_passes() {
    survive(
        1000,
        &[Fault::SlowDown, Fault::TooManyRequests],
        0.1,
        quick(),
    );
}

#[test]
fn server_errors_pass() {
    let faults = [
        Fault::InternalError,
        Fault::BadGateway,
        Fault::RequestTimeout,
    ];
    survive(1500, &faults, 0.08, quick());
}

#[test]
fn short_and_long_bodies_are_never_accepted() {
    let faults = [Fault::TruncatedBody, Fault::LongBody, Fault::LengthTooLarge];
    survive(1500, &faults, 0.1, quick());
}

#[test]
fn bodies_that_only_a_checksum_tells_are_never_accepted() {
    let faults = [Fault::LengthTooSmall, Fault::NoLength, Fault::FlippedBit];
    survive(1500, &faults, 0.1, quick());
}

#[test]
fn broken_connections_pass() {
    survive(1500, &[Fault::Reset, Fault::ResetInBody], 0.1, quick());
}

#[test]
fn error_documents_and_slow_starts_pass() {
    survive(
        1500,
        &[Fault::ErrorDocument, Fault::SlowStart],
        0.1,
        quick(),
    );
}

#[test]
fn a_storm_passes() {
    survive(500, &[Fault::SlowDown], 0.3, quick());
}

#[test]
fn stalls_cost_their_timeout_and_nothing_else() {
    let deadlines = Deadlines {
        stall: Duration::from_millis(700),
        first_byte: Duration::from_millis(1500),
        ..quick()
    };
    let start = Instant::now();
    survive(
        1000,
        &[Fault::StalledBody, Fault::StalledHead],
        0.03,
        deadlines,
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_does_not_pass_stops_with_a_hint_after_bounded_tries() {
    let deadlines = Deadlines {
        stall: Duration::from_millis(300),
        first_byte: Duration::from_secs(1),
        backoff: Duration::from_millis(1),
        ..quick()
    };
    let bench = Bench::new(1, Faults::default(), deadlines);
    // The client is made here, so that the deadlines below hold for requests only.
    let _ = bench.fetch("00000.bin");
    for (fault, tries) in [
        (Fault::SlowDown, 10),
        (Fault::InternalError, 10),
        (Fault::BadGateway, 10),
        (Fault::ErrorDocument, 10),
        (Fault::TruncatedBody, 10),
        (Fault::StalledBody, 10),
        (Fault::StalledHead, 10),
        (Fault::NoLength, 10),
        (Fault::FlippedBit, 10),
        (Fault::Reset, 10),
        (Fault::ExpiredToken, 2),
        (Fault::Forbidden, 1),
        (Fault::NoSuchBucket, 1),
    ] {
        bench.proxy.set(Faults::each(&[fault], 1.0));
        let before = bench.proxy.requests();
        let FetchError::Stop(error) = bench.fetch("00000.bin").unwrap_err() else {
            panic!("{fault:?} became a reject");
        };
        let made = bench.proxy.requests() - before;
        if tries == 10 && made < 10 {
            panic!("{fault:?}: {made} requests");
        }
        // A reset of a kept connection may be tried once more below us.
        assert!(
            made <= if fault == Fault::Reset { 20 } else { tries },
            "{fault:?}: {made}"
        );
        let text = format!("{error} {error:?} {:?}", error.hint());
        assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{text}");
        assert!(
            !text.contains(SECRET_KEY) && !text.contains(ACCESS_KEY),
            "{text}"
        );
        if fault == Fault::Forbidden {
            assert!(
                text.contains("AccessDenied") && text.contains("REQ123"),
                "{text}"
            );
        }
    }
}

#[test]
fn facts_are_rejects_after_one_request() {
    let bench = Bench::new(1, Faults::default(), quick());
    let folder = bench.folder.path().join(BUCKET).join("img");
    fs::write(folder.join("large.bin"), vec![7; 10_001]).unwrap();
    fs::write(folder.join("fits.bin"), vec![7; 10_000]).unwrap();
    for (name, reason) in [
        ("none.bin", Reason::MissingImage),
        ("large.bin", Reason::TooManyBytes),
    ] {
        let before = bench.proxy.requests();
        match bench.fetch(name) {
            Err(FetchError::Reject(reject)) => assert_eq!(reject.reason, reason),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(bench.proxy.requests() - before, 1, "{name}");
    }
    assert_eq!(bench.fetch("fits.bin").unwrap().len(), 10_000);
    // What no key can be is not asked for: the request could not even be made.
    let before = bench.proxy.requests();
    match bench.fetch(&"n".repeat(70_000)) {
        Err(FetchError::Reject(reject)) => assert_eq!(reject.reason, Reason::MissingImage),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.proxy.requests(), before);
}

#[test]
fn one_stalled_object_does_not_hold_the_others() {
    let deadlines = Deadlines {
        stall: Duration::from_secs(2),
        ..quick()
    };
    let bench = Bench::new(100, Faults::default(), deadlines);
    bench.fetch_all(100);
    // About one in a hundred, each path at most once: the whole costs one timeout, not many.
    bench.proxy.set(Faults {
        per_path_max: 1,
        ..Faults::each(&[Fault::StalledBody], 0.03)
    });
    let start = Instant::now();
    bench.fetch_all(100);
    assert!(bench.proxy.spoilt(Fault::StalledBody) > 0);
    assert!(start.elapsed() < Duration::from_secs(15));
}
