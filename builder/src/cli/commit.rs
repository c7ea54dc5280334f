//! `stoker commit`: puts parts together, and the report.

use std::fmt::Write;

use super::args::CommitArgs;
use super::build::build_text;
use super::{Command, DONE, printer};
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::held::numbers;
use crate::parts::{self, CommitReport, CommitRequest};

pub(super) fn run(args: &CommitArgs) -> Result<u8> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    let report = parts::commit(&request(args), &stop)?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&text(&report))?;
    }
    Ok(DONE)
}

/// What the arguments of `stoker commit` ask for.
///
/// # Errors
/// [`Error::Usage`] for arguments that the command would not take.
pub fn commit_request(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<CommitRequest> {
    match super::parsed("commit", args)? {
        Command::Commit(args) => Ok(request(&args)),
        _ => Err(super::usage("commit", "not the arguments of a commit")),
    }
}

fn request(args: &CommitArgs) -> CommitRequest {
    CommitRequest {
        parts: args.parts.clone(),
        output: args.output.clone(),
        prune: args.prune,
        s3_endpoint: args.s3_endpoint.clone(),
    }
}

fn text(report: &CommitReport) -> String {
    let mut text = build_text(&report.cache);
    if !report.not_held.is_empty() {
        let _ = writeln!(
            text,
            "elsewhere    the shards of partitions {}, where they were built",
            numbers(&report.not_held)
        );
    }
    text
}
