//! Everything a build can be told, in one typed struct with documented defaults.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use stoker_formats::{FileName, Folder, PartName};

use crate::image::profile::{Generation, Profile};
use crate::plan::SplitShare;
use crate::record::{ImageTag, Shape};
use crate::source::Deadlines;
use crate::text::{LabelRule, Overlong};

/// Default target size of a shard.
pub const SHARD_BYTES: u64 = 512 << 20;
/// Least default bound on bytes in flight.
const MEMORY_BUDGET_BYTES: u64 = 2 << 30;
/// What the default bound has for each thread, if that is more: all of them can decode photographs of 12 megapixels, and
/// turn them.
const THREAD_BYTES: u64 = 256 << 20;

/// The configuration of a build. It is resolved into the recipe, which stands in the manifest.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Files, globs, folders and `s3://` URIs of JSONL records.
    pub inputs: Vec<String>,
    /// The Hugging Face model folder.
    pub model: PathBuf,
    /// The cache's folder.
    pub output: PathBuf,
    /// Where image links start, if not at their JSONL file.
    pub image_root: Option<String>,
    /// One record shape for all files; `None` detects it for each.
    pub shape: Option<Shape>,
    /// What becomes of image tags in the text.
    pub image_tag: ImageTag,
    /// Which reference the images are bit-exact with.
    pub profile: Profile,
    /// Major version of transformers that is the reference.
    pub generation: Generation,
    /// Least area after resizing; `None` takes the model's.
    pub min_pixels: Option<u64>,
    /// Largest area after resizing; `None` takes the model's.
    pub max_pixels: Option<u64>,
    /// Longest sample in tokens; `None` has no limit.
    pub max_tokens: Option<u32>,
    /// What becomes of longer samples.
    pub overlong: Overlong,
    /// Which tokens are learnt.
    pub label_rule: LabelRule,
    /// Seed of the deal and of the order of samples.
    pub seed: u64,
    /// Partitions of the main split; `None` takes the default for its size.
    pub partitions: Option<u32>,
    /// Target size of a shard.
    pub shard_bytes: u64,
    /// Splits beside the main one.
    pub splits: Vec<SplitShare>,
    /// How many records may be rejected.
    pub max_rejects: RejectLimit,
    /// Threads that prepare images and text.
    pub threads: usize,
    /// Bound on bytes in flight.
    pub memory_budget_bytes: u64,
    /// S3 endpoint, if not Amazon's.
    pub s3_endpoint: Option<String>,
    /// Buckets that `s3://` links may name beside the inputs' own.
    pub allowed_buckets: Vec<String>,
    /// How long to wait for a source, and how often to try.
    pub deadlines: Deadlines,
    /// Program and first arguments of the child that tries an image; none runs this program, which must then be
    /// `stoker` itself.
    pub trial_program: Option<Vec<OsString>>,
    /// Builds only these parts, all of one number of workers, for [`parts::commit`](crate::parts::commit) to put together;
    /// none builds everything.
    pub parts: Vec<PartName>,
    /// Mends the cache that is committed in the output, and makes no other: the files that are made again whatever they look like.
    pub repair: Option<HashSet<(Folder, FileName)>>,
    /// Drops an unfinished build; if it is of something else, but for what this one shares with it.
    pub restart: bool,
    /// After the commit, removes the folders of earlier plans.
    pub prune: bool,
}

/// Default bound on bytes in flight for that many `threads`.
#[must_use]
pub fn memory_budget_bytes(threads: usize) -> u64 {
    MEMORY_BUDGET_BYTES.max(threads as u64 * THREAD_BYTES)
}

/// A number of records or a part of all of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RejectLimit {
    /// At most so many records.
    Count(u64),
    /// At most this part of all records, in millionths.
    Millionths(u64),
    /// None: the first one stops the build.
    Fail,
}

/// Why a picture that was missing stays out of a cache, and what to do about it.
pub const REJECTS_KEPT: &str =
    "the committed cache keeps its rejects: build into another --output to try these records again";

impl RejectLimit {
    /// The limit for a data set of `records`.
    #[must_use]
    pub fn allowed(self, records: u64) -> u64 {
        match self {
            Self::Count(count) => count,
            Self::Fail => 0,
            Self::Millionths(part) => {
                u64::try_from(u128::from(records) * u128::from(part) / 1_000_000)
                    .unwrap_or(u64::MAX)
            }
        }
    }

    /// What to do about more rejects; `kept` if those of the committed cache stay.
    pub(super) fn hint(self, kept: bool) -> String {
        let first = match self {
            Self::Fail => "mend the record, or leave out --on-reject fail",
            Self::Count(_) | Self::Millionths(_) => {
                "mend the records, or raise --max-rejects and run again"
            }
        };
        let then = if kept {
            REJECTS_KEPT
        } else {
            "what is done stays, rejects too: where images were missing and are there now, add --restart"
        };
        format!("{first}; {then}")
    }
}

impl FromStr for RejectLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(percent) = text.strip_suffix('%') {
            return match percent.trim().parse::<f64>() {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "checked to be in 0..100"
                )]
                Ok(percent) if (0.0..=100.0).contains(&percent) => {
                    Ok(Self::Millionths((percent * 10_000.0).round() as u64))
                }
                _ => Err(format!("a part of the records is 0% to 100%: `{text}`")),
            };
        }
        text.parse()
            .map(Self::Count)
            .map_err(|_| format!("a number of records or a percentage: `{text}`"))
    }
}

/// Reads a size such as `512MiB`, `2GiB`, `1GB` or plain bytes.
///
/// # Errors
/// A message for the command line.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "a size is a number and B, KiB, MiB, GiB or TiB: `{text}`"
            ));
        }
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(scale))
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("not a size above 0: `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("2 GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("17"), Ok(17));
        for bad in ["", "MiB", "0", "-1", "1.5GiB", "99999999999TiB", "1Mb"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reject_limits_are_counts_or_parts() {
        let limit: RejectLimit = "0.1%".parse().unwrap();
        assert_eq!(limit.allowed(10_000), 10);
        assert_eq!(limit.allowed(999), 0);
        assert_eq!("100%".parse::<RejectLimit>().unwrap().allowed(7), 7);
        assert_eq!("5".parse::<RejectLimit>().unwrap().allowed(1), 5);
        for bad in ["", "-1", "101%", "x%", "1.5"] {
            assert!(bad.parse::<RejectLimit>().is_err(), "{bad}");
        }
    }
}
