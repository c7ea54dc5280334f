//! Rejects: the records that cannot be used, and why.
//!
//! Owns the stable reason codes. Only definite facts about a record are rejects; whatever another
//! try might change (timeouts, 5xx, 403) is an [`Error`](crate::error::Error) that stops the build.

use serde::{Deserialize, Serialize};

use crate::source::shown;

/// Longest link that a reject keeps whole.
const LINK_BYTES_MAX: usize = 4096;

/// Why a record, or an image, was left out. The codes are stable: they stand in the reject table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The line is not UTF-8.
    BadUtf8,
    /// The line is not one JSON object, nests too deeply, or repeats a key.
    BadJson,
    /// The line is longer than the limit.
    LineTooLong,
    /// The object has none of the known record shapes, or not the requested one.
    UnknownShape,
    /// A field has another type than its shape demands.
    WrongType,
    /// The number of image tags differs from the number of images.
    ImageCountMismatch,
    /// No assistant turn: nothing to learn from.
    NoAssistantTurn,
    /// The chat template refused the record.
    TemplateRefused,
    /// More tokens than `--max-tokens` allows.
    OverLong,
    /// Image tokens in the rendered text differ from the images' patches.
    ImageTokensMismatch,
    /// The link leaves the image root, names a forbidden scheme or bucket, or is malformed.
    ForbiddenLink,
    /// Nothing stands at the link.
    MissingImage,
    /// The object is larger than the limit.
    TooManyBytes,
    /// The bytes are no image.
    NotAnImage,
    /// An image, but in a format or variant that is not supported.
    UnsupportedImage,
    /// The image ends early.
    TruncatedImage,
    /// The image's data is damaged.
    CorruptImage,
    /// More pixels than the limit.
    TooManyPixels,
    /// One side is more than 200 times the other.
    ExtremeAspect,
    /// The decoder panicked or took the process down.
    DecoderCrash,
    /// Rendering or tokenising the record panicked.
    TextCrash,
}

impl Reason {
    /// The stable code, as it stands in the reject table.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::BadUtf8 => "bad_utf8",
            Self::BadJson => "bad_json",
            Self::LineTooLong => "line_too_long",
            Self::UnknownShape => "unknown_shape",
            Self::WrongType => "wrong_type",
            Self::ImageCountMismatch => "image_count_mismatch",
            Self::NoAssistantTurn => "no_assistant_turn",
            Self::TemplateRefused => "template_refused",
            Self::OverLong => "over_long",
            Self::ImageTokensMismatch => "image_tokens_mismatch",
            Self::ForbiddenLink => "forbidden_link",
            Self::MissingImage => "missing_image",
            Self::TooManyBytes => "too_many_bytes",
            Self::NotAnImage => "not_an_image",
            Self::UnsupportedImage => "unsupported_image",
            Self::TruncatedImage => "truncated_image",
            Self::CorruptImage => "corrupt_image",
            Self::TooManyPixels => "too_many_pixels",
            Self::ExtremeAspect => "extreme_aspect",
            Self::DecoderCrash => "decoder_crash",
            Self::TextCrash => "text_crash",
        }
    }
}

/// One refusal: a reason, a message for a person and, where one is to blame, the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The stable reason.
    pub reason: Reason,
    /// What was wrong, for a person. Lower case, no final period, no decoder internals.
    pub message: String,
    /// The image link to blame, as written in the record; of an image in the text itself, or a very long one, the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Byte inside the line where the fault stands (JSON faults).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
}

impl Reject {
    /// A reject without link or column.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            link: None,
            column: None,
        }
    }

    /// The same, blaming `link`.
    #[must_use]
    pub fn with_link(mut self, link: &str) -> Self {
        self.link = Some(kept(link));
        self
    }

    /// The same, at byte `column` of the line.
    #[must_use]
    pub fn at(mut self, column: u64) -> Self {
        self.column = Some(column);
        self
    }
}

/// What a reject keeps of a link: an image in the text can be as long as a line, and a thousand of them fill memory, receipts and tables.
pub(crate) fn kept(link: &str) -> String {
    if link.len() > LINK_BYTES_MAX || link.starts_with("data:") {
        shown(link)
    } else {
        link.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reject_keeps_links_but_no_images() {
        let kept = |link: &str| {
            Reject::new(Reason::NotAnImage, "no")
                .with_link(link)
                .link
                .unwrap()
        };
        let path = format!("images/{}.png", "a".repeat(4000));
        assert_eq!(kept(&path), path);
        let inline = kept(&format!("data:image/png;base64,{}", "A".repeat(1000)));
        assert!(inline.starts_with("data:image/png") && inline.len() < 300);
        assert!(kept(&"iVBORw0K".repeat(1000)).len() < 300);
    }
}
