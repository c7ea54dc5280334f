//! `tokenizer.json`: loading, hashing, and the ids of the tokens that structure a sample.
//!
//! Invariant: a tokenizer returned here is a pure function of its input (no dropout, no truncation,
//! no padding), and each structural token is one id.

use std::path::Path;

use tokenizers::{ModelWrapper, Tokenizer};

use super::{SpecialIds, files};
use crate::error::Error;

/// Largest tokenizer file: the largest of public models is about 33 MB.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// A tokenizer, its file's hash, and its structural ids.
pub(super) struct Loaded {
    pub(super) tokenizer: Tokenizer,
    pub(super) blake3: String,
    pub(super) special: SpecialIds,
}

/// Loads and checks the tokenizer at `path`.
pub(super) fn load(path: &Path) -> Result<Loaded, Error> {
    let bytes = files::read_if_there(path, TOKENIZER_BYTES_MAX)?.ok_or_else(|| {
        files::fault(
            path,
            "no such file",
            "copy tokenizer.json from the model; vocab.json with merges.txt is not enough",
        )
    })?;
    let malformed = |what: &str| files::fault(path, what, "fetch the file again");
    let mut tokenizer = Tokenizer::from_bytes(&bytes)
        .map_err(|_| malformed("not a tokenizer that can be loaded"))?;
    tokenizer
        .with_truncation(None)
        .map_err(|_| malformed("not a tokenizer that can be loaded"))?;
    tokenizer.with_padding(None);
    if let ModelWrapper::BPE(model) = tokenizer.get_model()
        && model.dropout.is_some_and(|share| share > 0.0)
    {
        return Err(files::fault(
            path,
            "dropout makes its result random",
            "set `dropout` to null",
        ));
    }
    let id = |token: &'static str| -> Result<u32, Error> {
        let encoded = tokenizer.encode_fast(token, false).ok();
        let ids = encoded
            .as_ref()
            .map_or(&[][..], |encoding| encoding.get_ids());
        match (ids, tokenizer.token_to_id(token)) {
            ([id], Some(known)) if *id == known => Ok(known),
            _ => Err(files::fault(
                path,
                format!("no special token `{token}`"),
                "take the tokenizer of the same model as the chat template",
            )),
        }
    };
    let special = SpecialIds {
        image_pad: id("<|image_pad|>")?,
        video_pad: id("<|video_pad|>")?,
        vision_start: id("<|vision_start|>")?,
        im_start: id("<|im_start|>")?,
        im_end: id("<|im_end|>")?,
        endoftext: id("<|endoftext|>")?,
    };
    Ok(Loaded {
        tokenizer,
        blake3: blake3::hash(&bytes).to_hex().to_string(),
        special,
    })
}
