//! `stoker try-image`: the child process in which suspicious images are tried.

use std::io::Read;

use rustix::process::{Resource, Rlimit};

use super::args::TryImageArgs;
use crate::error::{Error, Result};
use crate::image::{ImageRecipe, Preparer};

/// Address space of the child: what any allowed image needs, with room.
const MEMORY_MAX_BYTES: u64 = 4 << 30;

/// Prepares the image on stdin. Whether it is good does not matter, only that the process survives.
pub(super) fn run(args: &TryImageArgs) -> Result<()> {
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
    let _ = Preparer::new(recipe).prepare(&bytes);
    Ok(())
}
