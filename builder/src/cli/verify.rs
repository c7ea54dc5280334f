//! `stoker verify`: the report and its exit code.

use super::args::VerifyArgs;
use super::{DONE, printer};
use crate::error::Result;
use crate::verify;

/// Exit code of a cache that is damaged.
const DAMAGED: u8 = 1;

pub(super) fn run(args: &VerifyArgs) -> Result<u8> {
    let report = verify::verify(&args.cache, args.deep, true)?;
    if args.json {
        printer::json(&report)?;
    } else {
        printer::data(&report.to_text())?;
    }
    Ok(if report.sound { DONE } else { DAMAGED })
}
