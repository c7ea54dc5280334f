//! The files that a manifest names, without a folder that holds them.
//!
//! Invariant: the same files, in the same order, as [`CacheFiles::expected`](stoker_reader::CacheFiles::expected) gives.

use stoker_formats::{FileName, Folder, Manifest, PartitionFiles};
use stoker_reader::CacheFile;

/// All of them, in a fixed order.
pub(crate) fn named(manifest: &Manifest) -> impl Iterator<Item = CacheFile> + '_ {
    let [images, text] = folders(manifest);
    let partitions = (0u32..).zip(&manifest.partitions);
    let hash = manifest.tokenizer.hash;
    let tokenizer = (FileName::Tokenizer { hash }, manifest.tokenizer);
    let whole = manifest.tables.files().into_iter().chain([tokenizer]);
    partitions
        .flat_map(move |(number, partition)| {
            of_partition(images, number, &partition.images).chain(of_partition(
                text,
                number,
                &partition.samples,
            ))
        })
        .chain(whole.map(move |(name, entry)| CacheFile {
            folder: text,
            name,
            entry,
        }))
}

/// The folders of the manifest's plans: images, samples.
pub(crate) fn folders(manifest: &Manifest) -> [Folder; 2] {
    [
        Folder::Images(manifest.image_plan_id),
        Folder::Text(manifest.text_plan_id),
    ]
}

/// The partition of a shard; none for other files.
pub(crate) fn shard_partition(file: &CacheFile) -> Option<u32> {
    match file.name {
        FileName::Shard { partition, .. } => Some(partition),
        _ => None,
    }
}

fn of_partition(
    folder: Folder,
    partition: u32,
    files: &PartitionFiles,
) -> impl Iterator<Item = CacheFile> + '_ {
    let file = move |name, entry| CacheFile {
        folder,
        name,
        entry,
    };
    let shards = (0u32..)
        .zip(&files.shards)
        .filter_map(move |(ordinal, entry)| {
            entry.map(|entry| file(FileName::Shard { partition, ordinal }, entry))
        });
    let receipts = (0u32..)
        .zip(&files.receipts)
        .map(move |(ordinal, entry)| file(FileName::Receipt { partition, ordinal }, *entry));
    let index = file(FileName::Index { partition }, files.index);
    shards.chain(receipts).chain([index])
}
