//! `stoker place`: the table on stdout, what it takes on stderr.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use stoker_reader::{Held, Placement};

use super::args::{Command, PlaceArgs};
use super::{DONE, printer};
use crate::error::{Error, Result};
use crate::place::{self, PlaceReport};

pub(super) fn run(args: &PlaceArgs) -> Result<u8> {
    let report = report(args)?;
    printer::note(&summary(&report));
    printer::json(&report.placement)?;
    Ok(DONE)
}

/// What `stoker place` decides with these arguments.
///
/// # Errors
/// [`Error::Usage`] for arguments that the command would not take, or what is wrong with the cache or the table.
pub fn place_report(args: impl IntoIterator<Item = OsString>) -> Result<PlaceReport> {
    match super::parsed("place", args)? {
        Command::Place(args) => report(&args),
        _ => Err(super::usage("place", "not the arguments of a placement")),
    }
}

fn report(args: &PlaceArgs) -> Result<PlaceReport> {
    let current = args.current.as_deref().map(read_table).transpose()?;
    place::place(&args.cache, args.nodes, current.as_deref())
}

fn summary(report: &PlaceReport) -> String {
    let partitions: usize = report.placement.iter().map(Vec::len).sum();
    let bytes: u64 = report.bytes.iter().sum();
    let least = report.bytes.iter().min().copied().unwrap_or(0);
    let most = report.bytes.iter().max().copied().unwrap_or(0);
    format!(
        "partitions: {}, nodes: {}, {} to {} each; to be brought to a node: {}, {} ({:.1} % of all bytes)",
        HumanCount(partitions as u64),
        HumanCount(report.placement.len() as u64),
        HumanBytes(least),
        HumanBytes(most),
        HumanCount(report.moved_partitions),
        HumanBytes(report.moved_bytes),
        report.moved_bytes as f64 * 100.0 / bytes.max(1) as f64
    )
}

/// The placement table in the file `path`: for each node a list of partitions.
pub(super) fn read_table(path: &Path) -> Result<Vec<Vec<u32>>> {
    let text = fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| Error::Usage {
        what: format!("no placement table, {error}: `{}`", path.display()),
        hint: "give a JSON list with a list of partitions for each node".into(),
    })
}

/// The same, as the reader takes it for one cache.
pub(super) fn read_placement(path: &Path) -> Result<Placement> {
    let held = |partition| Held {
        cache: 0,
        partition,
    };
    let nodes = read_table(path)?.into_iter();
    let nodes: Vec<Vec<Held>> = nodes
        .map(|node| node.into_iter().map(held).collect())
        .collect();
    Ok(Placement::new(&nodes).map_err(stoker_reader::Error::from)?)
}
