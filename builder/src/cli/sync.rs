//! `stoker sync`: from arguments to a request, and the report.

use std::ffi::OsString;
use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};

use super::place::read_table;
use super::remote_args::SyncArgs;
use super::{Command, DONE, printer, remote};
use crate::error::{Error, Result};
use crate::held::numbers;
use crate::remote::crew;
use crate::sync::{self, Share, SyncReport, SyncRequest};

pub(super) fn run(args: &SyncArgs) -> Result<u8> {
    let mut request = request(args)?;
    request.options.stop = remote::stop()?;
    request.show = true;
    let runtime = super::runtime()?;
    let report = sync::sync(&request, runtime.handle().clone())?;
    if args.reach.json {
        printer::json(&report)?;
    } else {
        printer::data(&text(&report))?;
    }
    Ok(DONE)
}

/// What the arguments of `stoker sync` ask for.
///
/// # Errors
/// [`Error::Usage`] for arguments that the command would not take, [`Error::Io`] if the placement cannot be read.
pub fn sync_request(args: impl IntoIterator<Item = OsString>) -> Result<SyncRequest> {
    match super::parsed("sync", args)? {
        Command::Sync(args) => request(&args),
        _ => Err(super::usage("sync", "not the arguments of a sync")),
    }
}

fn request(args: &SyncArgs) -> Result<SyncRequest> {
    Ok(SyncRequest {
        source: args.source.clone(),
        destination: args.destination.clone(),
        share: share(args)?,
        max_disk: args.max_disk,
        prune: args.prune,
        threads: crew::threads(args.reach.threads),
        options: remote::options(&args.reach),
        show: false,
    })
}

fn share(args: &SyncArgs) -> Result<Share> {
    let Some(node) = args.node else {
        return Ok(Share::All);
    };
    let table = args.placement.as_deref().map(read_table).transpose()?;
    match (table, args.nodes) {
        (Some(table), Some(nodes)) if table.len() != nodes as usize => Err(Error::Usage {
            what: format!(
                "the placement is for {} nodes, --nodes says `{nodes}`",
                table.len()
            ),
            hint: "leave out --nodes, or give the placement that `stoker place` made for so many"
                .into(),
        }),
        (Some(table), _) => Ok(Share::Placed { node, table }),
        (None, Some(nodes)) => Ok(Share::Node { node, nodes }),
        (None, None) => Err(Error::Usage {
            what: format!("of how many nodes is this node `{node}`?"),
            hint: "give --nodes, or a --placement".into(),
        }),
    }
}

fn text(report: &SyncReport) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "cache        {}", report.cache);
    let _ = writeln!(text, "remote       {}", report.remote);
    let _ = writeln!(text, "fingerprint  {}", report.fingerprint);
    let _ = writeln!(
        text,
        "partitions   {} of {}: {}",
        report.partitions.len(),
        report.all_partitions,
        numbers(&report.partitions)
    );
    let _ = writeln!(
        text,
        "files        {} brought, {} in {}; {} there already",
        HumanCount(report.files),
        HumanBytes(report.bytes),
        HumanBytes(report.downloaded_bytes),
        HumanCount(report.files_kept)
    );
    if report.removed > 0 {
        let _ = writeln!(
            text,
            "removed      {} shards of other nodes, {}",
            HumanCount(report.removed),
            HumanBytes(report.removed_bytes)
        );
    }
    for file in &report.not_removed {
        let _ = writeln!(text, "not removed  {file}: the remote does not hold it");
    }
    text
}
