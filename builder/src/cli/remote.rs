//! What the commands that reach a remote share: its options, and the runtime that waits for it.

use tokio::runtime::{Builder, Runtime};

use super::build::end_in_time;
use super::remote_args::ReachArgs;
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::remote::RemoteOptions;

/// Threads that talk to a remote: checksums and copies of what comes keep more than one busy.
const FETCHING_THREADS: usize = 4;

/// How `args` reach a remote; without a request to stop.
pub(super) fn options(args: &ReachArgs) -> RemoteOptions {
    RemoteOptions {
        endpoint: args.s3_endpoint.clone(),
        ..RemoteOptions::default()
    }
}

/// The runtime that remotes do their waiting on.
///
/// # Errors
/// The system's reason, if threads cannot be started.
pub fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(FETCHING_THREADS)
        .enable_all()
        .thread_name("fetch")
        .build()
        .map_err(Error::io("start", "the fetching threads"))
}

/// A stop that signals ask for, and that is answered in time.
pub(super) fn stop() -> Result<Stop> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    end_in_time(stop.clone());
    Ok(stop)
}
