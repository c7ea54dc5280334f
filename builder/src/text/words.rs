//! Ids of text the short way: cut into words by [`super::cut`], and the ids of known words from memory.
//!
//! The general tokenizer spends nine tenths of its time on alignments and regular expressions, and their result is simple for the
//! one pre-tokenizer of the families here. Text that is not in normal form C, and any other tokenizer, go the general way.
//! Invariant: the ids are those of the tokenizer itself.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tokenizers::{Model as _, ModelWrapper, Tokenizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::cut::{self, Cut};

/// Words remembered before all are forgotten, and the longest of them: a few MiB a thread.
const WORDS_MAX: usize = 1 << 16;
/// Longer words are rare, and seldom the same.
const WORD_BYTES_MAX: usize = 64;

/// A tokenizer's short way. Cheap to share between threads.
pub(super) struct Words {
    /// Tokens that are cut out before anything else, the longest first.
    added: Vec<(String, i32)>,
    /// Whether text is put into normal form C.
    normal_form: bool,
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
            "type": "Split", "pattern": {"Regex": cut::PATTERN}, "behavior": "Isolated", "invert": false,
        });
        let plain_bytes = bytes["type"] == "ByteLevel"
            && bytes["add_prefix_space"] == false
            && bytes["use_regex"] == false;
        let normal_form = normalizer["type"] == "NFC";
        let byte_pairs = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
        let known_form = normal_form || normalizer.is_null();
        if *split != known_split || !plain_bytes || !known_form || !byte_pairs {
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
            normal_form,
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
                    self.encode_plain(tokenizer, &text[start..at], memory, ids)?;
                    ids.push(*id);
                    start = at + token.len();
                    from = start;
                }
                None => from = at + 1,
            }
        }
        self.encode_plain(tokenizer, &text[start..], memory, ids)
    }

    /// The ids of text without added tokens.
    fn encode_plain(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        memory: &mut Memory,
        ids: &mut Vec<i32>,
    ) -> Option<()> {
        let same =
            !self.normal_form || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes;
        let Some(cut) = same.then(|| Cut::of(text)).flatten() else {
            ids.extend(super::ids(tokenizer, text).ok()?);
            return Some(());
        };
        for word in cut {
            if let Some(known) = memory.words.get(word) {
                ids.extend_from_slice(&memory.ids[known.clone()]);
                continue;
            }
            let start = ids.len();
            let tokens = tokenizer.get_model().tokenize(&cut::spell(word)).ok()?;
            ids.extend(tokens.iter().map(|token| token.id.cast_signed()));
            memory.keep(word, &ids[start..]);
        }
        Some(())
    }
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
            "\u{301}",
            "\u{4e2d}",
            "\u{ac00}",
            "\u{3000}",
            "\u{2019}",
            "\u{17f}",
            "\u{1f600}",
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
        fn any_text(text in "\\PC{0,40}") {
            assert_same(&text);
        }

        #[test]
        fn any_ascii(text in "[ -~\\s\\x00-\\x7f]{0,80}") {
            assert_same(&text);
        }

        #[test]
        fn words_and_tokens(text in "([a-zA-Z]{1,6}|[0-9]|[ \\t\\r\\n]{1,3}|'[a-zA-Z]{0,2}|[.,:;!?-]{1,2}|<\\|im_start\\|>|<\\|im_e|<tool_call>|\u{fc}|\u{4e2d}{1,4}|\u{2019}|\u{201c}|\u{ff0c}|\u{3000}|\u{661}|\u{301}|\u{17f}){0,24}") {
            assert_same(&text);
        }
    }
}
