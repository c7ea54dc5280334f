//! Tries images that were in preparation when a process died, each in a child process of its own.
//!
//! The child is this same program, or what the options name where this program is not `stoker`; if a fault of its own ends it, or it does not answer in time, the
//! image is guilty. A signal from outside, or want of memory, is no fact about an image: it stops the build. Whatever the child says about an image that it survives
//! is not kept: the image is then prepared again like any other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stoker_formats::ImageKey;
use tokio::runtime::Handle;

use super::stop::Stop;
use crate::error::{Error, Result};
use crate::image::ImageRecipe;
use crate::plan::Plan;
use crate::source::{FetchError, Source};

/// Far above what the largest allowed image takes.
const TRIAL_TIME_MAX: Duration = Duration::from_secs(60);
/// Exit code of a child that could not have the memory that its image needs.
pub(crate) const NO_MEMORY: u8 = 3;
/// What ends a process for what it did itself.
const OWN_FAULTS: [Signal; 7] = [
    Signal::SEGV,
    Signal::BUS,
    Signal::ILL,
    Signal::FPE,
    Signal::ABORT,
    Signal::SYS,
    Signal::TRAP,
];
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
    stop: &Stop,
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
    let recipe = serde_json::to_string(recipe).unwrap_or_default();
    for (image, planned) in (0..).zip(&plan.images) {
        if !suspects.contains(&planned.key) {
            continue;
        }
        let (_, link) = plan.image_link(image)?;
        match handle.block_on(source.fetch(&link)) {
            Ok(fetched) => {
                if crashes(&program, &recipe, &fetched.bytes, stop)? {
                    guilty.insert(planned.key);
                }
            }
            Err(FetchError::Reject(_)) => {}
            Err(FetchError::Stop(error)) => return Err(error),
        }
    }
    Ok(guilty)
}

/// Whether preparing `bytes` is the end of a child process, or never ends.
fn crashes(program: &[OsString], recipe: &str, bytes: &[u8], stop: &Stop) -> Result<bool> {
    let (program, first) = program.split_first().ok_or_else(|| Error::Usage {
        what: "no program tries images".into(),
        hint: "name one, or leave it to the builder".into(),
    })?;
    let fault = Error::io("try an image with", program);
    let started = Command::new(program)
        .args(first)
        .args(["try-image", "--recipe", recipe])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C is for the builder, which ends the child itself.
        .process_group(0)
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
    let outcome = loop {
        if let Err(stopped) = stop.check() {
            break Err(stopped);
        }
        match child.try_wait() {
            Ok(Some(status)) => return judged(status).map_err(fault),
            Ok(None) if started.elapsed() > TRIAL_TIME_MAX => break Ok(true),
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => break Err(fault(error)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    outcome
}

/// Whether the image is to blame for how the child ended; an error if that says nothing about the image.
fn judged(status: ExitStatus) -> io::Result<bool> {
    let Some(signal) = status.signal() else {
        return if status.code() == Some(NO_MEMORY.into()) {
            Err(ErrorKind::OutOfMemory.into())
        } else {
            Ok(false)
        };
    };
    if OWN_FAULTS.iter().any(|fault| fault.as_raw() == signal) {
        return Ok(true);
    }
    // The system kills so when memory runs out.
    if signal == Signal::KILL.as_raw() {
        return Err(ErrorKind::OutOfMemory.into());
    }
    Err(io::Error::other(format!("signal {signal} ended it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on an image that makes a child do what the shell's `script` says.
    fn tried(script: &str, stop: &Stop) -> Result<bool> {
        let program = ["sh", "-c", script].map(OsString::from);
        crashes(&program, "{}", b"an image", stop)
    }

    #[test]
    fn only_faults_of_its_own_make_an_image_guilty() {
        let stop = Stop::default();
        assert!(!tried("cat", &stop).unwrap());
        assert!(!tried("exit 1", &stop).unwrap());
        for signal in ["SEGV", "BUS", "ILL", "FPE", "ABRT", "SYS", "TRAP"] {
            assert!(
                tried(&format!("kill -{signal} $$"), &stop).unwrap(),
                "{signal}"
            );
        }
        for signal in ["TERM", "USR1", "KILL"] {
            let error = tried(&format!("kill -{signal} $$"), &stop).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{signal}: {error}");
        }
        // A shell may have been started deaf to this one.
        assert!(judged(ExitStatus::from_raw(Signal::INT.as_raw())).is_err());
    }

    #[test]
    fn a_stop_ends_the_trial() {
        let stop = Stop::default();
        stop.request(2);
        let error = tried("exec sleep 600", &stop).unwrap_err();
        assert!(matches!(error, Error::Interrupted { signal: 2 }), "{error}");
    }
}
