//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which is what chat templates expect.
//!
//! Owns the text form only: `", "` and `": "` between things, non-ASCII kept, floats as Python prints them.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Exponents from which, and below which, Python prints a float in scientific notation.
const EXPONENTS: (i32, i32) = (16, -4);

/// The value as JSON text.
pub(super) fn dumps(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(out, number),
        Value::String(text) => write_text(out, text),
        Value::Array(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(object) => {
            out.push('{');
            for (index, (key, item)) in object.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_text(out, key);
                out.push_str(": ");
                write_value(out, item);
            }
            out.push('}');
        }
    }
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' => {
                // Writing into a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            _ => out.push(letter),
        }
    }
    out.push('"');
}

fn write_number(out: &mut String, number: &Number) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(out, float),
        _ => out.push_str(&number.to_string()),
    }
}

/// Shortest digits that give the same float, laid out by Python's rules.
fn write_float(out: &mut String, float: f64) {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (EXPONENTS.1..EXPONENTS.0).contains(&exponent) {
        let plain = float.to_string();
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs made with Python 3.11: json.dumps(json.loads(text), ensure_ascii=False).
    #[test]
    fn it_prints_what_python_prints() {
        for (text, python) in [
            ("1.0", "1.0"),
            ("-0.0", "-0.0"),
            ("1e5", "100000.0"),
            ("1e15", "1000000000000000.0"),
            ("1e16", "1e+16"),
            ("123456789012345680000.0", "1.2345678901234568e+20"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("1.5e-7", "1.5e-07"),
            ("1e300", "1e+300"),
            ("0.1", "0.1"),
            ("18446744073709551615", "18446744073709551615"),
            ("-5", "-5"),
            (
                "{\"b\":[1,true,null],\"a\":{}}",
                "{\"b\": [1, true, null], \"a\": {}}",
            ),
            (
                "\"\\u00e9<&>'\\u007f\\u0001\\b\\f\\n\\/\\\\\\\"\"",
                "\"\u{e9}<&>'\u{7f}\\u0001\\b\\f\\n/\\\\\\\"\"",
            ),
        ] {
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(dumps(&value), python, "{text}");
        }
    }
}
