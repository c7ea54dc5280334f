//! Prepares a multimodal training set once, offline, into a Stoker cache.

mod append;
pub mod bench;
pub mod build;
pub mod cli;
pub mod error;
mod folder;
mod held;
pub mod image;
pub mod inspect;
pub mod limits;
pub mod model;
pub mod pack;
pub mod parts;
pub mod place;
pub mod plan;
pub mod publish;
pub mod push;
mod quiet;
pub mod record;
mod records;
pub mod reject;
pub mod remote;
pub mod repair;
pub mod simulate;
pub mod source;
pub mod stats;
pub mod sync;
pub mod text;
pub mod verify;

pub use error::{Error, Result};
pub use reject::{Reason, Reject};
