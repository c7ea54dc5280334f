//! Where the turns, answers and images of a rendered conversation stand, counted in control tokens.
//!
//! Control tokens are cut out before anything else is tokenised, so the n-th one of the text is the n-th
//! one of the ids: no offsets are needed. Invariant: answers opened here were opened by the template.

use super::shield::Rendered;
use crate::reject::{Reason, Reject};

const IM_START: &str = "<|im_start|>";
const IM_END: &str = "<|im_end|>";
const IMAGE_PAD: &str = "<|image_pad|>";
/// Tokens that stand for pixels: a record's own text must hold none of them.
const VISION: [&str; 4] = [
    IMAGE_PAD,
    "<|video_pad|>",
    "<|vision_start|>",
    "<|vision_end|>",
];
/// What follows the opening token in an assistant's turn.
pub(super) const ANSWER_HEADER: &str = "assistant\n";

/// One answer, from the token that opens its turn to the token that closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// Which `<|im_start|>` opens the turn, counted from 0.
    pub(super) start: usize,
    /// Which `<|im_end|>` closes it.
    pub(super) end: usize,
    /// Whether a newline follows that.
    pub(super) newline: bool,
}

/// What stands in a rendered conversation.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    /// Answers in order; an answer that is never closed is left out.
    pub(super) answers: Vec<Answer>,
    /// Turns that the template opened for the assistant.
    pub(super) opened: usize,
    /// All `<|im_start|>`, whoever wrote them.
    pub(super) starts: usize,
    /// All `<|im_end|>`, whoever wrote them.
    pub(super) ends: usize,
    /// Images.
    pub(super) images: usize,
}

/// Reads the layout of a rendered conversation.
///
/// # Errors
/// A reject with [`Reason::ImageTokensMismatch`] if the record itself wrote a token that stands for pixels.
pub(super) fn read(rendered: &Rendered) -> Result<Layout, Reject> {
    let text = rendered.text.as_str();
    let mut foreign = rendered.foreign.iter().copied().peekable();
    let mut layout = Layout::default();
    let mut open = None;
    for (at, _) in text.match_indices("<|") {
        while foreign.next_if(|place| *place < at).is_some() {}
        let own = foreign.peek() != Some(&at);
        let rest = &text[at..];
        if let Some(after) = rest.strip_prefix(IM_START) {
            if own && after.starts_with(ANSWER_HEADER) {
                open = Some(layout.starts);
                layout.opened += 1;
            }
            layout.starts += 1;
        } else if let Some(after) = rest.strip_prefix(IM_END) {
            if own && let Some(start) = open.take() {
                layout.answers.push(Answer {
                    start,
                    end: layout.ends,
                    newline: after.starts_with('\n'),
                });
            }
            layout.ends += 1;
        } else if let Some(token) = VISION.iter().find(|token| rest.starts_with(**token)) {
            if !own {
                return Err(Reject::new(
                    Reason::ImageTokensMismatch,
                    format!(
                        "the record's text holds `{token}`, which would be taken for part of an image"
                    ),
                ));
            }
            layout.images += usize::from(*token == IMAGE_PAD);
        }
    }
    Ok(layout)
}
