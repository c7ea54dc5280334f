//! Limits on what an input may ask for, each with its reason.

/// Longest JSONL line, in bytes: a long conversation with embedded images fits; what is longer is
/// never read whole.
pub const LINE_BYTES_MAX: usize = 64 << 20;
