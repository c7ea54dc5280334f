//! Dummy images: what a rank gets that has no image where another rank has one.
//!
//! Owns which micro-batches get one and what it looks like. Invariant: a dummy is outside the loss and a sequence of its own, so
//! no other token sees it; it is one block of patches, so the vision tower runs on every rank.

use std::collections::HashSet;

use stoker_formats::{Counts, IGNORED_LABEL};

use crate::assemble::{Look, Parts, fill, pad, put};
use crate::assign::Assignment;
use crate::batch::Sizes;
use crate::expand::expand_bytes;
use crate::model::Model;
use crate::schedule::GlobalBatch;
use crate::unit::Unit;
use crate::world::World;

/// The token before an image, and its one block of patches. What comes after an image does not matter after the last token.
pub(crate) const TOKENS: usize = 2;

/// For each micro-batch of this rank whether it needs a dummy: it has no image, and that of another rank has one.
pub(crate) fn wanted(
    batch: &GlobalBatch,
    counts: &[Counts],
    assignment: &Assignment,
    world: &World,
) -> Vec<bool> {
    let with_images: HashSet<Unit> = batch
        .units
        .iter()
        .zip(counts)
        .filter(|(_, counts)| counts.images > 0)
        .filter_map(|(unit, _)| *unit)
        .collect();
    let micro = world.micro_batch_size() as usize;
    let has = |rank: u32, step: usize| {
        let units = assignment.rank(rank)[step * micro..][..micro].iter();
        units.flatten().any(|unit| with_images.contains(unit))
    };
    (0..world.micro_batches() as usize)
        .map(|step| !has(world.rank(), step) && (0..world.world_size()).any(|rank| has(rank, step)))
        .collect()
}

fn patches(model: &Model) -> usize {
    (model.mrope.merge_size.unsigned_abs() as usize).pow(2)
}

/// Makes room for a dummy after all rows.
pub(crate) fn grow(sizes: &mut Sizes, model: &Model) {
    sizes.lengths.push(TOKENS);
    sizes.segments += 1;
    sizes.images += 1;
    sizes.patches += patches(model);
}

/// Writes a dummy, the last row or segment, whose first token is value `at`; the only image of the batch.
pub(crate) fn write(parts: &mut Parts<'_>, at: usize, packed: bool, model: &Model, look: Look) {
    let merge = model.mrope.merge_size;
    let grid = [1, merge, merge];
    // A reader that wants dummies does not open without it.
    let start = model.vision_start.unwrap_or(model.pad_token);
    let ids = [start, model.mrope.image_pad];
    put(parts.ids, at, ids.into_iter().map(i64::from));
    fill(parts.labels, at, TOKENS, i64::from(IGNORED_LABEL));
    let plane = parts.plane;
    let first = if packed {
        put(parts.positions, at, 0..TOKENS as i64);
        plane
    } else {
        0
    };
    let positions = &mut *parts.positions;
    model.mrope.positions(ids, &[grid], |token, axes| {
        for (axis, position) in axes.into_iter().enumerate() {
            let to = first + axis * plane + at + token;
            put(positions, to, std::iter::once(position));
        }
    });
    put(parts.grids, 0, grid.into_iter().map(i64::from));
    let black = vec![0; patches(model) * model.patch_bytes()];
    expand_bytes(
        &model.float_table,
        look.pixels,
        &black,
        model.patch_area(),
        model.temporal_patch_size,
        parts.pixels,
    );
    if !packed {
        let length = parts.length;
        pad(parts, at + TOKENS, at + length, model, look);
        fill(parts.last, at, TOKENS, 1);
        fill(parts.last, at + TOKENS, length - TOKENS, 0);
    }
}
