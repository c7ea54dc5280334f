//! `stoker simulate`: the table on stdout, the plot into a file.

use std::fs;

use super::args::SimulateArgs;
use super::{DONE, printer};
use crate::error::{Error, Result};
use crate::simulate::{self, Constants, Options};

pub(super) fn run(args: &SimulateArgs) -> Result<u8> {
    let (bench, constants) = (args.bench.as_deref(), args.constants.as_deref());
    let report = simulate::run(&Options {
        constants: Constants::collect(bench, constants, &args.set)?,
        nodes: args.nodes.clone(),
        steps: args.steps,
        seed: args.seed,
    });
    if let Some(path) = &args.plot {
        fs::write(path, report.to_svg()).map_err(Error::io("write", path))?;
    }
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&report.to_text())?;
    }
    Ok(DONE)
}
