//! `stoker push`: from arguments to a request, and the report.

use std::ffi::OsString;
use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};

use super::remote_args::PushArgs;
use super::{Command, DONE, printer, remote};
use crate::error::Result;
use crate::held::numbers;
use crate::push::{self, PushReport, PushRequest};
use crate::remote::crew;

pub(super) fn run(args: &PushArgs) -> Result<u8> {
    let mut request = request(args);
    request.options.stop = remote::stop()?;
    request.show = true;
    let runtime = super::runtime()?;
    let report = push::push(&request, runtime.handle().clone())?;
    if args.reach.json {
        printer::json(&report)?;
    } else {
        printer::data(&text(&report))?;
    }
    Ok(DONE)
}

/// What the arguments of `stoker push` ask for.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) for arguments that the command would not take.
pub fn push_request(args: impl IntoIterator<Item = OsString>) -> Result<PushRequest> {
    match super::parsed("push", args)? {
        Command::Push(args) => Ok(request(&args)),
        _ => Err(super::usage("push", "not the arguments of a push")),
    }
}

fn request(args: &PushArgs) -> PushRequest {
    PushRequest {
        cache: args.cache.clone(),
        destination: args.destination.clone(),
        level: args.level,
        threads: crew::threads(args.reach.threads),
        replace: args.replace,
        options: remote::options(&args.reach),
        show: false,
    }
}

fn text(report: &PushReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "cache        {}", report.cache);
    let _ = writeln!(text, "remote       {}", report.remote);
    let _ = writeln!(text, "fingerprint  {}", report.fingerprint);
    let _ = writeln!(
        text,
        "files        {} put there, {} there already",
        HumanCount(report.files),
        HumanCount(report.files_there)
    );
    if let Some(ratio) = report.ratio {
        let _ = writeln!(
            text,
            "shards       {} in {}, ratio {ratio:.2}",
            HumanBytes(report.shard_bytes),
            HumanBytes(report.packed_bytes)
        );
    }
    if !report.lacking.is_empty() {
        let _ = writeln!(
            text,
            "lacking      shards of partitions {}: push from the nodes that hold them",
            numbers(&report.lacking)
        );
    }
    text
}
