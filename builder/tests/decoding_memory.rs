//! What a JPEG is charged before it is decoded is what it then takes. Measured of the whole process, in which nothing else takes memory.
#![cfg(target_os = "linux")]

use std::fs;

use stoker_builder::build::options::memory_budget_bytes;
use stoker_builder::image::{Generation, ImageRecipe, Preparer, Profile, probe};
use stoker_builder::model::family::Family;

/// 12 megapixels.
const SIZE: (usize, usize) = (4000, 3000);

/// What the allocator and this process's own pages may add.
const MARGIN_BYTES: u64 = 4 << 20;

/// A value of this process's status, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Which way a JPEG keeps its coefficients.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Baseline,
    /// A scan for each component.
    Scans,
    Progressive,
}

/// A grey JPEG, made by hand so that no encoder leaves its memory behind. `factors` has the sampling of each component.
fn jpeg(kind: Kind, factors: &[u8]) -> Vec<u8> {
    let count = factors.len() as u8;
    let parts = (1..).zip(factors);
    let mut jpeg = vec![0xff, 0xd8, 0xff, 0xdb, 0, 67, 0];
    jpeg.extend([1; 64]);
    let frame = if kind == Kind::Progressive {
        0xc2
    } else {
        0xc0
    };
    jpeg.extend([0xff, frame, 0, 8 + 3 * count, 8]);
    for side in [SIZE.1, SIZE.0] {
        jpeg.extend((side as u16).to_be_bytes());
    }
    jpeg.push(count);
    jpeg.extend(parts.clone().flat_map(|(id, factors)| [id, *factors, 0]));
    // One code of one bit for the mean, that of the block before, and one for the rest of a block, nothing.
    for table in [0x00, 0x10] {
        jpeg.extend([0xff, 0xc4, 0, 20, table, 1]);
        jpeg.extend([0; 16]);
    }
    let (bits, last) = match kind {
        Kind::Progressive => (1, 0),
        _ => (2, 63),
    };
    let ids: Vec<u8> = parts.map(|(id, _)| id).collect();
    let scans = ids.chunks(if kind == Kind::Scans { 1 } else { ids.len() });
    for scan in scans {
        jpeg.extend([0xff, 0xda, 0, 6 + 2 * scan.len() as u8, scan.len() as u8]);
        jpeg.extend(scan.iter().flat_map(|id| [*id, 0]));
        jpeg.extend([0, last, 0]);
        let side = 8 * usize::from(factors[0] >> 4);
        let groups = SIZE.0.div_ceil(side) * SIZE.1.div_ceil(side);
        let blocks = scan.iter().map(|id| factors[usize::from(*id) - 1]);
        let blocks: usize = blocks
            .map(|part| usize::from((part >> 4) * (part & 15)))
            .sum();
        jpeg.resize(jpeg.len() + (groups * blocks * bits).div_ceil(8), 0);
    }
    jpeg.extend([0xff, 0xd9]);
    jpeg
}

/// Decoders have half of the budget.
#[test]
fn by_default_each_thread_can_decode_twelve_megapixels_and_turn_them() {
    let bytes = jpeg(Kind::Baseline, &[0x22, 0x11, 0x11]);
    let probed = probe(&bytes, &recipe(16 << 20)).unwrap();
    let turned = 3 * (SIZE.0 * SIZE.1) as u64;
    for threads in [1, 16, 64] {
        let has = memory_budget_bytes(threads) / 2 / threads as u64;
        assert!(
            probed.scratch_bytes + turned <= has,
            "{threads}: {probed:?}"
        );
    }
}

/// A recipe whose targets have at most so many pixels.
fn recipe(max_pixels: u64) -> ImageRecipe {
    let (family, constants) = (Family::Qwen3Vl, Family::Qwen3Vl.constants());
    let (profile, generation) = (Profile::TvPath, Generation::V5);
    let max_pixels = Some(max_pixels);
    ImageRecipe::new(profile, generation, family, &constants, None, max_pixels).unwrap()
}

#[test]
fn a_jpeg_takes_what_it_is_charged() {
    let (large, small) = (16 << 20, 1 << 20);
    let (full, halved) = ([0x11; 4], [0x22, 0x11, 0x11]);
    for (kind, factors, max_pixels) in [
        (Kind::Baseline, &halved[..], large),
        (Kind::Baseline, &halved, small),
        (Kind::Baseline, &full, small),
        (Kind::Progressive, &full, small),
        (Kind::Scans, &full[..3], small),
        (Kind::Progressive, &full[..3], large),
        (Kind::Progressive, &halved, large),
    ] {
        let bytes = jpeg(kind, factors);
        let recipe = recipe(max_pixels);
        let probed = probe(&bytes, &recipe).unwrap();
        let charged = probed.scratch_bytes + probed.patches_bytes();
        let mut preparer = Preparer::new(recipe);
        // Forgets the peak so far.
        fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = status_bytes("VmRSS");
        preparer.prepare(&bytes).unwrap();
        let taken = status_bytes("VmHWM") - before;
        let case = format!("{kind:?} {factors:x?} {max_pixels}: {taken} of {charged}");
        assert!(taken <= charged + MARGIN_BYTES, "{case}");
        // Coefficients are gone before the patches are made, and lie partly in what the heap has kept of earlier ones.
        if kind == Kind::Baseline {
            assert!(taken >= charged / 8 * 7, "{case}");
        }
    }
}
