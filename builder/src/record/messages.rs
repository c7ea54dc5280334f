//! The `messages` shape: roles, and content as text or as a list of parts.
//!
//! Owns the forms in which image parts are written. Keys with the value null count as absent, because
//! table exporters write every key of every part.

use serde_json::{Map, Value};

use super::turns::{self, Speaker};
use super::{Message, Part, Role, is_nothing, text_at, wrong};
use crate::reject::Reject;

/// The turns of a record of this shape.
pub(super) fn messages(object: &Map<String, Value>) -> Result<Vec<Message>, Reject> {
    for key in ["image", "images"] {
        if object.get(key).is_some_and(|value| !is_nothing(value)) {
            return Err(wrong(format!(
                "field `{key}` beside `messages`: tags in text are the shape `swift` (--schema swift)"
            )));
        }
    }
    let list = object
        .get("messages")
        .and_then(Value::as_array)
        .ok_or_else(|| wrong("field `messages` must be a list"))?;
    let mut turns = Vec::with_capacity(list.len());
    for entry in list {
        let entry = entry
            .as_object()
            .ok_or_else(|| wrong("each of `messages` must be an object"))?;
        match turns::speaker(text_at(entry, "role")?)? {
            Speaker::Plain(role) => turns.push(message(entry, role)?),
            Speaker::Call => turns::push_calls(&mut turns, entry, text_at(entry, "content")?)?,
        }
    }
    Ok(turns)
}

fn message(entry: &Map<String, Value>, role: Role) -> Result<Message, Reject> {
    let tool_calls = match role {
        Role::Assistant => turns::tool_calls(entry)?,
        _ => Vec::new(),
    };
    let content = match entry.get("content") {
        Some(Value::String(text)) => turns::text_parts(text),
        Some(Value::Array(list)) => list.iter().map(part).collect::<Result<_, _>>()?,
        None | Some(Value::Null) if !tool_calls.is_empty() => Vec::new(),
        _ => return Err(wrong("field `content` must be a string or a list of parts")),
    };
    Ok(Message {
        role,
        content,
        reasoning: turns::reasoning(entry, role)?,
        tool_calls,
    })
}

fn part(value: &Value) -> Result<Part, Reject> {
    let object = value
        .as_object()
        .ok_or_else(|| wrong("each part of `content` must be an object"))?;
    let present = |key: &str| object.get(key).filter(|value| !value.is_null());
    let kind = present("type").and_then(Value::as_str).unwrap_or_default();
    if kind == "image"
        || kind == "image_url"
        || present("image").is_some()
        || present("image_url").is_some()
    {
        return image_link(object)
            .map(|link| Part::Image { link: link.to_owned() })
            .ok_or_else(|| wrong("an image part needs a link as a string in `image`, `image_url`, `url` or `path`"));
    }
    match present("text") {
        Some(Value::String(text)) if kind == "text" || kind.is_empty() => {
            Ok(Part::Text(text.clone()))
        }
        _ => Err(wrong("a part must be text or an image")),
    }
}

/// The link of an image part: the first of these keys that is there must hold it.
fn image_link(object: &Map<String, Value>) -> Option<&str> {
    let value = ["image", "image_url", "url", "path"]
        .iter()
        .find_map(|key| object.get(*key).filter(|value| !value.is_null()))?;
    match value {
        Value::String(link) => Some(link),
        Value::Object(inner) => inner.get("url")?.as_str(),
        _ => None,
    }
}
