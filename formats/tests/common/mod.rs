//! A plain model of rows, and shards made from it.
#![allow(dead_code, reason = "every test program uses another part of it")]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::json;
use stoker_formats::{
    ContentHash, FileEntry, Finished, ImageData, ImageEntry, ImageKey, ImageRow, ImageShardWriter,
    InputEntry, Manifest, Partition, PartitionFiles, PlanId, SampleData, SampleEntry, SampleRow,
    SampleShardWriter, ShardHead, SplitEntry, Tables, VERSION, fingerprint,
};

/// A head with more metadata keys than a small hash map keeps in order by chance.
pub(crate) fn head(partition: u32, shard: u32, first_row: u64) -> ShardHead {
    let metadata: BTreeMap<String, String> = (0..12)
        .map(|number| (format!("key{number}"), format!("value {}", number * number)))
        .collect();
    ShardHead {
        partition,
        shard,
        first_row,
        metadata,
    }
}

/// The row that `image` describes.
pub(crate) fn image_row(image: &ImageData) -> ImageRow<'_> {
    ImageRow {
        key: image.key,
        grid_thw: image.grid_thw,
        size: image.size,
        patches: &image.patches,
    }
}

/// The row that `sample` describes.
pub(crate) fn sample_row(sample: &SampleData) -> SampleRow<'_> {
    SampleRow {
        sample_id: &sample.sample_id,
        record_id: sample.record_id.as_deref(),
        input_ids: &sample.input_ids,
        labels: &sample.labels,
        images: &sample.images,
        image_grid_thw: &sample.image_grid_thw,
    }
}

/// A shard of `images`.
pub(crate) fn image_shard(head: &ShardHead, images: &[ImageData]) -> Finished<Vec<u8>, ImageEntry> {
    let mut writer = ImageShardWriter::new(Vec::new(), head).unwrap();
    for image in images {
        writer.push(&image_row(image)).unwrap();
    }
    writer.finish().unwrap()
}

/// A shard of `samples`.
pub(crate) fn sample_shard(
    head: &ShardHead,
    samples: &[SampleData],
) -> Finished<Vec<u8>, SampleEntry> {
    let mut writer = SampleShardWriter::new(Vec::new(), head).unwrap();
    for sample in samples {
        writer.push(&sample_row(sample)).unwrap();
    }
    writer.finish().unwrap()
}

/// Any image of at most some thousand bytes.
pub(crate) fn any_image() -> impl Strategy<Value = ImageData> {
    (
        any::<[u8; 16]>(),
        [1..3i32, 1..6i32, 1..6i32],
        [1..100_000i32, 1..100_000i32],
        1..60usize,
        any::<u8>(),
    )
        .prop_map(|(key, grid_thw, size, patch_bytes, first)| {
            let count = grid_thw.iter().product::<i32>() as usize * patch_bytes;
            ImageData {
                key: ImageKey(key),
                grid_thw,
                size,
                patches: (0..count)
                    .map(|byte| first.wrapping_add(byte as u8))
                    .collect(),
            }
        })
}

/// Any sample of at most some hundred bytes, empty lists included.
pub(crate) fn any_sample() -> impl Strategy<Value = SampleData> {
    (
        "[a-z/]{1,12}:[0-9]{1,6}",
        option::of(".{0,12}"),
        vec((any::<i32>(), prop_oneof![Just(-100), any::<i32>()]), 0..20),
        vec((any::<u32>(), [1..9i32, 1..9i32, 1..9i32]), 0..4),
    )
        .prop_map(|(sample_id, record_id, tokens, images)| SampleData {
            sample_id,
            record_id,
            input_ids: tokens.iter().map(|token| token.0).collect(),
            labels: tokens.iter().map(|token| token.1).collect(),
            images: images.iter().map(|image| image.0).collect(),
            image_grid_thw: images.iter().map(|image| image.1).collect(),
        })
}

/// Three images of fixed content.
pub(crate) fn some_images() -> Vec<ImageData> {
    (1..4u8)
        .map(|number| ImageData {
            key: ImageKey([number; 16]),
            grid_thw: [1, 2, i32::from(number)],
            size: [32, 16 * i32::from(number)],
            patches: (0..2 * usize::from(number) * 12)
                .map(|byte| byte as u8 ^ number)
                .collect(),
        })
        .collect()
}

/// Three samples of fixed content: with images, without a record id, and empty.
pub(crate) fn some_samples() -> Vec<SampleData> {
    vec![
        SampleData {
            sample_id: "train.jsonl:1".into(),
            record_id: Some("caf\u{e9}".into()),
            input_ids: vec![5, 6, 7, 8],
            labels: vec![-100, -100, 7, 8],
            images: vec![2, 0],
            image_grid_thw: vec![[1, 2, 3], [1, 2, 1]],
        },
        SampleData {
            sample_id: "train.jsonl:2".into(),
            record_id: None,
            input_ids: vec![9, -1],
            labels: vec![-100, 3],
            images: vec![],
            image_grid_thw: vec![],
        },
        SampleData {
            sample_id: "train.jsonl:30".into(),
            record_id: Some(String::new()),
            input_ids: vec![],
            labels: vec![],
            images: vec![1],
            image_grid_thw: vec![[1, 2, 2]],
        },
    ]
}

/// An entry of a file whose hash follows from its size.
pub(crate) fn file(bytes: u64, rows: u64) -> FileEntry {
    FileEntry {
        bytes,
        hash: ContentHash::of(&bytes.to_le_bytes()),
        rows,
    }
}

/// A partition with a missing shard on either side.
pub(crate) fn partition(number: u64) -> Partition {
    let files = |base: u64| PartitionFiles {
        shards: vec![Some(file(base + 1, 5)), None, Some(file(base + 2, 6))],
        receipts: vec![file(base + 3, 5), file(base + 4, 0), file(base + 5, 6)],
        index: file(base + 6, 11),
    };
    Partition {
        images: files(number * 100),
        samples: files(number * 100 + 50),
    }
}

/// A manifest of three partitions in two splits.
pub(crate) fn manifest() -> Manifest {
    let recipe = json!({"z": [1, 2.5, null, {"b": true, "a": "\u{1f600}"}], "a": -3});
    let partitions: Vec<Partition> = (0..3).map(partition).collect();
    let split = |name: &str, first_partition, partitions: u32| SplitEntry {
        name: name.into(),
        first_partition,
        partitions,
        samples: 11 * u64::from(partitions),
        tokens: 1000,
        loss_tokens: 500,
        images: 11 * u64::from(partitions),
    };
    Manifest {
        format_version: VERSION,
        created_by: "stoker 0.1.0".into(),
        fingerprint: fingerprint(&recipe, &partitions),
        image_plan_id: PlanId([1; 16]),
        text_plan_id: PlanId([2; 16]),
        recipe,
        splits: vec![split("train", 0, 2), split("val", 2, 1)],
        partitions,
        tables: Tables {
            samples: file(9, 33),
            rejects: file(10, 3),
            provenance: file(11, 30),
        },
        tokenizer: file(12, 300),
        inputs: vec![InputEntry {
            name: "train.jsonl".into(),
            bytes: 12,
            hash: ContentHash::of(b"x"),
            records: 36,
        }],
    }
}
