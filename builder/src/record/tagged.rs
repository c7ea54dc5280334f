//! Shapes with `<image>` tags in plain text (llava, sharegpt, swift), and question with answer (vqa).
//!
//! Owns the rules of tags. Invariant: every image of the record gets exactly one place, in the order of
//! its list, or the record is refused.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use super::turns::{self, Speaker};
use super::{ImageTag, Message, Part, RecordOptions, Role, is_nothing, text_at, wrong};
use crate::reject::{Reason, Reject};

/// What stands in text where an image goes.
const TAG: &str = "<image>";

/// The turns of `conversations`, with the record's `system` before them.
pub(super) fn conversations(
    object: &Map<String, Value>,
    options: RecordOptions,
) -> Result<Vec<Message>, Reject> {
    let mut turns = turn_list(object, "conversations", "from", "value")?;
    match object.get("system") {
        Some(Value::String(text)) if !text.is_empty() => {
            turns.insert(0, turns::plain(Role::System, text));
        }
        Some(value) if !is_nothing(value) => return Err(wrong("field `system` must be a string")),
        _ => {}
    }
    place(turns, pool(object)?, options)
}

/// The turns of swift's `messages`; images without a tag go before the first turn that is no system turn.
pub(super) fn swift(
    object: &Map<String, Value>,
    options: RecordOptions,
) -> Result<Vec<Message>, Reject> {
    let mut turns = turn_list(object, "messages", "role", "content")?;
    let pool = pool(object)?;
    let tags: usize = turns
        .iter()
        .flat_map(|turn| &turn.content)
        .map(tag_count)
        .sum();
    let missing = pool.len().saturating_sub(tags);
    if missing > 0
        && let Some(first) = turns.iter_mut().find(|turn| turn.role != Role::System)
    {
        let tags = TAG.repeat(missing);
        match first.content.first_mut() {
            Some(Part::Text(text)) => text.insert_str(0, &tags),
            _ => first.content.insert(0, Part::Text(tags)),
        }
    }
    place(turns, pool, options)
}

/// Question and answer as two turns, images before the question.
pub(super) fn vqa(object: &Map<String, Value>) -> Result<Vec<Message>, Reject> {
    let mut content: Vec<Part> = pool(object)?
        .into_iter()
        .map(|link| Part::Image { link })
        .collect();
    content.push(Part::Text(text_at(object, "question")?.to_owned()));
    Ok(vec![
        Message {
            role: Role::User,
            content,
            reasoning: None,
            tool_calls: Vec::new(),
        },
        turns::plain(Role::Assistant, text_at(object, "answer")?),
    ])
}

/// Turns as they are written, tags still in their text.
fn turn_list(
    object: &Map<String, Value>,
    list_key: &str,
    role_key: &str,
    text_key: &str,
) -> Result<Vec<Message>, Reject> {
    let list = object
        .get(list_key)
        .and_then(Value::as_array)
        .ok_or_else(|| wrong(format!("field `{list_key}` must be a list")))?;
    let mut turns = Vec::with_capacity(list.len() + 1);
    for entry in list {
        let entry = entry
            .as_object()
            .ok_or_else(|| wrong(format!("each of `{list_key}` must be an object")))?;
        let text = text_at(entry, text_key)?;
        match turns::speaker(text_at(entry, role_key)?)? {
            Speaker::Plain(role) => turns.push(Message {
                reasoning: turns::reasoning(entry, role)?,
                ..turns::plain(role, text)
            }),
            Speaker::Call => turns::push_calls(&mut turns, entry, text)?,
        }
    }
    Ok(turns)
}

/// The record's images: `image` or `images`, each a link or a list of links.
fn pool(object: &Map<String, Value>) -> Result<VecDeque<String>, Reject> {
    let mut found = VecDeque::new();
    for key in ["image", "images"] {
        let value = object.get(key).unwrap_or(&Value::Null);
        if is_nothing(value) {
            continue;
        }
        if !found.is_empty() {
            return Err(wrong("both `image` and `images`: keep one of them"));
        }
        let mistake = || wrong(format!("field `{key}` must be a link or a list of links"));
        match value {
            Value::String(link) => found.push_back(link.clone()),
            Value::Array(list) => {
                for link in list {
                    found.push_back(link.as_str().ok_or_else(mistake)?.to_owned());
                }
            }
            _ => return Err(mistake()),
        }
    }
    Ok(found)
}

fn tag_count(part: &Part) -> usize {
    match part {
        Part::Text(text) => text.matches(TAG).count(),
        Part::Image { .. } => 0,
    }
}

/// Puts the images where the tags of user turns stand; tags in other turns are plain text.
fn place(
    mut turns: Vec<Message>,
    mut pool: VecDeque<String>,
    options: RecordOptions,
) -> Result<Vec<Message>, Reject> {
    let images = pool.len();
    let mut tags = 0;
    for turn in turns.iter_mut().filter(|turn| turn.role == Role::User) {
        let Some(Part::Text(text)) = turn.content.pop() else {
            continue;
        };
        for (number, piece) in text.split(TAG).enumerate() {
            if number > 0 {
                tags += 1;
                if let Some(link) = pool.pop_front() {
                    turn.content.push(Part::Image { link });
                }
            }
            let piece = match options.image_tag {
                ImageTag::Strip => strip(piece),
                ImageTag::Inplace => piece,
            };
            turn.content.extend(turns::text_parts(piece));
        }
    }
    if tags == images {
        return Ok(turns);
    }
    Err(Reject::new(
        Reason::ImageCountMismatch,
        format!("{tags} `{TAG}` tags in user turns for {images} images"),
    ))
}

/// Python's `str.strip`: Unicode white space and the four separators U+001C to U+001F.
fn strip(text: &str) -> &str {
    text.trim_matches(|letter: char| {
        letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
    })
}
