//! Canonical JSON: one text for one value, so that recipes can be hashed and compared.
//!
//! Owns that text, and reading a recipe without letting it grow in memory. Invariant: objects are sorted by key bytes,
//! no white space, numbers and strings as `serde_json` writes them.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::{Map, Number, Value};

use crate::limits::{MAX_RECIPE_TEXT_BYTES, MAX_RECIPE_VALUES};

/// The canonical text of `value`, in UTF-8.
#[must_use]
pub fn canonical_json(value: &Value) -> Vec<u8> {
    // `Display` of a value is compact JSON, and objects keep the order in which they were built.
    sorted(value).to_string().into_bytes()
}

/// `value` with the keys of every object in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(sorted).collect(),
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| key.as_bytes());
            pairs
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)))
                .collect()
        }
        other => other.clone(),
    }
}

/// A recipe as it stands in a document: written canonically, read with a bound on its values.
pub(crate) mod recipe {
    use super::{
        Bounded, Cell, DeserializeSeed, Deserializer, MAX_RECIPE_VALUES, Serialize, Serializer,
        Value, sorted,
    };

    pub(crate) fn serialize<S: Serializer>(
        recipe: &Value,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        sorted(recipe).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Value, D::Error> {
        let left = Cell::new(MAX_RECIPE_VALUES);
        Bounded(&left).deserialize(deserializer)
    }
}

/// Whether `value` can be read again.
pub(crate) fn is_within_bounds(value: &Value) -> bool {
    fn walk(value: &Value, left: &Cell<usize>, depth: usize) -> bool {
        if left.get() == 0 || depth > 100 {
            return false;
        }
        left.set(left.get() - 1);
        match value {
            Value::String(text) => text.len() <= MAX_RECIPE_TEXT_BYTES,
            Value::Array(list) => list.iter().all(|value| walk(value, left, depth + 1)),
            Value::Object(map) => map.iter().all(|(key, value)| {
                key.len() <= MAX_RECIPE_TEXT_BYTES && walk(value, left, depth + 1)
            }),
            _ => true,
        }
    }
    walk(value, &Cell::new(MAX_RECIPE_VALUES), 0)
}

/// Reads one value, counting down.
#[derive(Clone, Copy)]
struct Bounded<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left = self.0.get().checked_sub(1);
        self.0
            .set(left.ok_or_else(|| D::Error::custom("too many values"))?);
        deserializer.deserialize_any(self)
    }
}

fn text<E: serde::de::Error>(text: &str) -> Result<String, E> {
    if text.len() > MAX_RECIPE_TEXT_BYTES {
        return Err(E::custom("text too long"));
    }
    Ok(text.to_owned())
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        text(value).map(Value::String)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Map::new();
        while let Some(key) = map.next_key::<std::borrow::Cow<'_, str>>()? {
            let key = text(&key)?;
            if pairs.contains_key(&key) {
                return Err(A::Error::custom("a key stands twice"));
            }
            pairs.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(pairs))
    }
}
