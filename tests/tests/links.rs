//! Hostile links and hostile trees: nothing outside the policy is ever read or called.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use stoker_builder::reject::Reason;
use stoker_builder::source::{
    Base, CredentialSource, FetchError, Policy, Source, SourceOptions, resolve,
};
use stoker_tests::s3::Trap;
use tokio::runtime::Runtime;

const SECRET: &[u8] = b"outside: nobody may read this";
const INSIDE: &[u8] = b"inside";

/// Strings that try to leave the policy; `{trap}` is where the trap listens, `{top}` a folder
/// whose `secret` must not be read while `{top}/root` is the image root.
fn bypasses(trap: &str, top: &Path) -> Vec<String> {
    let port = trap.rsplit(':').next().unwrap();
    let top = top.display();
    let mut all: Vec<String> = Vec::new();
    // Schemes, in all their spellings.
    for scheme in [
        "http",
        "https",
        "HTTP",
        "hTtP",
        "ftp",
        "file",
        "FILE",
        "gopher",
        "ws",
        "sftp",
        "smb",
        "S3",
        "s3n",
        "s3a",
        "gs",
        "hf",
        "az",
        "jar",
        "dict",
        "ldap",
        "tftp",
        "blob",
        "about",
        "javascript",
        "view-source",
        "x+y.z-1",
        "unix",
        "nfs",
        "DATA",
        "Data",
    ] {
        all.push(format!("{scheme}://{trap}/x.png"));
        all.push(format!("{scheme}:/{top}/secret"));
        all.push(format!("{scheme}:{top}/secret"));
    }
    // Addresses that mean this host, or the metadata service, with and without a scheme.
    for host in [
        "127.0.0.1",
        "localhost",
        "0",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0x7f.1",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "127.0.0.1.nip.io",
        "user@127.0.0.1",
        "user:pass@127.0.0.1",
        "127.0.0.1%00.example.org",
        "\u{2460}\u{2461}\u{2466}.0.0.1",
        "loc\u{212a}lhost",
        "\u{ff11}\u{ff12}\u{ff17}.0.0.1",
        "169.254.169.254",
        "[fd00:ec2::254]",
    ] {
        all.push(format!("http://{host}:{port}/x"));
        all.push(format!("//{host}:{port}/x"));
        all.push(format!("s3://{host}:{port}/x"));
        all.push(format!("{host}:{port}/x"));
    }
    // Ways up, plain and dressed.
    for up in [
        "..",
        "../",
        "..//",
        "./..",
        "././..",
        "../.",
        "a/..",
        "a/../..",
        "a/b/../../..",
        "..\\",
        "\\..",
        "..%2f",
        "%2e%2e",
        "%2e%2e/",
        "%2e%2e%2f",
        "..%5c",
        "%252e%252e/",
        "..%c0%af",
        "%c0%ae%c0%ae/",
        "..;/",
        "..%00/",
        "..\u{0}",
        ".. /",
        " ../",
        "..\t/",
        "..\r\n/",
        "\u{ff0e}\u{ff0e}/",
        "\u{2024}\u{2024}/",
        "..\u{2215}",
        "..\u{ff0f}",
        "....//",
        "..././",
        ".../",
        "..../",
        "\u{202e}../",
        "\u{feff}../",
        "..\u{feff}/",
    ] {
        all.push(format!("{up}secret"));
        all.push(format!("{up}/secret"));
        all.push(format!("{up}/root/../secret"));
    }
    // Absolute, empty, odd.
    for odd in [
        "",
        ".",
        "..",
        "/",
        "//",
        "./",
        ".//.",
        "/.",
        "a/",
        "a/.",
        "~",
        "~/secret",
        "~root/x",
        "$HOME/secret",
        "%HOME%/x",
        "C:\\secret",
        "C:/secret",
        "c:secret",
        "\\\\host\\share",
        "\\secret",
        "//?/secret",
        "/proc/self/environ",
        "/proc/1/root/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "/dev/tcp/127.0.0.1/80",
        "|cat /etc/passwd",
        "`id`",
        "-",
        "--",
        "@secret",
        "s3:",
        "s3:/",
        "s3://",
        "s3:///",
        "s3:///x",
        "s3://other-bucket/x",
        "s3://../x",
        "s3://data-set/../x",
        "s3://data-set/a/../../x",
        "s3://data-set/./x",
        "s3://data-set",
        "s3://data-set/",
        "s3://DATA-SET/x",
        "s3://data-set@other-bucket/x",
        "s3://user:pass@data-set/x",
        "s3://data-set:80/x",
        "s3://data-set\\x",
        "s3://data-set%2f/x",
        "s3:data-set/x",
        "S3://data-set/x",
        " s3://data-set/x",
        "s3://data-set /x",
        "s3://data-set?x=/y",
        "s3://data-set#/x",
        "s3://data\u{0}set/x",
        "data:",
        "data:,x",
        "data:text/plain;base64,aGk=",
        "data:image/png,aGk=",
        "data:image/png;base64",
        "data:image/png;base64,***",
        "data:image/;base64,aGk=",
        "data:image/p/g;base64,aGk=",
        "data:image/svg+xml;utf8;base64,aGk=",
        "data://image/png;base64,aGk=",
        "data:image/png;charset=x;base64,aGk=",
        "\u{0}",
        "x\u{0}.png",
        "x\n.png",
        "x\u{7f}.png",
        "x\u{85}.png",
        "\u{1b}[2Jx",
    ] {
        all.push(odd.to_owned());
    }
    all.push(format!("{top}/secret"));
    all.push(format!("/{top}/root/ok.bin"));
    all.push("a/".repeat(5000) + "x");
    all.push("x".repeat(300));
    all
}

fn local_source(runtime: &Runtime, trap: &str) -> Source {
    let options = SourceOptions {
        endpoint: Some(format!("http://{trap}")),
        credentials: CredentialSource::Anonymous,
        ..SourceOptions::default()
    };
    Source::new(options, runtime.handle().clone())
}

#[test]
fn no_string_leaves_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("ok.bin"), INSIDE).unwrap();
    fs::write(folder.path().join("secret"), SECRET).unwrap();
    let trap = Trap::start().unwrap();
    let address = trap.address().to_string();
    let runtime = Runtime::new().unwrap();
    let source = local_source(&runtime, &address);
    // The bucket itself is allowed, so that everything around its name is tried in earnest.
    let base = Base::parse(root.to_str().unwrap()).unwrap();
    let policy = Policy::new([], None, &["data-set".to_owned()]).unwrap();
    let links = bypasses(&address, folder.path());
    assert!(links.len() >= 150, "{}", links.len());
    let mut harmless = 0;
    for raw in &links {
        let Ok(link) = resolve(raw, &base, &policy) else {
            continue;
        };
        harmless += 1;
        assert!(
            !link.uri().starts_with("s3://"),
            "{raw:?} became {}",
            link.uri()
        );
        match runtime.block_on(source.fetch(&link)) {
            Err(FetchError::Reject(reject)) => {
                assert!(matches!(
                    reject.reason,
                    Reason::MissingImage | Reason::ForbiddenLink
                ));
            }
            other => panic!("{raw:?}: {other:?}"),
        }
    }
    assert!(harmless > 0 && harmless < links.len() / 2, "{harmless}");
    assert_eq!(trap.caught(), 0);
    let good = resolve("./a//../ok.bin", &base, &policy);
    assert!(good.is_err());
    let good = resolve("./ok.bin", &base, &policy).unwrap();
    assert_eq!(runtime.block_on(source.fetch(&good)).unwrap().bytes, INSIDE);
}

#[test]
fn links_and_special_files_of_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    let root = top.join("root");
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("ok.bin"), INSIDE).unwrap();
    fs::write(top.join("secret"), SECRET).unwrap();
    let link = |target: &str, name: &str| symlink(target, root.join(name)).unwrap();
    link("ok.bin", "good1");
    link("a", "folder");
    link("../../ok.bin", "a/b/good2");
    link("../secret", "up");
    link("a/../../secret", "up2");
    link(top.join("secret").to_str().unwrap(), "absolute");
    link(root.join("ok.bin").to_str().unwrap(), "absolute-inside");
    link("..", "parent");
    link("/", "slash");
    link("loop2", "loop1");
    link("loop1", "loop2");
    link("/proc/self/root/etc/passwd", "magic1");
    link("/proc/self/cwd", "magic2");
    link("/proc/self/fd/0", "magic3");
    link("/dev/zero", "zero");
    link("nowhere", "dangling");
    // A farm of links to links, each doubling the path.
    for n in 0..60 {
        link(&format!("farm{}", n + 1), &format!("farm{n}"));
    }
    fs::create_dir(root.join("locked")).unwrap();
    for (tool, args) in [
        ("mkfifo", vec!["fifo"]),
        ("mknod", vec!["device", "c", "1", "5"]),
    ] {
        let made = Command::new(tool)
            .args(args)
            .current_dir(&root)
            .status()
            .unwrap();
        assert!(made.success() || tool == "mknod", "{tool}");
    }
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    let runtime = Runtime::new().unwrap();
    let trap = Trap::start().unwrap();
    let source = local_source(&runtime, &trap.address().to_string());
    let base = Base::parse(root.to_str().unwrap()).unwrap();
    let fetch = |name: &str| {
        let link = resolve(name, &base, &Policy::default()).unwrap();
        runtime.block_on(source.fetch(&link))
    };
    for name in ["good1", "folder/b/good2", "a/b/good2"] {
        assert_eq!(fetch(name).unwrap().bytes, INSIDE, "{name}");
    }
    let mut forbidden = vec![
        "up",
        "up2",
        "absolute",
        "absolute-inside",
        "parent/secret",
        "slash/etc/passwd",
        "loop1",
        "magic1",
        "magic2/Cargo.toml",
        "magic3",
        "zero",
        "farm0",
        "a",
        "fifo",
        "socket",
    ];
    if root.join("device").exists() {
        forbidden.push("device");
    }
    for name in forbidden {
        match fetch(name) {
            Err(FetchError::Reject(reject)) => {
                assert_eq!(reject.reason, Reason::ForbiddenLink, "{name}")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    for name in ["nowhere", "dangling", "ok.bin/x", "locked/x"] {
        match fetch(name) {
            Err(FetchError::Reject(reject)) => {
                assert_eq!(reject.reason, Reason::MissingImage, "{name}")
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn size_limit_holds_for_local_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("fits"), vec![1; 100]).unwrap();
    fs::write(folder.path().join("large"), vec![1; 101]).unwrap();
    let runtime = Runtime::new().unwrap();
    let options = SourceOptions {
        image_bytes_max: 100,
        ..SourceOptions::default()
    };
    let source = Source::new(options, runtime.handle().clone());
    let base = Base::parse(folder.path().to_str().unwrap()).unwrap();
    let fetch = |name: &str| {
        let link = resolve(name, &base, &Policy::default()).unwrap();
        runtime.block_on(source.fetch(&link))
    };
    assert_eq!(fetch("fits").unwrap().bytes.len(), 100);
    match fetch("large") {
        Err(FetchError::Reject(reject)) => assert_eq!(reject.reason, Reason::TooManyBytes),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tree_that_changes_under_the_open_shows_nothing_from_outside() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path();
    let root = top.join("root");
    fs::create_dir_all(root.join("real")).unwrap();
    fs::create_dir(top.join("evil")).unwrap();
    fs::write(root.join("real/pic"), INSIDE).unwrap();
    fs::write(top.join("evil/pic"), SECRET).unwrap();
    symlink("../evil", root.join("link")).unwrap();
    let runtime = Runtime::new().unwrap();
    let source = Source::new(SourceOptions::default(), runtime.handle().clone());
    let base = Base::parse(root.to_str().unwrap()).unwrap();
    let link = resolve("real/pic", &base, &Policy::default()).unwrap();
    let stop = AtomicBool::new(false);
    let (mut inside, mut other) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The folder and the link trade places; in between the name does not exist.
            while !stop.load(Ordering::Relaxed) {
                for (from, to) in [
                    ("real", "kept"),
                    ("link", "real"),
                    ("real", "link"),
                    ("kept", "real"),
                ] {
                    fs::rename(root.join(from), root.join(to)).unwrap();
                }
            }
        });
        runtime.block_on(async {
            for _ in 0..10_000 {
                match source.fetch(&link).await {
                    Ok(fetched) => {
                        assert_eq!(fetched.bytes, INSIDE);
                        inside += 1;
                    }
                    Err(FetchError::Reject(_)) => other += 1,
                    Err(FetchError::Stop(error)) => panic!("{error}"),
                }
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(
        inside > 0 && other > 0,
        "{inside} inside, {other} rejected: no race took place"
    );
}
