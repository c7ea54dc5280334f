//! A small cache made with the format's writers alone, and what it holds.
//!
//! Owns made-up content for tests of the reading side. Invariant: the same options make the same bytes, and every rule
//! that `stoker verify --deep` checks holds for them, so a test can break one rule at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, IGNORED_LABEL, ImageData, ImageEntry, ImageKey,
    ImageRow, ImageShardWriter, InputEntry, MANIFEST_NAME, Manifest, Partition, PartitionFiles,
    PlanId, Receipt, ReceiptEntry, RejectEntry, SampleData, SampleEntry, SampleRow,
    SampleShardWriter, ShardHead, ShardRef, SplitEntry, TableKind, Tables, VERSION, fingerprint,
    write_image_index, write_sample_index,
};

/// The image plan of every synthetic cache.
pub const IMAGE_PLAN: PlanId = PlanId([0x11; 16]);
/// The text plan of every synthetic cache.
pub const TEXT_PLAN: PlanId = PlanId([0x22; 16]);
/// The token that stands for four patches.
pub const PAD: i32 = 3;
/// The token before an image.
pub const START: i32 = 1;
/// The words of the tokenizer; a word's place is its id.
pub const WORDS: [&str; 12] = [
    "<unk>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|im_start|>",
    "<|im_end|>",
    "user",
    "assistant",
    "what",
    "is",
    "this",
    "cat",
];

/// Mean and deviation of each channel.
const MEAN: [f64; 3] = [0.4, 0.5, 0.6];
const STD: [f64; 3] = [0.3, 0.25, 0.3];

/// Samples of each partition. The third is the split `val`.
const SAMPLES: [u64; 3] = [11, 7, 5];
/// Rows of a shard.
const SHARD_ROWS: usize = 4;
/// Bytes of a patch of 16 x 16 pixels.
const PATCH_BYTES: usize = 768;

/// What a partition holds.
#[derive(Debug, Clone, Default)]
pub struct Content {
    /// Its images, by row.
    pub images: Vec<ImageData>,
    /// Its samples, by row.
    pub samples: Vec<SampleData>,
}

/// Bytes of the three tables, and their rows: samples, rejects, provenance.
pub type TableBytes = [(Vec<u8>, u64); 3];

/// Content that keeps every rule: multi-image, shared images, text only, with and without a record id.
#[must_use]
pub fn content() -> Vec<Content> {
    content_of(&SAMPLES)
}

/// The same with as many samples in each partition; the last partition is the split `val`.
#[must_use]
pub fn content_of(samples: &[u64]) -> Vec<Content> {
    let mut line = 0;
    samples
        .iter()
        .map(|rows| partition(*rows, &mut line))
        .collect()
}

fn partition(rows: u64, line: &mut u64) -> Content {
    let mut content = Content::default();
    for number in 0..rows / 2 + 1 {
        let grid = [1, 2 + 2 * (number as i32 % 3), 2 + 2 * (number as i32 % 2)];
        let bytes = grid.iter().product::<i32>() as usize * PATCH_BYTES;
        let seed = *line * 31 + number * 7;
        content.images.push(ImageData {
            key: ImageKey([(seed % 251) as u8; 16]),
            grid_thw: grid,
            size: [grid[1] * 16, grid[2] * 16],
            patches: (0..bytes as u64)
                .map(|at| (at * 13 + seed * 5 + at / 768) as u8)
                .collect(),
        });
    }
    for row in 0..rows {
        *line += 1;
        let images: Vec<u32> = match row % 4 {
            0 => vec![(row / 2) as u32],
            1 => vec![(row / 2) as u32, 0],
            2 => vec![],
            _ => vec![0],
        };
        content
            .samples
            .push(sample(*line, row, images, &content.images));
    }
    content
}

fn sample(line: u64, row: u64, images: Vec<u32>, rows: &[ImageData]) -> SampleData {
    let grids: Vec<[i32; 3]> = images
        .iter()
        .map(|image| rows[*image as usize].grid_thw)
        .collect();
    let mut input_ids = vec![4, 6];
    for grid in &grids {
        input_ids.push(1);
        input_ids.extend(vec![PAD; grid.iter().product::<i32>() as usize / 4]);
        input_ids.push(2);
    }
    input_ids.extend([8, 9, 10, 5, 4, 7]);
    let mut labels = vec![IGNORED_LABEL; input_ids.len()];
    let answer: Vec<i32> = [10, 9]
        .into_iter()
        .chain(vec![11; row as usize % 5])
        .chain([5])
        .collect();
    input_ids.extend(&answer);
    labels.extend(&answer);
    SampleData {
        sample_id: format!("train.jsonl:{line}"),
        record_id: (row % 3 != 1).then(|| format!("record-{}", line % 20)),
        input_ids,
        labels,
        images,
        image_grid_thw: grids,
    }
}

/// The recipe that stands in the manifest.
#[must_use]
pub fn recipe() -> Value {
    json!({
        "image": {
            "family": "qwen3_vl", "profile": "tv_path", "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
            "image_mean": MEAN, "image_std": STD, "table": "torchvision",
        },
        "text": {"family": "qwen3_vl", "merge_size": 2, "special": {"image_pad": PAD, "vision_start": START}},
        "seed": 7,
    })
}

/// A `tokenizer.json` of [`WORDS`].
#[must_use]
pub fn tokenizer() -> Vec<u8> {
    let vocab: serde_json::Map<String, Value> = (0..)
        .zip(WORDS)
        .map(|(id, word)| (word.to_owned(), json!(id)))
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    })
    .to_string()
    .into_bytes()
}

/// Tables that are no Parquet: enough for whoever only hashes them.
#[must_use]
pub fn opaque_tables() -> TableBytes {
    [
        (b"samples".to_vec(), 23),
        (b"rejects".to_vec(), 2),
        (b"provenance".to_vec(), 3),
    ]
}

/// Writes `content` as a cache with [`recipe`] to `root`.
///
/// # Panics
/// If a file cannot be written: this is for tests.
pub fn write(root: &Path, content: &[Content], tables: &TableBytes) -> Manifest {
    write_with(root, content, tables, recipe())
}

/// Writes `content` as a cache with another recipe.
///
/// # Panics
/// As [`write()`].
pub fn write_with(
    root: &Path,
    content: &[Content],
    tables: &TableBytes,
    recipe: Value,
) -> Manifest {
    write_sized(root, content, tables, recipe, SHARD_ROWS)
}

/// Writes `content` with `shard_rows` rows a shard.
///
/// # Panics
/// As [`write()`].
pub fn write_sized(
    root: &Path,
    content: &[Content],
    tables: &TableBytes,
    recipe: Value,
    shard_rows: usize,
) -> Manifest {
    let parts = content.iter().cloned();
    write_each(root, parts, tables, recipe, shard_rows)
}

/// Writes partitions as they are made, so that none but the one in hand is in memory. The last one is the split `val`.
///
/// # Panics
/// As [`write()`].
pub fn write_each(
    root: &Path,
    parts: impl Iterator<Item = Content>,
    tables: &TableBytes,
    recipe: Value,
    shard_rows: usize,
) -> Manifest {
    let (partitions, sums): (Vec<Partition>, Vec<[u64; 4]>) = (0u32..)
        .zip(parts)
        .map(|(number, content)| {
            let partition = Partition {
                images: write_images(root, number, &content.images, shard_rows),
                samples: write_samples(root, number, &content.samples, shard_rows),
            };
            (partition, sums(&content))
        })
        .unzip();
    let text = Folder::Text(TEXT_PLAN);
    let entry = |kind: TableKind, (bytes, rows): &(Vec<u8>, u64)| {
        let hash = ContentHash::of(bytes);
        put(root, text, FileName::Table { kind, hash }, bytes, *rows)
    };
    let [samples, rejects, provenance] = tables;
    let tables = Tables {
        samples: entry(TableKind::Samples, samples),
        rejects: entry(TableKind::Rejects, rejects),
        provenance: entry(TableKind::Provenance, provenance),
    };
    let words = tokenizer();
    let name = FileName::Tokenizer {
        hash: ContentHash::of(&words),
    };
    let tokenizer = put(root, text, name, &words, WORDS.len() as u64);
    let last = partitions.len() as u32 - 1;
    let splits = vec![split("train", 0, last, &sums), split("val", last, 1, &sums)];
    let manifest = Manifest {
        format_version: VERSION,
        created_by: "synthetic".into(),
        fingerprint: fingerprint(&recipe, &partitions),
        image_plan_id: IMAGE_PLAN,
        text_plan_id: TEXT_PLAN,
        recipe,
        splits,
        partitions,
        tables,
        tokenizer,
        inputs: vec![InputEntry {
            name: "train.jsonl".into(),
            bytes: 4096,
            hash: ContentHash::of(b"train"),
            records: 25,
        }],
    };
    fs::write(
        root.join(MANIFEST_NAME),
        manifest.to_bytes().expect("a manifest"),
    )
    .expect("write");
    manifest
}

/// Samples, tokens, loss tokens and images.
fn sums(content: &Content) -> [u64; 4] {
    let samples = &content.samples;
    let labels = samples.iter().flat_map(|sample| &sample.labels);
    [
        samples.len(),
        samples.iter().map(|sample| sample.input_ids.len()).sum(),
        labels.filter(|label| **label != IGNORED_LABEL).count(),
        content.images.len(),
    ]
    .map(|count| count as u64)
}

fn split(name: &str, first: u32, count: u32, sums: &[[u64; 4]]) -> SplitEntry {
    let parts = &sums[first as usize..(first + count) as usize];
    let sum = |of: usize| parts.iter().map(|part| part[of]).sum();
    SplitEntry {
        name: name.into(),
        first_partition: first,
        partitions: count,
        samples: sum(0),
        tokens: sum(1),
        loss_tokens: sum(2),
        images: sum(3),
    }
}

/// Writes one file and says what a manifest says of it.
fn put(root: &Path, folder: Folder, name: FileName, bytes: &[u8], rows: u64) -> FileEntry {
    let path = root.join(folder.to_string()).join(name.to_string());
    fs::create_dir_all(path.parent().expect("a folder")).expect("create a folder");
    fs::write(&path, bytes).expect("write");
    FileEntry {
        bytes: bytes.len() as u64,
        hash: ContentHash::of(bytes),
        rows,
    }
}

fn head(partition: u32, shard: u32, first_row: u64) -> ShardHead {
    ShardHead {
        partition,
        shard,
        first_row,
        metadata: BTreeMap::new(),
    }
}

/// The value of a byte of channel `channel`.
#[must_use]
pub fn float(channel: usize, byte: u8) -> f32 {
    let (mean, std) = (MEAN[channel] as f32, STD[channel] as f32);
    (f32::from(byte) - mean * 255.0) / (std * 255.0)
}

/// [`float()`] as image shards say it.
fn float_table() -> String {
    let values = (0..3).flat_map(|channel| (0..=255).map(move |byte| float(channel, byte)));
    values
        .flat_map(f32::to_le_bytes)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn write_images(
    root: &Path,
    partition: u32,
    images: &[ImageData],
    shard_rows: usize,
) -> PartitionFiles {
    let mut files = Files::new(root, Folder::Images(IMAGE_PLAN), IMAGE_PLAN, partition);
    for rows in images.chunks(shard_rows) {
        let mut head = head(partition, files.ordinal(), files.first_row());
        head.metadata.insert("float_table".into(), float_table());
        let mut writer = ImageShardWriter::new(Vec::new(), &head).expect("a shard");
        for image in rows {
            let row = ImageRow {
                key: image.key,
                grid_thw: image.grid_thw,
                size: image.size,
                patches: &image.patches,
            };
            writer.push(&row).expect("a row");
        }
        let finished = writer.finish().expect("a shard");
        files.shard(&finished.out, finished.entries, 0);
    }
    files.finish(|out, entries: &[ImageEntry]| {
        write_image_index(out, partition, entries).expect("an index");
    })
}

fn write_samples(
    root: &Path,
    partition: u32,
    samples: &[SampleData],
    shard_rows: usize,
) -> PartitionFiles {
    let mut files = Files::new(root, Folder::Text(TEXT_PLAN), TEXT_PLAN, partition);
    for (number, rows) in samples.chunks(shard_rows).enumerate() {
        let head = head(partition, files.ordinal(), files.first_row());
        let mut writer = SampleShardWriter::new(Vec::new(), &head).expect("a shard");
        for sample in rows {
            let row = SampleRow {
                sample_id: &sample.sample_id,
                record_id: sample.record_id.as_deref(),
                input_ids: &sample.input_ids,
                labels: &sample.labels,
                images: &sample.images,
                image_grid_thw: &sample.image_grid_thw,
            };
            writer.push(&row).expect("a row");
        }
        let finished = writer.finish().expect("a shard");
        // The first shard of each partition is followed by a reject.
        files.shard(&finished.out, finished.entries, u64::from(number == 0));
    }
    files.finish(|out, entries: &[SampleEntry]| {
        write_sample_index(out, partition, entries).expect("an index");
    })
}

/// The files of one plan and partition, as they come.
struct Files<'a, E> {
    root: &'a Path,
    folder: Folder,
    plan: PlanId,
    partition: u32,
    next_item: u64,
    shards: Vec<Option<FileEntry>>,
    receipts: Vec<FileEntry>,
    entries: Vec<E>,
}

impl<'a, E: ReceiptEntry + Clone> Files<'a, E> {
    fn new(root: &'a Path, folder: Folder, plan: PlanId, partition: u32) -> Self {
        Self {
            root,
            folder,
            plan,
            partition,
            next_item: 0,
            shards: Vec::new(),
            receipts: Vec::new(),
            entries: Vec::new(),
        }
    }

    fn ordinal(&self) -> u32 {
        self.shards.len() as u32
    }

    fn first_row(&self) -> u64 {
        self.entries.len() as u64
    }

    fn shard(&mut self, bytes: &[u8], entries: Vec<E>, rejected: u64) {
        let (partition, ordinal) = (self.partition, self.ordinal());
        let rows = entries.len() as u64;
        let name = FileName::Shard { partition, ordinal };
        let shard = put(self.root, self.folder, name, bytes, rows);
        let (from, to) = (self.next_item, self.next_item + rows);
        let receipt = Receipt {
            plan_id: self.plan,
            partition,
            ordinal,
            plan_range: [from, to + rejected],
            first_row: self.first_row(),
            shard: Some(ShardRef {
                bytes: shard.bytes,
                hash: shard.hash,
                rows,
            }),
            items: (from..to).collect(),
            entries: entries.clone(),
            rejects: (to..to + rejected)
                .map(|item| RejectEntry {
                    item,
                    reason: "bad_json".into(),
                    message: "not JSON".into(),
                    link: None,
                    column: Some(3),
                })
                .collect(),
            sources: Vec::new(),
        };
        let bytes = receipt.to_bytes().expect("a receipt");
        let name = FileName::Receipt { partition, ordinal };
        self.receipts
            .push(put(self.root, self.folder, name, &bytes, rows));
        self.next_item = to + rejected;
        self.shards.push(Some(shard));
        self.entries.extend(entries);
    }

    fn finish(self, write_index: impl FnOnce(&mut Vec<u8>, &[E])) -> PartitionFiles {
        let mut bytes = Vec::new();
        write_index(&mut bytes, &self.entries);
        let name = FileName::Index {
            partition: self.partition,
        };
        let index = put(
            self.root,
            self.folder,
            name,
            &bytes,
            self.entries.len() as u64,
        );
        PartitionFiles {
            shards: self.shards,
            receipts: self.receipts,
            index,
        }
    }
}
