//! `stoker pack`: from arguments to a request, and the report.

use std::thread::available_parallelism;

use stoker_formats::PackOptions;

use super::args::PackArgs;
use super::{DONE, printer};
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::pack::{self, Request};

pub(super) fn run(args: &PackArgs) -> Result<u8> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    let threads = args.threads.map_or_else(
        || available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let request = Request {
        cache: args.cache.clone(),
        name: args.name.clone(),
        options: PackOptions {
            max_tokens: args.max_tokens,
            max_patches: args.max_patches,
            max_samples: args.max_samples,
            by_modality: args.by_modality,
            strategy: args.strategy,
            seed: args.seed,
            window: pack::WINDOW,
            overlong: args.overlong,
        },
        threads,
        show: true,
    };
    let report = pack::pack(&request, &stop)?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&report.to_text())?;
    }
    Ok(DONE)
}
