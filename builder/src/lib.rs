//! Prepares a multimodal training set once, offline, into a Stoker cache.

pub mod build;
pub mod cli;
pub mod error;
pub mod image;
pub mod limits;
pub mod model;
pub mod plan;
pub mod publish;
pub mod record;
pub mod reject;
pub mod source;
pub mod text;

pub use error::{Error, Result};
pub use reject::{Reason, Reject};
