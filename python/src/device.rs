//! Batches on a GPU for Python: what torch must allocate for them, and where it did.
//!
//! Owns the one place where addresses of another library are believed. Invariant: what is here only describes a batch; the
//! batch itself stays the reader's until it is written.
#![allow(unsafe_code, reason = "torch says where its tensors are")]

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stoker_reader::DeviceBatch as Upload;
use stoker_reader::device::Target;

use crate::batch::plain;

/// One micro-batch on its way to a GPU.
#[pyclass(frozen, module = "stoker._stoker")]
pub(crate) struct DeviceBatch {
    pub(crate) number: u64,
    /// What is written: name, shape and type.
    tensors: Vec<(&'static str, Vec<usize>, &'static str)>,
    bytes: Vec<usize>,
    borders: Option<Vec<i32>>,
    max_seqlen: usize,
    sample_ids: Option<Vec<String>>,
    /// The epoch.
    #[pyo3(get)]
    epoch: u64,
    /// Where its global batch begins in the epoch.
    #[pyo3(get)]
    position: u64,
    /// Loss tokens of the global batch.
    #[pyo3(get)]
    n_loss_tokens: u64,
}

impl DeviceBatch {
    pub(crate) fn new(upload: &Upload) -> Self {
        let tensors = upload.tensors();
        Self {
            number: upload.number(),
            borders: upload.borders().map(<[i32]>::to_vec),
            max_seqlen: upload.max_seqlen(),
            tensors: tensors
                .iter()
                .map(|tensor| (tensor.name, tensor.shape.clone(), tensor.dtype.name()))
                .collect(),
            bytes: tensors.iter().map(stoker_reader::Tensor::bytes).collect(),
            sample_ids: upload.sample_ids().map(<[String]>::to_vec),
            epoch: upload.epoch(),
            position: upload.position(),
            n_loss_tokens: upload.n_loss_tokens(),
        }
    }

    /// The tensors at `addresses`, to be written in the order of a stream of the GPU.
    pub(crate) fn targets(&self, addresses: &[u64], stream: u64) -> Vec<Target<'static>> {
        let targets = addresses.iter().zip(&self.bytes);
        targets
            .map(|(address, bytes)| {
                // SAFETY: the caller, `stoker._device`, has just allocated a tensor of this size on the reader's GPU with
                // torch, for this stream; torch gives its memory to nobody else but in the order of the stream, which
                // lives as long as the process.
                unsafe { Target::device(*address, *bytes, stream) }
            })
            .collect()
    }
}

#[pymethods]
impl DeviceBatch {
    /// Name, shape and type of each tensor.
    fn tensors(&self) -> Vec<(&'static str, Vec<usize>, &'static str)> {
        self.tensors.clone()
    }

    /// `cu_seqlens` as numbers on the host; none where rows are padded.
    fn borders(&self) -> Option<Vec<i32>> {
        self.borders.clone()
    }

    /// What is no tensor: counts, and the sample ids if they were asked for.
    fn plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        plain(
            py,
            self.n_loss_tokens,
            self.borders.as_ref().map(|_| self.max_seqlen),
            self.sample_ids.as_deref(),
        )
    }
}
