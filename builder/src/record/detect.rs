//! The shape of a file, told from its first lines.
//!
//! Owns the guess only: a line that does not fit the guess is refused later, one by one.

use serde_json::{Map, Value};

use super::{Shape, is_nothing, json};

/// The shape of a file whose first lines are `lines`; lines that are no JSON object are skipped.
///
/// A record with images decides; records without any only break a tie. `None` if no line has a known shape.
pub fn detect<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> Option<Shape> {
    let mut guess = None;
    for line in lines {
        let Ok(object) = json::parse_line(line) else {
            continue;
        };
        match shape_of(&object) {
            Some((shape, true)) => return Some(shape),
            Some((shape, false)) => guess = guess.or(Some(shape)),
            None => {}
        }
    }
    guess
}

/// The shape of one record, and whether it is beyond doubt.
fn shape_of(object: &Map<String, Value>) -> Option<(Shape, bool)> {
    let has = |key: &str| object.get(key).is_some_and(|value| !is_nothing(value));
    if has("messages") {
        if has("images") || has("image") {
            return Some((Shape::Swift, true));
        }
        let parts = object["messages"].as_array().is_some_and(|list| {
            list.iter()
                .any(|message| message.get("content").is_some_and(Value::is_array))
        });
        return Some((Shape::Messages, parts));
    }
    if has("conversations") {
        return Some(if has("images") {
            (Shape::Sharegpt, true)
        } else if has("image") {
            (Shape::Llava, true)
        } else if object.contains_key("system") || object.contains_key("images") {
            (Shape::Sharegpt, false)
        } else {
            (Shape::Llava, false)
        });
    }
    (has("question") && object.contains_key("answer")).then_some((Shape::Vqa, true))
}
