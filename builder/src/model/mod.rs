//! The Hugging Face model folder: tokenizer, chat template, image constants.
//!
//! Owns reading and checking of that folder's files, each bounded in size; uses no network and runs
//! no code from it. Rendering and tokenising are `text`'s. Invariant: a [`ModelFolder`] that opened
//! has all special tokens, each one id, and constants that lie in sane ranges.

mod files;
mod image_config;
mod tokenizer;

pub mod family;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokenizers::Tokenizer;

use crate::error::Error;
use family::{Family, ImageConstants};

/// Ids of the tokens that structure a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialIds {
    /// `<|image_pad|>`: one for each merged block of patches.
    pub image_pad: u32,
    /// `<|video_pad|>`.
    pub video_pad: u32,
    /// `<|vision_start|>`: before an image's pads.
    pub vision_start: u32,
    /// `<|im_start|>`: opens a turn.
    pub im_start: u32,
    /// `<|im_end|>`: closes a turn.
    pub im_end: u32,
    /// `<|endoftext|>`: what batches are padded with.
    pub endoftext: u32,
}

/// A model folder, read and checked.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    family: Family,
    image: ImageConstants,
    template: String,
    template_path: PathBuf,
    template_blake3: String,
    tokenizer: Arc<Tokenizer>,
    tokenizer_path: PathBuf,
    tokenizer_blake3: String,
    special: SpecialIds,
}

impl ModelFolder {
    /// Reads the model folder at `dir`.
    ///
    /// # Errors
    /// [`Error::Model`] that names the file and what to do when a file is missing, too large or
    /// malformed, or when the model is of a family that is not supported; [`Error::Io`] when the
    /// system refuses to read one.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        if !dir.is_dir() {
            return Err(Error::Model {
                path: dir.to_path_buf(),
                what: "no such folder".into(),
                hint: "give the folder that holds tokenizer.json, the chat template, preprocessor_config.json and config.json".into(),
            });
        }
        let (processor_path, processor) = image_config::read(dir)?;
        let family = find_family(dir, &processor_path, &processor)?;
        let image = image_config::constants(family, &processor_path, &processor)?;
        let (template_path, template) = files::template(dir)?;
        let tokenizer_path = dir.join("tokenizer.json");
        let loaded = tokenizer::load(&tokenizer_path)?;
        Ok(Self {
            family,
            image,
            template_blake3: blake3::hash(template.as_bytes()).to_hex().to_string(),
            template,
            template_path,
            tokenizer: Arc::new(loaded.tokenizer),
            tokenizer_path,
            tokenizer_blake3: loaded.blake3,
            special: loaded.special,
        })
    }

    /// The model's family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// What the image processor computes with.
    #[must_use]
    pub fn image(&self) -> &ImageConstants {
        &self.image
    }

    /// The chat template's source.
    #[must_use]
    pub fn template(&self) -> &str {
        &self.template
    }

    /// The file that the template came from.
    #[must_use]
    pub fn template_path(&self) -> &Path {
        &self.template_path
    }

    /// BLAKE3 of the template's source, in lower-case hex.
    #[must_use]
    pub fn template_blake3(&self) -> &str {
        &self.template_blake3
    }

    /// The tokenizer, without truncation and padding.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The file that the tokenizer came from.
    #[must_use]
    pub fn tokenizer_path(&self) -> &Path {
        &self.tokenizer_path
    }

    /// BLAKE3 of `tokenizer.json`, in lower-case hex.
    #[must_use]
    pub fn tokenizer_blake3(&self) -> &str {
        &self.tokenizer_blake3
    }

    /// Ids of the tokens that structure a sample.
    #[must_use]
    pub fn special(&self) -> SpecialIds {
        self.special
    }
}

/// The family by `config.json`'s `model_type`, without one by `processor_class`.
fn find_family(
    dir: &Path,
    processor_path: &Path,
    processor: &Map<String, Value>,
) -> Result<Family, Error> {
    let config_path = dir.join("config.json");
    let config = files::json_object_if_there(&config_path)?.unwrap_or_default();
    let (path, key, value) = if let Some(value) = config.get("model_type") {
        (config_path.as_path(), "model_type", value.as_str())
    } else if let Some(value) = processor.get("processor_class") {
        (processor_path, "processor_class", value.as_str())
    } else {
        (config_path.as_path(), "model_type", None)
    };
    let found = Family::ALL.into_iter().find(|family| match key {
        "model_type" => value.is_some_and(|value| family.model_types().contains(&value)),
        _ => value == Some(family.processor_class()),
    });
    found.ok_or_else(|| {
        let supported: Vec<String> = Family::ALL
            .iter()
            .map(|family| format!("{} ({})", family.name(), family.model_types()[0]))
            .collect();
        Error::Model {
            path: path.to_path_buf(),
            what: match value {
                Some(value) => format!("{key} `{}` is not supported", files::short(value)),
                None => format!("no {key}"),
            },
            hint: format!(
                "use a model of one of these families: {}",
                supported.join(", ")
            ),
        }
    })
}

#[cfg(test)]
mod tests;
