//! `stoker inspect`: what a cache holds, and one sample of it as a person wants to see it.
//!
//! Owns finding samples and gathering what is shown; the texts are `summary.rs`'s and `text.rs`'s. Reads only, but for
//! the pictures it is asked to write. Invariant: whatever is shown of a row has passed its checksum.

mod picture;
mod summary;
mod text;

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use stoker_formats::{FileName, SampleData};
use stoker_reader::{Cache, CacheFile, CacheFiles, Place};
use tokenizers::Tokenizer;

use crate::error::{Error, Result};
use crate::held::{self, numbers};
use crate::source::printable;
pub use picture::write_pictures;
pub use summary::{PackSummary, Summary, pack_tables, summarise};
pub use text::{Marks, Span, SpanKind};

/// Candidates that a message about an ambiguous id lists.
const CANDIDATES_MAX: usize = 10;

/// One image of a sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageView {
    /// Its row in the partition.
    pub row: u32,
    /// Hash of its link, in hex.
    pub key: String,
    /// Patches in time, height and width.
    pub grid_thw: [i32; 3],
    /// Height and width in pixels, after resizing.
    pub size: [i32; 2],
    /// Rows and bytes a row of its patches.
    pub patches: [u64; 2],
    /// Tokens that stand for it; none if the recipe does not say how patches are merged.
    pub tokens: Option<u64>,
}

/// One sample, decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SampleView {
    /// `file:line` of the source.
    pub sample_id: String,
    /// The record's own id.
    pub record_id: Option<String>,
    /// Name of the input.
    pub file: Option<String>,
    /// Line in it, from 1.
    pub line: Option<u64>,
    /// Number in the cache.
    pub row: u64,
    /// The split's name.
    pub split: Option<String>,
    /// The partition.
    pub partition: u32,
    /// Row in the partition.
    pub partition_row: u64,
    /// Token ids.
    pub n_tokens: u64,
    /// Labels that take part in the loss.
    pub n_loss_tokens: u64,
    /// Tokens that stand for images.
    pub n_image_tokens: u64,
    /// Its images, in order of appearance.
    pub images: Vec<ImageView>,
    /// Runs of tokens that are learnt, not learnt, or an image.
    pub spans: Vec<Span>,
    /// Token ids.
    pub input_ids: Vec<i32>,
    /// As many labels.
    pub labels: Vec<i32>,
}

/// Opens the cache at `root`, or the share of one that is there.
///
/// # Errors
/// If there is no cache, or files that should be there are missing or damaged.
pub fn open(root: &Path) -> Result<Cache> {
    let files = CacheFiles::open(root)?;
    let elsewhere = held::elsewhere(&files)?;
    Ok(Cache::open_share(files, elsewhere)?)
}

/// Finds the sample with the sample id `id` or, if there is none, the record id.
///
/// # Errors
/// [`Error::Usage`] if there is none, or if several records have that id: the message lists them.
pub fn find(cache: &Cache, id: &str) -> Result<Place> {
    let mut candidates = Vec::new();
    let mut count = 0u64;
    let mut exact = None;
    let here = (0..cache.partitions()).filter(|partition| !cache.is_elsewhere(*partition));
    for partition in here {
        let flow = cache.visit_ids(partition, |row, sample_id, record_id| {
            if sample_id == id {
                exact = Some(Place { partition, row });
                return ControlFlow::Break(());
            }
            if record_id == Some(id) {
                count += 1;
                if candidates.len() < CANDIDATES_MAX {
                    candidates.push((Place { partition, row }, sample_id.to_owned()));
                }
            }
            ControlFlow::Continue(())
        })?;
        if flow.is_break() {
            break;
        }
    }
    let shown = id.escape_debug();
    match (exact, candidates.as_slice()) {
        (Some(place), _) => Ok(place),
        (None, [(place, _)]) => Ok(*place),
        (None, []) if !cache.elsewhere().is_empty() => Err(Error::Usage {
            what: format!("no sample that is here has the id `{shown}`"),
            hint: format!(
                "the shards of partitions {} are on other nodes: look there, or in the table of samples, which names all",
                numbers(cache.elsewhere())
            ),
        }),
        (None, []) => Err(Error::Usage {
            what: format!("no sample has the id `{shown}`"),
            hint: "give a sample id (file:line), a record's own id, or --row with its number; rejected records are in the rejects table".into(),
        }),
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|(_, name)| name.as_str()).collect();
            let more = if count > names.len() as u64 { ", ..." } else { "" };
            Err(Error::Usage {
                what: format!("{count} records have the id `{shown}`"),
                hint: format!(
                    "choose one by its sample id: {}{more}",
                    printable(&names.join(", "))
                ),
            })
        }
    }
}

/// The place of sample `row` of the cache.
///
/// # Errors
/// [`Error::Usage`] beyond the last.
pub fn locate(cache: &Cache, row: u64) -> Result<Place> {
    cache.place(row).ok_or_else(|| Error::Usage {
        what: format!("no row {row}: the cache has `{}` samples", cache.len()),
        hint: "rows count from 0".into(),
    })
}

/// Reads and decodes the sample at `place`.
///
/// # Errors
/// If the sample, an index entry of its images or the tokenizer is damaged.
pub fn view(cache: &Cache, place: Place) -> Result<SampleView> {
    let sample = cache.sample(place.partition, place.row)?;
    let recipe = &cache.manifest().recipe;
    let images = image_views(cache, place, &sample)?;
    let tokenizer = tokenizer(cache)?;
    let pad = pad_of(recipe);
    let spans = text::spans(&sample, &images, pad, &tokenizer);
    let is_pad = |id: &&i32| pad == Some(**id);
    let (file, line) = match sample.sample_id.rsplit_once(':') {
        Some((file, line)) => (Some(file.to_owned()), line.parse().ok()),
        None => (None, None),
    };
    Ok(SampleView {
        record_id: sample.record_id.clone(),
        file,
        line,
        row: cache.number(place).unwrap_or_default(),
        split: cache
            .split_of(place.partition)
            .map(|split| split.name.clone()),
        partition: place.partition,
        partition_row: place.row,
        n_tokens: sample.input_ids.len() as u64,
        n_loss_tokens: sample
            .labels
            .iter()
            .filter(|label| **label != stoker_formats::IGNORED_LABEL)
            .count() as u64,
        n_image_tokens: sample.input_ids.iter().filter(is_pad).count() as u64,
        images,
        spans,
        sample_id: sample.sample_id,
        input_ids: sample.input_ids,
        labels: sample.labels,
    })
}

/// The token that stands for a merged block of patches.
fn pad_of(recipe: &Value) -> Option<i32> {
    let pad = recipe["text"]["special"]["image_pad"].as_i64()?;
    i32::try_from(pad).ok()
}

fn image_views(cache: &Cache, place: Place, sample: &SampleData) -> Result<Vec<ImageView>> {
    let index = cache.image_index(place.partition)?;
    let merge = cache.manifest().recipe["image"]["merge_size"].as_u64();
    let block = merge
        .and_then(|merge| merge.checked_mul(merge))
        .filter(|block| *block > 0);
    let mut views = Vec::with_capacity(sample.images.len());
    for row in &sample.images {
        let entry = index
            .get(u64::from(*row))
            .ok_or(stoker_reader::Error::NoRow {
                kind: "image",
                partition: place.partition,
                row: u64::from(*row),
                rows: index.len(),
            })?;
        let patches: u64 = entry
            .grid_thw
            .iter()
            .map(|side| u64::from(side.unsigned_abs()))
            .fold(1, u64::saturating_mul);
        views.push(ImageView {
            row: *row,
            key: entry.key.to_string(),
            grid_thw: entry.grid_thw,
            size: entry.size,
            patches: [patches, entry.length.checked_div(patches).unwrap_or(0)],
            tokens: block.map(|block| patches / block),
        });
    }
    Ok(views)
}

/// The tokenizer that stands in the cache.
fn tokenizer(cache: &Cache) -> Result<Tokenizer> {
    let files = cache.files();
    let entry = cache.manifest().tokenizer;
    let name = FileName::Tokenizer { hash: entry.hash };
    let folder = files.text();
    let bytes = files.read(&CacheFile {
        folder,
        name,
        entry,
    })?;
    Tokenizer::from_bytes(&bytes).map_err(|_| {
        Error::Reader(stoker_reader::Error::Damaged {
            path: files.path(folder, name),
            what: "not a tokenizer that can be loaded".into(),
        })
    })
}

impl SampleView {
    /// The sample for a person: a head, then the text with its images and learnt spans marked by `marks`.
    #[must_use]
    pub fn to_text(&self, marks: &Marks) -> String {
        let mut text = text::head(self);
        text.push('\n');
        text.push_str(&text::body(&self.spans, &self.images, marks));
        text
    }
}
