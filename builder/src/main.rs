//! The `stoker` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(stoker_builder::cli::run(std::env::args_os()))
}
