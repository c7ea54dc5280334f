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
use crate::files::CacheFiles;
use crate::index_store::{KEPT_BYTES, kept, path};
use crate::open_files::{FileId, FileKind};
use crate::reader::{Reader, Step};
use crate::reader_options::{CacheOptions, ReaderOptions};
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
fn short_and_lost_indexes_are_named_whether_kept_or_not() {
    let folder = made();
    for path in indexes(folder.path()) {
        let bytes = fs::read(&path).unwrap();
        let cut = || fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        for (harm, is_damage) in [
            (&cut as &dyn Fn(), true),
            (&|| fs::remove_file(&path).unwrap(), false),
        ] {
            let [kept, filed] = [KEPT_BYTES, 0].map(|kept_bytes| {
                let mut reader = open(folder.path(), kept_bytes, Verify::Off);
                harm();
                let fault = epoch(&mut reader).unwrap_err();
                fs::write(&path, &bytes).unwrap();
                fault
            });
            assert!(
                kept.to_string().contains(&*path.to_string_lossy()),
                "{kept}"
            );
            assert!(
                filed.to_string().contains(&*path.to_string_lossy()),
                "{filed}"
            );
            if is_damage {
                assert_eq!(filed.to_string(), kept.to_string());
            }
            assert_eq!((filed.is_damage(), filed.hint()), (is_damage, kept.hint()));
        }
        // One that is cut while it is open.
        let mut reader = open(folder.path(), 0, Verify::Off);
        epoch(&mut reader).unwrap();
        cut();
        let fault = (0..1000).find_map(|_| epoch(&mut reader).err()).unwrap();
        assert!(fault.is_damage(), "{fault}");
        fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn the_smallest_caches_are_kept_within_one_bound() {
    let folders: Vec<_> = [23, 5, 90, 6]
        .map(|rows| {
            let folder = tempfile::tempdir().unwrap();
            let content = synthetic::content_of(&[rows, 17, 4]);
            synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
            folder
        })
        .into();
    let files: Vec<_> = folders
        .iter()
        .map(|folder| CacheFiles::open(folder.path()).unwrap())
        .collect();
    let bytes = |cache: usize| {
        let partitions = files[cache].manifest().partitions.iter();
        let bytes = partitions.map(|of| of.images.index.bytes + of.samples.index.bytes);
        bytes.sum::<u64>()
    };
    let three = bytes(0) + bytes(1) + bytes(3);
    let largest = bytes(2);
    assert!(largest > bytes(0));
    for (most, expected) in [
        (u64::MAX, [true; 4]),
        (three + largest - 1, [true, true, false, true]),
        (three, [true, true, false, true]),
        (three - 1, [false, true, false, true]),
        (bytes(1) + bytes(3), [false, true, false, true]),
        (bytes(1), [false, true, false, false]),
        (0, [false; 4]),
    ] {
        assert_eq!(kept(files.iter(), most), expected, "{most}");
    }
    // And the rows are the same, wherever they come from.
    let mixture = |kept_bytes| {
        let mut options = options(folders[0].path(), Verify::FirstRead);
        options.caches = folders
            .iter()
            .map(|folder| CacheOptions::new(folder.path()))
            .collect();
        epoch(&mut Reader::open_in(options, kept_bytes, |_| Ok(Source::Plain)).unwrap()).unwrap()
    };
    assert!(mixture(three) == mixture(KEPT_BYTES));
}

/// Puts a FIFO in the place of a file, whose opening hangs until somebody writes.
fn hang(path: &Path) {
    fs::remove_file(path).unwrap();
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Ends the waiting opens of a FIFO.
fn release(path: &Path) {
    drop(
        fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap(),
    );
}

/// The file that a reader which gets no batch says it waits for.
fn waited_for(reader: &mut Reader) -> PathBuf {
    for _ in 0..500 {
        let step = reader.next_batch(Some(Duration::from_millis(10)));
        assert!(matches!(step, Ok(Step::TimedOut)), "{step:?}");
        if let [slow] = &reader.stats().unwrap().slow_reads[..] {
            return slow.path.clone();
        }
    }
    panic!("no slow read is named");
}

#[test]
fn reads_of_indexes_that_hang_are_named() {
    let folder = made();
    let found = indexes(folder.path()).into_iter();
    let samples: Vec<_> = found
        .filter(|path| SampleIndex::parse(fs::read(path).unwrap()).is_ok())
        .collect();
    let mut reader = open(folder.path(), 0, Verify::FirstRead);
    // As long as no read is slow none is named.
    assert!(matches!(reader.next_batch(None), Ok(Step::Batch(_))));
    assert_eq!(reader.stats().unwrap().slow_reads, []);
    let mut reader = open(folder.path(), 0, Verify::FirstRead);
    samples.iter().for_each(|path| hang(path));
    reader.slow = Duration::ZERO;
    let named = waited_for(&mut reader);
    assert!(samples.contains(&named), "{}", named.display());
    samples.iter().for_each(|path| release(path));
}

#[test]
fn reads_of_shards_that_hang_are_named() {
    let folder = made();
    let mut reader = open(folder.path(), KEPT_BYTES, Verify::FirstRead);
    let shards: Vec<_> = shards(folder.path(), "text-");
    shards.iter().for_each(|path| hang(path));
    reader.slow = Duration::ZERO;
    for _ in 0..500 {
        let step = reader.next_batch(Some(Duration::from_millis(10)));
        assert!(matches!(step, Ok(Step::TimedOut)), "{step:?}");
        let slow = reader.stats().unwrap().slow_reads;
        // Every thread waits for one.
        if slow.len() == reader.options().threads {
            assert!(
                slow.iter().all(|slow| shards.contains(&slow.path)),
                "{slow:?}"
            );
            shards.iter().for_each(|path| release(path));
            return;
        }
    }
    panic!("no slow read is named");
}

/// The shards in the folder that begins with `folder`.
fn shards(root: &Path, folder: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap());
    let of_kind = folders.filter(|entry| entry.file_name().to_string_lossy().starts_with(folder));
    let shards = of_kind.flat_map(|entry| fs::read_dir(entry.path().join("shards")).unwrap());
    shards.map(|shard| shard.unwrap().path()).collect()
}

#[test]
fn an_image_number_that_is_damaged_is_a_fault_of_the_sample() {
    let folder = made();
    let files = CacheFiles::open(folder.path()).unwrap();
    let id = FileId {
        cache: 0,
        kind: FileKind::SampleIndex,
        partition: 0,
        ordinal: 0,
    };
    let index = SampleIndex::parse(fs::read(path(&files, id)).unwrap()).unwrap();
    let (row, entry) = (0..index.len())
        .map(|row| (row, index.read(row).unwrap().unwrap()))
        .find(|(_, entry)| entry.n_images > 0)
        .unwrap();
    let shard = FileId {
        kind: FileKind::SampleShard,
        ordinal: entry.shard,
        ..id
    };
    // The highest byte of the number, so that it is beyond all images.
    flip(&path(&files, shard), entry.images + 3);
    let mut reader = open(folder.path(), KEPT_BYTES, Verify::Off);
    let fault = (0..1000).find_map(|_| epoch(&mut reader).err()).unwrap();
    assert!(fault.is_damage(), "{fault}");
    let text = fault.to_string();
    assert!(
        text.contains("an image number that the partition does not have"),
        "{text}"
    );
    assert!(
        text.contains(&*path(&files, shard).to_string_lossy()),
        "{text}"
    );
    assert!(text.contains(&format!("row {row}")), "{text}");
}

#[test]
fn the_peak_of_bytes_in_flight_outlives_a_restore() {
    let folder = made();
    let mut reader = open(folder.path(), KEPT_BYTES, Verify::FirstRead);
    epoch(&mut reader).unwrap();
    let peak = reader.stats().unwrap().peak_bytes_in_flight;
    assert!(peak > 0);
    reader.restore(&reader.cursor().unwrap()).unwrap();
    let stats = reader.stats().unwrap();
    assert_eq!(
        (stats.bytes_in_flight, stats.peak_bytes_in_flight),
        (0, peak)
    );
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
