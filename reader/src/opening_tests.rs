//! Whether what a node reads fits in memory.

use std::sync::Arc;

use stoker_formats::Manifest;

use crate::files::CacheFiles;
use crate::index_tests::synthetic;
use crate::opening::{Pages, pages, shard_bytes, split};
use crate::placement::{Held, Placement};
use crate::unit::CacheUnits;

/// Bytes of the shards of these partitions.
fn bytes_of(manifest: &Manifest, partitions: &[usize]) -> u64 {
    let entries = partitions
        .iter()
        .map(|number| &manifest.partitions[*number]);
    let shards = entries.flat_map(|entry| entry.images.shards.iter().chain(&entry.samples.shards));
    shards.flatten().map(|shard| shard.bytes).sum()
}

#[test]
fn shards_count_where_they_are_read_and_held() {
    let folder = tempfile::tempdir().unwrap();
    // The last partition is the other split.
    let content = synthetic::content_of(&[23, 17, 9, 4]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    let files = Arc::new(CacheFiles::open(folder.path()).unwrap());
    let manifest = files.manifest();
    let units = CacheUnits::of_split(manifest, split(&files, "train").unwrap());
    let mut without = units.clone();
    without.partitions.retain(|part| part.partition != 2);
    let caches = [Arc::clone(&files), Arc::clone(&files)];
    let units = [units, without];
    let everywhere = Placement::everywhere();
    let whole = shard_bytes(&caches, &units, |held| everywhere.holds(1, held));
    let [one, other] = [&[0, 1, 2][..], &[0, 1]].map(|read| bytes_of(manifest, read));
    assert_eq!(whole, one + other);
    let held = |cache, partition| Held { cache, partition };
    let nodes = [
        vec![held(0, 1), held(0, 3)],
        vec![held(0, 0), held(0, 2), held(1, 1), held(1, 2)],
    ];
    let placement = Placement::new(&nodes).unwrap();
    let of_node = |node| shard_bytes(&caches, &units, |held| placement.holds(node, held));
    assert_eq!(of_node(0), bytes_of(manifest, &[1]));
    assert_eq!(of_node(1), bytes_of(manifest, &[0, 2, 1]));
    assert_eq!(of_node(2), 0);
    assert!(of_node(0) > 0 && of_node(1) < whole);
}

#[test]
fn pages_stay_if_they_fit() {
    for (shard_bytes, limit, available, expected) in [
        (10, Some(20), Some(10), Pages::Filled),
        (11, Some(20), Some(10), Pages::Left),
        (20, Some(20), Some(10), Pages::Left),
        (21, Some(20), Some(10), Pages::Given),
        // What the system does not say is no reason for anything.
        (21, None, None, Pages::Left),
    ] {
        assert_eq!(pages(shard_bytes, limit, available), expected);
    }
}
