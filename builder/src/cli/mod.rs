//! The `stoker` command: arguments in, exit code out. The work is done by the library.

mod args;
mod bench;
mod build;
mod commit;
mod inspect;
mod pack;
mod place;
mod printer;
mod push;
mod read;
mod remote;
mod remote_args;
mod repair;
mod simulate;
mod stats;
mod sync;
mod try_image;
mod verify;
mod worker;

use std::ffi::OsString;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub use crate::remote::runtime;
pub use build::build_options;
pub use commit::commit_request;
pub use pack::pack_request;
pub use place::place_report;
pub use push::push_request;
pub use repair::repair_request;
pub use stats::{StatsReport, stats_report};
pub use sync::sync_request;

use crate::error::{Error, Result};
use args::{Cli, Command};

/// Exit code of a command that did what it was asked.
const DONE: u8 = 0;

/// Runs the command line `args` and gives the process's exit code: 0 done, 1 stopped by too many
/// rejects or damage found, 2 could not run, 128 + signal when interrupted.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    match dispatch(&cli.command) {
        Ok(code) => code,
        Err(error) => {
            printer::error(&error);
            error.exit_code()
        }
    }
}

fn dispatch(command: &Command) -> Result<u8> {
    match command {
        Command::Build(args) => build::run(args),
        Command::Commit(args) => commit::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Place(args) => place::run(args),
        Command::Push(args) => push::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Repair(args) => repair::run(args),
        Command::Read(args) => read::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::TryImage(args) => try_image::run(args),
    }
}

/// Lets this process have as many files open as the system allows: the limit that a shell sets is there for old programs. A
/// library does not do so, as its process is not its own.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If it fails, the limit stays.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The arguments of the subcommand `name` alone, for callers that are no command line.
fn parsed(name: &str, args: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let command = ["stoker", name].map(OsString::from);
    let cli = Cli::try_parse_from(command.into_iter().chain(args)).map_err(|error| {
        let text = error.to_string();
        // The first paragraph says what is wrong, the others how the command line is used.
        let what = text.split("\n\n").next().unwrap_or_default();
        usage(name, what.trim_start_matches("error: ").trim_end())
    })?;
    Ok(cli.command)
}

fn usage(name: &str, what: &str) -> Error {
    Error::Usage {
        what: what.into(),
        hint: format!("the options are those of `stoker {name}`, which its --help explains"),
    }
}
