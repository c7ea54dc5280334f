//! The Hugging Face model folder: tokenizer, chat template, image constants.

pub mod family;
