//! `stoker repair --rebuild`: what is damaged is made again from the source, byte for byte, and nothing else is touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stoker_formats::ImageReceipt;
use stoker_tests::cache::{assert_same, files, flip};
use stoker_tests::clean::Clean;
use stoker_tests::command::Ended;
use stoker_tests::corpus::png;
use stoker_tests::dice::Dice;
use stoker_tests::parts::Scene;
use stoker_tests::snapshot;
use stoker_tests::strace::{Point, failed_at};

/// Inode and time of change of every shard.
fn stamps(root: &Path) -> BTreeMap<String, (u64, i64, i64)> {
    let stamp = |name: String| {
        let found = fs::metadata(root.join(&name)).expect("a file");
        (name, (found.ino(), found.ctime(), found.ctime_nsec()))
    };
    let shards = files(root).into_keys();
    shards
        .filter(|name| name.contains("shards/p"))
        .map(stamp)
        .collect()
}

fn cut(path: &Path) {
    let bytes = fs::read(path).expect("a file");
    fs::remove_file(path).expect("ours");
    fs::write(path, &bytes[..bytes.len() / 3]).expect("a file");
}

#[test]
fn a_whole_cache_is_mended_and_other_shards_are_not_touched() {
    let clean = Clean::new(60);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let names = |part: &str| -> Vec<String> {
        let all = clean.files.keys().filter(|name| name.contains(part));
        all.cloned().collect()
    };
    let is_image = |name: &&String| name.starts_with("images-");
    let images: Vec<String> = names("shards/p0000")
        .iter()
        .filter(is_image)
        .cloned()
        .collect();
    let texts: Vec<String> = names("shards/p0001")
        .into_iter()
        .filter(|name| name.starts_with("text-"))
        .collect();
    assert!(images.len() >= 4, "{images:?}");
    let mut damaged = vec![images[0].clone(), images[2].clone(), texts[0].clone()];
    flip(&output.join(&images[0]));
    fs::remove_file(output.join(&images[2])).expect("a shard");
    flip(&output.join(&texts[0]));
    for (name, how) in [
        (&names("index/p0001")[0], cut as fn(&Path)),
        (&names("tables/")[0], flip),
        (&names("tokenizer")[0], flip),
    ] {
        how(&output.join(name));
        damaged.push(name.clone());
    }
    let before = stamps(&output);
    let ended = clean.corpus.rebuild(&output).end().expect_code(0);
    assert!(ended.stdout.contains("sound again"), "{}", ended.stdout);
    for name in &damaged {
        assert!(
            ended.stdout.contains(name.as_str()),
            "{name}: {}",
            ended.stdout
        );
    }
    assert_same(&clean.files, &files(&output), "mended");
    let after = stamps(&output);
    for (name, stamp) in &before {
        let same = after.get(name) == Some(stamp);
        assert_eq!(same, !damaged.contains(name), "{name}");
    }
    let ended = clean.corpus.rebuild(&output).end().expect_code(0);
    assert!(
        ended.stdout.contains("result       sound\n"),
        "{}",
        ended.stdout
    );
    assert_eq!(after, stamps(&output));
}

#[test]
fn a_share_is_mended_by_its_parts() {
    let scene = Scene::new(40, &[]);
    let folders = scene.parts(2);
    let _ = scene.commit(&folders, &folders[0]).end().expect_code(0);
    let share = &folders[0];
    let good = files(share);
    let shards: Vec<&String> = good
        .keys()
        .filter(|name| name.contains("shards/p0000"))
        .collect();
    flip(&share.join(shards[0]));
    cut(&share.join(shards[shards.len() - 1]));
    let ended = scene.corpus.rebuild(share).end().expect_code(0);
    assert!(ended.stdout.contains("sound again"), "{}", ended.stdout);
    assert_same(&good, &files(share), "the share");
    // A damaged record says nothing of what was built here.
    let record = share.join("parts/0000-of-0002.json");
    let bytes = fs::read(&record).expect("a record");
    flip(&record);
    flip(&share.join(shards[0]));
    let ended = scene.corpus.rebuild(share).end().expect_code(1);
    let why = "parts/0000-of-0002.json is damaged";
    assert!(ended.stdout.contains(why), "{}", ended.stdout);
    fs::remove_file(&record).expect("ours");
    fs::write(&record, bytes).expect("a file");
    let _ = scene.corpus.rebuild(share).end().expect_code(0);
    assert_same(&good, &files(share), "the share");
    // Without the records nothing says it either.
    for entry in fs::read_dir(share.join("parts")).expect("a folder") {
        fs::remove_file(entry.expect("an entry").path()).expect("ours");
    }
    flip(&share.join(shards[0]));
    let ended = scene.corpus.rebuild(share).end().expect_code(2);
    assert!(ended.stderr.contains("--from"), "{}", ended.stderr);
}

#[test]
fn other_options_and_another_source_are_refused() {
    let clean = Clean::new(30);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let shard = clean
        .files
        .keys()
        .find(|name| name.contains("shards/p0000-000001"));
    let shard = output.join(shard.expect("a shard"));
    flip(&shard);
    let broken = fs::read(&shard).expect("a shard");
    let folder = clean.corpus.path().display().to_string();
    let check = |name: &str, ended: &_| snapshot::check(name, ended, &[(&folder, "[FOLDER]")]);
    let ended = clean.corpus.rebuild(&output).with("--seed", "5").end();
    check("rebuild_other_options", &ended);
    assert_eq!(fs::read(&shard).expect("a shard"), broken);
    assert!(!output.join("building.json").exists());
    for worker in [["--worker", "0"], ["--workers", "2"]] {
        let ended = clean.corpus.rebuild(&output).args(worker).end();
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    }
    let _ = clean.corpus.rebuild(&output).end().expect_code(0);
    assert_same(&clean.files, &files(&output), "with the right ones");
}

/// The picture behind the first row of the shard of this receipt.
fn picture(receipt: &Path) -> PathBuf {
    let bytes = fs::read(receipt).expect("a receipt");
    let receipt = ImageReceipt::parse(&bytes).expect("a receipt");
    let mut sources = receipt.sources.iter();
    let source = sources.find(|source| source.item == receipt.items[0]);
    let uri = &source.expect("what was read").uri;
    PathBuf::from(uri.strip_prefix("file://").unwrap_or(uri))
}

/// One file that cannot be made again costs no other its repair.
#[test]
fn what_cannot_be_made_again_stays_and_the_rest_is_mended() {
    let clean = Clean::new(60);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let name = |folder: &str, part: &str| clean.name(folder, part);
    let (first, later) = (
        name("images-", "shards/p0000-000000"),
        name("images-", "shards/p0000-000002"),
    );
    let receipt = first.replace("shards", "receipts").replace("arrow", "json");
    let picture = picture(&output.join(&receipt));
    let before = fs::read(&picture).expect("a picture");
    fs::write(&picture, png(&mut Dice::new(5), 40, 40)).expect("a picture");
    let broken = |names: &[&String]| {
        for name in names {
            flip(&output.join(name));
        }
    };
    let others = [
        later,
        name("images-", "shards/p0001"),
        name("text-", "shards/p0000"),
        name("text-", "index/p0001"),
        name("text-", "tables/samples"),
        name("text-", "tokenizer"),
    ];
    broken(&[&first]);
    broken(&others.iter().collect::<Vec<_>>());
    let bytes = fs::read(output.join(&first)).expect("a shard");
    let rebuild = || clean.corpus.rebuild(&output).end();
    let ended = rebuild().expect_code(1);
    let folder = clean.corpus.path().display().to_string();
    snapshot::check("rebuild_remains", &ended, &[(&folder, "[FOLDER]")]);
    assert_eq!(fs::read(output.join(&first)).expect("a shard"), bytes);
    let mut rest = files(&output);
    rest.insert(first.clone(), clean.files[&first].clone());
    assert_same(&clean.files, &rest, "the others");
    // Folders in the place of files: of a shard, of a receipt, and of a table.
    fs::write(&picture, before).expect("a picture");
    let blocked = [
        others[2].clone(),
        name("images-", "receipts/p0001"),
        name("text-", "tables/rejects"),
    ];
    for name in &blocked {
        fs::remove_file(output.join(name)).expect("ours");
        fs::create_dir(output.join(name)).expect("a folder");
    }
    broken(&[&others[0], &others[5]]);
    let ended = rebuild().expect_code(1);
    let remain = ended.stdout.matches("remove what stands in its place");
    assert_eq!(remain.count(), 3, "{}", ended.stdout);
    assert!(ended.stdout.contains("3 of 6 files"), "{}", ended.stdout);
    for name in &blocked {
        fs::remove_dir(output.join(name)).expect("a folder");
    }
    let _ = rebuild().expect_code(0);
    assert_same(&clean.files, &files(&output), "all of it");
}

/// What became of pictures is said by their receipts alone, and text is made of it.
#[test]
fn a_lost_receipt_of_images_and_text_of_its_partition_come_back_or_are_named() {
    let clean = Clean::new(60);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let name = |folder: &str, part: &str| clean.name(folder, part);
    let receipt = name("images-", "receipts/p0000-000001");
    let later = name("images-", "receipts/p0000-000003");
    let text = name("text-", "shards/p0000-000000");
    let lose = |names: &[&str]| {
        for name in names {
            fs::remove_file(output.join(name)).expect("ours");
        }
    };
    // Not of the next one: where a shard ends depends on the picture that follows.
    let [own, later] = [&receipt, &later].map(|receipt| picture(&output.join(receipt)));
    let rebuild = || clean.corpus.rebuild(&output).end();
    lose(&[&receipt, &text]);
    let ended = rebuild().expect_code(0);
    assert!(ended.stdout.contains("sound again"), "{}", ended.stdout);
    assert_same(&clean.files, &files(&output), "mended");
    for more in [None, Some("manifest.json")] {
        lose(&[&receipt, &text]);
        lose(more.as_slice());
        clean.finish(&output, "built on");
    }
    let change = |picture: &Path| {
        let before = fs::read(picture).expect("a picture");
        fs::write(picture, png(&mut Dice::new(5), 40, 40)).expect("a picture");
        before
    };
    // A picture of the receipt's own has changed: it is named, and what is made of it.
    let before = change(&own);
    lose(&[&receipt, &text]);
    let ended = rebuild().expect_code(1);
    for what in [
        format!("DAMAGED      {receipt}"),
        "it would come out otherwise".to_owned(),
        format!("DAMAGED      {text}"),
        "it is made of others that could not be made again".to_owned(),
    ] {
        assert!(ended.stdout.contains(&what), "{what}: {}", ended.stdout);
    }
    let refused = |ended: Ended| {
        let ended = ended.expect_code(2);
        let is_named = ended.stderr.contains("/images-");
        let what = "cannot be made again";
        assert!(is_named && ended.stderr.contains(what), "{}", ended.stderr);
    };
    refused(clean.corpus.build(&output).end());
    fs::write(&own, before).expect("a picture");
    let _ = rebuild().expect_code(0);
    assert_same(&clean.files, &files(&output), "with the picture again");
    // One of a receipt that follows, which is there: what it says is enough.
    let before = change(&later);
    lose(&[&receipt, &text]);
    let ended = rebuild().expect_code(0);
    assert!(ended.stdout.contains("sound again"), "{}", ended.stdout);
    assert_same(&clean.files, &files(&output), "without that picture");
    lose(&[&receipt, &text]);
    refused(clean.corpus.build(&output).end());
    clean.finish(&output, "built on at the second time");
    fs::write(&later, before).expect("a picture");
}

/// A repair that could not end leaves a cache that is committed, and nothing that is in anybody's way.
#[test]
fn a_repair_without_its_source_leaves_nothing_behind() {
    let clean = Clean::new(40);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let images = || {
        clean
            .files
            .keys()
            .filter(|name| name.starts_with("images-"))
    };
    let first = images().find(|name| name.contains("shards/p0000-000000"));
    let shard = output.join(first.expect("a shard"));
    fs::remove_file(&shard).expect("a shard");
    let images = clean.corpus.data().join("images");
    let away = clean.corpus.path().join("away");
    fs::rename(&images, &away).expect("the pictures");
    let ended = clean.corpus.rebuild(&output).end().expect_code(1);
    assert!(
        ended.stdout.contains("would come out otherwise"),
        "{}",
        ended.stdout
    );
    for name in ["building.json", "in-flight", "spool"] {
        assert!(!output.join(name).exists(), "{name}");
    }
    fs::rename(&away, &images).expect("the pictures");
    let _ = clean.corpus.rebuild(&output).end().expect_code(0);
    assert_same(&clean.files, &files(&output), "with the pictures again");
}

/// A file whose check was broken off is not called damaged.
#[test]
fn a_repair_that_is_stopped_while_it_checks_says_so() {
    let clean = Clean::new(30);
    let output = clean.corpus.output("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let shard = clean.name("images-", "shards/p0000-000001");
    fs::remove_file(output.join(&shard)).expect("a shard");
    // It is written under another name, so who opens it first is the check.
    let point = Point {
        call: "openat".into(),
        path: (&shard).into(),
        nth: 1,
    };
    let rebuild = clean.corpus.rebuild(&output);
    let stopped = failed_at(&rebuild, &output, &point, "signal=SIGINT").end();
    let stopped = stopped.expect_code(130);
    assert!(stopped.stderr.contains("SIGINT"), "{}", stopped.stderr);
    let _ = rebuild.end().expect_code(0);
    assert_same(&clean.files, &files(&output), "mended");
}
