//! Strict JSON: one line, one object, no key twice.
//!
//! Owns the byte positions of JSON faults. Depth is bounded by the parser's own limit of 128 levels.
//! Invariant: an object returned here has unique keys at every level, in the order of the line.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::reject::{Reason, Reject};

/// The UTF-8 byte order mark.
pub(super) const BOM: &[u8] = b"\xef\xbb\xbf";
/// First number whose digits may not survive as a 64-bit float without its being noticed.
const EXACT_FLOAT_MAX: f64 = 18_446_744_073_709_551_616.0;
/// The same of negative numbers: this one and those above it are kept as integers.
const EXACT_FLOAT_MIN: f64 = -9_223_372_036_854_775_808.0;

/// Parses one line as a JSON object.
pub(super) fn parse_line(line: &[u8]) -> Result<Map<String, Value>, Reject> {
    let skipped = if line.starts_with(BOM) { BOM.len() } else { 0 };
    let text = std::str::from_utf8(&line[skipped..]).map_err(|error| {
        Reject::new(Reason::BadUtf8, "the line is not UTF-8")
            .at((skipped + error.valid_up_to()) as u64)
    })?;
    match parse_value(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Reject::new(Reason::BadJson, "the line is not a JSON object").at(0)),
        Err(error) => Err(fault(&error, skipped)),
    }
}

/// Parses any JSON text by the same rules.
pub(super) fn parse_value(text: &str) -> Result<Value, serde_json::Error> {
    let text = without_negative_zeros(text);
    let mut source = serde_json::Deserializer::from_str(&text);
    let value = Strict.deserialize(&mut source)?;
    source.end()?;
    Ok(value)
}

/// `text`, as long as before, without the sign of each integer `-0`: Python reads it as 0, the parser as the float -0.0.
fn without_negative_zeros(text: &str) -> Cow<'_, str> {
    if !text.contains("-0") {
        return Cow::Borrowed(text);
    }
    let mut out = text.as_bytes().to_vec();
    let (mut in_string, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b'-' if !in_string && is_zero(&text[..at], &text[at + 1..]) => out[at] = b' ',
            _ => {}
        }
    }
    String::from_utf8(out).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Whether the sign after `before` and before `after` is that of an integer 0.
fn is_zero(before: &str, after: &str) -> bool {
    let is_exponent = before.ends_with(['e', 'E']);
    let rest = after.strip_prefix('0');
    let ends = |rest: &str| {
        !rest.starts_with(['.', 'e', 'E']) && !rest.starts_with(|c: char| c.is_ascii_digit())
    };
    !is_exponent && rest.is_some_and(ends)
}

/// The reject for a parser's fault; the parser's own words stay out of it.
fn fault(error: &serde_json::Error, skipped: usize) -> Reject {
    let what = match error.classify() {
        serde_json::error::Category::Eof => "the JSON ends early",
        serde_json::error::Category::Data => "a key stands twice in one object",
        _ if error.to_string().starts_with("recursion limit") => "the JSON nests too deeply",
        _ if error.to_string().starts_with("number out of range") => "a number is out of range",
        _ => "the JSON is malformed",
    };
    Reject::new(Reason::BadJson, what).at((skipped + error.column().saturating_sub(1)) as u64)
}

/// A number that would be shown to the model with other digits than it was written with.
pub(super) fn has_inexact_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64()
                && number
                    .as_f64()
                    .is_some_and(|float| float >= EXACT_FLOAT_MAX || float <= EXACT_FLOAT_MIN)
        }
        Value::Array(list) => list.iter().any(has_inexact_number),
        Value::Object(object) => object.values().any(has_inexact_number),
        _ => false,
    }
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Strict)?;
            if object.insert(key, value).is_some() {
                return Err(de::Error::custom("a key stands twice"));
            }
        }
        Ok(Value::Object(object))
    }
}
