//! Tells the template's control tokens from look-alikes in a record's own text.
//!
//! A record may hold `<|im_start|>assistant`, whole or in pieces that the template joins. Such a record
//! is rendered a second time with the first letter of every possible look-alike replaced by a letter
//! that it does not use; wherever that letter comes out, the control token is not the template's.
//! Invariant: `foreign` lists every byte of the text at which a `<` of the record could begin a control
//! token.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::render::Renderer;
use crate::record::{Message, Part, ToolCall};
use crate::reject::{Reason, Reject};

/// Letters to choose the replacement from: private use, so no template knows them.
const LETTERS: std::ops::RangeInclusive<char> = '\u{e000}'..='\u{e3ff}';

/// A rendered conversation.
pub(super) struct Rendered {
    /// The text, as the template gives it.
    pub(super) text: String,
    /// Bytes of `text` where a `<` of the record stands that could begin a control token; ascending.
    pub(super) foreign: Vec<usize>,
}

/// Renders a conversation and finds the look-alikes in it.
pub(super) fn render(
    renderer: &Renderer,
    messages: &[Message],
    tools: Option<&[Value]>,
) -> Result<Rendered, Reject> {
    let text = renderer.render(messages, tools)?;
    let mut risky = false;
    each_text(messages, tools, &mut |text| risky |= is_risky(text));
    if !risky {
        return Ok(Rendered {
            text,
            foreign: Vec::new(),
        });
    }
    let letter = unused_letter(messages, tools)
        .ok_or_else(|| refused("a record with control tokens uses too many private letters"))?;
    let messages: Vec<Message> = messages
        .iter()
        .map(|message| mask(message, letter))
        .collect();
    let tools: Option<Vec<Value>> =
        tools.map(|list| list.iter().map(|tool| mask_json(tool, letter)).collect());
    let masked = renderer.render(&messages, tools.as_deref())?;
    let mut foreign = Vec::new();
    let mut unmasked = String::with_capacity(text.len());
    for piece in masked.split_inclusive(letter) {
        match piece.strip_suffix(letter) {
            Some(before) => {
                unmasked.push_str(before);
                foreign.push(unmasked.len());
                unmasked.push('<');
            }
            None => unmasked.push_str(piece),
        }
    }
    if unmasked != text {
        return Err(refused(
            "the record holds control tokens, and the chat template changes with them",
        ));
    }
    Ok(Rendered { text, foreign })
}

fn refused(what: &str) -> Reject {
    Reject::new(Reason::TemplateRefused, what)
}

/// Whether a `<` in `text` could begin a control token: alone or with what follows it after joining.
fn is_risky(text: &str) -> bool {
    text.ends_with('<') || text.contains("<|")
}

/// `text` with every such `<` replaced.
fn mask_text(text: &str, letter: char) -> Cow<'_, str> {
    if !is_risky(text) {
        return Cow::Borrowed(text);
    }
    let mut letters = text.chars().peekable();
    let mut masked = String::with_capacity(text.len() + 16);
    while let Some(current) = letters.next() {
        let risky = current == '<' && matches!(letters.peek(), None | Some('|'));
        masked.push(if risky { letter } else { current });
    }
    Cow::Owned(masked)
}

fn mask(message: &Message, letter: char) -> Message {
    Message {
        role: message.role,
        content: message
            .content
            .iter()
            .map(|part| match part {
                Part::Text(text) => Part::Text(mask_text(text, letter).into_owned()),
                image @ Part::Image { .. } => image.clone(),
            })
            .collect(),
        reasoning: message
            .reasoning
            .as_deref()
            .map(|text| mask_text(text, letter).into_owned()),
        tool_calls: message
            .tool_calls
            .iter()
            .map(|call| ToolCall {
                name: mask_text(&call.name, letter).into_owned(),
                arguments: mask_json(&call.arguments, letter),
            })
            .collect(),
    }
}

fn mask_json(value: &Value, letter: char) -> Value {
    match value {
        Value::String(text) => Value::String(mask_text(text, letter).into_owned()),
        Value::Array(list) => list.iter().map(|item| mask_json(item, letter)).collect(),
        Value::Object(object) => {
            let entries = object
                .iter()
                .map(|(key, item)| (mask_text(key, letter).into_owned(), mask_json(item, letter)));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
        other => other.clone(),
    }
}

/// A letter that stands nowhere in the record.
fn unused_letter(messages: &[Message], tools: Option<&[Value]>) -> Option<char> {
    let mut used = vec![false; LETTERS.count()];
    let first = u32::from(*LETTERS.start());
    each_text(messages, tools, &mut |text| {
        for letter in text.chars().filter(|letter| LETTERS.contains(letter)) {
            used[(u32::from(letter) - first) as usize] = true;
        }
    });
    LETTERS
        .zip(used)
        .find_map(|(letter, used)| (!used).then_some(letter))
}

/// Calls `visit` with every text of the record that a template can print.
fn each_text(messages: &[Message], tools: Option<&[Value]>, visit: &mut impl FnMut(&str)) {
    for message in messages {
        for part in &message.content {
            if let Part::Text(text) = part {
                visit(text);
            }
        }
        if let Some(text) = &message.reasoning {
            visit(text);
        }
        for call in &message.tool_calls {
            visit(&call.name);
            each_json_text(&call.arguments, visit);
        }
    }
    for tool in tools.unwrap_or_default() {
        each_json_text(tool, visit);
    }
}

fn each_json_text(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(list) => list.iter().for_each(|item| each_json_text(item, visit)),
        Value::Object(object) => {
            for (key, item) in object {
                visit(key);
                each_json_text(item, visit);
            }
        }
        _ => {}
    }
}
