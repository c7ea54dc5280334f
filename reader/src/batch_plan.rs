//! What a micro-batch is made of, before anything of it is read.
//!
//! Owns rows, their samples and the sizes that follow. Invariant: a plan asks for no more memory than its samples' shards
//! could fill, and a pack's samples have what the pack was counted with.

use stoker_formats::{Counts, SampleEntry};

use crate::batch::Sizes;
use crate::dummy;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::rows::Rows;
use crate::unit::Unit;
use crate::units::Sample;

/// One row of a batch, or its part of the one row of packed batches.
#[derive(Debug)]
pub(crate) struct RowPlan {
    /// None for a padding row.
    pub(crate) unit: Option<Unit>,
    /// How many samples it has.
    pub(crate) samples: usize,
    /// Tokens of all its samples.
    pub(crate) filled: usize,
    /// Tokens that it takes; what is not filled is padding.
    pub(crate) length: usize,
}

/// The rows of a batch and the samples in them.
#[derive(Debug, Default)]
pub(crate) struct BatchPlan {
    pub(crate) rows: Vec<RowPlan>,
    /// Of all rows, in order.
    pub(crate) samples: Vec<(Sample, SampleEntry)>,
    /// Whether a dummy image comes after the rows.
    pub(crate) dummy: bool,
}

impl BatchPlan {
    /// The plan of `units` in order, none standing for a padding row, and a dummy image if it needs one.
    pub(crate) fn new(
        units: &[Option<Unit>],
        dummy: bool,
        rows: &Rows,
        model: &Model,
    ) -> Result<Self> {
        let mut plan = Self {
            dummy,
            ..Self::default()
        };
        for unit in units {
            let (before, mut filled) = (plan.samples.len(), 0);
            if let Some(unit) = unit {
                let add = plan.add(*unit, rows, model);
                filled = add.map_err(|error| rows.units().fault(*unit, error))?;
            }
            plan.rows.push(RowPlan {
                unit: *unit,
                samples: plan.samples.len() - before,
                filled,
                length: rows.units().row_length(filled),
            });
        }
        Ok(plan)
    }

    /// Adds the samples of a unit; returns their tokens.
    fn add(&mut self, unit: Unit, rows: &Rows, model: &Model) -> Result<usize> {
        let merged = u64::from(model.mrope.merge_size.unsigned_abs()).pow(2);
        let mut sum = Some(Counts::default());
        for sample in rows.units().samples(unit)? {
            let entry = rows.entry(sample)?;
            if u64::from(entry.n_patches) > u64::from(entry.n_tokens) * merged {
                let what = "more patches than its tokens stand for";
                return Err(rows.sample_fault(sample, &entry, what));
            }
            sum = sum.and_then(|sum| sum.checked_add(entry.counts()));
            self.samples.push((sample, entry));
        }
        rows.units().check(unit, sum)?;
        let tokens = sum.map(|sum| sum.tokens as usize);
        tokens.ok_or(Error::Internal("the tokens of a unit"))
    }

    /// The sizes of the batch.
    pub(crate) fn sizes(&self, model: &Model) -> Sizes {
        let entries = || self.samples.iter().map(|(_, entry)| entry);
        let padded = self.rows.iter().filter(|row| row.filled < row.length);
        let mut sizes = Sizes {
            lengths: self.rows.iter().map(|row| row.length).collect(),
            segments: self.samples.len() + padded.count(),
            images: entries().map(|entry| entry.n_images as usize).sum(),
            patches: entries().map(|entry| entry.n_patches as usize).sum(),
            patch_bytes: model.patch_bytes(),
            temporal: model.temporal_patch_size,
        };
        if self.dummy {
            dummy::grow(&mut sizes, model);
        }
        sizes
    }

    /// The units of the rows; none for padding and for a dummy image.
    pub(crate) fn units(&self) -> Vec<Option<Unit>> {
        let units = self.rows.iter().map(|row| row.unit);
        units.chain(self.dummy.then_some(None)).collect()
    }

    /// Tokens of the longest segment: a sample, or the padding of a row.
    pub(crate) fn longest(&self) -> usize {
        let samples = self.samples.iter();
        let samples = samples.map(|(_, entry)| entry.n_tokens as usize);
        let padding = self.rows.iter().map(|row| row.length - row.filled);
        let dummy = self.dummy.then_some(dummy::TOKENS);
        samples.chain(padding).chain(dummy).max().unwrap_or(0)
    }
}

/// Whether the sample shards of a unit can be opened here. Its images lie in the same partition.
pub(crate) fn is_here(unit: Unit, rows: &Rows) -> bool {
    let shard_is_here = |sample: &Sample| {
        rows.entry(*sample).is_ok_and(|entry| {
            let path = rows.path_of(Rows::sample_shard(*sample, &entry));
            path.is_some_and(|path| path.exists())
        })
    };
    let samples = rows.units().samples(unit);
    samples.is_ok_and(|samples| samples.iter().all(shard_is_here))
}
