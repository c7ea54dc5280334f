//! The two streams: stdout is data, stderr is messages.

use std::io::{self, Write};

use crate::error::{Error, Result};

/// Writes `text` to stdout. A reader that has gone is no fault.
///
/// # Errors
/// The system's reason for any other failure.
pub(crate) fn data(text: &str) -> Result<()> {
    stream(text).map(drop)
}

/// Writes a piece of `text` to stdout; false if nobody reads it any more.
///
/// # Errors
/// As [`data`].
pub(crate) fn stream(text: &str) -> Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::io("write", "stdout")(error)),
    }
}

/// Writes one JSON object and a line break to stdout.
///
/// # Errors
/// As [`data`].
pub(crate) fn json(value: &impl serde::Serialize) -> Result<()> {
    data(&line(value)?)
}

/// One JSON object and a line break.
///
/// # Errors
/// If `value` has no form in JSON.
pub(crate) fn line(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string(value)
        .map_err(|error| Error::io("write", "stdout")(io::Error::other(error)))?;
    Ok(text + "\n")
}

/// Writes a message to stderr.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes an error and its hint to stderr.
pub(crate) fn error(error: &Error) {
    let mut text = format!("error: {error}\n");
    if let Some(hint) = error.hint() {
        text.push_str(&format!("\nhint: {hint}\n"));
    }
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
