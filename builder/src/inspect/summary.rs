//! A cache in a few lines, from its manifest, the entries of its pack tables and the records of a share.
//!
//! Owns what the summary says. Invariant: opens no other file, so it works on a node that holds no shard.

use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use serde_json::Value;
use stoker_formats::{FileName, Folder, InputEntry, PackOptions, PackTotals, SplitEntry};
use stoker_reader::CacheFiles;

use crate::error::Result;
use crate::held::{self, numbers};
use crate::pack::store;
use crate::source::printable;
use crate::verify::extra_text;

/// Inputs that the text lists.
const SHOWN_INPUTS_MAX: usize = 10;

/// Bytes and number of files of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct FileCount {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A pack table of a cache.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PackSummary {
    /// Its name.
    pub name: String,
    /// Whether it was made for this cache, and not for an earlier one in the folder.
    pub current: bool,
    /// How it was made.
    pub options: PackOptions,
    /// Packs.
    pub packs: u64,
    /// Sums over all packs.
    pub totals: PackTotals,
    /// The used share of the token budgets of all packs.
    pub fill_rate: f64,
}

/// What a cache holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The cache's folder.
    pub cache: String,
    /// Its identity.
    pub fingerprint: String,
    /// Format version, as `major.minor`.
    pub format_version: String,
    /// The program that wrote it.
    pub created_by: String,
    /// The plan that names the image folder.
    pub image_plan_id: String,
    /// The plan that names the text folder.
    pub text_plan_id: String,
    /// The splits.
    pub splits: Vec<SplitEntry>,
    /// The inputs.
    pub inputs: Vec<InputEntry>,
    /// Rejected records.
    pub rejects: u64,
    /// Image shards.
    pub image_shards: FileCount,
    /// Sample shards.
    pub sample_shards: FileCount,
    /// All other files that the manifest names.
    pub other_files: FileCount,
    /// Partitions whose shards are on other nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<u32>,
    /// Partitions of which shards are here although the last sync put them on other nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<u32>,
    /// Pack tables, but for damaged ones.
    pub pack_tables: Vec<PackSummary>,
    /// The resolved build configuration.
    pub recipe: Value,
}

/// The pack tables of `files`, by name.
///
/// # Errors
/// If their folder cannot be listed.
pub fn pack_tables(files: &CacheFiles) -> Result<Vec<PackSummary>> {
    let fingerprint = files.manifest().fingerprint;
    let found = store::entries(files.root())?;
    let entries = found.into_iter().filter_map(|found| found.entry.ok());
    Ok(entries
        .map(|entry| PackSummary {
            name: entry.name.to_string(),
            current: entry.fingerprint == fingerprint,
            options: entry.options,
            packs: entry.table.rows,
            totals: entry.totals,
            fill_rate: entry.fill_rate(),
        })
        .collect())
}

impl PackSummary {
    /// The table in a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} packs of at most {} tokens, {} samples, fill rate {:.2} %",
            self.name,
            HumanCount(self.packs),
            HumanCount(self.options.max_tokens.into()),
            HumanCount(self.totals.samples),
            self.fill_rate * 100.0
        );
        if self.totals.overlong > 0 {
            let _ = write!(text, ", {} over-long", HumanCount(self.totals.overlong));
        }
        if !self.current {
            text.push_str("; of an earlier cache");
        }
        text
    }
}

/// Gathers what the manifest of `files`, the entries of pack tables and the records of a share say.
///
/// # Errors
/// If the folder of pack tables or of records cannot be listed.
pub fn summarise(files: &CacheFiles) -> Result<Summary> {
    let manifest = files.manifest();
    let mut counts = [FileCount::default(); 3];
    for file in files.expected() {
        let kind = match (file.name, file.folder) {
            (FileName::Shard { .. }, Folder::Images(_)) => 0,
            (FileName::Shard { .. }, Folder::Text(_)) => 1,
            _ => 2,
        };
        let count = &mut counts[kind];
        count.files += 1;
        count.bytes = count.bytes.saturating_add(file.entry.bytes);
    }
    let [image_shards, sample_shards, other_files] = counts;
    let version = manifest.format_version;
    let held = held::look(files)?;
    Ok(Summary {
        cache: files.root().display().to_string(),
        fingerprint: manifest.fingerprint.to_string(),
        format_version: format!("{}.{}", version.major, version.minor),
        created_by: manifest.created_by.clone(),
        image_plan_id: manifest.image_plan_id.to_string(),
        text_plan_id: manifest.text_plan_id.to_string(),
        splits: manifest.splits.clone(),
        inputs: manifest.inputs.clone(),
        rejects: manifest.tables.rejects.rows,
        image_shards,
        sample_shards,
        other_files,
        not_held: held.elsewhere,
        extra: held.extra,
        pack_tables: pack_tables(files)?,
        recipe: manifest.recipe.clone(),
    })
}

impl Summary {
    /// The summary for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<13} {value}");
        };
        line("cache", self.cache.clone());
        line("fingerprint", self.fingerprint.clone());
        line(
            "format",
            format!(
                "{}, written by {}",
                self.format_version,
                printable(&self.created_by)
            ),
        );
        for split in &self.splits {
            line(
                "split",
                format!(
                    "{}: {} samples, {} tokens ({} learnt), {} images, {} partition{}",
                    split.name,
                    HumanCount(split.samples),
                    HumanCount(split.tokens),
                    HumanCount(split.loss_tokens),
                    HumanCount(split.images),
                    split.partitions,
                    if split.partitions == 1 { "" } else { "s" }
                ),
            );
        }
        for input in self.inputs.iter().take(SHOWN_INPUTS_MAX) {
            let (records, bytes) = (HumanCount(input.records), HumanBytes(input.bytes));
            line(
                "input",
                format!("{}: {records} records, {bytes}", input.name.escape_debug()),
            );
        }
        if let Some(more) = self
            .inputs
            .len()
            .checked_sub(SHOWN_INPUTS_MAX)
            .filter(|more| *more > 0)
        {
            line("input", format!("and {more} more"));
        }
        line("rejects", HumanCount(self.rejects).to_string());
        let named = [
            ("image shards", self.image_shards),
            ("sample shards", self.sample_shards),
            ("other files", self.other_files),
        ];
        for (name, count) in named {
            line(
                name,
                format!("{}, {}", HumanCount(count.files), HumanBytes(count.bytes)),
            );
        }
        if !self.not_held.is_empty() {
            let numbers = numbers(&self.not_held);
            line(
                "not here",
                format!("the shards of partitions {numbers}: on other nodes"),
            );
        }
        if !self.extra.is_empty() {
            line("more here", extra_text(&self.extra));
        }
        for table in &self.pack_tables {
            line("pack table", table.to_text());
        }
        for half in ["image", "text"] {
            if let Some(fields) = self.recipe[half].as_object() {
                for (name, value) in fields {
                    let field = format!("{name} = {value}");
                    line(&format!("{half} recipe"), printable(&field));
                }
            }
        }
        text
    }
}
