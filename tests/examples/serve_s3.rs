//! Serves a folder as S3 on loopback, each answer late by the given time, until stdin ends.
//!
//! Used by `scripts/bench-build`; owns nothing but the command line. Prints one line: endpoint,
//! access key and secret key. Folders below the root are buckets.

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;
use std::{env, io};

use stoker_tests::s3::{ACCESS_KEY, Faults, Proxy, SECRET_KEY, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(root), Some(delay_ms)) = (args.next(), args.next()) else {
        return Err("usage: serve_s3 FOLDER DELAY_MS".into());
    };
    let server = Server::start(Path::new(&root))?;
    let late = Faults {
        latency: Duration::from_millis(delay_ms.parse()?),
        ..Faults::default()
    };
    let proxy = Proxy::start(server.address(), late)?;
    writeln!(
        io::stdout(),
        "{} {ACCESS_KEY} {SECRET_KEY}",
        proxy.endpoint()
    )?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
