//! Limits on what an input may ask for, each with its reason.

/// Most images of one record: the plan counts them in 16 bits, and no model takes a tenth of that.
pub const RECORD_IMAGES_MAX: usize = u16::MAX as usize;

/// Longest JSONL line, in bytes: a long conversation with embedded images fits; what is longer is
/// never read whole.
pub const LINE_BYTES_MAX: usize = 64 << 20;
