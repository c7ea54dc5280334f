//! Files of a model folder: bounded reading, JSON objects, and where the chat template stands.
//!
//! Owns no meaning of what it reads beyond "a JSON object" and "a template". Invariant: nothing larger
//! than the limits is ever held in memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::Error;

/// Largest configuration file: those of public models stay below 1 MiB.
const CONFIG_BYTES_MAX: u64 = 4 << 20;
/// Largest chat template: those of public models stay below 64 KiB.
const TEMPLATE_BYTES_MAX: u64 = 1 << 20;

/// Reads at most `limit` bytes of a regular file; `None` if nothing is there.
pub(super) fn read_if_there(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, Error> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    if !metadata.is_file() {
        return Err(fault(
            path,
            "not a regular file",
            "put the model's own file there",
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(Error::io("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(fault(
            path,
            format!("more than {limit} bytes"),
            "check that this is the model's own file",
        ));
    }
    Ok(Some(bytes))
}

/// The JSON object in a configuration file; `None` if nothing is there.
pub(super) fn json_object_if_there(path: &Path) -> Result<Option<Map<String, Value>>, Error> {
    let Some(bytes) = read_if_there(path, CONFIG_BYTES_MAX)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(fault(path, "not a JSON object", "fetch the file again")),
        Err(error) => Err(fault(
            path,
            format!(
                "malformed JSON at line {}, column {}",
                error.line(),
                error.column()
            ),
            "fetch the file again",
        )),
    }
}

/// The chat template and the file it stands in: `chat_template.jinja`, `chat_template.json`, or the
/// `chat_template` of `tokenizer_config.json`, in this order.
pub(super) fn template(dir: &Path) -> Result<(PathBuf, String), Error> {
    let path = dir.join("chat_template.jinja");
    if let Some(bytes) = read_if_there(&path, TEMPLATE_BYTES_MAX)? {
        return match String::from_utf8(bytes) {
            Ok(source) => Ok((path, source)),
            Err(_) => Err(fault(&path, "not UTF-8", "fetch the file again")),
        };
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let path = dir.join(name);
        let object = json_object_if_there(&path)?.unwrap_or_default();
        match object.get("chat_template") {
            None | Some(Value::Null) => {}
            Some(value) => {
                let source = template_in(value).ok_or_else(|| {
                    fault(
                        &path,
                        "chat_template is neither a string nor a list with one named `default`",
                        "put the template into chat_template.jinja",
                    )
                })?;
                return Ok((path, source.to_owned()));
            }
        }
    }
    Err(fault(
        dir,
        "no chat template",
        "add chat_template.jinja, chat_template.json, or a tokenizer_config.json with a chat_template",
    ))
}

/// A template as a string, or the one named `default` in a list of named templates or in a map.
fn template_in(value: &Value) -> Option<&str> {
    match value {
        Value::String(source) => Some(source),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str()),
        Value::Object(named) => named.get("default")?.as_str(),
        _ => None,
    }
}

/// An [`Error::Model`].
pub(super) fn fault(path: &Path, what: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Model {
        path: path.to_path_buf(),
        what: what.into(),
        hint: hint.into(),
    }
}

/// At most 64 printable characters of a value from a file, for a message.
pub(super) fn short(value: &str) -> String {
    value
        .chars()
        .filter(|letter| !letter.is_control())
        .take(64)
        .collect()
}
