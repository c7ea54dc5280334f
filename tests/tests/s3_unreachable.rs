//! Servers that cannot be reached, and certificates that nobody should trust: the build stops soon, says which server and why, and
//! rejects nothing.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use stoker_tests::cache::{assert_same, committed, table};
use stoker_tests::command::Ended;
use stoker_tests::corpus::Corpus;
use stoker_tests::s3::scene::{Scene, receipted, rows};
use stoker_tests::s3::tls::{Tls, issuer};
use stoker_tests::s3::{Fault, Faults, Proxy};
use stoker_tests::snapshot;

/// Tries and waits of a server that was never reached, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Builds from `endpoint`, which is of no use, and compares what is said.
fn refused(scene: &Scene, name: &str, endpoint: &str, variables: &[(&str, &str)]) -> Ended {
    let output = scene.corpus.output(name);
    std::fs::create_dir(&output).expect("a folder");
    let mut run = scene.build(endpoint, &output).limit(TIME_MAX);
    for (variable, value) in variables {
        run = run.env(*variable, *value);
    }
    let mut ended = run.end();
    // Progress, on a slow machine.
    let lines = ended
        .stderr
        .lines()
        .filter(|line| !line.starts_with("start "));
    ended.stderr = lines.map(|line| format!("{line}\n")).collect();
    let folder = scene.corpus.path().display().to_string();
    snapshot::check(
        name,
        &ended,
        &[(endpoint, "[ENDPOINT]"), (&folder, "[FOLDER]")],
    );
    assert!(committed(&output).is_none() && receipted(&output).is_empty());
    let ended = ended.expect_code(2);
    assert!(ended.stderr.contains(endpoint), "{}", ended.stderr);
    ended
}

#[test]
fn a_certificate_that_is_not_to_be_trusted_is_looked_at_once() {
    let scene = Scene::new(Corpus::good(61, 9));
    let issuer = issuer().display().to_string();
    let trusted = [("SSL_CERT_FILE", issuer.as_str())];
    for (name, certificate, host, variables) in [
        ("s3_unknown_issuer", "server.pem", "127.0.0.1", &[][..]),
        ("s3_other_name", "server.pem", "localhost", &trusted),
        ("s3_expired", "expired.pem", "127.0.0.1", &trusted),
    ] {
        let tls = Tls::start(scene.server.address(), certificate).expect("a TLS server");
        let _ = refused(&scene, name, &tls.endpoint(host), variables);
        assert_eq!(tls.connections(), 1, "{name}");
        assert_eq!(scene.server.count("ListObjectsV2", |_| true), 0, "{name}");
    }
}

/// Over broken connections as well.
#[test]
fn a_certificate_of_an_own_issuer_is_trusted_if_the_user_says_so() {
    let scene = Scene::new(Corpus::good(62, 60));
    let corpus = &scene.corpus;
    let local = corpus.output("local");
    let _ = corpus.build(&local).end().expect_code(0);
    let breaks = [Fault::Reset, Fault::ResetInBody, Fault::TruncatedBody];
    let faults = Faults {
        per_path_max: 2,
        ..Faults::each(&breaks, 0.15)
    };
    let proxy = Proxy::start(scene.server.address(), faults).expect("the proxy");
    let tls = Tls::start(proxy.address(), "server.pem").expect("a TLS server");
    let output = corpus.output("cache");
    let run = scene.build(&tls.endpoint("127.0.0.1"), &output);
    let _ = run.env("SSL_CERT_FILE", issuer()).end().expect_code(0);
    assert_same(&rows(&local), &rows(&output), "over TLS");
    assert!(table(&output, "rejects").is_empty());
    assert!(breaks.iter().all(|fault| proxy.spoilt(*fault) > 0));
}

#[test]
fn what_is_no_server_of_this_kind_is_given_up_soon() {
    let scene = Scene::new(Corpus::good(63, 9));
    let plain = format!("https://{}", scene.server.address());
    let _ = refused(&scene, "s3_no_tls", &plain, &[]);
    // A port that was free a moment ago.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let nobody = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let _ = refused(&scene, "s3_nobody_there", &nobody, &[]);
    let nameless = "http://does-not-exist.invalid:9";
    let _ = refused(&scene, "s3_no_such_name", nameless, &[]);
}
