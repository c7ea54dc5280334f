//! What the cross-crate tests share.

pub mod s3;
pub mod synthetic;
