//! What the cross-crate tests share.

pub mod cache;
pub mod clean;
pub mod command;
pub mod corpus;
pub mod crash;
pub mod dice;
pub mod fuzz;
pub mod mutate;
pub mod parts;
pub mod power;
pub mod remote;
pub mod s3;
pub mod snapshot;
pub mod strace;
pub mod synthetic;
