//! The text recipe: everything that decides the ids and labels of a record.
//!
//! Owns the resolved configuration of this stage, as it stands in the manifest. Invariant: two equal
//! recipes make the same sample of the same record and the same grids.

use serde::{Deserialize, Serialize};

use super::render::{RENDERED_BYTES_MAX, TEMPLATE_STEPS_MAX};
use crate::model::family::Family;
use crate::model::{ModelFolder, SpecialIds};
use crate::record::{ImageTag, RecordOptions, Shape};

/// Which ids are learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum LabelRule {
    /// The assistant's turns, by the template's structure.
    #[default]
    Structure,
    /// What Qwen's finetune code learns, its quirk included.
    QwenFinetune,
}

/// What becomes of a record with too many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[value(rename_all = "kebab-case")]
pub enum Overlong {
    /// It is rejected.
    #[default]
    Reject,
    /// It loses whole last turns, with their images, until it fits.
    TruncateTurns,
}

/// What a user chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextOptions {
    /// The shape of all records; `None` to detect it file by file.
    pub schema: Option<Shape>,
    /// What becomes of the text around an `<image>` tag.
    pub image_tag: ImageTag,
    /// Which ids are learnt.
    pub label_rule: LabelRule,
    /// Most tokens of a sample; `None` for no limit.
    pub max_tokens: Option<u32>,
    /// What becomes of a record with more.
    pub overlong: Overlong,
}

/// Bounds of this stage. A record beyond one is rejected, so they belong to the recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextLimits {
    /// Steps of one rendering of the chat template.
    pub template_steps_max: u64,
    /// Bytes of one rendered text.
    pub rendered_bytes_max: u64,
}

/// The resolved configuration of the text stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextRecipe {
    /// The model's family.
    pub family: Family,
    /// BLAKE3 of `tokenizer.json`, in lower-case hex.
    pub tokenizer_blake3: String,
    /// BLAKE3 of the chat template's source, in lower-case hex.
    pub template_blake3: String,
    /// Ids of the tokens that structure a sample.
    pub special: SpecialIds,
    /// Patches merged into one token, along each side.
    pub merge_size: u32,
    /// The shape of all records; `None` if it is detected file by file.
    pub schema: Option<Shape>,
    /// What becomes of the text around an `<image>` tag.
    pub image_tag: ImageTag,
    /// Which ids are learnt.
    pub label_rule: LabelRule,
    /// Most tokens of a sample.
    pub max_tokens: Option<u32>,
    /// What becomes of a record with more.
    pub overlong: Overlong,
    /// Bounds of this stage.
    pub limits: TextLimits,
}

impl TextRecipe {
    /// The recipe for a model and a user's choices.
    #[must_use]
    pub fn new(model: &ModelFolder, options: TextOptions) -> Self {
        Self {
            family: model.family(),
            tokenizer_blake3: model.tokenizer_blake3().to_owned(),
            template_blake3: model.template_blake3().to_owned(),
            special: model.special(),
            merge_size: model.image().merge_size,
            schema: options.schema,
            image_tag: options.image_tag,
            label_rule: options.label_rule,
            max_tokens: options.max_tokens,
            overlong: options.overlong,
            limits: TextLimits {
                template_steps_max: TEMPLATE_STEPS_MAX,
                rendered_bytes_max: RENDERED_BYTES_MAX as u64,
            },
        }
    }

    /// The options with which records are parsed.
    #[must_use]
    pub fn record_options(&self) -> RecordOptions {
        RecordOptions {
            image_tag: self.image_tag,
        }
    }
}
