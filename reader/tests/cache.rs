//! Opening caches and reading rows, against what was written.

#[path = "../../tests/src/synthetic.rs"]
#[expect(unreachable_pub, reason = "the tests crate owns it")]
mod synthetic;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use stoker_reader::{Cache, CacheFiles, CacheUnits, Error, Place};

fn made() -> (tempfile::TempDir, Vec<synthetic::Content>) {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content();
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    (folder, content)
}

fn shard(root: &Path, kind: &str, name: &str) -> PathBuf {
    let id = if kind == "images" { "11" } else { "22" }.repeat(16);
    root.join(format!("{kind}-{id}/shards/{name}.arrow"))
}

#[test]
fn every_row_reads_back_by_place_and_by_number() {
    let (folder, content) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let mut number = 0;
    for (partition, content) in (0u32..).zip(&content) {
        for (row, sample) in (0u64..).zip(&content.samples) {
            let place = Place { partition, row };
            assert_eq!(cache.place(number), Some(place));
            assert_eq!(cache.number(place), Some(number));
            assert_eq!(&cache.sample(partition, row).unwrap(), sample);
            number += 1;
        }
        for (row, image) in (0u64..).zip(&content.images) {
            assert_eq!(&cache.image(partition, row).unwrap(), image);
        }
    }
    assert_eq!((cache.len(), cache.place(number)), (number, None));
    let names: Vec<_> = (0..3)
        .map(|p| cache.split_of(p).unwrap().name.clone())
        .collect();
    assert_eq!(names, ["train", "train", "val"]);
}

#[test]
fn ids_are_visited_in_order_and_stop_on_a_break() {
    let (folder, content) = made();
    let cache = Cache::open(folder.path()).unwrap();
    for (partition, content) in (0u32..).zip(&content) {
        let mut seen = Vec::new();
        let flow = cache
            .visit_ids(partition, |row, id, record| {
                seen.push((row, id.to_owned(), record.map(str::to_owned)));
                ControlFlow::Continue(())
            })
            .unwrap();
        let wanted: Vec<_> = (0u64..)
            .zip(&content.samples)
            .map(|(row, sample)| (row, sample.sample_id.clone(), sample.record_id.clone()))
            .collect();
        assert!(flow.is_continue());
        assert_eq!(seen, wanted);
    }
    let mut count = 0;
    let flow = cache.visit_ids(0, |row, _, _| {
        count += 1;
        if row == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert!(flow.unwrap().is_break());
    assert_eq!(count, 3);
}

#[test]
fn all_missing_files_are_named_at_once() {
    let (folder, _) = made();
    let one = shard(folder.path(), "images", "p0001-000000");
    let two = shard(folder.path(), "text", "p0000-000002");
    fs::remove_file(one).unwrap();
    fs::remove_file(two).unwrap();
    let error = Cache::open(folder.path()).unwrap_err();
    let text = error
        .to_string()
        .replace(folder.path().to_str().unwrap(), "CACHE");
    assert_eq!(
        text,
        "2 files are missing from `CACHE`:\n  \
         `text-22222222222222222222222222222222/shards/p0000-000002.arrow`\n  \
         `images-11111111111111111111111111111111/shards/p0001-000000.arrow`"
    );
    assert!(error.hint().unwrap().contains("disk is mounted"));
}

#[test]
fn a_folder_without_manifest_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = Cache::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::NotACache { .. }), "{error}");
}

#[test]
fn a_newer_major_version_is_refused_by_name() {
    let (folder, _) = made();
    let path = folder.path().join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let newer = text.replace("\"major\":1", "\"major\":2");
    let open = &newer[..newer.find(",\"seal\"").unwrap()];
    let seal = stoker_formats::ContentHash::of(open.as_bytes());
    fs::write(&path, format!("{open},\"seal\":\"{seal}\"}}\n")).unwrap();
    let error = Cache::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("format version 2.0"), "{error}");
}

#[test]
fn other_lengths_are_noticed_on_opening() {
    for grow in [false, true] {
        let (folder, _) = made();
        let path = shard(folder.path(), "text", "p0001-000001");
        let mut bytes = fs::read(&path).unwrap();
        if grow {
            bytes.push(0)
        } else {
            bytes.truncate(100)
        }
        let length = bytes.len();
        fs::write(&path, &bytes).unwrap();
        let error = Cache::open(folder.path()).unwrap_err().to_string();
        let wanted = if grow {
            format!(
                "longer than its {} bytes by 1: `{}`",
                length - 1,
                path.display()
            )
        } else {
            format!(
                "truncated to 100 of {} bytes: `{}`",
                error_bytes(&error),
                path.display()
            )
        };
        assert_eq!(error, wanted);
    }
}

/// The number before "bytes".
fn error_bytes(error: &str) -> &str {
    error
        .split(" bytes")
        .next()
        .unwrap()
        .rsplit(' ')
        .next()
        .unwrap()
}

#[test]
fn every_flipped_index_byte_is_noticed_on_opening() {
    let (folder, _) = made();
    for kind in ["images", "text"] {
        let id = if kind == "images" { "11" } else { "22" }.repeat(16);
        let path = folder.path().join(format!("{kind}-{id}/index/p0000.arrow"));
        let intact = fs::read(&path).unwrap();
        for at in (0..intact.len()).step_by(37) {
            let mut bytes = intact.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, &bytes).unwrap();
            let error = Cache::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains("p0000.arrow"), "{error}");
        }
        fs::write(&path, &intact).unwrap();
    }
    Cache::open(folder.path()).unwrap();
}

#[test]
fn flipped_shard_bytes_never_give_other_values() {
    let (folder, content) = made();
    let path = shard(folder.path(), "text", "p0000-000001");
    let intact = fs::read(&path).unwrap();
    let mut noticed = 0;
    for at in (0..intact.len()).step_by(11) {
        let mut bytes = intact.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        for row in 4..8 {
            match cache.sample(0, row) {
                Ok(sample) => assert_eq!(sample, content[0].samples[row as usize]),
                Err(error) => {
                    noticed += 1;
                    let text = error.to_string();
                    assert!(
                        text.contains("partition 0") && text.contains("p0000-000001"),
                        "{text}"
                    );
                    assert!(text.contains(&format!("row {row}")), "{text}");
                }
            }
        }
    }
    assert!(noticed > 20, "{noticed}");
}

#[test]
fn a_shard_in_anothers_place_is_refused() {
    let (folder, _) = made();
    // Rows 0..4 and 4..8 of partition 0 have shards of other content; make the sizes equal by taking the same file.
    let from = shard(folder.path(), "text", "p0000-000000");
    let to = shard(folder.path(), "text", "p0000-000001");
    let bytes = fs::read(&from).unwrap();
    let wanted = fs::metadata(&to).unwrap().len();
    fs::write(&to, &bytes).unwrap();
    if bytes.len() as u64 == wanted {
        let cache = Cache::open(folder.path()).unwrap();
        let error = cache.sample(0, 4).unwrap_err().to_string();
        assert!(
            error.contains("another shard stands in this place"),
            "{error}"
        );
    } else {
        assert!(Cache::open(folder.path()).is_err());
    }
}

#[test]
fn rows_that_do_not_exist_are_named() {
    let (folder, _) = made();
    let cache = Cache::open(folder.path()).unwrap();
    assert_eq!(
        cache.sample(0, 11).unwrap_err().to_string(),
        "no sample row 11: partition 0 has `11`"
    );
    assert_eq!(
        cache.image(3, 0).unwrap_err().to_string(),
        "no partition 3: the cache has `3`"
    );
}

#[test]
fn the_manifest_names_every_file_there_is() {
    let (folder, _) = made();
    let files = CacheFiles::open(folder.path()).unwrap();
    let named: std::collections::BTreeSet<String> =
        files.expected().map(|file| file.relative()).collect();
    let mut found = std::collections::BTreeSet::new();
    let mut open = vec![folder.path().to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                let relative = path.strip_prefix(folder.path()).unwrap();
                found.insert(relative.to_str().unwrap().to_owned());
            }
        }
    }
    found.remove("manifest.json");
    assert_eq!(named, found);
    for file in files.expected() {
        assert_eq!(files.read(&file).unwrap().len() as u64, file.entry.bytes);
    }
}

#[test]
fn the_units_of_a_split_are_its_samples_shard_by_shard() {
    let (folder, content) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let mut partitions = Vec::new();
    for split in cache.splits() {
        let units = CacheUnits::of_split(cache.manifest(), split);
        assert_eq!(units.fingerprint, cache.manifest().fingerprint);
        for counts in &units.partitions {
            let index = cache.sample_index(counts.partition).unwrap();
            assert_eq!(counts.units, index.len());
            // A shard begins where the index changes to another one.
            let shards: Vec<u32> = index.iter().map(|entry| entry.shard).collect();
            let starts = (0..counts.units).filter(|row| {
                let row = *row as usize;
                row == 0 || shards[row] != shards[row - 1]
            });
            assert_eq!(counts.shard_starts, starts.collect::<Vec<_>>());
        }
        partitions.extend(units.partitions.into_iter().map(|counts| counts.units));
    }
    let samples = content.iter().map(|content| content.samples.len() as u64);
    assert_eq!(partitions, samples.collect::<Vec<_>>());
}
