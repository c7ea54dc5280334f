//! Puts a micro-batch together from rows.
//!
//! Owns the writing of every tensor. Invariant: every byte of every tensor is written, so nothing of an earlier batch is
//! left in a buffer that is used again.

use std::time::{Duration, Instant};

use stoker_formats::{IGNORED_LABEL, SampleEntry};

use crate::batch::{Layout, Sizes, Tensor};
use crate::dummy;
use crate::error::{Error, Result};
use crate::expand::{FloatTable, Pixels, expand_bytes};
use crate::model::Model;
use crate::open_files::FileId;
use crate::rows::Rows;
use crate::sample_text::SampleText;
use crate::unit::Unit;

/// How batches look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) layout: Layout,
    pub(crate) pixels: Pixels,
    /// What stands in `position_ids` where a row is padding.
    pub(crate) position_pad: i64,
    pub(crate) sample_ids: bool,
}

/// One row of a batch: a unit with its index entry, or padding.
pub(crate) type RowPlan = Option<(Unit, SampleEntry)>;

/// The sizes of a batch of `rows`.
pub(crate) fn sizes(rows: &[RowPlan], model: &Model) -> Sizes {
    let entries = || rows.iter().flatten().map(|(_, entry)| entry);
    Sizes {
        tokens: rows
            .iter()
            .map(|row| row.map_or(1, |(_, entry)| entry.n_tokens as usize))
            .collect(),
        images: entries().map(|entry| entry.n_images as usize).sum(),
        patches: entries().map(|entry| entry.n_patches as usize).sum(),
        patch_bytes: model.patch_bytes(),
        temporal: model.temporal_patch_size,
    }
}

/// Memory of one thread, used again for every sample.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    text: SampleText,
    patches: Vec<u8>,
    grids: Vec<[i32; 3]>,
    images: Vec<u32>,
    /// Time spent reading since it was last taken.
    pub(crate) read: Duration,
}

/// The parts of the buffer that belong to the tensors, in schema order.
pub(crate) struct Parts<'a> {
    pub(crate) pixels: &'a mut [u8],
    pub(crate) grids: &'a mut [u8],
    pub(crate) ids: &'a mut [u8],
    pub(crate) labels: &'a mut [u8],
    pub(crate) positions: &'a mut [u8],
    /// `attention_mask` or `cu_seqlens`.
    pub(crate) last: &'a mut [u8],
    /// Values of one plane of `input_ids`.
    pub(crate) plane: usize,
    /// Values of one row.
    pub(crate) length: usize,
}

fn parts<'a>(tensors: &[Tensor], buffer: &'a mut [u8]) -> Option<Parts<'a>> {
    let mut rest = buffer;
    let mut at = 0;
    let mut cut = |tensor: &Tensor| {
        let taken = std::mem::take(&mut rest);
        let (part, later) = taken
            .get_mut(tensor.offset - at..)?
            .split_at_mut_checked(tensor.bytes())?;
        at = tensor.offset + tensor.bytes();
        rest = later;
        Some(part)
    };
    let [pixels, grids, ids, labels, positions, last] = tensors else {
        return None;
    };
    let length = *ids.shape.last()?;
    let plane = ids.shape.iter().product();
    Some(Parts {
        pixels: cut(pixels)?,
        grids: cut(grids)?,
        ids: cut(ids)?,
        labels: cut(labels)?,
        positions: cut(positions)?,
        last: cut(last)?,
        plane,
        length,
    })
}

/// Writes `values` from value `at` on; as many as there are.
pub(crate) fn put(into: &mut [u8], at: usize, values: impl Iterator<Item = i64>) {
    let (words, _) = into.as_chunks_mut::<8>();
    if let Some(words) = words.get_mut(at..) {
        for (word, value) in words.iter_mut().zip(values) {
            *word = value.to_ne_bytes();
        }
    }
}

/// Writes `count` times `value` from value `at` on.
pub(crate) fn fill(into: &mut [u8], at: usize, count: usize, value: i64) {
    put(into, at, std::iter::repeat_n(value, count));
}

/// What batches are made from.
pub(crate) struct Maker<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) model: &'a Model,
    pub(crate) look: Look,
    /// Is told what is being read.
    pub(crate) reading: &'a dyn Fn(Option<FileId>),
}

impl Maker<'_> {
    /// Reads the rows of a batch, which may end with a dummy image, into `buffer`; returns the sample ids, if they are wanted.
    pub(crate) fn assemble(
        &self,
        plan: &[RowPlan],
        with_dummy: bool,
        tensors: &[Tensor],
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<String>>> {
        let Self {
            rows,
            model,
            look,
            reading,
        } = *self;
        let mut parts = parts(tensors, buffer).ok_or(Error::Internal("a batch's schema"))?;
        let mut sample_ids = look.sample_ids.then(|| Vec::with_capacity(plan.len()));
        let packed = look.layout == Layout::Packed;
        let (mut patch, mut image, mut packed_at) = (0usize, 0usize, 0usize);
        for (number, row) in plan.iter().enumerate() {
            let at = if packed {
                packed_at
            } else {
                number * parts.length
            };
            let tokens = row.map_or(1, |(_, entry)| entry.n_tokens as usize);
            if packed {
                put_i32(parts.last, number, at);
            }
            if let Some((unit, entry)) = row {
                let started = Instant::now();
                reading(Some(Rows::sample_shard(*unit, entry)));
                rows.sample(*unit, entry, look.sample_ids, &mut scratch.text)?;
                scratch.read += started.elapsed();
                text(&mut parts, at, packed, model, scratch);
                for grid in &scratch.grids {
                    put(parts.grids, image * 3, grid.iter().copied().map(i64::from));
                    image += 1;
                }
                self.images(*unit, &mut patch, &mut parts, scratch)?;
            } else {
                padding_row(&mut parts, at, packed, model);
            }
            if let Some(ids) = &mut sample_ids {
                ids.push(if row.is_some() {
                    String::from_utf8_lossy(scratch.text.sample_id()).into_owned()
                } else {
                    String::new()
                });
            }
            if packed {
                packed_at += tokens;
            } else {
                let length = parts.length;
                pad(&mut parts, at + tokens, at + length, model, look);
                // A padding row keeps its one token: attention over nothing is not a number.
                fill(parts.last, at, tokens, 1);
                fill(parts.last, at + tokens, length - tokens, 0);
            }
        }
        let mut segments = plan.len();
        if with_dummy {
            let at = if packed {
                put_i32(parts.last, segments, packed_at);
                segments += 1;
                packed_at
            } else {
                plan.len() * parts.length
            };
            dummy::write(&mut parts, at, packed, model, look);
            packed_at += dummy::TOKENS;
            if let Some(ids) = &mut sample_ids {
                ids.push(String::new());
            }
        }
        if packed {
            put_i32(parts.last, segments, packed_at);
        }
        reading(None);
        Ok(sample_ids)
    }
    /// The patches of one sample's images from patch `patch` on.
    fn images(
        &self,
        unit: Unit,
        patch: &mut usize,
        parts: &mut Parts<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Self {
            rows,
            model,
            look,
            reading,
        } = *self;
        let width = model.patch_bytes()
            * look.pixels.frames(model.temporal_patch_size)
            * look.pixels.bytes();
        for (image, grid) in scratch.images.iter().zip(&scratch.grids) {
            let entry = rows.image_entry(unit, *image)?;
            let count = grid.iter().map(|side| *side as usize).product::<usize>();
            let bytes = count * model.patch_bytes();
            if entry.grid_thw != *grid || entry.length != bytes as u64 {
                return Err(rows.other_grid(unit, *image, &entry));
            }
            let from = *patch * width;
            let into = parts
                .pixels
                .get_mut(from..from + count * width)
                .ok_or(Error::Internal("more patches than the index counts"))?;
            *patch += count;
            let started = Instant::now();
            reading(Some(Rows::image_shard(unit, &entry)));
            if look.pixels == Pixels::U8 {
                rows.image(unit, *image, &entry, into)?;
                scratch.read += started.elapsed();
                continue;
            }
            if scratch.patches.len() < bytes {
                scratch.patches.resize(bytes, 0);
            }
            let patches = &mut scratch.patches[..bytes];
            rows.image(unit, *image, &entry, patches)?;
            scratch.read += started.elapsed();
            let table: &FloatTable = model
                .float_table
                .as_ref()
                .ok_or(Error::Internal("a float table"))?;
            expand_bytes(
                table,
                look.pixels,
                patches,
                model.patch_area(),
                model.temporal_patch_size,
                into,
            );
        }
        Ok(())
    }
}

fn put_i32(into: &mut [u8], at: usize, value: usize) {
    let (words, _) = into.as_chunks_mut::<4>();
    if let Some(word) = words.get_mut(at) {
        // A batch of more than 2^31 tokens does not fit any memory.
        *word = i32::try_from(value).unwrap_or(i32::MAX).to_ne_bytes();
    }
}

/// Ids, labels and positions of one sample from value `at` on.
fn text(parts: &mut Parts<'_>, at: usize, packed: bool, model: &Model, scratch: &mut Scratch) {
    let sample = &scratch.text;
    scratch.grids.clear();
    scratch.grids.extend(sample.grids());
    scratch.images.clear();
    scratch.images.extend(sample.images());
    put(parts.ids, at, sample.input_ids().map(i64::from));
    put(parts.labels, at, sample.labels().map(i64::from));
    // In a packed row nothing is predicted across the border of two samples.
    if packed {
        fill(parts.labels, at, 1, i64::from(IGNORED_LABEL));
    }
    let plane = parts.plane;
    let (planes, _) = parts.positions.as_chunks_mut::<8>();
    // The plane of text positions stands first where there is one.
    let (text, grid) = if packed {
        let (text, grid) = planes.split_at_mut(plane);
        (Some(text), grid)
    } else {
        (None, planes)
    };
    if let Some(text) = text {
        for (count, word) in text[at..]
            .iter_mut()
            .take(sample.input_ids().count())
            .enumerate()
        {
            *word = (count as i64).to_ne_bytes();
        }
    }
    let mut axes = grid.chunks_exact_mut(plane.max(1));
    if let (Some(t), Some(h), Some(w)) = (axes.next(), axes.next(), axes.next()) {
        model
            .mrope
            .positions(sample.input_ids(), &scratch.grids, |token, position| {
                t[at + token] = position[0].to_ne_bytes();
                h[at + token] = position[1].to_ne_bytes();
                w[at + token] = position[2].to_ne_bytes();
            });
    }
}

/// What fills a row up from value `from` to value `to`.
pub(crate) fn pad(parts: &mut Parts<'_>, from: usize, to: usize, model: &Model, look: Look) {
    let count = to - from;
    fill(parts.ids, from, count, i64::from(model.pad_token));
    fill(parts.labels, from, count, i64::from(IGNORED_LABEL));
    for axis in 0..3 {
        let at = axis * parts.plane + from;
        fill(parts.positions, at, count, look.position_pad);
    }
}

/// A row that stands for no sample: one token outside the loss.
fn padding_row(parts: &mut Parts<'_>, at: usize, packed: bool, model: &Model) {
    fill(parts.ids, at, 1, i64::from(model.pad_token));
    fill(parts.labels, at, 1, i64::from(IGNORED_LABEL));
    for axis in 0..if packed { 4 } else { 3 } {
        fill(parts.positions, axis * parts.plane + at, 1, 0);
    }
}
