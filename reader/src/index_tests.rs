//! Indexes too large to keep: read row by row, and hashed in the background. A limit of 0 makes small ones large.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
pub(crate) mod synthetic;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stoker_formats::{ImageIndex, SampleIndex};

use crate::buffer::Source;
use crate::error::{Error, Result};
use crate::expand::Pixels;
use crate::index_store::KEPT_BYTES;
use crate::reader::{Reader, Step};
use crate::reader_options::ReaderOptions;
use crate::verify::Verify;

/// Names the cache for a child process that runs one test of this file by itself.
const CHILD: &str = "STOKER_TEST_INDEX";

/// The stack of every thread of such a child: more than it takes for anything else.
const STACK_BYTES: u64 = 256 << 20;

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[23, 17, 4]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    folder
}

fn options(path: &Path, verify: Verify) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, 4);
    options.pixels = Pixels::U8;
    options.sample_ids = true;
    options.verify = verify;
    options
}

fn open(path: &Path, kept_bytes: u64, verify: Verify) -> Reader {
    let options = options(path, verify);
    Reader::open_in(options, kept_bytes, |_| Ok(Source::Plain)).unwrap()
}

type Seen = (Vec<String>, u64, Vec<Vec<u8>>);

fn epoch(reader: &mut Reader) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    while let Step::Batch(batch) = reader.next_batch(None)? {
        let bytes = batch.tensors().iter().map(|of| batch.bytes(of).to_vec());
        let bytes = bytes.collect();
        seen.push((
            batch.sample_ids.clone().unwrap(),
            batch.n_loss_tokens,
            bytes,
        ));
    }
    Ok(seen)
}

/// The index files of the split that is read, sample and image.
fn indexes(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for plan in fs::read_dir(root).unwrap() {
        let folder = plan.unwrap().path().join("index");
        found.extend(
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .map(|file| file.unwrap().path()),
        );
    }
    found.retain(|path| !path.to_string_lossy().contains("p0002"));
    assert_eq!(found.len(), 4);
    found
}

/// A byte of an index that no entry is made of, so that only the file's hash can tell.
fn unused(path: &Path) -> u64 {
    let entries = |bytes: Vec<u8>| {
        let images = ImageIndex::parse(bytes.clone());
        let images = images.map(|index| index.iter().collect::<Vec<_>>());
        let samples = SampleIndex::parse(bytes);
        let samples = samples.map(|index| index.iter().collect::<Vec<_>>());
        (images.ok(), samples.ok())
    };
    let bytes = fs::read(path).unwrap();
    let intact = entries(bytes.clone());
    let found = (0..bytes.len()).rev().find(|at| {
        let mut flipped = bytes.clone();
        flipped[*at] ^= 1;
        entries(flipped) == intact
    });
    found.unwrap() as u64
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    byte[0] ^= 1;
    file.write_all_at(&byte, at).unwrap();
}

#[test]
fn rows_of_filed_indexes_are_those_of_kept_ones() {
    let folder = made();
    let kept = epoch(&mut open(folder.path(), KEPT_BYTES, Verify::FirstRead)).unwrap();
    for verify in [Verify::FirstRead, Verify::Always, Verify::Off] {
        let mut reader = open(folder.path(), 0, verify);
        assert!(epoch(&mut reader).unwrap() == kept, "{verify:?}");
    }
}

#[test]
fn every_damaged_index_is_found_and_a_restore_looks_again() {
    let folder = made();
    let intact = epoch(&mut open(folder.path(), 0, Verify::FirstRead)).unwrap();
    for path in indexes(folder.path()) {
        let end = unused(&path);
        flip(&path, end);
        let mut reader = open(folder.path(), 0, Verify::FirstRead);
        let fault = (0..1000).find_map(|_| epoch(&mut reader).err()).unwrap();
        assert!(
            fault.to_string().contains(&*path.to_string_lossy()),
            "{fault}"
        );
        assert!(matches!(epoch(&mut reader), Err(Error::Stopped { .. })));
        let cursor = reader.cursor().unwrap();
        reader.restore(&cursor).unwrap();
        let again = (0..1000).find_map(|_| epoch(&mut reader).err()).unwrap();
        assert_eq!(again.to_string(), fault.to_string());
        // Whoever wants no checks is not told.
        let mut off = open(folder.path(), 0, Verify::Off);
        assert!(epoch(&mut off).unwrap() == intact);
        flip(&path, end);
        reader.seek(0).unwrap();
        assert!(epoch(&mut reader).unwrap() == intact);
    }
}

#[test]
fn short_and_lost_indexes_are_named() {
    let folder = made();
    for path in indexes(folder.path()) {
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let mut reader = open(folder.path(), 0, Verify::Off);
        let fault = epoch(&mut reader).unwrap_err();
        assert!(
            fault.to_string().contains(&*path.to_string_lossy()),
            "{fault}"
        );
        fs::write(&path, bytes).unwrap();
    }
}

/// Bounds the address space of this process to `more` than it has now, or not at all.
fn limit(more: Option<u64>) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kibibytes: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    let current = more.map_or(maximum, |more| Some(kibibytes * 1024 + more));
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

#[test]
#[ignore = "the body of the test below, in a process of its own"]
fn lack_a_thread_in_a_child() {
    let path = std::env::var_os(CHILD).unwrap();
    let path = Path::new(&path);
    let expected = epoch(&mut open(path, KEPT_BYTES, Verify::FirstRead)).unwrap();
    let mut options = options(path, Verify::FirstRead);
    // Nothing is made before it is asked for, so that this call starts threads and gives nothing.
    options.prefetch_batches = 0;
    let mut reader = Reader::open_in(options, 0, |_| Ok(Source::Plain)).unwrap();
    let step = reader.next_batch(Some(Duration::ZERO)).unwrap();
    assert!(matches!(step, Step::TimedOut));
    limit(Some(STACK_BYTES / 2));
    let fault = reader.next_batch(None).unwrap_err();
    assert!(matches!(fault, Error::Thread { .. }), "{fault}");
    assert!(matches!(epoch(&mut reader), Err(Error::Stopped { .. })));
    limit(None);
    reader.restore(&reader.cursor().unwrap()).unwrap();
    assert!(epoch(&mut reader).unwrap() == expected);
}

#[test]
fn a_check_that_cannot_begin_loses_no_batch() {
    let folder = made();
    let name = "index_tests::lack_a_thread_in_a_child";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, folder.path())
        .env("RUST_MIN_STACK", STACK_BYTES.to_string())
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
