//! The native half of the Python package `stoker`: thin calls of the builder, and of the reader.
//!
//! Owns the crossing between the two languages and nothing else: what a call does is the libraries', what it looks like
//! is the Python half's. Invariant: the interpreter's lock is never held while a call waits or works.

mod batch;
mod builder;
mod device;
mod errors;
mod feed;
mod reader;
mod wait;

use pyo3::prelude::*;

/// The native half of `stoker`. Its names are private; import `stoker`.
#[pymodule]
mod _stoker {
    #[pymodule_export]
    use crate::batch::{Batch, Tensor};
    #[pymodule_export]
    use crate::builder::{
        build, commit, inspect, main, pack, place, push, repair, stats, sync, verify,
    };
    #[pymodule_export]
    use crate::device::DeviceBatch;
    #[pymodule_export]
    use crate::reader::Reader;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
