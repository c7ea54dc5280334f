//! Expected texts of the command line, one file each under `tests/snapshots`.
//!
//! Owns what is masked: whatever differs between machines or runs. `STOKER_UPDATE_SNAPSHOTS=1` writes
//! the files anew; review the difference. Invariant: a missing file is a failure, not a new snapshot.

use std::fs;
use std::path::PathBuf;

use crate::command::{Ended, repository};

/// A run of at least so many hex digits is a hash or an id.
const HASH_DIGITS: usize = 32;

/// In a line of progress, which only a slow machine shows.
const PROGRESS: &str = " records/s, ";

/// Masks and compares both streams and the exit code of `ended` with the snapshot `name`.
///
/// `masks` are texts to replace, as in the temp folder's path, before the general rules.
///
/// # Panics
/// If they differ, or there is no such snapshot.
pub fn check(name: &str, ended: &Ended, masks: &[(&str, &str)]) {
    let mut text = format!(
        "exit code {}\n--- stdout\n{}--- stderr\n{}",
        ended
            .code
            .map_or("none".to_owned(), |code| code.to_string()),
        closed(&ended.stdout),
        closed(&ended.stderr),
    );
    for (from, to) in masks {
        text = text.replace(from, to);
    }
    text = text.replace(&repository().display().to_string(), "[REPOSITORY]");
    let lines = text.lines().filter(|line| !line.contains(PROGRESS));
    let text: String = lines.map(|line| mask(line) + "\n").collect();
    let path = path(name);
    if std::env::var_os("STOKER_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &text).expect("the snapshot");
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_else(|_| {
        panic!("no snapshot {name}; run with STOKER_UPDATE_SNAPSHOTS=1\n{text}")
    });
    assert!(
        text == expected,
        "snapshot {name} differs\n--- expected\n{expected}\n--- found\n{text}"
    );
}

fn path(name: &str) -> PathBuf {
    repository()
        .join("tests/snapshots")
        .join(format!("{name}.txt"))
}

fn closed(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') {
        text.to_owned()
    } else {
        format!("{text}[no line break]\n")
    }
}

/// Masks hashes, process ids, times and free space.
fn mask(line: &str) -> String {
    let mut masked = sizes(&hashes(line));
    for (before, after) in [
        ("pid ", " "),
        (" on host ", ")"),
        (" needed, ", " free"),
        (" to be brought, ", " free"),
        // The lock file, which names a process, counts.
        ("bytes are to be brought to ", " that are there"),
        ("\"bytes\":", ",}"),
        ("\"seconds\":", ",}"),
        ("\"cpu_seconds\":{", "}"),
    ] {
        masked = between(&masked, before, after);
    }
    for label in ["time  ", "free  "] {
        if let Some(rest) = masked.strip_prefix(label) {
            let spaces = rest.len() - rest.trim_start().len();
            let verdict = rest.find(": ").map_or("", |at| &rest[at..]);
            masked = format!("{label}{}[VARIES]{verdict}", " ".repeat(spaces));
        }
    }
    masked
}

/// Masks numbers before a unit: compressed tables follow the length of the temp folder's name.
fn sizes(line: &str) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "%"];
    let words: Vec<&str> = line.split(' ').collect();
    let unit = |word: &str| UNITS.contains(&word.trim_end_matches([',', ')']));
    let number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    if !words
        .windows(2)
        .any(|pair| number(pair[0]) && unit(pair[1]))
    {
        return line.to_owned();
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let masked: Vec<&str> = words
        .iter()
        .enumerate()
        .map(|(at, word)| {
            let sized = words.get(at + 1).is_some_and(|next| unit(next));
            if sized && number(word) {
                "[SIZE]"
            } else {
                word
            }
        })
        .collect();
    masked.join(" ")
}

/// Replaces what stands between `before` and the next of the characters in `after`.
fn between(text: &str, before: &str, after: &str) -> String {
    let Some((head, rest)) = text.split_once(before) else {
        return text.to_owned();
    };
    let end = rest.find(|letter| after.starts_with(letter) || after.ends_with(letter));
    let tail = &rest[end.unwrap_or(rest.len())..];
    format!("{head}{before}[VARIES]{tail}")
}

fn hashes(line: &str) -> String {
    let mut masked = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let digits = rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_ascii_hexdigit())
                .len();
        if digits >= HASH_DIGITS {
            masked.push_str("[HASH]");
            rest = &rest[digits..];
            continue;
        }
        let step = digits.max(rest.chars().next().map_or(1, char::len_utf8));
        masked.push_str(&rest[..step]);
        rest = &rest[step..];
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_varies_is_masked() {
        let hash = "0123456789abcdef0123456789abcdef";
        assert_eq!(mask(&format!("a {hash} b")), "a [HASH] b");
        assert_eq!(mask("time         1.5 s"), "time         [VARIES]");
        assert_eq!(
            mask("free        1.5 MiB: no room"),
            "free        [VARIES]: no room"
        );
        assert_eq!(
            mask("(pid 17 on host box) is"),
            "(pid [VARIES] on host [VARIES]) is"
        );
        assert_eq!(
            mask("12 bytes needed, 7 free"),
            "12 bytes needed, [VARIES] free"
        );
        assert_eq!(mask("{\"seconds\":0.25}"), "{\"seconds\":[VARIES]}");
        assert_eq!(mask("  a  1.5 KiB  3.9 %"), "a [SIZE] KiB [SIZE] %");
        assert_eq!(mask("nothing at all, facade"), "nothing at all, facade");
    }
}
