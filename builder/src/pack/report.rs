//! What packing has made, for people and for machines.
//!
//! Owns the report's fields and its text.

use std::fmt::Write;
use std::time::Duration;

use indicatif::HumanCount;
use serde::Serialize;
use stoker_formats::{PACKS_FOLDER, PackEntry, PackFile, PackOverlong};

use super::PADDED_BATCH;

/// A pack table, made now or found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Its name.
    pub name: String,
    /// Whether it was made now; else it was there already.
    pub made: bool,
    /// Its entry, relative to the cache.
    pub entry: String,
    /// Its file, relative to the cache.
    pub table: String,
    /// Tokens that a pack may hold.
    pub max_tokens: u32,
    /// Packs.
    pub packs: u64,
    /// Samples in them.
    pub samples: u64,
    /// Tokens in them.
    pub tokens: u64,
    /// The used share of the token budgets of all packs.
    pub fill_rate: f64,
    /// The share of padding among the tokens of padded batches of [`PADDED_BATCH`] samples; none if it was not made now.
    pub padded_batch_padding: Option<f64>,
    /// Samples that fit into no pack.
    pub overlong: u64,
    /// What became of them: `reject`, `alone` or `fail`.
    pub overlong_policy: PackOverlong,
    /// The list of those that were left out, relative to the cache.
    pub overlong_table: Option<String>,
    /// Seconds it took.
    pub seconds: f64,
}

impl Report {
    /// Of `entry`; `padded_tokens` are those of padded batches, if the table was made now.
    pub(super) fn new(entry: &PackEntry, padded_tokens: Option<u64>, time: Duration) -> Self {
        let inside = |file: &PackFile| format!("{PACKS_FOLDER}/{file}");
        let padding = |all: u64| {
            let used = entry.totals.tokens as f64;
            if all > 0 {
                1.0 - used / all as f64
            } else {
                0.0
            }
        };
        Self {
            name: entry.name.to_string(),
            made: padded_tokens.is_some(),
            entry: inside(&PackFile::Entry(entry.name.clone())),
            table: inside(&PackFile::table(entry.table.hash)),
            max_tokens: entry.options.max_tokens,
            packs: entry.table.rows,
            samples: entry.totals.samples,
            tokens: entry.totals.tokens,
            fill_rate: entry.fill_rate(),
            padded_batch_padding: padded_tokens.map(padding),
            overlong: entry.totals.overlong,
            overlong_policy: entry.options.overlong,
            overlong_table: entry
                .overlong
                .map(|file| inside(&PackFile::table(file.hash))),
            seconds: time.as_secs_f64(),
        }
    }

    /// The report for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<13}{value}");
        };
        let state = if self.made { "" } else { ", was there already" };
        line("pack table", format!("{}{state}", self.name));
        line("files", format!("{}, {}", self.entry, self.table));
        line(
            "packs",
            format!(
                "{} of at most {} tokens",
                HumanCount(self.packs),
                HumanCount(self.max_tokens.into())
            ),
        );
        line(
            "samples",
            format!(
                "{} with {} tokens",
                HumanCount(self.samples),
                HumanCount(self.tokens)
            ),
        );
        line("fill rate", format!("{:.2} %", self.fill_rate * 100.0));
        if let Some(padding) = self.padded_batch_padding {
            line(
                "padding",
                format!(
                    "{:.2} % of a pack; {:.2} % of a padded batch of {PADDED_BATCH} samples",
                    (1.0 - self.fill_rate) * 100.0,
                    padding * 100.0
                ),
            );
        }
        let fate = match (&self.overlong_table, self.overlong_policy) {
            (Some(table), _) => format!(", left out and listed in {table}"),
            (None, PackOverlong::Alone) if self.overlong > 0 => ", each alone in a pack".into(),
            (None, _) => String::new(),
        };
        let noun = if self.overlong == 1 {
            "sample"
        } else {
            "samples"
        };
        line(
            "over-long",
            format!("{} {noun}{fate}", HumanCount(self.overlong)),
        );
        line("time", format!("{:.1} s", self.seconds));
        text
    }
}
