//! Profiles: which stack's result is reproduced, and the rules that follow from the choice.
//!
//! Owns the names a user chooses by and the enums a recipe is made of. It computes nothing.
//! Invariant: every difference between two stacks is one of these rules, never an `if profile`
//! inside a decoder or a kernel.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How an image reaches which image processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// transformers' torchvision processor, given a file path.
    TvPath,
    /// The same with the pixel limits of Qwen's finetune script.
    TvPathFt,
    /// transformers' torchvision processor, given an opened PIL image.
    TvPilobj,
    /// transformers' PIL processor, given a file path.
    PilPath,
    /// `qwen_vl_utils.fetch_image`, then the processor with `do_resize=False`.
    Qwenvl,
    /// Scaled decoding and `fast_image_resize`: quick, and not exact.
    Fast,
}

impl Profile {
    /// All profiles, in the order they are documented in.
    pub const ALL: [Self; 6] = [
        Self::TvPath,
        Self::TvPathFt,
        Self::TvPilobj,
        Self::PilPath,
        Self::Qwenvl,
        Self::Fast,
    ];

    /// The name on the command line and in recipes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TvPath => "tv_path",
            Self::TvPathFt => "tv_path_ft",
            Self::TvPilobj => "tv_pilobj",
            Self::PilPath => "pil_path",
            Self::Qwenvl => "qwenvl",
            Self::Fast => "fast",
        }
    }

    /// Whether the result equals the oracle's to the byte.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self != Self::Fast
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == text)
            .ok_or_else(|| Error::Usage {
                what: format!("unknown profile `{text}`"),
                hint: format!("choose one of {}", Self::ALL.map(Self::name).join(", ")),
            })
    }
}

/// The major version of transformers (and the Pillow of its day) that is the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Generation {
    /// transformers 4.57, Pillow up to 12.1.
    V4,
    /// transformers 5, Pillow 13.
    V5,
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "v4",
            Self::V5 => "v5",
        })
    }
}

impl FromStr for Generation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "v4" => Ok(Self::V4),
            "v5" => Ok(Self::V5),
            _ => Err(Error::Usage {
                what: format!("unknown transformers generation `{text}`"),
                hint: "choose v4 or v5".into(),
            }),
        }
    }
}

/// Which axis is resized first: each pass ends in 8 bits, so the order shows in the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassOrder {
    /// torchvision always, Pillow up to 12.1.
    HorizontalFirst,
    /// Pillow 12.2 and 12.3.
    Pillow122,
    /// Pillow 13.
    Pillow13,
}

impl PassOrder {
    /// Whether the vertical pass goes first, from source to target (height, width).
    #[must_use]
    pub fn vertical_first(self, from: (usize, usize), to: (usize, usize)) -> bool {
        match self {
            Self::HorizontalFirst => false,
            Self::Pillow122 => from.0 > 100 * from.1 && to.0 < from.0,
            Self::Pillow13 => {
                from.0 > to.0 && (from.0 - to.0) as i64 > 2 * (from.1 as i64 - to.1 as i64)
            }
        }
    }
}

/// The resampling kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// torchvision's uint8 kernel: 16-bit weights.
    Torchvision,
    /// Pillow's kernel: 22-bit weights.
    Pillow,
    /// `fast_image_resize`.
    Fast,
}

/// Which `smart_resize` computes the target size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeRule {
    /// transformers'.
    Transformers,
    /// qwen-vl-utils'.
    QwenVlUtils,
}

/// What becomes of an orientation in the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExifRule {
    /// Pixels stay as stored.
    Ignore,
    /// As `ImageOps.exif_transpose`: EXIF of JPEG, PNG and WebP, then XMP.
    Pillow,
    /// As torchvision's `decode_image`: EXIF of JPEG and PNG.
    Torchvision,
}

/// What becomes of transparency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlphaRule {
    /// The colour under it is taken.
    Drop,
    /// Blended onto white if Pillow opens the image as RGBA, else dropped.
    WhiteIfRgba,
    /// Blended onto white, whatever form the transparency has.
    White,
}

/// What becomes of the transparent colour that Pillow still remembers after the conversion to RGB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRule {
    /// Nothing.
    Ignore,
    /// Pixels of exactly this colour turn white before resizing.
    BeforeResize,
    /// Pixels of exactly this colour turn white after resizing.
    AfterResize,
}
