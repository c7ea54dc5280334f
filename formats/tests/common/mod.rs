//! A plain model of rows, and shards made from it.
#![allow(dead_code, reason = "every test program uses another part of it")]

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use stoker_formats::{
    Finished, ImageData, ImageEntry, ImageKey, ImageRow, ImageShardWriter, SampleData, SampleEntry,
    SampleRow, SampleShardWriter, ShardHead,
};

/// A head with more metadata keys than a small hash map keeps in order by chance.
pub fn head(partition: u32, shard: u32, first_row: u64) -> ShardHead {
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
pub fn image_row(image: &ImageData) -> ImageRow<'_> {
    ImageRow {
        key: image.key,
        grid_thw: image.grid_thw,
        size: image.size,
        patches: &image.patches,
    }
}

/// The row that `sample` describes.
pub fn sample_row(sample: &SampleData) -> SampleRow<'_> {
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
pub fn image_shard(head: &ShardHead, images: &[ImageData]) -> Finished<Vec<u8>, ImageEntry> {
    let mut writer = ImageShardWriter::new(Vec::new(), head).unwrap();
    for image in images {
        writer.push(&image_row(image)).unwrap();
    }
    writer.finish().unwrap()
}

/// A shard of `samples`.
pub fn sample_shard(head: &ShardHead, samples: &[SampleData]) -> Finished<Vec<u8>, SampleEntry> {
    let mut writer = SampleShardWriter::new(Vec::new(), head).unwrap();
    for sample in samples {
        writer.push(&sample_row(sample)).unwrap();
    }
    writer.finish().unwrap()
}

/// Any image of at most some thousand bytes.
pub fn any_image() -> impl Strategy<Value = ImageData> {
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
pub fn any_sample() -> impl Strategy<Value = SampleData> {
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
pub fn some_images() -> Vec<ImageData> {
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
pub fn some_samples() -> Vec<SampleData> {
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
