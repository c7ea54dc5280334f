//! Indexes too large to keep: read row by row, and hashed in the background. A limit of 0 makes small ones large.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
pub(crate) mod synthetic;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stoker_formats::{ImageIndex, SampleIndex};

use crate::buffer::Source;
use crate::error::{Error, Result};
use crate::expand::Pixels;
use crate::index_store::KEPT_BYTES;
use crate::reader::{Reader, Step};
use crate::reader_options::ReaderOptions;
use crate::verify::Verify;

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[23, 17, 4]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    folder
}

fn open(path: &Path, kept_bytes: u64, verify: Verify) -> Reader {
    let mut options = ReaderOptions::new(path, 4);
    options.pixels = Pixels::U8;
    options.sample_ids = true;
    options.verify = verify;
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
