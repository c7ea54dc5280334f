//! `stoker pack`: from arguments to a request, and the report.

use std::ffi::OsString;
use std::thread::available_parallelism;

use stoker_formats::PackOptions;

use super::args::{Command, PackArgs};
use super::{DONE, printer};
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::pack::{self, Request};

pub(super) fn run(args: &PackArgs) -> Result<u8> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    let report = pack::pack(&request(args), &stop)?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&report.to_text())?;
    }
    Ok(DONE)
}

/// What the arguments of `stoker pack` ask for.
///
/// # Errors
/// [`Error::Usage`] for arguments that the command would not take.
pub fn pack_request(args: impl IntoIterator<Item = OsString>) -> Result<Request> {
    match super::parsed("pack", args)? {
        Command::Pack(args) => Ok(request(&args)),
        _ => Err(super::usage("pack", "not the arguments of a pack")),
    }
}

fn request(args: &PackArgs) -> Request {
    Request {
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
        threads: args.threads.map_or_else(
            || available_parallelism().map_or(1, usize::from),
            usize::from,
        ),
        show: true,
    }
}
