//! S3 as a source: the same names and bytes as from disk, spools, credentials, secrets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stoker_builder::source::{
    Base, CredentialSource, Deadlines, FetchError, Policy, Source, SourceOptions, Spool, list,
    resolve,
};
use stoker_tests::s3::{ACCESS_KEY, Fault, Faults, Proxy, SECRET_KEY, Server};
use tokio::runtime::Runtime;

fn fixed() -> CredentialSource {
    CredentialSource::Fixed {
        access_key: ACCESS_KEY.into(),
        secret_key: SECRET_KEY.into(),
    }
}

fn source(runtime: &Runtime, endpoint: String, credentials: CredentialSource) -> Source {
    let options = SourceOptions {
        endpoint: Some(endpoint),
        credentials,
        deadlines: Deadlines {
            backoff: Duration::from_millis(5),
            backoff_max: Duration::from_millis(50),
            ..Deadlines::default()
        },
        ..SourceOptions::default()
    };
    Source::new(options, runtime.handle().clone())
}

fn put(root: &Path, name: &str, data: &[u8]) -> PathBuf {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, data).unwrap();
    path
}

fn text(bytes: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes + 100);
    let mut n = 0_u64;
    while text.len() < bytes {
        text.extend(format!("{{\"line\":{n},\"pad\":\"{}\"}}\n", "p".repeat(900)).bytes());
        n += 1;
    }
    text
}

#[test]
fn names_and_links_are_those_of_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    for name in [
        "b/2.jsonl",
        "a/1.jsonl.gz",
        "a/x/3.jsonl.zst",
        "a/skip.txt",
        "a/.hidden.jsonl",
    ] {
        put(&root, &format!("data-set/sft/{name}"), b"{}\n");
    }
    put(&root, "data-set/sft/b/i.bin", b"pixels");
    let server = Server::start(&root).unwrap();
    let runtime = Runtime::new().unwrap();
    let source = source(&runtime, server.endpoint(), fixed());
    let local = list(&[format!("{}/data-set/sft", root.display())], &source).unwrap();
    let policy = Policy::default();
    for uris in [
        vec!["s3://data-set/sft/"],
        vec!["s3://data-set"],
        vec![
            "s3://data-set/sft/b/2.jsonl",
            "s3://data-set/sft/a/",
            "s3://data-set/sft/b/",
        ],
    ] {
        let uris: Vec<String> = uris.into_iter().map(str::to_owned).collect();
        let remote = list(&uris, &source).unwrap();
        assert_eq!(remote.len(), local.len());
        for (here, there) in std::iter::zip(&local, &remote) {
            assert_eq!(
                (&here.name, here.bytes, here.compression),
                (&there.name, there.bytes, there.compression)
            );
            assert!(there.etag.is_some());
            let a = resolve("./img//1.jpg", &here.base, &policy).unwrap();
            let b = resolve("img/1.jpg", &there.base, &policy).unwrap();
            assert_eq!((a.canonical(), a.key()), (b.canonical(), b.key()));
        }
    }
    let remote = list(
        &[
            "s3://data-set/sft/b/2.jsonl".into(),
            "s3://data-set/sft/a/".into(),
        ],
        &source,
    )
    .unwrap();
    let link = resolve("i.bin", &remote[2].base, &policy).unwrap();
    let fetched = runtime.block_on(source.fetch(&link)).unwrap();
    assert_eq!(
        (&fetched.bytes[..], &*fetched.uri),
        (&b"pixels"[..], "s3://data-set/sft/b/i.bin")
    );
    assert!(fetched.etag.is_some());
    assert_eq!(server.image_gets(), 1);
    for uri in ["s3://data-set/none/", "s3://data-set/none.jsonl"] {
        assert!(list(&[uri.into()], &source).unwrap_err().hint().is_some());
    }
}

#[test]
fn long_listings_come_in_pages() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..1010 {
        put(folder.path(), &format!("data-set/{n:04}.jsonl"), b"{}\n");
    }
    let server = Server::start(folder.path()).unwrap();
    let runtime = Runtime::new().unwrap();
    let source = source(&runtime, server.endpoint(), fixed());
    let files = list(&["s3://data-set/".into()], &source).unwrap();
    assert_eq!(files.len(), 1010);
    assert_eq!(files[1009].name, "1009.jsonl");
    assert_eq!(server.count("ListObjectsV2", |_| true), 2);
}

#[test]
fn a_spool_is_whole_whatever_the_weather_and_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let want = text(18 << 20);
    put(folder.path(), "data-set/big.jsonl", &want);
    let server = Server::start(folder.path()).unwrap();
    let faults = [
        Fault::TruncatedBody,
        Fault::OtherRange,
        Fault::OtherEtag,
        Fault::Reset,
        Fault::SlowDown,
    ];
    let proxy = Proxy::start(server.address(), Faults::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let source = source(&runtime, proxy.endpoint(), fixed());
    let input = list(&["s3://data-set/big.jsonl".into()], &source)
        .unwrap()
        .remove(0);
    proxy.set(Faults {
        per_path_max: 5,
        ..Faults::each(&faults, 0.15)
    });
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::new(dir.path().into(), &source).unwrap();
    let spooled = spool.text(&input).unwrap();
    assert!(fs::read(&spooled.path).unwrap() == want);
    let before = proxy.requests();
    assert_eq!(spool.text(&input).unwrap(), spooled);
    assert_eq!(proxy.requests(), before, "the copy was not used again");

    // The object changes between listing and reading.
    proxy.set(Faults::default());
    put(folder.path(), "data-set/big.jsonl", &text(9 << 20));
    let other = tempfile::tempdir().unwrap();
    let spool = Spool::new(other.path().into(), &source).unwrap();
    let error = spool.text(&input).unwrap_err();
    assert!(error.to_string().contains("changed"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("at rest")));
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn unsigned_requests_and_wrong_keys() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "data-set/i.bin", b"pixels");
    let base = Base::parse("s3://data-set").unwrap();
    let link = resolve("i.bin", &base, &Policy::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let public = Server::start_public(folder.path()).unwrap();
    let open = source(&runtime, public.endpoint(), CredentialSource::Anonymous);
    assert_eq!(runtime.block_on(open.fetch(&link)).unwrap().bytes, "pixels");
    let signed = Server::start(folder.path()).unwrap();
    let wrong = CredentialSource::Fixed {
        access_key: "CANARYKEY00000000001".into(),
        secret_key: "canary-secret".into(),
    };
    for credentials in [CredentialSource::Anonymous, wrong] {
        let source = source(&runtime, signed.endpoint(), credentials);
        let before = signed.image_gets();
        match runtime.block_on(source.fetch(&link)) {
            Err(FetchError::Stop(error)) => {
                let text = format!("{error} {error:?} {source:?}").to_lowercase();
                assert!(!text.contains("canary"), "{text}");
                assert!(error.hint().is_some());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(signed.image_gets() - before, 1);
    }
}

/// Runs the ignored test `name` of this file in a process with other environment variables.
fn in_child(name: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--ignored", "--nocapture"]);
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("AWS_")) {
        child.env_remove(key);
    }
    child
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("HOME", "/nonexistent");
    child.envs(variables.iter().copied());
    let output = child.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Fetches one object with what the environment says, and prints what came of it.
#[test]
#[ignore = "the body of the tests below, which run it with an environment of their own"]
#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn child_fetches() {
    let runtime = Runtime::new().unwrap();
    let options = SourceOptions {
        deadlines: Deadlines {
            tries: 2,
            backoff: Duration::from_millis(5),
            ..Deadlines::default()
        },
        ..SourceOptions::default()
    };
    let source = Source::new(options, runtime.handle().clone());
    let base = Base::parse("s3://data-set").unwrap();
    let link = resolve("i.bin", &base, &Policy::default()).unwrap();
    match runtime.block_on(source.fetch(&link)) {
        Ok(fetched) => println!("fetched {}", fetched.bytes.len()),
        Err(FetchError::Stop(error)) => println!("{error} {error:?} {:?} {source:?}", error.hint()),
        Err(other) => println!("{other:?}"),
    }
}

#[test]
fn the_standard_chain_is_used() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "data-set/i.bin", b"pixels");
    let server = Server::start(folder.path()).unwrap();
    let endpoint = server.endpoint();
    let keys = [
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
    ];
    let (_, text) = in_child(
        "child_fetches",
        &[keys[0], keys[1], ("AWS_ENDPOINT_URL", &endpoint)],
    );
    assert!(text.contains("fetched 6"), "{text}");
    let (_, text) = in_child(
        "child_fetches",
        &[keys[0], keys[1], ("AWS_ENDPOINT_URL_S3", &endpoint)],
    );
    assert!(text.contains("fetched 6"), "{text}");
    // No credentials at all: unsigned, which this server refuses and a public one does not.
    let (_, text) = in_child("child_fetches", &[("AWS_ENDPOINT_URL", &endpoint)]);
    assert!(text.contains("AccessDenied"), "{text}");
    let public = Server::start_public(folder.path()).unwrap();
    let (_, text) = in_child("child_fetches", &[("AWS_ENDPOINT_URL", &public.endpoint())]);
    assert!(text.contains("fetched 6"), "{text}");
}

#[test]
fn missing_credentials_are_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_public(folder.path()).unwrap();
    let named = [
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token".into()),
        ("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/none".into()),
    ];
    let named: Vec<(&str, &str)> = named
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let (_, text) = in_child("child_fetches", &named);
    assert!(text.contains("no credentials could be loaded"), "{text}");
    assert!(
        text.contains("tries: 1") && text.contains("AWS_PROFILE"),
        "{text}"
    );
    // Only a host that was asked for its role is worth the word about it.
    assert!(!text.contains("METADATA"), "{text}");
    let named = [
        ("AWS_ENDPOINT_URL", server.endpoint()),
        ("AWS_EC2_METADATA_DISABLED", "false".into()),
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint()),
    ];
    let named: Vec<(&str, &str)> = named
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let (_, text) = in_child("child_fetches", &named);
    assert!(text.contains("no credentials could be loaded"), "{text}");
    assert!(text.contains("AWS_EC2_METADATA_DISABLED=true"), "{text}");
    assert_eq!(server.image_gets(), 0);
}

#[test]
fn secrets_never_show() {
    let secrets = [
        ("AWS_ACCESS_KEY_ID", "CANARYKEY00000000001"),
        ("AWS_SECRET_ACCESS_KEY", "canary-secret"),
        ("AWS_SESSION_TOKEN", "canary-token"),
    ];
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "data-set/i.bin", b"pixels");
    let server = Server::start(folder.path()).unwrap();
    let address = server.address();
    for endpoint in [
        format!("http://{address}"),
        format!("http://user:canary-password@{address}"),
        format!("http://{address}/?token=canary-query"),
        "http://127.0.0.1:1".to_owned(),
        "https://127.0.0.1:1".to_owned(),
        "http://host.invalid:1".to_owned(),
    ] {
        for variable in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"] {
            let mut variables = secrets.to_vec();
            variables.push((variable, &endpoint));
            let (_, text) = in_child("child_fetches", &variables);
            assert!(text.contains("could not fetch"), "{endpoint}: {text}");
            assert!(
                !text.to_lowercase().contains("canary"),
                "{endpoint}: {text}"
            );
        }
    }
}

/// Keys in a profile's file expire, somebody writes new ones, the build goes on.
#[test]
#[ignore = "the body of the test below, which runs it with an environment of its own"]
#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn child_renews() {
    let file = std::env::var("AWS_SHARED_CREDENTIALS_FILE").unwrap();
    let profile = |id: &str| {
        let text =
            format!("[default]\naws_access_key_id={id}\naws_secret_access_key={SECRET_KEY}\n");
        fs::write(&file, text).unwrap();
    };
    profile("OLDKEY00000000000001");
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "data-set/a.bin", b"a");
    put(folder.path(), "data-set/b.bin", b"b");
    let server = Server::start(folder.path()).unwrap();
    let proxy = Proxy::start(server.address(), Faults::default()).unwrap();
    let runtime = Runtime::new().unwrap();
    let source = source(&runtime, proxy.endpoint(), CredentialSource::Chain);
    let base = Base::parse("s3://data-set").unwrap();
    let link = |name| resolve(name, &base, &Policy::default()).unwrap();
    assert!(matches!(
        runtime.block_on(source.fetch(&link("a.bin"))),
        Err(FetchError::Stop(_))
    ));
    profile(ACCESS_KEY);
    assert!(
        runtime.block_on(source.fetch(&link("a.bin"))).is_err(),
        "no renewal without need"
    );
    proxy.set(Faults {
        per_path_max: 1,
        ..Faults::each(&[Fault::ExpiredToken], 1.0)
    });
    let before = proxy.requests();
    assert_eq!(
        runtime
            .block_on(source.fetch(&link("b.bin")))
            .unwrap()
            .bytes,
        "b"
    );
    assert_eq!(proxy.requests() - before, 2);
    println!("renewed");
}

#[test]
fn expired_credentials_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials").display().to_string();
    let (good, text) = in_child("child_renews", &[("AWS_SHARED_CREDENTIALS_FILE", &file)]);
    assert!(good && text.contains("renewed"), "{text}");
}
