//! Puts a micro-batch together from rows.
//!
//! Owns the writing of every tensor. Invariant: every byte of every tensor is written, so nothing of an earlier batch is
//! left in a buffer that is used again.

use std::time::{Duration, Instant};

use stoker_formats::{IGNORED_LABEL, SampleEntry};

use crate::batch::{Layout, Tensor};
use crate::batch_plan::BatchPlan;
use crate::dummy;
use crate::error::{Error, Result};
use crate::expand::{Pixels, expand_bytes};
use crate::model::Model;
use crate::open_files::FileId;
use crate::rows::Rows;
use crate::sample_text::SampleText;
use crate::units::Sample;

/// How batches look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) layout: Layout,
    pub(crate) pixels: Pixels,
    /// What stands in `position_ids` where a row is padding.
    pub(crate) position_pad: i64,
    pub(crate) sample_ids: bool,
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

/// A batch that is being written.
struct Out<'a> {
    parts: Parts<'a>,
    /// Patches, images and segments that were written.
    patch: usize,
    image: usize,
    segment: usize,
    packed: bool,
    sample_ids: Option<Vec<String>>,
}

impl Out<'_> {
    /// A segment of a packed row begins at token `at`, or the row ends there.
    fn begin(&mut self, at: usize) {
        if self.packed {
            put_i32(self.parts.last, self.segment, at);
            self.segment += 1;
        }
    }

    /// Tokens of no sample from `from` to `to`, whose positions count from 0.
    fn pad_segment(&mut self, from: usize, to: usize, model: &Model) {
        let (parts, count) = (&mut self.parts, to - from);
        fill(parts.ids, from, count, i64::from(model.pad_token));
        fill(parts.labels, from, count, i64::from(IGNORED_LABEL));
        for axis in 0..if self.packed { 4 } else { 3 } {
            put(parts.positions, axis * parts.plane + from, 0..count as i64);
        }
        if let Some(ids) = &mut self.sample_ids {
            ids.push(String::new());
        }
    }
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
    /// Whether somebody waits for this batch, and nothing is worth doing for later ones.
    pub(crate) hurry: bool,
    /// Is told what is being read.
    pub(crate) reading: &'a dyn Fn(Option<FileId>),
}

impl Maker<'_> {
    /// Reads the rows of a batch, which may end with a dummy image, into `buffer`; returns the sample ids, if they are wanted.
    pub(crate) fn assemble(
        &self,
        plan: &BatchPlan,
        tensors: &[Tensor],
        buffer: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<String>>> {
        let (model, look) = (self.model, self.look);
        let packed = look.layout == Layout::Packed;
        let mut out = Out {
            parts: parts(tensors, buffer).ok_or(Error::Internal("a batch's schema"))?,
            patch: 0,
            image: 0,
            segment: 0,
            packed,
            sample_ids: look.sample_ids.then(Vec::new),
        };
        for (sample, entry) in &plan.samples {
            (self.reading)(Some(Rows::sample_shard(*sample, entry)));
            self.rows.expect(*sample, entry);
        }
        let mut samples = plan.samples.iter();
        let mut start = 0;
        for row in &plan.rows {
            let mut at = start;
            for (sample, entry) in samples.by_ref().take(row.samples) {
                out.begin(at);
                let read = self.sample(*sample, entry, at, &mut out, scratch);
                read.map_err(|error| match row.unit {
                    Some(unit) => self.rows.units().fault(unit, error),
                    None => error,
                })?;
                at += entry.n_tokens as usize;
            }
            let end = start + if packed { row.length } else { out.parts.length };
            if packed {
                if at < end {
                    out.begin(at);
                    out.pad_segment(at, end, model);
                }
            } else {
                if row.samples == 0 {
                    out.pad_segment(at, at + 1, model);
                    at += 1;
                }
                // A padding row keeps its one token: attention over nothing is not a number.
                fill(out.parts.last, start, at - start, 1);
                fill(out.parts.last, at, end - at, 0);
                pad(&mut out.parts, at, end, model, look);
            }
            start = end;
        }
        if plan.dummy {
            out.begin(start);
            dummy::write(&mut out.parts, start, packed, model, look);
            if let Some(ids) = &mut out.sample_ids {
                ids.push(String::new());
            }
            start += dummy::TOKENS;
        }
        out.begin(start);
        (self.reading)(None);
        Ok(out.sample_ids)
    }

    /// One sample from token `at` on.
    fn sample(
        &self,
        sample: Sample,
        entry: &SampleEntry,
        at: usize,
        out: &mut Out<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let started = Instant::now();
        (self.reading)(Some(Rows::sample_shard(sample, entry)));
        let with_id = self.look.sample_ids;
        self.rows
            .sample(sample, entry, with_id, &mut scratch.text)?;
        scratch.read += started.elapsed();
        text(&mut out.parts, at, out.packed, self.model, scratch);
        for grid in &scratch.grids {
            let grid = grid.iter().copied().map(i64::from);
            put(out.parts.grids, out.image * 3, grid);
            out.image += 1;
        }
        if let Some(ids) = &mut out.sample_ids {
            ids.push(String::from_utf8_lossy(scratch.text.sample_id()).into_owned());
        }
        self.images(sample, entry, &mut out.patch, &mut out.parts, scratch)
    }

    /// The patches of one sample's images from patch `patch` on.
    fn images(
        &self,
        sample: Sample,
        of_sample: &SampleEntry,
        patch: &mut usize,
        parts: &mut Parts<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Self {
            rows,
            model,
            look,
            hurry,
            reading,
        } = *self;
        let width = model.patch_bytes()
            * look.pixels.frames(model.temporal_patch_size)
            * look.pixels.bytes();
        for (image, grid) in scratch.images.iter().zip(&scratch.grids) {
            let entry = rows.image_entry(sample, *image);
            let entry = entry.map_err(|error| match error {
                // The number comes from the sample's row.
                Error::NoRow { .. } => {
                    let what = "an image number that the partition does not have";
                    rows.sample_fault(sample, of_sample, what)
                }
                error => error,
            })?;
            let count = grid.iter().map(|side| *side as usize).product::<usize>();
            let bytes = count * model.patch_bytes();
            if entry.grid_thw != *grid || entry.length != bytes as u64 {
                return Err(rows.other_grid(sample, *image, &entry));
            }
            let from = *patch * width;
            let into = parts
                .pixels
                .get_mut(from..from + count * width)
                .ok_or(Error::Internal("more patches than the index counts"))?;
            *patch += count;
            let started = Instant::now();
            reading(Some(Rows::image_shard(sample, &entry)));
            if look.pixels == Pixels::U8 {
                rows.image(sample, *image, &entry, into, hurry)?;
                scratch.read += started.elapsed();
                continue;
            }
            if scratch.patches.len() < bytes {
                scratch.patches.resize(bytes, 0);
            }
            let patches = &mut scratch.patches[..bytes];
            rows.image(sample, *image, &entry, patches, hurry)?;
            scratch.read += started.elapsed();
            expand_bytes(
                &model.float_table,
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
