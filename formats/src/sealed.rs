//! JSON documents that notice every changed bit by themselves: the last field is a hash of all text before it.
//!
//! Owns the seal and the reading of sealed documents. Invariant: a document ends in `,"seal":"<64 hex digits>"}` and a
//! line feed, and is refused before its JSON is parsed if the seal does not fit.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checksum::ContentHash;
use crate::error::{Error, Result};
use crate::hex;
use crate::manifest::Version;

const OPENING: &[u8] = b",\"seal\":\"";
const CLOSING: &[u8] = b"\"}\n";
const SEAL_BYTES: usize = OPENING.len() + 64 + CLOSING.len();

/// The sealed text of `document`, which must be a non-empty JSON object.
pub(crate) fn seal(kind: &'static str, document: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(document).map_err(|source| Error::Encoder {
        kind,
        source: Box::new(source),
    })?;
    // The closing brace.
    text.pop();
    let hash = ContentHash::of(&text);
    text.extend_from_slice(OPENING);
    text.extend_from_slice(hex::encode(&hash.0).as_bytes());
    text.extend_from_slice(CLOSING);
    Ok(text)
}

/// Checks the seal of `bytes`, takes it off, and parses the rest.
pub(crate) fn parse<T: DeserializeOwned>(
    kind: &'static str,
    mut bytes: Vec<u8>,
    limit: usize,
) -> Result<T> {
    check_seal(kind, &bytes, limit)?;
    // In place: a manifest may take a good part of the memory.
    bytes.truncate(bytes.len() - SEAL_BYTES);
    bytes.push(b'}');
    serde_json::from_slice(&bytes).map_err(|error| {
        // A newer major version may differ in every field but this one.
        if let Ok(probe) = serde_json::from_slice::<Probe>(&bytes)
            && let Err(newer) = probe.format_version.check(kind)
        {
            return newer;
        }
        let what = match error.classify() {
            serde_json::error::Category::Data => "a field is unknown, missing or of another type",
            _ => "not JSON",
        };
        document_fault(kind, what, format!("byte {}", error.column()))
    })
}

#[derive(Deserialize)]
struct Probe {
    format_version: Version,
}

fn check_seal(kind: &'static str, bytes: &[u8], limit: usize) -> Result<()> {
    let fail = |what| document_fault(kind, what, format!("byte {}", bytes.len()));
    if bytes.len() > limit {
        return Err(fail("file too long"));
    }
    let (text, tail) = bytes
        .len()
        .checked_sub(SEAL_BYTES)
        .and_then(|middle| bytes.split_at_checked(middle))
        .ok_or_else(|| fail("file too short"))?;
    let seal = tail
        .strip_prefix(OPENING)
        .and_then(|rest| rest.strip_suffix(CLOSING))
        .and_then(hex::decode)
        .ok_or_else(|| fail("no seal at the end"))?;
    ContentHash(seal).check(kind, text)
}

/// A document fault.
pub(crate) fn document_fault(
    kind: &'static str,
    what: &'static str,
    at: impl Into<String>,
) -> Error {
    Error::Document {
        kind,
        what,
        at: at.into(),
    }
}
