//! What the commands that reach a remote share: its options, and the request to stop.

use super::build::end_in_time;
use super::remote_args::ReachArgs;
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::remote::RemoteOptions;

/// How `args` reach a remote; without a request to stop.
pub(super) fn options(args: &ReachArgs) -> RemoteOptions {
    RemoteOptions {
        endpoint: args.s3_endpoint.clone(),
        ..RemoteOptions::default()
    }
}

/// A stop that signals ask for, and that is answered in time.
pub(super) fn stop() -> Result<Stop> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    end_in_time(stop.clone());
    Ok(stop)
}
