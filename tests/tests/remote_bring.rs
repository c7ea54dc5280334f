//! What a remote gives: the right bytes from a folder and from S3, raw and compressed, or an error that names the file.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use stoker_builder::remote::{Remote, RemoteFile, RemoteOptions};
use stoker_builder::source::CredentialSource;
use stoker_builder::{Error, Result};
use stoker_reader::CacheFile;
use stoker_tests::remote::{Scene, copy};
use stoker_tests::s3::{ACCESS_KEY, SECRET_KEY, Server};
use tokio::runtime::Runtime;

fn options(server: Option<&Server>) -> RemoteOptions {
    RemoteOptions {
        endpoint: server.map(Server::endpoint),
        credentials: CredentialSource::Fixed {
            access_key: ACCESS_KEY.into(),
            secret_key: SECRET_KEY.into(),
        },
        ..RemoteOptions::default()
    }
}

fn bring(remote: &Remote, file: &CacheFile) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let outcome = remote.bring(&RemoteFile::from(file), &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    assert!(bytes.len() as u64 <= file.entry.bytes, "too many bytes");
    outcome.map(|_| bytes)
}

fn is_shard(file: &CacheFile) -> bool {
    file.relative().contains("/shards/")
}

/// Compresses every second shard below `root`, as anybody's zstd would.
fn compress_some(root: &Path, remote: &Remote) {
    for file in remote.files().filter(is_shard).step_by(2) {
        let path = root.join(file.relative());
        let packed = zstd::encode_all(fs::read(&path).unwrap().as_slice(), 1).unwrap();
        fs::write(root.join(file.relative() + ".zst"), packed).unwrap();
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn every_file_comes_as_it_is_from_folders_and_from_s3() {
    let scene = Scene::new(&[40, 7, 12]);
    let runtime = Runtime::new().unwrap();
    let server = scene.serve();
    copy(&scene.cache(), &scene.objects("raw"));
    copy(&scene.cache(), &scene.objects("a/packed"));
    let handle = runtime.handle();
    let raw = scene.objects("raw").display().to_string();
    let packed = scene.objects("a/packed").display().to_string();
    let open = |uri: &str| Remote::open(uri, &options(Some(&server)), handle.clone()).unwrap();
    compress_some(&scene.objects("a/packed"), &open(&packed));
    for uri in [&raw, &packed, "s3://bucket/raw", "s3://bucket/a/packed/"] {
        let remote = open(uri);
        assert_eq!(*remote.manifest(), scene.manifest);
        assert!(remote.files().filter(is_shard).count() > 6);
        std::thread::scope(|scope| {
            for file in remote.files() {
                let remote = remote.clone();
                let root = scene.cache();
                scope.spawn(move || {
                    let want = fs::read(root.join(file.relative())).unwrap();
                    assert!(
                        bring(&remote, &file).unwrap() == want,
                        "{}",
                        file.relative()
                    );
                });
            }
        });
    }
}

#[test]
fn what_is_damaged_or_missing_is_named_and_never_taken() {
    let scene = Scene::new(&[40, 7, 12]);
    let runtime = Runtime::new().unwrap();
    let server = scene.serve();
    copy(&scene.cache(), &scene.objects("bad"));
    let folder = scene.objects("bad").display().to_string();
    let open =
        |uri: &str| Remote::open(uri, &options(Some(&server)), runtime.handle().clone()).unwrap();
    let remote = open(&folder);
    let shards: Vec<CacheFile> = remote.files().filter(is_shard).collect();
    let path = |file: &CacheFile| scene.objects("bad").join(file.relative());
    let read = |file: &CacheFile| fs::read(path(file)).unwrap();
    let zst = |file: &CacheFile, bytes: &[u8]| {
        fs::write(scene.objects("bad").join(file.relative() + ".zst"), bytes).unwrap();
    };
    let whole = zstd::encode_all(read(&shards[0]).as_slice(), 3).unwrap();
    let mut flipped = read(&shards[0]);
    flipped[9000] ^= 1;
    let mut longer = read(&shards[1]);
    longer.push(0);
    // Hundreds of MiB of zeros in some KiB.
    let bomb = zstd::encode_all(std::io::repeat(0).take(256 << 20), 3).unwrap();
    assert!((bomb.len() as u64) < shards[2].entry.bytes);
    zst(
        &shards[0],
        &zstd::encode_all(flipped.as_slice(), 3).unwrap(),
    );
    zst(&shards[1], &zstd::encode_all(longer.as_slice(), 3).unwrap());
    zst(&shards[2], &bomb);
    zst(&shards[3], b"no zstd at all");
    zst(&shards[4], &whole);
    let packed = zstd::encode_all(read(&shards[5]).as_slice(), 3).unwrap();
    zst(&shards[5], &packed[..packed.len() / 2]);
    zst(
        &shards[6],
        &vec![0; usize::try_from(shards[6].entry.bytes).unwrap() * 2 + (1 << 20)],
    );
    fs::remove_file(path(&shards[7])).unwrap();
    let index = remote
        .files()
        .find(|file| file.relative().contains("index"))
        .unwrap();
    let mut bytes = read(&index);
    bytes[500] ^= 4;
    fs::remove_file(path(&index)).unwrap();
    fs::write(path(&index), bytes).unwrap();
    let tokenizer = remote.files().last().unwrap();
    let bytes = read(&tokenizer);
    fs::remove_file(path(&tokenizer)).unwrap();
    fs::write(path(&tokenizer), &bytes[1..]).unwrap();
    for uri in [folder.as_str(), "s3://bucket/bad"] {
        let remote = open(uri);
        let cases = [
            (shards[0], "does not match its hash"),
            (shards[1], "holds more than"),
            (shards[2], "holds more than"),
            (shards[3], "cannot be decompressed"),
            (shards[4], ""),
            (shards[5], ""),
            (shards[6], "that it may have"),
            (shards[7], "lacks a file"),
            (index, "does not match its hash"),
            (tokenizer, "it ends after"),
        ];
        for (file, what) in cases {
            let error = bring(&remote, &file).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Remote { .. }), "{text}");
            assert!(
                text.contains(what) && text.contains(&file.relative()),
                "{text}"
            );
            assert!(error.hint().is_some());
        }
        assert!(bring(&remote, &shards[8]).is_ok());
    }
}

#[test]
fn without_a_manifest_there_is_no_remote() {
    let scene = Scene::new(&[4, 4, 4]);
    let runtime = Runtime::new().unwrap();
    let server = scene.serve();
    let empty = scene.objects("none").display().to_string();
    for uri in [empty.as_str(), "s3://bucket/none"] {
        let opened = Remote::open(uri, &options(Some(&server)), runtime.handle().clone());
        let error = opened.unwrap_err().to_string();
        assert!(
            error.contains("no cache is there") && error.contains(uri),
            "{error}"
        );
    }
    for uri in ["http://host/x", "s3://b", "s3://user:secret@bucket/x"] {
        let opened = Remote::open(uri, &options(None), runtime.handle().clone());
        let error = opened.unwrap_err();
        assert!(matches!(error, Error::Input { .. }), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
