//! Opens a Stoker cache and reads checked rows from it.

pub use stoker_formats::Error;
