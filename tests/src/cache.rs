//! Looks at a cache from outside: all its files, whether what its manifest names is there, its rows.
//!
//! Owns no format: bytes are judged by `stoker_formats`. Invariant: [`committed`] accepts a cache only
//! if every file that the manifest names has its size and hash.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, MANIFEST_NAME, Manifest, PartitionFiles, SampleIndex,
};

/// The lock file names its holder, and is no part of the cache.
const LOCK: &str = "stoker.lock";

/// The BLAKE3 of every file below `root` but the lock, by path; folders stand with an empty hash.
///
/// # Panics
/// If something cannot be read.
#[must_use]
pub fn files(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let entry = entry.expect("a readable folder");
            let path = entry.path();
            let name = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .display()
                .to_string();
            if name == LOCK {
                continue;
            }
            let kind = entry.file_type().expect("a file type");
            let hash = if kind.is_dir() {
                folders.push(path);
                String::new()
            } else if kind.is_symlink() {
                format!("-> {}", fs::read_link(&path).expect("a link").display())
            } else {
                blake3::hash(&fs::read(&path).expect("a readable file")).to_string()
            };
            found.insert(name, hash);
        }
    }
    found
}

/// Fails the test unless both folders hold the same files with the same bytes.
///
/// # Panics
/// With the names that differ.
pub fn assert_same(left: &BTreeMap<String, String>, right: &BTreeMap<String, String>, what: &str) {
    if left == right {
        return;
    }
    let only = |one: &BTreeMap<String, String>, other: &BTreeMap<String, String>| -> Vec<String> {
        one.keys()
            .filter(|name| !other.contains_key(*name))
            .cloned()
            .collect()
    };
    let changed: Vec<&String> = left
        .iter()
        .filter(|(name, hash)| right.get(*name).is_some_and(|other| other != *hash))
        .map(|(name, _)| name)
        .collect();
    panic!(
        "{what}: missing {:?}, new {:?}, other bytes {changed:?}",
        only(left, right),
        only(right, left)
    );
}

/// Changes a bit in the middle of a file.
pub fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    fs::remove_file(path).expect("ours");
    fs::write(path, bytes).expect("a file");
}

/// The manifest of `root`, if one is committed: then all that it names is whole.
///
/// # Panics
/// If a named file is missing or damaged, or the manifest is.
#[must_use]
pub fn committed(root: &Path) -> Option<Manifest> {
    checked(root, true)
}

/// The same of a folder that need not hold the shards.
///
/// # Panics
/// If another named file is missing or damaged, or the manifest is.
#[must_use]
pub fn committed_without_shards(root: &Path) -> Option<Manifest> {
    checked(root, false)
}

fn checked(root: &Path, with_shards: bool) -> Option<Manifest> {
    let bytes = match fs::read(root.join(MANIFEST_NAME)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => panic!("{error}"),
    };
    let manifest = Manifest::parse(bytes).expect("a whole manifest");
    let images = Folder::Images(manifest.image_plan_id);
    let text = Folder::Text(manifest.text_plan_id);
    let check = |folder: Folder, name: FileName, entry: &FileEntry| {
        if !with_shards && matches!(name, FileName::Shard { .. }) {
            return;
        }
        let path = root.join(folder.to_string()).join(name.to_string());
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(bytes.len() as u64, entry.bytes, "{}", path.display());
        assert_eq!(ContentHash::of(&bytes), entry.hash, "{}", path.display());
    };
    for (partition, files) in (0..).zip(&manifest.partitions) {
        for (folder, files) in [(images, &files.images), (text, &files.samples)] {
            check_partition(partition, folder, files, &check);
        }
    }
    for (name, entry) in manifest.tables.files() {
        check(text, name, &entry);
    }
    let hash = manifest.tokenizer.hash;
    check(text, FileName::Tokenizer { hash }, &manifest.tokenizer);
    Some(manifest)
}

fn check_partition(
    partition: u32,
    folder: Folder,
    files: &PartitionFiles,
    check: &impl Fn(Folder, FileName, &FileEntry),
) {
    check(folder, FileName::Index { partition }, &files.index);
    for (ordinal, (shard, receipt)) in (0..).zip(files.shards.iter().zip(&files.receipts)) {
        check(folder, FileName::Receipt { partition, ordinal }, receipt);
        if let Some(shard) = shard {
            check(folder, FileName::Shard { partition, ordinal }, shard);
        }
    }
}

/// The sample ids of every split, in order of partitions and rows, read through the indexes.
///
/// # Panics
/// If there is no committed cache.
#[must_use]
pub fn sample_ids(root: &Path) -> BTreeMap<String, Vec<String>> {
    let manifest = committed(root).expect("a committed cache");
    let folder = root.join(Folder::Text(manifest.text_plan_id).to_string());
    let mut splits = BTreeMap::new();
    for split in &manifest.splits {
        let ids: &mut Vec<String> = splits.entry(split.name.clone()).or_default();
        for partition in split.first_partition..split.first_partition + split.partitions {
            let index = folder.join(FileName::Index { partition }.to_string());
            let index = SampleIndex::parse(fs::read(index).expect("an index")).expect("an index");
            for entry in index.iter() {
                let ordinal = entry.shard;
                let shard = folder.join(FileName::Shard { partition, ordinal }.to_string());
                let bytes = fs::read(shard).expect("a shard");
                let start = usize::try_from(entry.sample_id).expect("a small shard");
                let text = bytes[start..start + entry.sample_id_bytes as usize].to_vec();
                ids.push(String::from_utf8(text).expect("UTF-8"));
            }
        }
    }
    splits
}

/// A row of a table, every value as text; null is empty.
pub type TextRow = BTreeMap<String, String>;

/// The rows of the table `kind` (`samples`, `rejects`, `provenance`).
///
/// # Panics
/// If there is no committed cache.
#[must_use]
pub fn table(root: &Path, kind: &str) -> Vec<TextRow> {
    let manifest = committed(root).expect("a committed cache");
    let folder = root.join(Folder::Text(manifest.text_plan_id).to_string());
    let (name, _) = manifest
        .tables
        .files()
        .into_iter()
        .find(|(name, _)| name.to_string().contains(kind))
        .expect("a table of this kind");
    let file = fs::File::open(folder.join(name.to_string())).expect("a table");
    let reader = SerializedFileReader::new(file).expect("a Parquet file");
    let text = |field: &Field| match field {
        Field::Null => String::new(),
        Field::Str(text) => text.clone(),
        other => other.to_string(),
    };
    reader
        .get_row_iter(None)
        .expect("rows")
        .map(|row| {
            let row = row.expect("a row");
            row.get_column_iter()
                .map(|(name, field)| (name.clone(), text(field)))
                .collect()
        })
        .collect()
}
