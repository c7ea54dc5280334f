//! `stoker stats`: distributions, or how even ranks would be, as text or JSON.

use super::args::StatsArgs;
use super::{DONE, printer};
use crate::error::Result;
use crate::stats::{self, BalanceOptions};

/// Units of a rank in a global batch, if nothing is said.
const UNITS_OF_A_RANK: u32 = 8;

pub(super) fn run(args: &StatsArgs) -> Result<u8> {
    // The one is not given without the other.
    if let (true, Some(ranks)) = (args.balance, args.ranks) {
        let balance = stats::balance(
            &args.cache,
            &BalanceOptions {
                split: args.split.clone(),
                ranks,
                nodes: args.nodes,
                pack: args.pack.clone(),
                batch_size: args
                    .batch_size
                    .unwrap_or_else(|| ranks.saturating_mul(UNITS_OF_A_RANK)),
            },
        )?;
        if args.json {
            printer::json(&balance)?;
        } else {
            printer::data(&balance.to_text())?;
        }
        return Ok(DONE);
    }
    let stats = stats::stats(&args.cache)?;
    if args.json {
        printer::json(&stats)?;
    } else {
        printer::data(&stats.to_text())?;
    }
    Ok(DONE)
}
