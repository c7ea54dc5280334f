//! Tries images that were in preparation when a process died, each in a child process of its own.
//!
//! The child is this same program, or what the options name where this program is not `stoker`; if a signal ends it, or it does not answer in time, the image is
//! guilty, unless that is for want of memory, which is no fact about an image. Whatever the child says about an image that it survives is not kept: the image is then
//! prepared again like any other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stoker_formats::ImageKey;
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::image::ImageRecipe;
use crate::plan::Plan;
use crate::source::{FetchError, Source};

/// Far above what the largest allowed image takes.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(60);
/// Exit code of a child that could not have the memory that its image needs.
pub(crate) const NO_MEMORY: u8 = 3;
/// Between two looks at the child.
const POLL: Duration = Duration::from_millis(5);

/// Of the images `suspects`, those that take a child process down.
pub(crate) fn find_crashers(
    plan: &Plan,
    recipe: &ImageRecipe,
    source: &Source,
    handle: &Handle,
    suspects: &BTreeSet<ImageKey>,
    program: Option<&[OsString]>,
) -> Result<BTreeSet<ImageKey>> {
    let mut guilty = BTreeSet::new();
    if suspects.is_empty() {
        return Ok(guilty);
    }
    let program = match program {
        Some(program) => program.to_vec(),
        None => vec![
            std::env::current_exe()
                .map_err(Error::io("find", "stoker"))?
                .into(),
        ],
    };
    for (image, planned) in (0..).zip(&plan.images) {
        if !suspects.contains(&planned.key) {
            continue;
        }
        let (_, link) = plan.image_link(image)?;
        match handle.block_on(source.fetch(&link)) {
            Ok(fetched) => {
                if crashes(&program, recipe, &fetched.bytes)? {
                    guilty.insert(planned.key);
                }
            }
            Err(FetchError::Reject(_)) => {}
            Err(FetchError::Stop(error)) => return Err(error),
        }
    }
    Ok(guilty)
}

/// Whether preparing `bytes` ends a child process by a signal or never ends.
fn crashes(program: &[OsString], recipe: &ImageRecipe, bytes: &[u8]) -> Result<bool> {
    let (program, first) = program.split_first().ok_or_else(|| Error::Usage {
        what: "no program tries images".into(),
        hint: "name one, or leave it to the builder".into(),
    })?;
    let fault = Error::io("try an image with", program);
    let recipe = serde_json::to_string(recipe).unwrap_or_default();
    let started = Command::new(program)
        .args(first)
        .args(["try-image", "--recipe", &recipe])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return Err(fault(error)),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // A child that dies before it has read everything breaks the pipe: its status tells.
        let _ = stdin.write_all(bytes);
    }
    let started = Instant::now();
    loop {
        match child.try_wait() {
            // No decoder kills with SIGKILL; the system does, when memory runs out.
            Ok(Some(status))
                if status.code() == Some(NO_MEMORY.into())
                    || status.signal() == Some(Signal::KILL.as_raw()) =>
            {
                return Err(fault(ErrorKind::OutOfMemory.into()));
            }
            Ok(Some(status)) => return Ok(status.signal().is_some()),
            Ok(None) if started.elapsed() > TRIAL_TIME_MAX => {
                let _ = child.kill();
                let _ = child.wait();
                return Ok(true);
            }
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => return Err(fault(error)),
        }
    }
}
