//! `stoker stats`: distributions as text or JSON.

use super::args::StatsArgs;
use super::{DONE, printer};
use crate::error::Result;
use crate::stats;

pub(super) fn run(args: &StatsArgs) -> Result<u8> {
    let stats = stats::stats(&args.cache)?;
    if args.json {
        printer::json(&stats)?;
    } else {
        printer::data(&stats.to_text())?;
    }
    Ok(DONE)
}
