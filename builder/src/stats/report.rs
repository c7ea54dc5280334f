//! The statistics as text.
//!
//! Owns which parts are shown and how. Invariant: lines fit 80 columns, but for ids that are longer.

use std::cmp::Reverse;
use std::fmt::Write;

use indicatif::{HumanBytes, HumanCount};

use super::histogram::draw;
use super::{HeavySample, Stats};
use crate::held::numbers;

/// Reasons and parts that are too long for their column push the numbers right.
const NAME_COLUMNS: usize = 26;

impl Stats {
    /// The statistics for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "cache        {}\nfingerprint  {}\n",
            self.cache, self.fingerprint
        );
        if !self.not_held.is_empty() {
            let _ = writeln!(
                text,
                "not here     the shards of partitions {}; their samples are shown by number",
                numbers(&self.not_held)
            );
        }
        for split in &self.splits {
            let _ = writeln!(
                text,
                "split        {}: {} samples, {} tokens ({} learnt), {} images",
                split.name,
                HumanCount(split.samples.tokens.count),
                HumanCount(split.samples.tokens.sum),
                HumanCount(split.samples.loss_tokens.sum),
                HumanCount(split.images)
            );
        }
        for table in &self.pack_tables {
            let _ = writeln!(text, "pack table   {}", table.to_text());
        }
        let parts = [
            ("tokens of a sample", &self.samples.tokens),
            ("learnt tokens of a sample", &self.samples.loss_tokens),
            ("patches of a sample", &self.samples.patches),
            ("images of a sample", &self.samples.images),
            ("width of an image, pixels", &self.images.width),
            ("height of an image, pixels", &self.images.height),
            ("patches of an image", &self.images.patches),
        ];
        for (name, found) in parts {
            text.push('\n');
            text.push_str(&draw(name, found));
        }
        heaviest(&mut text, "tokens", &self.heaviest_by_tokens);
        heaviest(&mut text, "patches", &self.heaviest_by_patches);
        self.bytes_text(&mut text);
        self.rejects_text(&mut text);
        text
    }

    fn bytes_text(&self, text: &mut String) {
        let total: u64 = self.bytes.values().sum();
        let _ = writeln!(text, "\nbytes: {}", HumanBytes(total));
        let mut parts: Vec<_> = self.bytes.iter().collect();
        parts.sort_by_key(|(name, bytes)| (Reverse(**bytes), **name));
        for (name, bytes) in parts {
            let share = *bytes as f64 * 100.0 / total.max(1) as f64;
            let shown = HumanBytes(*bytes).to_string();
            let _ = writeln!(text, "  {name:<NAME_COLUMNS$} {shown:>12} {share:>5.1} %");
        }
    }

    fn rejects_text(&self, text: &mut String) {
        let _ = writeln!(text, "\nrejected records: {}", HumanCount(self.rejected));
        match &self.rejects {
            None => text.push_str("  reasons unknown: the rejects table is missing or damaged\n"),
            Some(reasons) => {
                let mut reasons: Vec<_> = reasons.iter().collect();
                reasons.sort_by_key(|(reason, count)| (Reverse(**count), reason.as_str()));
                for (reason, count) in reasons {
                    let shown = HumanCount(*count).to_string();
                    let _ = writeln!(text, "  {reason:<NAME_COLUMNS$} {shown:>12}");
                }
            }
        }
    }
}

fn heaviest(text: &mut String, what: &str, samples: &[HeavySample]) {
    let _ = writeln!(text, "\nmost {what}:");
    let _ = writeln!(
        text,
        "  {:>9} {:>9} {:>6}  sample",
        "tokens", "patches", "images"
    );
    for sample in samples {
        let name = sample.sample_id.as_ref().map_or_else(
            || format!("row {}", sample.row),
            |id| id.escape_debug().to_string(),
        );
        let _ = writeln!(
            text,
            "  {:>9} {:>9} {:>6}  {name}",
            sample.tokens, sample.patches, sample.images
        );
    }
}
