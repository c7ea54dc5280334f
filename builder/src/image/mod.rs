//! Images: one image's bytes to patches, bit-exact with the profile's oracle.
//!
//! Owns decoding, orientation, target size, resizing, patches and the float table. It does not
//! fetch bytes and does not write shards. Invariant: the output is a pure function of the bytes and
//! the [`ImageRecipe`]; no fault of an image is more than a [`Reject`](crate::Reject).

mod decode;
mod exif;
mod fast;
mod gif;
mod header;
mod jpeg;
mod orient;
pub mod patchify;
#[cfg(test)]
mod pillow_tests;
mod planar;
mod png;
mod prepare;
pub mod profile;
pub mod recipe;
pub mod resize;
pub mod size;
pub mod table;
mod webp;

pub use patchify::unpatchify;
pub use prepare::{Prepared, Preparer, Probe, probe};
pub use profile::{Generation, PassOrder, Profile};
pub use recipe::ImageRecipe;
pub use table::{expand, float_table};

/// Bytes a pixel buffer holds beyond its pixels, so that a SIMD load of the last pixel stays inside.
pub const SLACK_BYTES: usize = 64;

/// Makes `buffer` hold at least `bytes` and [`SLACK_BYTES`], without clearing what it held.
pub(crate) fn reserve(buffer: &mut Vec<u8>, bytes: usize) {
    if buffer.len() < bytes + SLACK_BYTES {
        // A fresh zeroed allocation costs less than growing, which would copy stale pixels.
        *buffer = vec![0; bytes + SLACK_BYTES];
    }
}
