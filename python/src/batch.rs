//! Batches for Python: NumPy views over the memory that the reader filled.
//!
//! Owns that memory's lifetime. Invariant: it lives as long as any view of it, and in a fork of the process that opened
//! the reader it is leaked, because the pool that it came from may be locked there for ever.

use std::process;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use stoker_reader::{Dtype, Tensor as Layout};

/// A batch and the process that its reader was opened in.
struct Held {
    batch: Option<stoker_reader::Batch>,
    opened_by: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        if process::id() != self.opened_by {
            std::mem::forget(self.batch.take());
        }
    }
}

/// One micro-batch.
#[pyclass(frozen, module = "stoker._stoker")]
pub(crate) struct Batch {
    held: Arc<Held>,
    /// The epoch.
    #[pyo3(get)]
    epoch: u64,
    /// Where its global batch begins in the epoch.
    #[pyo3(get)]
    position: u64,
    /// Loss tokens of the global batch.
    #[pyo3(get)]
    n_loss_tokens: u64,
    packed: bool,
}

impl Batch {
    pub(crate) fn new(batch: stoker_reader::Batch, opened_by: u32) -> Self {
        Self {
            epoch: batch.epoch,
            position: batch.position,
            n_loss_tokens: batch.n_loss_tokens,
            packed: batch.tensor("cu_seqlens").is_some(),
            held: Arc::new(Held {
                batch: Some(batch),
                opened_by,
            }),
        }
    }

    fn batch(&self) -> impl Iterator<Item = &stoker_reader::Batch> {
        self.held.batch.iter()
    }
}

#[pymethods]
impl Batch {
    /// Name, view and type of each tensor.
    fn tensors(&self) -> Vec<(&'static str, Tensor, &'static str)> {
        let tensors = self.batch().flat_map(|batch| {
            batch.tensors().iter().map(|layout| {
                let address = batch.bytes(layout).as_ptr().addr();
                let tensor = Tensor::new(Arc::clone(&self.held), layout, address);
                (layout.name, tensor, layout.dtype.name())
            })
        });
        tensors.collect()
    }

    /// What is no tensor: counts, and the sample ids if they were asked for.
    fn plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let batch = self.batch().next();
        plain(
            py,
            self.n_loss_tokens,
            batch.filter(|_| self.packed).map(|batch| batch.max_seqlen),
            batch.and_then(|batch| batch.sample_ids.as_deref()),
        )
    }
}

/// What batches hold besides tensors.
pub(crate) fn plain<'py>(
    py: Python<'py>,
    n_loss_tokens: u64,
    max_seqlen: Option<usize>,
    sample_ids: Option<&[String]>,
) -> PyResult<Bound<'py, PyDict>> {
    let values = PyDict::new(py);
    values.set_item("n_loss_tokens", n_loss_tokens)?;
    if let Some(length) = max_seqlen {
        values.set_item("max_seqlen", length)?;
    }
    if let Some(ids) = sample_ids {
        values.set_item("sample_ids", ids)?;
    }
    Ok(values)
}

/// A view of one tensor, by NumPy's array interface: NumPy keeps it, and it keeps the memory.
#[pyclass(frozen, module = "stoker._stoker")]
pub(crate) struct Tensor {
    _held: Arc<Held>,
    shape: Vec<usize>,
    dtype: Dtype,
    address: usize,
}

impl Tensor {
    fn new(held: Arc<Held>, layout: &Layout, address: usize) -> Self {
        Self {
            _held: held,
            shape: layout.shape.clone(),
            dtype: layout.dtype,
            address,
        }
    }
}

#[pymethods]
impl Tensor {
    /// Its shape.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// NumPy's array interface, version 3. It may be written to: the reader looks at it no more.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kind = match self.dtype {
            Dtype::U8 => "|u1",
            // NumPy has no bfloat16: the same bits as integers.
            Dtype::BF16 => "<u2",
            Dtype::I32 => "<i4",
            Dtype::I64 => "<i8",
            Dtype::F32 => "<f4",
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", kind)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}
