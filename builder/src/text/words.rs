//! Ids of text the short way: ASCII cut into words by hand, and the ids of known words from memory.
//!
//! The general tokenizer spends nine tenths of its time on alignments and regular expressions, and their result for
//! ASCII text is simple. Owns that cut, for the one pre-tokenizer of the families here; whatever is not ASCII, and any
//! other tokenizer, goes the general way. Invariant: the ids are those of the tokenizer itself.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokenizers::{Model as _, ModelWrapper, Tokenizer};

/// How the families here cut text into words.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Words remembered before all are forgotten, and the longest of them: a few MiB a thread.
const WORDS_MAX: usize = 1 << 16;
/// Longer words are rare, and seldom the same.
const WORD_BYTES_MAX: usize = 64;

/// A tokenizer's short way. Cheap to share between threads.
pub(super) struct Words {
    /// Tokens that are cut out before anything else, the longest first.
    added: Vec<(String, i32)>,
    /// One memory for each thread that is at work.
    idle: Mutex<Vec<Memory>>,
}

/// Ids of words seen before.
#[derive(Default)]
struct Memory {
    words: HashMap<Box<str>, Range<usize>>,
    ids: Vec<i32>,
}

impl Words {
    /// The short way of `tokenizer`, if it is of the kind that this module knows.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let part = |part: serde_json::Result<Value>| part.ok();
        let normalizer = part(serde_json::to_value(tokenizer.get_normalizer()))?;
        let cut = part(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
        let cut = cut.get("pretokenizers")?.as_array()?;
        let [split, bytes] = cut.as_slice() else {
            return None;
        };
        let known_split = json!({
            "type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": false,
        });
        let plain_bytes = bytes["type"] == "ByteLevel"
            && bytes["add_prefix_space"] == false
            && bytes["use_regex"] == false;
        // NFC changes no ASCII.
        let same_ascii = normalizer.is_null() || normalizer["type"] == "NFC";
        let byte_pairs = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        if *split != known_split || !plain_bytes || !same_ascii || !byte_pairs {
            return None;
        }
        let mut added = Vec::new();
        for (id, token) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            let special_rules =
                token.single_word || token.lstrip || token.rstrip || token.normalized;
            if special_rules || !token.content.starts_with('<') {
                return None;
            }
            added.push((token.content.clone(), id.cast_signed()));
        }
        added.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        Some(Self {
            added,
            idle: Mutex::default(),
        })
    }

    /// The ids of `text`; `None` if the tokenizer fails.
    pub(super) fn ids(&self, tokenizer: &Tokenizer, text: &str) -> Option<Vec<i32>> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let mut memory = taken.unwrap_or_default();
        let mut ids = Vec::with_capacity(text.len() / 3);
        let done = self.encode(tokenizer, text, &mut memory, &mut ids);
        idle().push(memory);
        done.map(|()| ids)
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        memory: &mut Memory,
        ids: &mut Vec<i32>,
    ) -> Option<()> {
        let mut start = 0;
        let mut from = 0;
        while let Some(at) = memchr::memchr(b'<', &text.as_bytes()[from..]) {
            let at = from + at;
            let rest = &text[at..];
            let found = self
                .added
                .iter()
                .find(|(token, _)| rest.starts_with(token.as_str()));
            match found {
                Some((token, id)) => {
                    encode_plain(tokenizer, &text[start..at], memory, ids)?;
                    ids.push(*id);
                    start = at + token.len();
                    from = start;
                }
                None => from = at + 1,
            }
        }
        encode_plain(tokenizer, &text[start..], memory, ids)
    }
}

/// The ids of text without added tokens.
fn encode_plain(
    tokenizer: &Tokenizer,
    text: &str,
    memory: &mut Memory,
    ids: &mut Vec<i32>,
) -> Option<()> {
    if !text.is_ascii() {
        let encoding = tokenizer.encode_fast(text, false).ok()?;
        ids.extend(encoding.get_ids().iter().map(|id| id.cast_signed()));
        return Some(());
    }
    let mut rest = text;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(word_end(rest.as_bytes()));
        rest = after;
        if let Some(known) = memory.words.get(word) {
            ids.extend_from_slice(&memory.ids[known.clone()]);
            continue;
        }
        let start = ids.len();
        let tokens = tokenizer.get_model().tokenize(&visible(word)).ok()?;
        ids.extend(tokens.iter().map(|token| token.id.cast_signed()));
        memory.keep(word, &ids[start..]);
    }
    Some(())
}

impl Memory {
    fn keep(&mut self, word: &str, ids: &[i32]) {
        if word.len() > WORD_BYTES_MAX {
            return;
        }
        if self.words.len() >= WORDS_MAX {
            self.words.clear();
            self.ids.clear();
        }
        let start = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.words.insert(word.into(), start..self.ids.len());
    }
}

/// ASCII as byte-level models spell it: printable characters stand for themselves, others for letters.
fn visible(word: &str) -> String {
    let letter = |byte| match byte {
        b'!'..=b'~' => char::from(byte),
        0x7f => '\u{121}',
        other => char::from_u32(0x100 + u32::from(other)).unwrap_or_default(),
    };
    word.bytes().map(letter).collect()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | b' ')
}

fn is_newline(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// Neither space nor letter nor digit.
fn is_mark(byte: u8) -> bool {
    !is_space(byte) && !byte.is_ascii_alphanumeric()
}

/// Where the first word of `text` (ASCII, not empty) ends: [`PATTERN`], branch by branch.
fn word_end(text: &[u8]) -> usize {
    let first = text[0];
    let run = |from: usize, belongs: fn(u8) -> bool| {
        let rest = text.get(from..).unwrap_or_default();
        from + rest.iter().take_while(|byte| belongs(**byte)).count()
    };
    let letter = |byte: u8| byte.is_ascii_alphabetic();
    if first == b'\'' {
        let at = |i: usize| text.get(i).map_or(0, u8::to_ascii_lowercase);
        match (at(1), at(2)) {
            (b's' | b't' | b'm' | b'd', _) => return 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => return 3,
            _ => {}
        }
    }
    let second = text.get(1).copied();
    if letter(first) {
        return run(1, letter);
    }
    if first.is_ascii_digit() {
        return 1;
    }
    if !is_newline(first) && second.is_some_and(letter) {
        return run(2, letter);
    }
    if is_mark(first) || (first == b' ' && second.is_some_and(is_mark)) {
        return run(run(1, is_mark), is_newline);
    }
    let spaces = run(1, is_space);
    if let Some(last) = text[..spaces].iter().rposition(|byte| is_newline(*byte)) {
        return last + 1;
    }
    // The last of several spaces belongs to the word that follows.
    if spaces > 1 && spaces < text.len() {
        spaces - 1
    } else {
        spaces
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny");
        Tokenizer::from_file(folder.join("tokenizer.json")).unwrap()
    });
    static WORDS: LazyLock<Words> = LazyLock::new(|| Words::of(&TOKENIZER).unwrap());

    fn assert_same(text: &str) {
        let encoding = TOKENIZER.encode_fast(text, false).unwrap();
        let expected: Vec<i32> = encoding.get_ids().iter().map(|id| *id as i32).collect();
        let ids = WORDS.ids(&TOKENIZER, text).unwrap();
        assert_eq!(ids, expected, "{text:?}");
        // From memory the second time.
        assert_eq!(WORDS.ids(&TOKENIZER, text).unwrap(), expected, "{text:?}");
    }

    #[test]
    fn every_pair_and_triple_of_kinds_of_bytes() {
        let kinds = [
            "a",
            "S",
            "'",
            "'ll",
            "7",
            " ",
            "\n",
            "\r",
            "\t",
            "\x0b",
            "\x00",
            "\x1f",
            "\x7f",
            "-",
            "<",
            "<|im_end|>",
            "\u{e9}",
            "\u{a0}",
            "e\u{301}",
        ];
        for a in kinds {
            for b in kinds {
                assert_same(&format!("{a}{b}"));
                for c in kinds {
                    assert_same(&format!("{a}{b}{c}"));
                }
            }
        }
    }

    #[test]
    fn a_full_memory_starts_anew() {
        let mut memory = Memory::default();
        for i in 0..=WORDS_MAX {
            memory.keep(&i.to_string(), &[i as i32]);
        }
        assert_eq!(memory.words.len(), 1);
        assert_eq!(memory.ids, [WORDS_MAX as i32]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_ascii(text in "[ -~\\s\\x00-\\x7f]{0,80}") {
            assert_same(&text);
        }

        #[test]
        fn words_and_tokens(text in "([a-zA-Z]{1,6}|[0-9]|[ \\t\\r\\n]{1,3}|'[a-zA-Z]{0,2}|[.,:;!?-]{1,2}|<\\|im_start\\|>|<\\|im_e|<tool_call>|\u{fc}|\u{4e2d}){0,24}") {
            assert_same(&text);
        }
    }
}
