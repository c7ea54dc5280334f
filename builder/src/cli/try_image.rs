//! `stoker try-image`: the child process in which suspicious images are tried.

use std::io::Read;

use memmap2::MmapMut;
use rustix::process::{Resource, Rlimit};

use super::DONE;
use super::args::TryImageArgs;
use crate::build::trial::NO_MEMORY;
use crate::error::{Error, Result};
use crate::image::{ImageRecipe, Preparer, probe};

/// Address space of the child: what any allowed image needs, with room.
const MEMORY_MAX_BYTES: u64 = 4 << 30;

/// What a child needs beside the image: buffers of the decoders, and what the allocator keeps.
const MEMORY_SPARE_BYTES: usize = 64 << 20;

/// Prepares the image on stdin. Whether it is good does not matter, only that the process survives. Gives the exit code.
pub(super) fn run(args: &TryImageArgs) -> Result<u8> {
    let recipe: ImageRecipe = serde_json::from_str(&args.recipe).map_err(|error| Error::Usage {
        what: format!("image recipe cannot be read: {error}"),
        hint: "this command is for stoker itself".into(),
    })?;
    let limit = Rlimit {
        current: Some(MEMORY_MAX_BYTES),
        maximum: Some(MEMORY_MAX_BYTES),
    };
    let _ = rustix::process::setrlimit(Resource::As, limit);
    let _ = rustix::process::setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    );
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", "stdin"))?;
    if let Ok(probe) = probe(&bytes, &recipe) {
        let needed = usize::try_from(probe.scratch_bytes + probe.patches_bytes());
        let needed = needed.unwrap_or(usize::MAX);
        // A child that dies for want of memory would say nothing about the image.
        if MmapMut::map_anon(needed.saturating_add(MEMORY_SPARE_BYTES)).is_err() {
            return Ok(NO_MEMORY);
        }
    }
    let _ = Preparer::new(recipe).prepare(&bytes);
    Ok(DONE)
}
