//! Checks and measures uploads and the reader on a GPU: `gpu_check [--device N] [--small]`.
//!
//! Exit codes: 0 all as it should be, 1 something is not, 2 there is no GPU, or it failed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]

mod checks;
#[path = "../bench_read/corpus.rs"]
#[expect(dead_code, reason = "shared with bench_read")]
mod corpus;
mod fed;
#[path = "../../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;
mod transfers;

use std::process::ExitCode;

use checks::Sizes;
use stoker_reader::Error;
use stoker_reader::device::DeviceFault;

const USAGE: &str = "usage: gpu_check [--device N] [--small]";

fn main() -> ExitCode {
    let mut sizes = Sizes::full();
    let mut ordinal = Some(0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--small" => sizes = Sizes::small(),
            "--device" => ordinal = arguments.next().and_then(|number| number.parse().ok()),
            _ => ordinal = None,
        }
    }
    let Some(ordinal) = ordinal else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("error: could not make a folder for a cache of 256 MB: {error}");
            return ExitCode::from(2);
        }
    };
    fed::make(folder.path(), sizes.batches, sizes.batch_bytes);
    match checks::run(ordinal, folder.path(), &sizes, &mut |line| {
        println!("{line}")
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let none = matches!(
                error,
                Error::Device {
                    fault: DeviceFault::NoDriver | DeviceFault::NoSuchDevice { .. },
                    ..
                }
            );
            let what = if none { "no GPU here" } else { "error" };
            eprintln!("{what}: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(2)
        }
    }
}
