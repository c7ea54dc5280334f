//! What a Stoker cache is on disk. Bytes in, views out: no network, no threads, no unsafe code.
#![forbid(unsafe_code)]

mod error;

pub use error::Error;
