//! Splits: how many of the dealt groups each one gets, and into how many partitions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Name of the split that takes what no share names.
pub(super) const MAIN_SPLIT: &str = "train";

/// Partition counts that many node counts divide.
const PARTITION_COUNTS: [u32; 7] = [960, 240, 48, 12, 4, 2, 1];

/// Fewer samples a partition would make uneven epochs and tiny shards.
const PARTITION_SAMPLES_MIN: u64 = 256;

/// Parts in a whole: shares are exact to one in a million.
const WHOLE: u64 = 1_000_000;

/// `NAME=SHARE`: a split and its part of the data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitShare {
    /// Name of the split.
    pub name: String,
    /// Its share, in millionths.
    pub millionths: u64,
}

impl FromStr for SplitShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, share) = text
            .split_once('=')
            .ok_or_else(|| format!("a split is NAME=SHARE, as in val=0.5%, not `{text}`"))?;
        let plain = !name.is_empty()
            && name.len() <= 64
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        if !plain || name == MAIN_SPLIT {
            return Err(format!(
                "a split's name is 1 to 64 letters, digits, _ or -, and not {MAIN_SPLIT}, which takes the rest: `{name}`"
            ));
        }
        let (number, scale) = match share.strip_suffix('%') {
            Some(percent) => (percent, 0.01),
            None => (share, 1.0),
        };
        let value = number
            .trim()
            .parse::<f64>()
            .ok()
            .map(|number| number * scale);
        match value {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "checked to be in 0..1"
            )]
            Some(value) if value > 0.0 && value < 1.0 => Ok(Self {
                name: name.to_owned(),
                millionths: (value * 1e6).round() as u64,
            }),
            _ => Err(format!(
                "a split's share is above 0 and below 1, or below 100%: `{share}`"
            )),
        }
    }
}

impl fmt::Display for SplitShare {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = self.millionths;
        write!(
            out,
            "{}={}.{:06}",
            self.name,
            millionths / WHOLE,
            millionths % WHOLE
        )
    }
}

/// A split's partitions and its part of the dealt order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitPlan {
    /// Name of the split.
    pub name: String,
    /// Its first partition.
    pub first_partition: u32,
    /// How many partitions it has.
    pub partitions: u32,
    /// Its records, good or bad.
    pub records: u64,
    /// Its image groups: positions in their dealt order.
    pub(crate) groups: std::ops::Range<u32>,
    /// Its text-only records: positions in their dealt order.
    pub(crate) texts: std::ops::Range<u32>,
    /// Image groups that its share allows.
    pub(crate) groups_max: u32,
}

impl SplitPlan {
    /// What the split lacks of what was asked for, and why, if anything.
    pub(crate) fn lack(&self) -> Option<String> {
        let name = &self.name;
        if self.groups.is_empty() && self.groups_max > 0 {
            return Some(format!(
                "no records with pictures in split `{name}`: those that share a picture, directly or by way of others, stay together, and each such set is larger than its share"
            ));
        }
        (self.records == 0)
            .then(|| format!("no records in split `{name}`: its share is less than one of them"))
    }
}

/// The largest usual partition count that leaves 256 samples each; never derived from workers or nodes.
#[must_use]
pub fn default_partitions(records: u64) -> u32 {
    PARTITION_COUNTS
        .into_iter()
        .find(|count| records / u64::from(*count) >= PARTITION_SAMPLES_MIN)
        .unwrap_or(1)
}

/// Cuts `count` dealt items by the shares, in order; the main split takes the rest, and comes first.
pub(crate) fn cut(count: u32, shares: &[SplitShare]) -> Vec<std::ops::Range<u32>> {
    let mut end = count;
    let mut ranges: Vec<_> = shares
        .iter()
        .map(|share| {
            let part = u64::from(count) * share.millionths / WHOLE;
            let start = end - u32::try_from(part).unwrap_or(end).min(end);
            let range = start..end;
            end = start;
            range
        })
        .collect();
    ranges.insert(0, 0..end);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_parts_or_percent() {
        let share: SplitShare = "val=0.5%".parse().unwrap();
        assert_eq!((share.name.as_str(), share.millionths), ("val", 5000));
        assert_eq!("val=0.005".parse::<SplitShare>().unwrap(), share);
        for bad in [
            "val", "val=", "val=0", "val=1", "val=-1%", "=1%", "a/b=1%", "train=1%", "val=nan",
        ] {
            assert!(bad.parse::<SplitShare>().is_err(), "{bad}");
        }
    }

    #[test]
    fn cuts_cover_everything_once() {
        let shares: Vec<SplitShare> = vec!["a=10%".parse().unwrap(), "b=25%".parse().unwrap()];
        for count in [0, 1, 7, 100, 1001] {
            let ranges = cut(count, &shares);
            assert_eq!(
                ranges.iter().map(|range| range.len()).sum::<usize>(),
                count as usize
            );
            assert_eq!(ranges[1].end, count);
            assert_eq!(ranges[2].end, ranges[1].start);
            assert_eq!(ranges[0], 0..ranges[2].start);
        }
        assert_eq!(cut(1000, &shares)[1], 900..1000);
    }

    #[test]
    fn default_partition_counts_leave_enough_samples() {
        assert_eq!(default_partitions(0), 1);
        assert_eq!(default_partitions(511), 1);
        assert_eq!(default_partitions(512), 2);
        assert_eq!(default_partitions(12 * 256), 12);
        assert_eq!(default_partitions(10_000_000), 960);
    }
}
