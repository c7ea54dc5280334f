//! Where the bytes of a cache are.
//!
//! Owns the split of files into columns and kinds. Invariant: the parts add up to the bytes of all files.

use std::collections::BTreeMap;
use std::fs;

use stoker_formats::{FileName, Folder, ImageEntry, MANIFEST_NAME, SampleEntry};
use stoker_reader::CacheFiles;

/// Bytes of an image row's key, grid and size.
const IMAGE_FIELDS_BYTES: u64 = 16 + 12 + 8;

/// Bytes by part.
pub(super) struct Bytes {
    parts: BTreeMap<&'static str, u64>,
    shards: u64,
    payload: u64,
}

impl Bytes {
    /// Counts the files of a cache; rows are still to be added.
    pub(super) fn new(files: &CacheFiles) -> Self {
        let mut parts = BTreeMap::new();
        let mut shards = 0;
        for file in files.expected() {
            let part = match (file.name, file.folder) {
                (FileName::Shard { .. }, _) => {
                    shards += file.entry.bytes;
                    continue;
                }
                (FileName::Index { .. }, Folder::Images(_)) => "image index",
                (FileName::Index { .. }, Folder::Text(_)) => "sample index",
                (FileName::Receipt { .. }, _) => "receipts",
                (FileName::Table { .. }, _) => "tables",
                (FileName::Tokenizer { .. }, _) => "tokenizer",
            };
            *parts.entry(part).or_insert(0) += file.entry.bytes;
        }
        let manifest = fs::metadata(files.root().join(MANIFEST_NAME));
        parts.insert("manifest", manifest.map_or(0, |metadata| metadata.len()));
        Self {
            parts,
            shards,
            payload: 0,
        }
    }

    pub(super) fn add_sample(&mut self, entry: &SampleEntry) {
        let tokens = u64::from(entry.n_tokens) * 4;
        let images = u64::from(entry.n_images);
        self.add("input_ids", tokens);
        self.add("labels", tokens);
        self.add("images", images * 4);
        self.add("image_grid_thw", images * 12);
        self.add("sample_id", u64::from(entry.sample_id_bytes));
        self.add("record_id", u64::from(entry.record_id_bytes.unwrap_or(0)));
    }

    pub(super) fn add_image(&mut self, entry: &ImageEntry) {
        self.add("patches", entry.length);
        self.add("image keys, grids, sizes", IMAGE_FIELDS_BYTES);
    }

    fn add(&mut self, part: &'static str, bytes: u64) {
        *self.parts.entry(part).or_insert(0) += bytes;
        self.payload += bytes;
    }

    /// All parts; what is left of the shards is Arrow's.
    pub(super) fn finish(mut self) -> BTreeMap<&'static str, u64> {
        let rest = self.shards.saturating_sub(self.payload);
        self.parts.insert("Arrow headers and padding", rest);
        self.parts
    }
}
