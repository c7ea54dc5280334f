//! `stoker repair`: from arguments to a request, the report and its exit code.

use std::ffi::OsString;
use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};

use super::build::build_options;
use super::remote_args::RepairArgs;
use super::{Command, DONE, printer, remote};
use crate::build::{BuildOptions, Stop};
use crate::error::Result;
use crate::held::numbers;
use crate::remote::crew;
use crate::repair::{self, Good, RepairReport, RepairRequest};

/// Exit code of a cache that is still damaged.
const DAMAGED: u8 = 1;

pub(super) fn run(args: &RepairArgs) -> Result<u8> {
    let mut request = request(args)?;
    request.stop = remote::stop()?;
    request.show = true;
    super::raise_open_files();
    let runtime = super::runtime()?;
    let report = repair::repair(&request, runtime.handle().clone())?;
    if args.reach.json {
        printer::json(&report)?;
    } else {
        printer::data(&text(&report))?;
    }
    Ok(if report.sound { DONE } else { DAMAGED })
}

/// What the arguments of `stoker repair` ask for.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) for arguments that the command would not take.
pub fn repair_request(args: impl IntoIterator<Item = OsString>) -> Result<RepairRequest> {
    match super::parsed("repair", args)? {
        Command::Repair(args) => request(&args),
        _ => Err(super::usage("repair", "not the arguments of a repair")),
    }
}

fn request(args: &RepairArgs) -> Result<RepairRequest> {
    let good = match &args.from {
        Some(uri) => Good::Remote(uri.clone(), remote::options(&args.reach)),
        None => Good::Source(Box::new(source(args)?)),
    };
    Ok(RepairRequest {
        cache: args.cache.clone(),
        good,
        threads: crew::threads(args.reach.threads),
        stop: Stop::default(),
        show: false,
    })
}

/// The options of the build that made the cache.
fn source(args: &RepairArgs) -> Result<BuildOptions> {
    if args.reach.threads.is_some() || args.reach.s3_endpoint.is_some() {
        return Err(super::usage(
            "repair",
            "with --rebuild, --threads and --s3-endpoint are options of the build: give them after --",
        ));
    }
    let output = [OsString::from("--output"), args.cache.clone().into()];
    let (options, dry_run) = build_options(args.build.iter().cloned().chain(output))?;
    if dry_run || options.restart || options.prune || !options.parts.is_empty() {
        return Err(super::usage(
            "repair",
            "a repair takes no --dry-run, --restart, --prune or --worker",
        ));
    }
    Ok(options)
}

fn text(report: &RepairReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "cache        {}", report.cache);
    let _ = writeln!(text, "fingerprint  {}", report.fingerprint);
    let _ = writeln!(
        text,
        "checked      {} files, {}",
        HumanCount(report.files),
        HumanBytes(report.bytes)
    );
    if !report.not_held.is_empty() {
        let _ = writeln!(
            text,
            "not here     the shards of partitions {}: on other nodes, not checked",
            numbers(&report.not_held)
        );
    }
    for damage in &report.damages {
        let word = if damage.remains.is_none() {
            "mended       "
        } else {
            "DAMAGED      "
        };
        let _ = writeln!(text, "{word}{}: {}", damage.file, damage.what);
        if let Some(why) = &damage.remains {
            let _ = writeln!(text, "             {why}");
        }
    }
    let remaining = report
        .damages
        .iter()
        .filter(|damage| damage.remains.is_some());
    let _ = match (report.damages.len(), remaining.count()) {
        (0, _) => writeln!(text, "result       sound"),
        (_, 0) => writeln!(text, "result       sound again"),
        (all, left) => writeln!(
            text,
            "result       damaged: {left} of {all} files could not be mended"
        ),
    };
    text
}
