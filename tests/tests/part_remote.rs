//! Parts in S3: `stoker commit` brings everything but their shards, and takes no byte that their records do not name (J1).

use std::fs;
use std::path::{Path, PathBuf};

use stoker_tests::cache::files;
use stoker_tests::command::Ended;
use stoker_tests::parts::{Scene, copy_small, small};
use stoker_tests::remote::through;
use stoker_tests::s3::Server;

#[test]
fn parts_are_committed_from_a_bucket() {
    let scene = Scene::new(40, &["--partitions", "4"]);
    let parts = scene.parts(3);
    let root = scene.corpus.output("s3");
    let place = |worker: usize| root.join(format!("bucket/parts/{worker}"));
    for (worker, part) in parts.iter().enumerate().skip(1) {
        copy_small(part, &place(worker));
    }
    let server = Server::start(&root).expect("the S3 server");
    // One part is here, with its shards; the others are not.
    let mut names = vec![parts[0].clone()];
    names.extend((1..3).map(|worker| PathBuf::from(format!("s3://bucket/parts/{worker}/"))));
    let commit = |output: &Path| -> Ended {
        through(scene.commit(&names, output), &server.endpoint()).end()
    };
    let output = scene.corpus.output("joined");
    let ended = commit(&output).expect_code(0);
    let (clean, _) = scene.clean_files();
    assert_eq!(small(&output), clean, "{}", ended.stdout);
    assert!(!output.join(".parts.tmp").exists());

    let in_place = commit(&parts[0]).expect_code(0);
    assert!(in_place.stdout.contains("elsewhere"), "{}", in_place.stdout);

    // What is not what the record says is named, and nothing is committed.
    let names: Vec<String> = files(&place(1)).into_keys().collect();
    for kind in [
        "receipts/p",
        "index/p",
        ".parquet",
        "tokenizer",
        "parts/0001-of-0003.json",
    ] {
        let name = names.iter().find(|name| name.contains(kind)).expect(kind);
        let path = place(1).join(name);
        let good = fs::read(&path).expect("a file");
        let mut bytes = good.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        for (way, bytes) in [("flipped", Some(bytes)), ("gone", None)] {
            fs::remove_file(&path).expect("ours");
            if let Some(bytes) = bytes {
                fs::write(&path, bytes).expect("a file");
            }
            let output = scene.corpus.output("broken");
            let ended = commit(&output).expect_code(2);
            assert!(
                ended.stderr.contains("s3://bucket/parts/1"),
                "{kind} {way}: {}",
                ended.stderr
            );
            assert!(!output.join("manifest.json").exists() && !output.join(".parts.tmp").exists());
            let _ = fs::remove_dir_all(&output);
            let _ = fs::write(&path, &good);
        }
    }
}
