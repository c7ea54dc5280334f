//! A micro-batch on its way to a GPU, or there.
//!
//! Owns the way from the upload into the consumer's tensors. Invariant: the schema is that of the same batch on the host;
//! its memory is reached by its reader alone, which writes it once.

use crate::batch::{Batch, PIXELS, Tensor};
use crate::device::{CudaUpload, Patches, Target, Upload};
use crate::error::Result;
use crate::unit::Unit;

/// A micro-batch of one rank on a GPU. It takes a slot there until it is delivered.
#[derive(Debug)]
pub struct DeviceBatch {
    pub(crate) number: u64,
    pub(crate) borders: Option<Vec<i32>>,
    pub(crate) upload: CudaUpload,
    /// As it was put together, but for its bytes.
    pub(crate) batch: Batch,
    /// As the consumer gets them.
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) patches: Patches,
}

impl DeviceBatch {
    /// What is to be written: name, type and shape of each tensor, in a fixed order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Tells it from all other batches of its reader.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The values of `cu_seqlens`, for who would wait for the GPU otherwise; none where rows are padded.
    #[must_use]
    pub fn borders(&self) -> Option<&[i32]> {
        self.borders.as_deref()
    }

    /// Writes each tensor into its target.
    pub(crate) fn write(mut self, targets: Vec<Target<'_>>) -> Result<()> {
        if targets.len() != self.tensors.len() {
            let what = "a batch is written into one target for each tensor";
            return Err(self.upload.refused(what));
        }
        for (tensor, target) in self.tensors.iter().zip(targets) {
            if tensor.name == PIXELS {
                self.upload.expand(&self.patches, target)?;
            } else {
                let bytes = tensor.offset..tensor.offset + tensor.bytes();
                self.upload.copy_out(bytes, target)?;
            }
        }
        Ok(())
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.batch.epoch
    }

    /// The position in the epoch that its global batch begins with.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.batch.position
    }

    /// Tokens of the whole global batch that take part in the loss, the same number on every rank.
    #[must_use]
    pub fn n_loss_tokens(&self) -> u64 {
        self.batch.n_loss_tokens
    }

    /// As [`Batch::max_seqlen`].
    #[must_use]
    pub fn max_seqlen(&self) -> usize {
        self.batch.max_seqlen
    }

    /// The units of the rows in order; none for a padding row.
    #[must_use]
    pub fn units(&self) -> &[Option<Unit>] {
        &self.batch.units
    }

    /// As [`Batch::sample_ids`].
    #[must_use]
    pub fn sample_ids(&self) -> Option<&[String]> {
        self.batch.sample_ids.as_deref()
    }
}
