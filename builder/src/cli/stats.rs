//! `stoker stats`: distributions, or how even ranks would be, as text or JSON.

use std::ffi::OsString;

use serde::Serialize;

use super::args::{Command, StatsArgs};
use super::{DONE, printer};
use crate::error::Result;
use crate::stats::{self, BalanceOptions, BalanceStats, Stats};

/// Units of a rank in a global batch, if nothing is said.
const UNITS_OF_A_RANK: u32 = 8;

/// What the command tells.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum StatsReport {
    /// Distributions.
    Counts(Box<Stats>),
    /// How even ranks would be.
    Balance(BalanceStats),
}

pub(super) fn run(args: &StatsArgs) -> Result<u8> {
    let report = report(args)?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&match &report {
            StatsReport::Counts(stats) => stats.to_text(),
            StatsReport::Balance(balance) => balance.to_text(),
        })?;
    }
    Ok(DONE)
}

/// What `stoker stats` tells with these arguments.
///
/// # Errors
/// [`Error::Usage`](crate::Error::Usage) for arguments that the command would not take, or what is wrong with the cache.
pub fn stats_report(args: impl IntoIterator<Item = OsString>) -> Result<StatsReport> {
    match super::parsed("stats", args)? {
        Command::Stats(args) => report(&args),
        _ => Err(super::usage("stats", "not the arguments of statistics")),
    }
}

fn report(args: &StatsArgs) -> Result<StatsReport> {
    // The one is not given without the other.
    let (true, Some(ranks)) = (args.balance, args.ranks) else {
        let stats = stats::stats(&args.cache)?;
        return Ok(StatsReport::Counts(Box::new(stats)));
    };
    let options = BalanceOptions {
        split: args.split.clone(),
        ranks,
        nodes: args.nodes,
        pack: args.pack.clone(),
        batch_size: args
            .batch_size
            .unwrap_or_else(|| ranks.saturating_mul(UNITS_OF_A_RANK)),
    };
    let balance = stats::balance(&args.cache, &options)?;
    Ok(StatsReport::Balance(balance))
}
