//! `stoker bench`: what this machine can read of a cache, and whether a trainer would wait.

use super::args::BenchArgs;
use super::{DONE, printer};
use crate::bench;
use crate::error::{Error, Result};

pub(super) fn run(args: &BenchArgs) -> Result<u8> {
    let positive = |what: &str, value: f64| {
        if value > 0.0 && value <= 3600.0 {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!("{what} must be more than 0 and at most 3600, not `{value}`"),
            hint: "give a number of seconds, such as 0.5".into(),
        })
    };
    positive("--seconds", args.seconds)?;
    if let Some(step) = args.step {
        positive("--step", step)?;
    }
    let report = bench::run(&bench::Options {
        cache: args.cache.clone(),
        split: args.split.clone(),
        batch_size: args.batch_size,
        step: args.step,
        images: args.images.clone(),
        seconds: args.seconds,
    })?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&report.to_text())?;
    }
    Ok(DONE)
}
