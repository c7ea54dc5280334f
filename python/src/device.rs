//! Batches on a GPU for Python: written into tensors that torch has allocated.
//!
//! Owns the one place where addresses of another library are believed. Invariant: a batch is written once, right after it
//! was delivered, and its slot on the GPU is free from then on.
#![allow(unsafe_code, reason = "torch says where its tensors are")]

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stoker_reader::DeviceBatch as Upload;
use stoker_reader::device::Target;

use crate::batch::plain;
use crate::errors::{ConfigError, reader_error};

/// One micro-batch on its way to a GPU.
#[pyclass(frozen, module = "stoker._stoker")]
pub(crate) struct DeviceBatch {
    upload: Mutex<Option<Box<Upload>>>,
    /// What is written: name, shape and type.
    tensors: Vec<(&'static str, Vec<usize>, &'static str)>,
    bytes: Vec<usize>,
    max_seqlen: Option<usize>,
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
    pub(crate) fn new(upload: Box<Upload>) -> Self {
        let packed = |name| name == "cu_seqlens";
        let tensors = upload.tensors();
        Self {
            max_seqlen: tensors
                .iter()
                .any(|tensor| packed(tensor.name))
                .then(|| upload.max_seqlen()),
            tensors: tensors
                .iter()
                .map(|tensor| (tensor.name, tensor.shape.clone(), tensor.dtype.name()))
                .collect(),
            bytes: tensors.iter().map(stoker_reader::Tensor::bytes).collect(),
            sample_ids: upload.sample_ids().map(<[String]>::to_vec),
            epoch: upload.epoch(),
            position: upload.position(),
            n_loss_tokens: upload.n_loss_tokens(),
            upload: Mutex::new(Some(upload)),
        }
    }
}

#[pymethods]
impl DeviceBatch {
    /// Name, shape and type of each tensor.
    fn tensors(&self) -> Vec<(&'static str, Vec<usize>, &'static str)> {
        self.tensors.clone()
    }

    /// Writes each tensor to its address, in the order of a stream of the GPU, and comes back at once.
    fn write(&self, py: Python<'_>, addresses: Vec<u64>, stream: u64) -> PyResult<()> {
        let upload = self
            .upload
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let upload = upload
            .ok_or_else(|| ConfigError::new_err(("a batch is written once", None::<String>)))?;
        let targets = addresses.iter().zip(&self.bytes);
        let targets: Vec<_> = targets
            .map(|(address, bytes)| {
                // SAFETY: the caller, `stoker._device`, has just allocated a tensor of this size on the reader's GPU with
                // torch, for this stream; torch gives its memory to nobody else but in the order of the stream, which
                // lives as long as the process.
                unsafe { Target::device(*address, *bytes, stream) }
            })
            .collect();
        py.detach(|| upload.write(targets)).map_err(reader_error)
    }

    /// What is no tensor: counts, and the sample ids if they were asked for.
    fn plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        plain(
            py,
            self.n_loss_tokens,
            self.max_seqlen,
            self.sample_ids.as_deref(),
        )
    }
}
