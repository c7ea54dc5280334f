//! Records: one JSONL line in, canonical chat messages and image links out.
//!
//! Owns the five record shapes and every rule of turning them into messages. It fetches nothing and
//! judges no link. Invariant: [`scan_links`] gives exactly the links of [`parse`] wherever that
//! succeeds, and `links` is in the order in which the images stand in the rendered text.

mod detect;
mod json;
mod messages;
mod scan;
mod tagged;
mod turns;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use stoker_formats::limits::MAX_ID_BYTES;

use crate::limits::RECORD_IMAGES_MAX;
use crate::reject::{Reason, Reject};

pub use detect::detect;
pub use scan::scan_links;

/// Fields that would change what is learnt, and why they are refused.
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (
        &["video", "videos", "audio", "audios"],
        "only text and images are supported",
    ),
    (
        &["objects"],
        "boxes are not put into the text: write them there",
    ),
    (
        &["rejected_response"],
        "nothing is learnt from answers that were not chosen: leave them out",
    ),
];

/// How a record is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// `messages` of `role` and `content`, where content is text or a list of text and image parts.
    Messages,
    /// `conversations` of `from` and `value`, `<image>` tags, and `image`.
    Llava,
    /// `messages` of `role` and plain text, `<image>` tags, and `images`.
    Swift,
    /// `conversations` of `from` and `value`, `<image>` tags, `images`, `system`.
    Sharegpt,
    /// `image`, `question`, `answer`.
    Vqa,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Self; 5] = [
        Self::Messages,
        Self::Llava,
        Self::Swift,
        Self::Sharegpt,
        Self::Vqa,
    ];

    /// The name, as `--schema` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::Llava => "llava",
            Self::Swift => "swift",
            Self::Sharegpt => "sharegpt",
            Self::Vqa => "vqa",
        }
    }
}

/// What becomes of the text around an `<image>` tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum ImageTag {
    /// Each piece of text is trimmed and dropped when empty, as Qwen's finetune code does.
    #[default]
    Strip,
    /// The tag alone is replaced; white space stays, as ms-swift and LLaMA-Factory do.
    Inplace,
}

/// Options of [`parse`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RecordOptions {
    /// What becomes of the text around an `<image>` tag.
    pub image_tag: ImageTag,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions.
    System,
    /// The question.
    User,
    /// The answer: what is learnt.
    Assistant,
    /// A tool's reply.
    Tool,
}

impl Role {
    /// The name, as chat templates know it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text, verbatim.
    Text(String),
    /// An image.
    Image {
        /// Where it is, as the record says.
        link: String,
    },
}

/// A call that the assistant makes.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments: any JSON value, or text that is rendered as it is.
    pub arguments: Value,
}

/// One turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; empty for an empty string.
    pub content: Vec<Part>,
    /// What was thought before, in an assistant's turn only.
    pub reasoning: Option<String>,
    /// Calls, in an assistant's turn only.
    pub tool_calls: Vec<ToolCall>,
}

/// A record in canonical form.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The record's own `id`, a string or a number as text.
    pub id: Option<String>,
    /// The turns; at least one is the assistant's.
    pub messages: Vec<Message>,
    /// Descriptions of tools, if there are any.
    pub tools: Option<Vec<Value>>,
    /// Image links, in the order in which the images stand in the rendered text.
    pub links: Vec<String>,
}

/// Turns one line into a [`Record`]. A byte order mark before and a carriage return behind it are ignored.
///
/// # Errors
/// A [`Reject`] with [`Reason::BadUtf8`] or [`Reason::BadJson`] (with the byte of the line),
/// [`Reason::UnknownShape`], [`Reason::WrongType`], [`Reason::ImageCountMismatch`] or
/// [`Reason::NoAssistantTurn`].
pub fn parse(line: &[u8], shape: Shape, options: &RecordOptions) -> Result<Record, Reject> {
    let object = json::parse_line(line)?;
    let key = match shape {
        Shape::Messages | Shape::Swift => "messages",
        Shape::Llava | Shape::Sharegpt => "conversations",
        Shape::Vqa => "question",
    };
    if object.get(key).is_none_or(Value::is_null) {
        return Err(Reject::new(
            Reason::UnknownShape,
            format!("no field `{key}`, which the shape `{}` needs", shape.name()),
        ));
    }
    for (keys, why) in UNSUPPORTED {
        for key in *keys {
            if object.get(*key).is_some_and(|value| !is_nothing(value)) {
                return Err(wrong(format!("field `{key}`: {why}")));
            }
        }
    }
    let id = match object.get("id") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    if id.as_ref().is_some_and(|id| id.len() > MAX_ID_BYTES) {
        return Err(wrong(format!(
            "field `id` is longer than {MAX_ID_BYTES} bytes"
        )));
    }
    let tools = turns::tools(&object)?;
    let messages = match shape {
        Shape::Messages => messages::messages(&object)?,
        Shape::Swift => tagged::swift(&object, *options)?,
        Shape::Llava | Shape::Sharegpt => tagged::conversations(&object, *options)?,
        Shape::Vqa => tagged::vqa(&object)?,
    };
    finish(id, messages, tools)
}

/// Puts a record together and checks what every shape promises.
fn finish(
    id: Option<String>,
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
) -> Result<Record, Reject> {
    let mut links = Vec::new();
    for message in &messages {
        for part in &message.content {
            let Part::Image { link } = part else { continue };
            if !matches!(message.role, Role::User | Role::Tool) {
                let role = message.role.name();
                let what = format!("an image in a turn of `{role}`, where chat templates drop it");
                return Err(Reject::new(Reason::ImageCountMismatch, what).with_link(link));
            }
            links.push(link.clone());
        }
    }
    if links.len() > RECORD_IMAGES_MAX {
        let what = format!("{} images, more than {RECORD_IMAGES_MAX}", links.len());
        return Err(Reject::new(Reason::ImageCountMismatch, what));
    }
    if !messages
        .iter()
        .any(|message| message.role == Role::Assistant)
    {
        let what = "no assistant turn: nothing to learn from";
        return Err(Reject::new(Reason::NoAssistantTurn, what));
    }
    Ok(Record {
        id,
        messages,
        tools,
        links,
    })
}

/// Null, an empty string or an empty list, or an object of nothing else: what exporters write for "none".
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.values().all(is_nothing),
        _ => false,
    }
}

/// A [`Reason::WrongType`] reject.
fn wrong(what: impl Into<String>) -> Reject {
    Reject::new(Reason::WrongType, what)
}

/// The string at `key`.
fn text_at<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, Reject> {
    object
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| wrong(format!("field `{key}` must be a string")))
}

#[cfg(test)]
mod learning_tests;
#[cfg(test)]
mod tests;
