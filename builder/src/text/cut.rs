//! Text cut into words as the families' tokenizers cut it, without their regular expressions.
//!
//! Owns the one pattern, [`PATTERN`], and how bytes are spelt for byte-pair models. Kinds of characters come from the tokenizer's
//! own engine of regular expressions, so both know the same letters. Invariant: the words are those that the engine finds.

use std::sync::{LazyLock, OnceLock};

use onig::Regex;

/// How the families here cut text into words.
pub(super) const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// An `s` to patterns that ignore case, and the one such letter beyond ASCII: text with it is not cut here.
const LONG_S: char = '\u{17f}';

/// What [`PATTERN`] tells characters apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Number,
    Newline,
    /// Other white space.
    Space,
    Mark,
}

impl Kind {
    const fn of_ascii(byte: u8) -> Self {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => Self::Letter,
            b'0'..=b'9' => Self::Number,
            b'\r' | b'\n' => Self::Newline,
            b'\t' | 0x0b | 0x0c | b' ' => Self::Space,
            _ => Self::Mark,
        }
    }

    fn is_space(self) -> bool {
        matches!(self, Self::Newline | Self::Space)
    }
}

static ASCII: [Kind; 128] = {
    let mut kinds = [Kind::Mark; 128];
    let mut at = 0;
    while at < kinds.len() {
        kinds[at] = Kind::of_ascii(at as u8);
        at += 1;
    }
    kinds
};

/// Characters whose kinds are asked of the engine together.
const PAGE: usize = 256;

/// The kinds of a page of characters.
type Page = Box<[Kind]>;

/// All pages, each filled as its first character comes.
static PAGES: [OnceLock<Page>; 1 + char::MAX as usize / PAGE] =
    [const { OnceLock::new() }; 1 + char::MAX as usize / PAGE];

/// The engine's notion of each kind. `None` if it fails.
static ENGINE: LazyLock<Option<Vec<(Regex, Kind)>>> = LazyLock::new(|| {
    let patterns = [
        (r"\p{L}+", Kind::Letter),
        (r"\p{N}+", Kind::Number),
        (r"\s+", Kind::Space),
    ];
    let compiled = patterns.map(|(pattern, kind)| Some((Regex::new(pattern).ok()?, kind)));
    compiled.into_iter().collect()
});

/// Asks the engine. There is no newline to the pattern beyond ASCII.
fn page(engine: &[(Regex, Kind)], number: usize) -> Page {
    let first = number * PAGE;
    let all: String = (first..first + PAGE)
        .filter_map(|code| char::from_u32(code as u32))
        .collect();
    let mut kinds = vec![Kind::Mark; PAGE].into_boxed_slice();
    for (pattern, kind) in engine {
        for (start, end) in pattern.find_iter(&all) {
            for character in all[start..end].chars() {
                kinds[character as usize - first] = *kind;
            }
        }
    }
    kinds
}

/// Cuts one text.
#[derive(Debug)]
pub(super) struct Cut<'t> {
    rest: &'t str,
    engine: &'static [(Regex, Kind)],
}

impl<'t> Cut<'t> {
    /// `None` if the text cannot be cut here.
    pub(super) fn of(text: &'t str) -> Option<Self> {
        let engine = if text.is_ascii() {
            &[]
        } else if text.contains(LONG_S) {
            return None;
        } else {
            ENGINE.as_deref()?
        };
        Some(Self { rest: text, engine })
    }

    /// The kind of the character at `at`, and where the next one begins.
    fn kind(&self, at: usize) -> Option<(Kind, usize)> {
        let first = *self.rest.as_bytes().get(at)?;
        if let Some(kind) = ASCII.get(usize::from(first)) {
            return Some((*kind, at + 1));
        }
        let character = self.rest.get(at..)?.chars().next()?;
        let (number, place) = (character as usize / PAGE, character as usize % PAGE);
        let kinds = PAGES[number].get_or_init(|| page(self.engine, number));
        Some((kinds[place], at + character.len_utf8()))
    }

    /// Where the characters from `from` on that belong together end.
    fn run(&self, from: usize, belongs: impl Fn(Kind) -> bool) -> usize {
        let mut end = from;
        while let Some((kind, next)) = self.kind(end)
            && belongs(kind)
        {
            end = next;
        }
        end
    }

    /// Where the first word ends: [`PATTERN`], branch by branch.
    fn word_end(&self) -> Option<usize> {
        let (first, second_at) = self.kind(0)?;
        let bytes = self.rest.as_bytes();
        if bytes[0] == b'\'' {
            let at = |i: usize| bytes.get(i).map_or(0, u8::to_ascii_lowercase);
            match (at(1), at(2)) {
                (b's' | b't' | b'm' | b'd', _) => return Some(2),
                (b'r' | b'v', b'e') | (b'l', b'l') => return Some(3),
                _ => {}
            }
        }
        let second = self.kind(second_at).map(|(kind, _)| kind);
        let letters = |from| self.run(from, |kind| kind == Kind::Letter);
        match first {
            Kind::Letter => return Some(letters(second_at)),
            Kind::Number => return Some(second_at),
            Kind::Space | Kind::Mark if second == Some(Kind::Letter) => {
                return Some(letters(second_at));
            }
            _ => {}
        }
        if first == Kind::Mark || (bytes[0] == b' ' && second == Some(Kind::Mark)) {
            let marks = self.run(second_at, |kind| kind == Kind::Mark);
            return Some(self.run(marks, |kind| kind == Kind::Newline));
        }
        let spaces = self.run(second_at, Kind::is_space);
        let newline = bytes[..spaces]
            .iter()
            .rposition(|byte| matches!(byte, b'\r' | b'\n'));
        if let Some(last) = newline {
            return Some(last + 1);
        }
        // The last of several spaces belongs to the word that follows.
        let last = self.rest[..spaces].char_indices().next_back()?.0;
        Some(if last > 0 && spaces < bytes.len() {
            last
        } else {
            spaces
        })
    }
}

impl<'t> Iterator for Cut<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let (word, rest) = self.rest.split_at(self.word_end()?);
        self.rest = rest;
        Some(word)
    }
}

/// Bytes as byte-level models spell them: printable ones of Latin-1 stand for themselves, the others for letters beyond it.
pub(super) fn spell(word: &str) -> String {
    let letter = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        ..=b' ' => beyond(byte),
        0x7f..=0xa0 => beyond(byte - 0x7f + 0x21),
        0xad => beyond(0x43),
    };
    word.bytes().map(letter).collect()
}

/// The letter for the `nth` byte that does not stand for itself.
fn beyond(nth: u8) -> char {
    char::from_u32(0x100 + u32::from(nth)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _,
        SplitDelimiterBehavior,
    };

    use super::*;

    static SPLIT: LazyLock<Split> = LazyLock::new(|| {
        let pattern = SplitPattern::Regex(PATTERN.into());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).unwrap()
    });

    /// The words of the library, spelt.
    fn expected(text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        SPLIT.pre_tokenize(&mut cut).unwrap();
        let bytes = ByteLevel::new(false, true, false);
        bytes.pre_tokenize(&mut cut).unwrap();
        cut.get_splits(OffsetReferential::Original, OffsetType::Byte)
            .into_iter()
            .map(|(word, _, _)| word.to_owned())
            .collect()
    }

    fn found(text: &str) -> Option<Vec<String>> {
        Some(Cut::of(text)?.map(spell).collect())
    }

    fn assert_same(text: &str) {
        if let Some(found) = found(text) {
            assert_eq!(found, expected(text), "{text:?}");
        } else {
            assert!(text.contains(LONG_S), "{text:?}");
        }
    }

    /// Each before and after whatever its kind matters beside. Planes without assigned characters are alike.
    #[test]
    fn every_character_is_cut_as_the_engine_cuts_it() {
        let planes = (0..=0x3_23ff)
            .chain(0xe_0000..=0xe_01ff)
            .chain(0x10_fff0..=0x10_ffff);
        let all: Vec<char> = planes
            .filter_map(char::from_u32)
            .filter(|character| *character != LONG_S)
            .collect();
        for some in all.chunks(1000) {
            let text: String = some
                .iter()
                .map(|c| format!("a{c}a'{c} {c}{c}1{c}\n{c} \u{4e2d}{c}  {c}-{c}\n"))
                .collect();
            assert!(found(&text).unwrap() == expected(&text), "{:?}", some[0]);
        }
    }

    /// The one letter that is left out must be, and no other.
    #[test]
    fn contractions_know_one_letter_beyond_ascii() {
        for character in ('\u{80}'..'\u{3000}').chain('\u{fb00}'..'\u{fb50}') {
            for text in ["'_", "'_e", "'l_"] {
                assert_same(&text.replace('_', &character.to_string()));
            }
        }
        assert_eq!(expected("'\u{17f}a").len(), 2);
        assert_eq!(expected("'\u{e9}a").len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_characters(text in any::<String>()) {
            assert_same(&text);
        }

        #[test]
        fn any_kinds(text in "[aZ\u{e9}\u{4e2d}\u{1d400}07\u{661}\u{bd} \t\r\n\u{85}\u{a0}\u{2028}\u{3000}'sTrelLvmd.\u{2019}\u{301}\u{ff0c}\u{1f600}\u{378}]{0,40}") {
            assert_same(&text);
        }
    }
}
