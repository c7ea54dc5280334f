//! What the cross-crate tests share.

pub mod synthetic;
