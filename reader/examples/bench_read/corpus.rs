//! A cache of made-up samples, and what each of them must look like when it is read.

use std::path::Path;

use stoker_formats::{IGNORED_LABEL, ImageData, ImageKey, SampleData};
use stoker_reader::Batch;

use crate::synthetic::{self, Content};

const PATCH: usize = 768;

/// Ids of a sample of a fixed size, beside those of its image.
const TEXT: usize = 128;

/// How large samples are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    /// As fine-tuning data: one image of 0.2 to 3.1 MB (mean 1.06 MB) and 1 to 2 thousand ids.
    Mixed,
    /// All about as many bytes: one image, and [`TEXT`] ids with their labels.
    Fixed(u64),
}

/// What a cache is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) bytes: u64,
    pub(crate) partitions: u64,
    pub(crate) size: Size,
    pub(crate) shard_rows: usize,
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

impl Size {
    /// Patches, and ids of text.
    fn draw(self, dice: &mut Dice) -> (usize, usize) {
        let (bytes, text) = match self {
            Self::Mixed => {
                // The square of an even draw and a bit more: many small images, few large ones.
                let draw = dice.below(1000) as f64 / 1000.0;
                let megabytes = 0.2 + 2.9 * draw.powf(2.35);
                ((megabytes * 1e6) as usize, 1000 + dice.below(1000) as usize)
            }
            // An id and its label take four bytes each.
            Self::Fixed(bytes) => ((bytes as usize).saturating_sub(8 * TEXT), TEXT),
        };
        ((bytes / PATCH / 4 * 4).max(4), text)
    }
}

/// Writes a cache to `root`, partition by partition, so that memory holds one of them only.
pub(crate) fn make(root: &Path, shape: Shape) {
    let (mut dice, mut line) = (Dice(7), 0);
    let parts = (0..shape.partitions).map(|_| partition(shape, &mut dice, &mut line));
    // The last partition is another split.
    let val = std::iter::once_with(Content::default);
    let tables = synthetic::opaque_tables();
    let rows = shape.shard_rows;
    synthetic::write_each(root, parts.chain(val), &tables, synthetic::recipe(), rows);
}

fn partition(shape: Shape, dice: &mut Dice, line: &mut u64) -> Content {
    let mut content = Content::default();
    let mut total = 0;
    while total < shape.bytes / shape.partitions {
        let (patches, text) = shape.size.draw(dice);
        *line += 1;
        total += (patches * PATCH) as u64;
        let grid = [1, 2, patches as i32 / 2];
        let image = content.images.len() as u32;
        let mut key = [0; 16];
        key[..8].copy_from_slice(&line.to_le_bytes());
        content.images.push(ImageData {
            key: ImageKey(key),
            grid_thw: grid,
            size: [grid[1] * 16, grid[2] * 16],
            patches: patch(*line).repeat(patches),
        });
        let (input_ids, labels) = tokens(*line, patches, text);
        content.samples.push(SampleData {
            sample_id: format!("train.jsonl:{line}"),
            record_id: None,
            input_ids,
            labels,
            images: vec![image],
            image_grid_thw: vec![grid],
        });
    }
    content
}

/// Each patch of the sample of a line.
fn patch(line: u64) -> [u8; PATCH] {
    std::array::from_fn(|at| (line as u8).wrapping_add(at as u8))
}

/// The ids and labels of the sample of a line: the second half of its text is learnt.
fn tokens(line: u64, patches: usize, text: usize) -> (Vec<i32>, Vec<i32>) {
    let mut input_ids = vec![synthetic::PAD; patches / 4];
    input_ids.extend((0..text as u64).map(|token| 4 + ((line + token) % 8) as i32));
    let mut labels = vec![IGNORED_LABEL; input_ids.len() - text / 2];
    labels.extend(&input_ids[labels.len()..]);
    (input_ids, labels)
}

/// Whether sampled patches have the bytes of some image: cheap enough to be measured along.
pub(crate) fn trace(pixels: &[u8]) -> bool {
    pixels.chunks_exact(PATCH).step_by(97).all(|patch| {
        let seed = patch[0];
        [1, 255, 256, 767]
            .iter()
            .all(|at| patch[*at] == seed.wrapping_add(*at as u8))
    })
}

/// The lines of a packed batch's samples, once every byte, id and label is what was written for them.
pub(crate) fn check(batch: &Batch) -> Vec<u64> {
    let bytes = |name| batch.bytes(batch.tensor(name).expect("a tensor"));
    let wide = |name| -> Vec<i64> {
        let values = bytes(name).chunks_exact(8);
        let values = values.map(|value| i64::from_le_bytes(value.try_into().expect("8 bytes")));
        values.collect()
    };
    let (ids, labels, grids) = (wide("input_ids"), wide("labels"), wide("image_grid_thw"));
    let names = batch.sample_ids.as_ref().expect("sample ids");
    let ends = bytes("cu_seqlens").chunks_exact(4).skip(1);
    let ends = ends.map(|end| i32::from_le_bytes(end.try_into().expect("4 bytes")) as usize);
    let mut patches = bytes("pixel_values").chunks_exact(PATCH);
    let mut grids = grids.chunks_exact(3);
    let equal = |given: &[i64], right: &[i32]| {
        let right = right.iter().copied().map(i64::from);
        given.iter().copied().eq(right)
    };
    let (mut lines, mut from) = (Vec::new(), 0);
    for (name, to) in names.iter().zip(ends) {
        // Padding has no name.
        if let Some(line) = name.rsplit(':').next().filter(|line| !line.is_empty()) {
            let line: u64 = line.parse().expect("a line's number");
            let grid = grids.next().expect("a grid");
            let (count, right) = (grid.iter().product::<i64>() as usize, patch(line));
            let mut own = patches.by_ref().take(count);
            assert!(own.all(|patch| patch == right), "wrong bytes: `{name}`");
            let (right_ids, right_labels) = tokens(line, count, to - from - count / 4);
            assert!(equal(&ids[from..to], &right_ids), "wrong ids: `{name}`");
            assert!(
                equal(&labels[from..to], &right_labels),
                "wrong labels: `{name}`"
            );
            lines.push(line);
        }
        from = to;
    }
    assert!(patches.next().is_none(), "patches of no sample");
    lines
}
