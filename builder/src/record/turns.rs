//! Roles and tool calls, as the different trainers write them.
//!
//! Owns the names of roles and the forms in which tools and calls are given. Invariant: names are
//! strings, arguments are JSON values whose numbers print as they were written.

use serde_json::{Map, Value};

use super::{Message, Part, Role, ToolCall, is_nothing, json, text_at, wrong};
use crate::reject::Reject;

/// Who speaks, and whether the text is a tool call in JSON.
pub(super) enum Speaker {
    /// A plain turn.
    Plain(Role),
    /// An assistant's turn whose text is one call, or a list of calls, in JSON.
    Call,
}

/// Understands the role names of every shape.
pub(super) fn speaker(name: &str) -> Result<Speaker, Reject> {
    Ok(match name {
        "user" | "human" => Speaker::Plain(Role::User),
        "assistant" | "gpt" => Speaker::Plain(Role::Assistant),
        "system" => Speaker::Plain(Role::System),
        "tool" | "observation" | "tool_response" => Speaker::Plain(Role::Tool),
        "function_call" | "tool_call" => Speaker::Call,
        _ => {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(wrong(format!("unknown role `{name}`")));
        }
    })
}

/// A turn that holds plain text.
pub(super) fn plain(role: Role, text: &str) -> Message {
    Message {
        role,
        content: text_parts(text),
        reasoning: None,
        tool_calls: Vec::new(),
    }
}

/// One text part, none for an empty string.
pub(super) fn text_parts(text: &str) -> Vec<Part> {
    if text.is_empty() {
        Vec::new()
    } else {
        vec![Part::Text(text.to_owned())]
    }
}

/// The thoughts in an assistant's turn, which is learnt whole or refused.
pub(super) fn reasoning(turn: &Map<String, Value>, role: Role) -> Result<Option<String>, Reject> {
    if role != Role::Assistant {
        return Ok(None);
    }
    for key in ["loss", "weight"] {
        let value = turn.get(key).unwrap_or(&Value::Null);
        let is_whole = *value == Value::Bool(true) || value.as_f64() == Some(1.0);
        if !value.is_null() && !is_whole {
            return Err(wrong(format!(
                "field `{key}` of an assistant's turn is `{value}`: every such turn is learnt, once"
            )));
        }
    }
    match turn.get("reasoning_content") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong("field `reasoning_content` must be a string")),
    }
}

/// Adds the calls in `text`, that of `turn`, as an assistant's turn; calls in a row share one turn.
pub(super) fn push_calls(
    turns: &mut Vec<Message>,
    turn: &Map<String, Value>,
    text: &str,
) -> Result<(), Reject> {
    if reasoning(turn, Role::Assistant)?.is_some_and(|text| !text.is_empty()) {
        return Err(wrong(
            "field `reasoning_content` in a turn of calls alone: write it in the turn of an assistant",
        ));
    }
    let value = json::parse_value(text)
        .map_err(|_| wrong("a function call's text must be JSON with `name` and `arguments`"))?;
    let mut added = match value {
        Value::Array(list) => list.iter().map(call).collect::<Result<Vec<_>, _>>()?,
        one => vec![call(&one)?],
    };
    match turns.last_mut() {
        Some(last) if last.role == Role::Assistant && !last.tool_calls.is_empty() => {
            last.tool_calls.append(&mut added);
        }
        _ => turns.push(Message {
            role: Role::Assistant,
            content: Vec::new(),
            reasoning: None,
            tool_calls: added,
        }),
    }
    Ok(())
}

/// The `tool_calls` of a message.
pub(super) fn tool_calls(message: &Map<String, Value>) -> Result<Vec<ToolCall>, Reject> {
    match message.get("tool_calls") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(call).collect(),
        Some(_) => Err(wrong("field `tool_calls` must be a list")),
    }
}

/// One call: `{name, arguments}`, bare or inside `function`.
fn call(value: &Value) -> Result<ToolCall, Reject> {
    let object = value
        .as_object()
        .ok_or_else(|| wrong("a tool call must be an object"))?;
    let function = match object.get("function") {
        Some(Value::Object(inner)) => inner,
        _ => object,
    };
    let arguments = function.get("arguments").cloned().unwrap_or_default();
    exact(&arguments)?;
    Ok(ToolCall {
        name: text_at(function, "name")?.to_owned(),
        arguments,
    })
}

/// The `tools` of a record: a list, or the same as JSON text.
pub(super) fn tools(object: &Map<String, Value>) -> Result<Option<Vec<Value>>, Reject> {
    let mistake = || wrong("field `tools` must be a list, or a list as JSON text");
    let list = match object.get("tools") {
        None => return Ok(None),
        Some(value) if is_nothing(value) => return Ok(None),
        Some(Value::Array(list)) => list.clone(),
        Some(Value::String(text)) => match json::parse_value(text) {
            Ok(Value::Array(list)) => list,
            _ => return Err(mistake()),
        },
        Some(_) => return Err(mistake()),
    };
    list.iter().try_for_each(exact)?;
    Ok(Some(list).filter(|list| !list.is_empty()))
}

fn exact(value: &Value) -> Result<(), Reject> {
    if json::has_inexact_number(value) {
        return Err(wrong(
            "a number of more than 64 bits in a tool or its arguments: write it as a string",
        ));
    }
    Ok(())
}
