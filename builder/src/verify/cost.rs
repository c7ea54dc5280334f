//! Which samples a damaged file costs.
//!
//! Owns the answer for each kind of file. Invariant: a sample is called lost if and only if it, or an image that it
//! uses, can no longer be read through the index with its checksum; receipts, tables and tokenizer cost none.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::ops::Range;

use stoker_formats::{
    FileName, Folder, ImageEntry, PartitionFiles, SampleEntry, ShardKind, read_image, read_sample,
    read_shard_head,
};
use stoker_reader::{CacheFile, CacheFiles};

use super::{Indexes, Rows};

/// The partition whose samples a file can cost.
pub(super) fn partition_of(name: FileName) -> Option<u32> {
    match name {
        FileName::Shard { partition, .. } | FileName::Index { partition } => Some(partition),
        FileName::Receipt { .. } | FileName::Table { .. } | FileName::Tokenizer { .. } => None,
    }
}

/// The sample rows of `partition` that damage to `file`, one of its shards or indexes, costs.
pub(super) fn of(files: &CacheFiles, partition: u32, indexes: &Indexes, file: &CacheFile) -> Rows {
    let rows = match (file.name, file.folder) {
        (FileName::Index { .. }, Folder::Text(_)) => all_samples(files, partition),
        (FileName::Index { .. }, Folder::Images(_)) => {
            samples_using(files, partition, indexes, |_| true)
        }
        (FileName::Shard { ordinal, .. }, Folder::Text(_)) => {
            lost_samples(files, partition, ordinal, indexes, file)
        }
        (FileName::Shard { ordinal, .. }, Folder::Images(_)) => {
            let lost = lost_images(files, partition, ordinal, indexes, file);
            samples_using(files, partition, indexes, |image| {
                lost.contains(&u64::from(image))
            })
        }
        _ => Vec::new(),
    };
    Rows { partition, rows }
}

fn all_samples(files: &CacheFiles, partition: u32) -> Vec<u64> {
    let rows = files
        .partition(partition)
        .map_or(0, |entry| entry.samples.index.rows);
    (0..rows).collect()
}

/// The rows of shard `ordinal`, by the manifest.
pub(super) fn rows_of(files: &PartitionFiles, ordinal: u32) -> Range<u64> {
    let rows = |entry: &Option<stoker_formats::FileEntry>| entry.map_or(0, |entry| entry.rows);
    let before = files.shards.iter().take(ordinal as usize).map(rows).sum();
    before..before + files.shards.get(ordinal as usize).map_or(0, rows)
}

/// The shard, if its head is still that of this place.
fn open(files: &CacheFiles, file: &CacheFile, kind: ShardKind, rows: &Range<u64>) -> Option<File> {
    let path = files.path(file.folder, file.name);
    if !fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let input = File::open(&path).ok()?;
    let head = read_shard_head(&input, kind).ok()?;
    let right = FileName::Shard {
        partition: head.partition,
        ordinal: head.shard,
    } == file.name
        && head.first_row == rows.start;
    right.then_some(input)
}

fn lost_samples(
    files: &CacheFiles,
    partition: u32,
    ordinal: u32,
    indexes: &Indexes,
    file: &CacheFile,
) -> Vec<u64> {
    let Ok(entry) = files.partition(partition) else {
        return Vec::new();
    };
    let rows = rows_of(&entry.samples, ordinal);
    let input = open(files, file, ShardKind::Samples, &rows);
    let is_intact = |row: u64| {
        let read =
            |entry: SampleEntry, input: &File| read_sample(input, partition, row, &entry).is_ok();
        let found = indexes.samples.as_ref().and_then(|index| index.get(row));
        found
            .zip(input.as_ref())
            .is_some_and(|(entry, input)| read(entry, input))
    };
    rows.filter(|row| !is_intact(*row)).collect()
}

fn lost_images(
    files: &CacheFiles,
    partition: u32,
    ordinal: u32,
    indexes: &Indexes,
    file: &CacheFile,
) -> BTreeSet<u64> {
    let Ok(entry) = files.partition(partition) else {
        return BTreeSet::new();
    };
    let rows = rows_of(&entry.images, ordinal);
    let input = open(files, file, ShardKind::Images, &rows);
    let is_intact = |row: u64| {
        let read =
            |entry: ImageEntry, input: &File| read_image(input, partition, row, &entry).is_ok();
        let found = indexes.images.as_ref().and_then(|index| index.get(row));
        found
            .zip(input.as_ref())
            .is_some_and(|(entry, input)| read(entry, input))
    };
    rows.filter(|row| !is_intact(*row)).collect()
}

/// The samples that use an image for which `is_lost` holds. A sample that cannot be read itself is its own shard's cost.
fn samples_using(
    files: &CacheFiles,
    partition: u32,
    indexes: &Indexes,
    is_lost: impl Fn(u32) -> bool,
) -> Vec<u64> {
    let Some(index) = &indexes.samples else {
        return all_samples(files, partition);
    };
    let mut shard: Option<(u32, Option<File>)> = None;
    let mut rows = Vec::new();
    for (row, entry) in (0u64..)
        .zip(index.iter())
        .filter(|(_, entry)| entry.n_images > 0)
    {
        let ordinal = entry.shard;
        if shard.as_ref().is_none_or(|(open, _)| *open != ordinal) {
            let path = files.path(files.text(), FileName::Shard { partition, ordinal });
            let is_file = fs::metadata(&path).is_ok_and(|metadata| metadata.is_file());
            shard = Some((ordinal, is_file.then(|| File::open(&path).ok()).flatten()));
        }
        let input = shard.as_ref().and_then(|(_, input)| input.as_ref());
        let sample = input.and_then(|input| read_sample(input, partition, row, &entry).ok());
        if sample.is_some_and(|sample| sample.images.iter().any(|image| is_lost(*image))) {
            rows.push(row);
        }
    }
    rows
}
