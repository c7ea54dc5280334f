//! What is refused of pack tables, and what damage to them comes to.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

mod packed;

use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::Manifest;
use stoker_reader::{
    CacheOptions, Error, Layout, OrderError, Reader, ReaderOptions, Shuffle, Step, Tail,
};
use synthetic::Content;

struct Made {
    folder: tempfile::TempDir,
    content: Vec<Content>,
    manifest: Manifest,
    files: [PathBuf; 2],
}

fn made(table: (&str, u32)) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[11, 7, 5]);
    let manifest = synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    let groups = packed::grouped(&content, table.1);
    let files = packed::write(folder.path(), &manifest, &content, table, &groups);
    Made {
        folder,
        content,
        manifest,
        files,
    }
}

fn options(path: &Path, pack: &str) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, 1);
    options.pack = Some(pack.to_owned());
    options.order.tail = Tail::All;
    options.sample_ids = true;
    options
}

/// The sample ids of an epoch's batches, or the first error.
fn read(path: &Path) -> Result<Vec<Vec<String>>, Error> {
    let mut reader = Reader::open(options(path, "8k"))?;
    let mut ids = Vec::new();
    loop {
        match reader.next_batch(None)? {
            Step::Batch(batch) => ids.push(batch.sample_ids.unwrap()),
            Step::EpochEnd => return Ok(ids),
            Step::TimedOut => panic!("waits without end"),
        }
    }
}

#[test]
fn a_table_that_is_not_there_is_refused_naming_those_that_are() {
    let made = made(("8k", 64));
    let root = made.folder.path();
    for name in ["32k", "../8k", "8k.json", ""] {
        let error = Reader::open(options(root, name)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("`{name}`")) && text.contains("there are `8k`"),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("stoker pack"));
    }
    fs::remove_dir_all(root.join("packs")).unwrap();
    let text = Reader::open(options(root, "8k")).unwrap_err().to_string();
    assert!(text.contains("there are none"), "{text}");
}

#[test]
fn a_table_of_another_cache_is_refused() {
    let made = made(("8k", 64));
    let other = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[11, 6, 5]);
    synthetic::write(other.path(), &content, &synthetic::opaque_tables());
    fs::create_dir(other.path().join("packs")).unwrap();
    for file in &made.files {
        let name = file.file_name().unwrap();
        fs::copy(file, other.path().join("packs").join(name)).unwrap();
    }
    let error = Reader::open(options(other.path(), "8k")).unwrap_err();
    assert!(matches!(error, Error::OtherPack { .. }), "{error}");
    assert!(error.to_string().contains("8k.json"), "{error}");
    // Nor does a table answer to another name.
    let packs = made.folder.path().join("packs");
    fs::copy(&made.files[0], packs.join("16k.json")).unwrap();
    let error = Reader::open(options(made.folder.path(), "16k")).unwrap_err();
    assert!(error.to_string().contains("calls itself 8k"), "{error}");
}

#[test]
fn options_that_make_no_sense_with_packs_are_refused() {
    let made = made(("8k", 64));
    let root = made.folder.path();
    let mut padded = options(root, "8k");
    padded.layout = Some(Layout::default());
    let error = Reader::open(padded).unwrap_err();
    assert!(
        error.to_string().contains("packed rows only: `padded`"),
        "{error}"
    );
    let mut by_shard = options(root, "8k");
    by_shard.order.shuffle = Shuffle::Shard;
    let error = Reader::open(by_shard).unwrap_err();
    assert!(
        matches!(error, Error::Order(OrderError::ShardsOfPacks { .. })),
        "{error}"
    );
    // A mixture needs the table in each cache, of one budget.
    let mixture = |other: &Made| {
        let mut options = options(root, "8k");
        let path = other.folder.path().to_path_buf();
        options.caches.push(CacheOptions::new(path));
        Reader::open(options)
    };
    assert!(mixture(&self::made(("8k", 64))).is_ok());
    let error = mixture(&self::made(("16k", 64))).unwrap_err();
    assert!(matches!(error, Error::NoPack { .. }), "{error}");
    let error = mixture(&self::made(("8k", 65))).unwrap_err().to_string();
    assert!(
        error.contains("packs of 64 tokens") && error.contains("of 65"),
        "{error}"
    );
}

#[test]
fn a_changed_or_shortened_file_is_an_error_and_never_a_batch() {
    let made = made(("8k", 64));
    let root = made.folder.path();
    let intact = read(root).unwrap();
    assert!(intact.len() > 4);
    for file in &made.files {
        let bytes = fs::read(file).unwrap();
        for at in (0..bytes.len()).step_by((bytes.len() / 150).max(1)) {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            fs::write(file, &changed).unwrap();
            let error = read(root).expect_err("a changed byte");
            assert!(error.to_string().contains("packs/"), "byte {at}: {error}");
            fs::write(file, &bytes[..at]).unwrap();
            let error = read(root).expect_err("a shorter file");
            assert!(error.to_string().contains("packs/"), "{at} bytes: {error}");
        }
        fs::write(file, &bytes).unwrap();
    }
    assert_eq!(read(root).unwrap(), intact);
    fs::remove_file(&made.files[1]).unwrap();
    let error = read(root).unwrap_err().to_string();
    assert!(
        error.contains("1 file is missing") && error.contains("packs/"),
        "{error}"
    );
}

#[test]
fn a_table_that_counts_otherwise_than_its_samples_is_an_error() {
    let made = made(("8k", 64));
    let root = made.folder.path();
    let groups = packed::grouped(&made.content, 64);
    // Counted for samples with one token less.
    let mut shorter = made.content.clone();
    for sample in shorter.iter_mut().flat_map(|part| &mut part.samples) {
        sample.input_ids.pop();
    }
    packed::write(root, &made.manifest, &shorter, ("8k", 64), &groups);
    let error = read(root).unwrap_err().to_string();
    assert!(error.contains("counts other tokens"), "{error}");
    assert!(
        error.contains("pack ") && error.contains("table 8k"),
        "{error}"
    );
}

#[test]
fn a_damaged_sample_is_named_with_its_pack() {
    let made = made(("8k", 64));
    let root = made.folder.path();
    let shard = format!("text-{}/shards/p0001-000000.arrow", "22".repeat(16));
    let shard = root.join(shard);
    let mut bytes = fs::read(&shard).unwrap();
    let id = made.content[1].samples[2].sample_id.as_bytes();
    let at = bytes.windows(id.len()).position(|part| part == id).unwrap();
    bytes[at] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let error = read(root).unwrap_err();
    let text = error.to_string();
    for part in [
        "p0001-000000.arrow",
        "partition 1",
        "row 2",
        "pack ",
        "table 8k",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(error.hint(), {
        let Error::InPack { error, .. } = &error else {
            panic!("{error}");
        };
        error.hint()
    });
}
