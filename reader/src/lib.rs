//! Opens a Stoker cache and reads checked rows from it.

mod error;

pub use error::Error;
