//! A sample as text: decoded runs of tokens, images collapsed, learnt runs marked.
//!
//! Owns the cutting into spans and their display. Invariant: spans cover every token once, in order; no control character
//! of a sample reaches a terminal.

use std::fmt::Write;

use serde::Serialize;
use stoker_formats::{IGNORED_LABEL, SampleData};
use tokenizers::Tokenizer;

use super::{ImageView, SampleView};

/// What a run of tokens is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// Tokens that take no part in the loss.
    Plain,
    /// Tokens that are learnt.
    Learnt,
    /// The tokens of one image.
    Image,
}

/// A run of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Span {
    /// What it is.
    pub kind: SpanKind,
    /// Its first token.
    pub start: usize,
    /// The token after its last.
    pub end: usize,
    /// Which image of the sample, from 1; none of other runs, or if the sample has no such image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<usize>,
    /// The decoded text; none of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What surrounds learnt runs and images in the display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    learnt: [&'static str; 2],
    image: [&'static str; 2],
    legend: &'static str,
}

impl Marks {
    /// Green for learnt text, cyan for images.
    pub const COLOUR: Self = Self {
        learnt: ["\u{1b}[32m", "\u{1b}[0m"],
        image: ["\u{1b}[36m", "\u{1b}[0m"],
        legend: "\u{1b}[32mgreen\u{1b}[0m is learnt",
    };

    /// Braces, as word diffs have them.
    pub const PLAIN: Self = Self {
        learnt: ["{+", "+}"],
        image: ["", ""],
        legend: "{+ +} is learnt",
    };
}

/// Cuts a sample into spans and decodes them.
pub(super) fn spans(
    sample: &SampleData,
    images: &[ImageView],
    pad: Option<i32>,
    tokenizer: &Tokenizer,
) -> Vec<Span> {
    let ids = &sample.input_ids;
    let kind_at = |at: usize| {
        if pad.is_some() && ids.get(at).copied() == pad {
            SpanKind::Image
        } else if sample
            .labels
            .get(at)
            .is_some_and(|label| *label != IGNORED_LABEL)
        {
            SpanKind::Learnt
        } else {
            SpanKind::Plain
        }
    };
    let mut spans = Vec::new();
    let mut next_image = 0;
    let mut start = 0;
    while start < ids.len() {
        let kind = kind_at(start);
        let mut end = start + 1;
        while end < ids.len() && kind_at(end) == kind {
            end += 1;
        }
        let mut span = Span {
            kind,
            start,
            end,
            image: None,
            text: None,
        };
        if kind == SpanKind::Image {
            // Images may stand side by side: their own counts part them.
            let tokens = images.get(next_image).and_then(|image| image.tokens);
            let tokens = tokens.and_then(|tokens| usize::try_from(tokens).ok());
            if let Some(tokens) = tokens.filter(|tokens| (1..=end - start).contains(tokens)) {
                next_image += 1;
                span.end = start + tokens;
                span.image = Some(next_image);
            }
        } else {
            span.text = Some(decode(ids.get(start..end).unwrap_or_default(), tokenizer));
        }
        start = span.end;
        spans.push(span);
    }
    spans
}

/// The text of `ids`, special tokens included; ids that are no tokens are shown as numbers.
fn decode(ids: &[i32], tokenizer: &Tokenizer) -> String {
    let known: Option<Vec<u32>> = ids.iter().map(|id| u32::try_from(*id).ok()).collect();
    match known.map(|ids| tokenizer.decode(&ids, false)) {
        Some(Ok(text)) => text,
        _ => format!("<ids {ids:?}>"),
    }
}

/// Everything but the text.
pub(super) fn head(view: &SampleView) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<15} {value}");
    };
    line(
        "sample id",
        printable(&view.sample_id).trim_end().to_owned(),
    );
    if let Some(id) = &view.record_id {
        line("record id", printable(id));
    }
    if let (Some(file), Some(number)) = (&view.file, view.line) {
        line("source", format!("{}, line {number}", printable(file)));
    }
    line(
        "row",
        format!(
            "{} (split {}, partition {}, row {} there)",
            view.row,
            view.split.as_deref().unwrap_or("none"),
            view.partition,
            view.partition_row
        ),
    );
    line(
        "tokens",
        format!(
            "{} ({} learnt, {} for images)",
            view.n_tokens, view.n_loss_tokens, view.n_image_tokens
        ),
    );
    line("input_ids", format!("int32 [{}]", view.n_tokens));
    line("labels", format!("int32 [{}]", view.n_tokens));
    line("images", format!("uint32 [{}]", view.images.len()));
    line(
        "image_grid_thw",
        format!("int32 [{}, 3]", view.images.len()),
    );
    for (number, image) in (1..).zip(&view.images) {
        let [rows, width] = image.patches;
        line(
            &format!("image {number}"),
            format!(
                "{} x {} pixels, grid {:?}, patches uint8 [{rows}, {width}], row {}, key {}",
                image.size[1], image.size[0], image.grid_thw, image.row, image.key
            ),
        );
    }
    text
}

/// The text with its marks.
pub(super) fn body(spans: &[Span], images: &[ImageView], marks: &Marks) -> String {
    let mut text = format!("text ({}):\n", marks.legend);
    for span in spans {
        match (&span.text, span.kind) {
            (Some(run), SpanKind::Learnt) => {
                let [open, close] = marks.learnt;
                let _ = write!(text, "{open}{}{close}", printable(run));
            }
            (Some(run), _) => text.push_str(&printable(run)),
            (None, _) => {
                let [open, close] = marks.image;
                let _ = write!(text, "{open}{}{close}", image_text(span, images));
            }
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn image_text(span: &Span, images: &[ImageView]) -> String {
    let tokens = span.end - span.start;
    let plural = if tokens == 1 { "" } else { "s" };
    let image = span
        .image
        .and_then(|number| Some((number, images.get(number - 1)?)));
    match image {
        Some((number, image)) => {
            let [_, rows, columns] = image.grid_thw;
            format!("<image {number}: {rows}x{columns} patches, {tokens} token{plural}>")
        }
        None => format!("<{tokens} image token{plural} without an image>"),
    }
}

/// `text` without control characters other than line feeds and tabs: a sample must not steer a terminal.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        // Directional marks reorder what a person reads.
        let hidden = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if hidden || (character.is_control() && !matches!(character, '\n' | '\t')) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(grid: [i32; 3]) -> ImageView {
        let patches = grid.iter().product::<i32>() as u64;
        ImageView {
            row: 0,
            key: "00".repeat(16),
            grid_thw: grid,
            size: [grid[1] * 16, grid[2] * 16],
            patches: [patches, 768],
            tokens: Some(patches / 4),
        }
    }

    fn words() -> Tokenizer {
        let text = r#"{"version":"1.0","added_tokens":[],"model":{"type":"WordLevel",
            "vocab":{"ask":0,"tell":1,"pad":2,"end":3},"unk_token":"ask"}}"#;
        Tokenizer::from_bytes(text.as_bytes()).unwrap()
    }

    #[test]
    fn spans_cover_all_tokens_and_part_images_side_by_side() {
        let sample = SampleData {
            sample_id: "a.jsonl:1".into(),
            record_id: None,
            input_ids: vec![0, 2, 2, 2, 0, 1, 3],
            labels: vec![-100, -100, -100, -100, -100, 1, 3],
            images: vec![0, 1],
            image_grid_thw: vec![[1, 2, 2], [1, 2, 4]],
        };
        let images = [image([1, 2, 2]), image([1, 2, 4])];
        let spans = spans(&sample, &images, Some(2), &words());
        let cut: Vec<_> = spans
            .iter()
            .map(|span| (span.kind, span.start, span.end))
            .collect();
        use SpanKind::{Image, Learnt, Plain};
        assert_eq!(
            cut,
            [
                (Plain, 0, 1),
                (Image, 1, 2),
                (Image, 2, 4),
                (Plain, 4, 5),
                (Learnt, 5, 7)
            ]
        );
        assert_eq!(
            body(&spans, &images, &Marks::PLAIN),
            "text ({+ +} is learnt):\n\
             ask<image 1: 2x2 patches, 1 token><image 2: 2x4 patches, 2 tokens>ask{+tell end+}\n"
        );
        assert!(body(&spans, &images, &Marks::COLOUR).contains("\u{1b}[32mtell end\u{1b}[0m"));
    }

    #[test]
    fn pads_without_an_image_are_shown_as_such() {
        let sample = SampleData {
            sample_id: "a.jsonl:1".into(),
            record_id: None,
            input_ids: vec![2, 2],
            labels: vec![-100, -100],
            images: vec![],
            image_grid_thw: vec![],
        };
        let spans = spans(&sample, &[], Some(2), &words());
        let text = body(&spans, &[], &Marks::PLAIN);
        assert!(
            text.ends_with("<2 image tokens without an image>\n"),
            "{text}"
        );
    }

    #[test]
    fn no_control_character_reaches_the_terminal() {
        assert_eq!(
            printable("a\u{1b}[2Jb\u{202e}c\r\n\td"),
            "a\\u{1b}[2Jb\\u{202e}c\\u{d}\n\td"
        );
    }
}
