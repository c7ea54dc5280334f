//! A cache of made-up samples of the sizes that fine-tuning data has.

use std::path::Path;

use stoker_formats::{IGNORED_LABEL, ImageData, ImageKey, SampleData};

use crate::synthetic::{self, Content};

const PATCH: usize = 768;
const PARTITIONS: usize = 8;

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

/// Writes samples of one image of 0.2 to 3.1 MB (mean 1.06 MB) and 1 to 2 thousand ids to `root`, `bytes` in all.
///
/// Partition by partition, so that memory holds one of them only; each has its own cache-shaped part.
pub(crate) fn make(root: &Path, bytes: u64) {
    let mut dice = Dice(7);
    let mut content: Vec<Content> = (0..PARTITIONS).map(|_| Content::default()).collect();
    let (mut total, mut line) = (0u64, 0u64);
    while total < bytes {
        let part = &mut content[line as usize % PARTITIONS];
        // The square of an even draw: many small images, few large ones.
        let draw = dice.below(1000) as f64 / 1000.0;
        let megabytes = 0.2 + 2.9 * draw.powf(2.35);
        let patches = (megabytes * 1e6 / PATCH as f64) as usize / 4 * 4;
        let grid = [1, 2, patches as i32 / 2];
        let seed = line as u8;
        let image = part.images.len() as u32;
        let mut key = [0; 16];
        key[..8].copy_from_slice(&line.to_le_bytes());
        part.images.push(ImageData {
            key: ImageKey(key),
            grid_thw: grid,
            size: [grid[1] * 16, grid[2] * 16],
            patches: patch_bytes(patches, seed),
        });
        total += (patches * PATCH) as u64;
        line += 1;
        let text = 1000 + dice.below(1000) as usize;
        let mut input_ids = vec![synthetic::PAD; patches / 4];
        input_ids.extend((0..text).map(|token| 4 + (token % 8) as i32));
        let mut labels = vec![IGNORED_LABEL; input_ids.len() - text / 2];
        labels.extend(&input_ids[labels.len()..]);
        part.samples.push(SampleData {
            sample_id: format!("train.jsonl:{line}"),
            record_id: None,
            input_ids,
            labels,
            images: vec![image],
            image_grid_thw: vec![grid],
        });
    }
    // The last partition is another split.
    content.push(Content::default());
    std::fs::create_dir_all(root).expect("create a folder");
    let tables = synthetic::opaque_tables();
    synthetic::write_sized(root, &content, &tables, synthetic::recipe(), 128);
}

fn patch_bytes(patches: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; patches * PATCH];
    for patch in bytes.chunks_exact_mut(PATCH) {
        for (at, byte) in patch.iter_mut().enumerate() {
            *byte = seed.wrapping_add(at as u8);
        }
    }
    bytes
}

/// Whether sampled patches have the bytes of some image.
pub(crate) fn trace(pixels: &[u8]) -> bool {
    pixels.chunks_exact(PATCH).step_by(97).all(|patch| {
        let seed = patch[0];
        [1, 255, 256, 767]
            .iter()
            .all(|at| patch[*at] == seed.wrapping_add(*at as u8))
    })
}
