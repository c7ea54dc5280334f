//! Two hundred caches mixed by weight, read by sixteen ranks.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::BTreeMap;

use stoker_reader::{CacheOptions, Pixels, Reader, ReaderOptions, Step};

const CACHES: u64 = 200;
const RANKS: u32 = 16;

/// Weights from 1 to 40, none like its neighbours.
fn weight(cache: u64) -> f64 {
    1.0 + (cache * 37 % 40) as f64
}

#[test]
fn all_ranks_together_read_each_cache_by_its_weight() {
    let folder = tempfile::tempdir().unwrap();
    let caches: Vec<CacheOptions> = (0..CACHES)
        .map(|cache| {
            let path = folder.path().join(cache.to_string());
            std::fs::create_dir(&path).unwrap();
            let content = synthetic::content_of(&[20 + cache % 7, 1]);
            let (tables, recipe) = (synthetic::opaque_tables(), synthetic::recipe());
            synthetic::write_sized(&path, &content, &tables, recipe, 64);
            CacheOptions {
                weight: Some(weight(cache)),
                ..CacheOptions::new(path)
            }
        })
        .collect();
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    let mut units = 0;
    let mut epoch_len = 0;
    for rank in 0..RANKS {
        let mut options = ReaderOptions::new("", 64);
        options.caches.clone_from(&caches);
        (options.world.rank, options.world.world_size) = (rank, RANKS);
        options.world.micro_batch_size = 4;
        options.pixels = Pixels::U8;
        let mut reader = Reader::open(options).unwrap();
        epoch_len = reader.schedule().epoch_len();
        while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
            for unit in batch.units.iter().flatten() {
                *counts.entry(unit.cache).or_default() += 1;
                units += 1;
            }
        }
    }
    // All but what does not fill a last batch.
    assert!(
        epoch_len - units < 64 && epoch_len > 4000,
        "{units} of {epoch_len}"
    );
    let sum: f64 = (0..CACHES).map(weight).sum();
    for cache in 0..CACHES {
        let count = counts[&(cache as u32)] as f64;
        let due = weight(cache) / sum * units as f64;
        // Less than a thousandth of the epoch.
        assert!((count - due).abs() < 3.0, "{cache}: {count} for {due}");
    }
}
