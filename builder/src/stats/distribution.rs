//! Exact distributions of whole numbers.
//!
//! Owns percentiles and bins. Invariant: nothing is sampled or rounded; a percentile is a value that occurs (the nearest
//! rank), and bins count every value once.

use std::collections::BTreeMap;

use serde::Serialize;

/// Bins of a histogram: enough to show a shape, few enough for a screen.
const BINS_MAX: u64 = 12;

/// How often each value occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<u64, u64>);

/// Values from `from` to before `to`; the last bin is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The least value.
    pub from: u64,
    /// What is too large; none in the last bin.
    pub to: Option<u64>,
    /// How many values.
    pub count: u64,
}

/// A distribution in a few numbers. All are 0 where nothing was counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// Their mean.
    pub mean: f64,
    /// The least.
    pub min: u64,
    /// 1 % are at most this.
    pub p1: u64,
    /// 10 % are at most this.
    pub p10: u64,
    /// Half are at most this.
    pub p50: u64,
    /// 90 % are at most this.
    pub p90: u64,
    /// 99 % are at most this.
    pub p99: u64,
    /// The largest.
    pub max: u64,
    /// The histogram.
    pub bins: Vec<Bin>,
}

impl Counts {
    pub(super) fn add(&mut self, value: u64) {
        *self.0.entry(value).or_insert(0) += 1;
    }

    pub(super) fn distribution(&self) -> Distribution {
        let count: u64 = self.0.values().sum();
        let (Some((min, _)), Some((max, _))) = (self.0.first_key_value(), self.0.last_key_value())
        else {
            return Distribution::default();
        };
        let sum = self.0.iter().fold(0u64, |sum, (value, times)| {
            sum.saturating_add(value.saturating_mul(*times))
        });
        let [p1, p10, p50, p90, p99] =
            [1, 10, 50, 90, 99].map(|share| self.percentile(share, count));
        Distribution {
            count,
            sum,
            mean: sum as f64 / count as f64,
            min: *min,
            p1,
            p10,
            p50,
            p90,
            p99,
            max: *max,
            bins: self.bins(*min, p99, *max),
        }
    }

    /// The least value that at least `share` percent of all values do not exceed.
    fn percentile(&self, share: u64, count: u64) -> u64 {
        let rank = (u128::from(count) * u128::from(share)).div_ceil(100).max(1);
        let mut seen = 0u128;
        for (value, times) in &self.0 {
            seen += u128::from(*times);
            if seen >= rank {
                return *value;
            }
        }
        0
    }

    /// Bins of a round width from the least value to the 99th percentile; the last takes the tail.
    fn bins(&self, min: u64, p99: u64, max: u64) -> Vec<Bin> {
        let width = round_width((p99 - min) / BINS_MAX + 1);
        let start = min / width * width;
        let last = (max / width).min((start / width).saturating_add(BINS_MAX - 1));
        let mut bins: Vec<Bin> = (start / width..=last)
            .map(|number| Bin {
                from: number * width,
                to: (number < last).then(|| (number + 1) * width),
                count: 0,
            })
            .collect();
        let final_bin = bins.len() - 1;
        for (value, times) in &self.0 {
            let place = usize::try_from((value - start) / width).unwrap_or(usize::MAX);
            if let Some(bin) = bins.get_mut(place.min(final_bin)) {
                bin.count += times;
            }
        }
        bins
    }
}

/// The least of 1, 2, 5, 10, 20, ... that is at least `width`.
fn round_width(width: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let round = power.saturating_mul(factor);
            if round >= width {
                return round;
            }
        }
        power = power.saturating_mul(10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut counts = Counts::default();
        (1..=200).for_each(|value| counts.add(value));
        let found = counts.distribution();
        assert_eq!((found.min, found.p1, found.p10, found.p50), (1, 2, 20, 100));
        assert_eq!((found.p90, found.p99, found.max), (180, 198, 200));
        assert_eq!((found.count, found.sum, found.mean), (200, 20_100, 100.5));
    }

    #[test]
    fn nothing_counted_is_all_zero() {
        assert_eq!(Counts::default().distribution(), Distribution::default());
    }

    #[test]
    fn widths_are_round() {
        let widths = [1, 2, 3, 6, 11, 21, 51, 101].map(round_width);
        assert_eq!(widths, [1, 2, 5, 10, 20, 50, 100, 200]);
        assert_eq!(round_width(u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn a_distribution_is_that_of_the_sorted_list(
            mut values in proptest::collection::vec(0u64..5000, 1..300),
            far in 0u64..1_000_000,
        ) {
            values.push(far);
            let mut counts = Counts::default();
            values.iter().for_each(|value| counts.add(*value));
            let found = counts.distribution();
            values.sort_unstable();
            let at = |share: usize| values[(values.len() * share).div_ceil(100).max(1) - 1];
            prop_assert_eq!(
                [found.min, found.p1, found.p10, found.p50, found.p90, found.p99, found.max],
                [values[0], at(1), at(10), at(50), at(90), at(99), values[values.len() - 1]]
            );
            prop_assert!(found.bins.len() as u64 <= BINS_MAX);
            for (number, bin) in found.bins.iter().enumerate() {
                let inside = |value: &&u64| **value >= bin.from && bin.to.is_none_or(|to| **value < to);
                prop_assert_eq!(bin.count, values.iter().filter(inside).count() as u64);
                let next = found.bins.get(number + 1).map(|bin| bin.from);
                prop_assert_eq!(bin.to, next);
            }
        }
    }
}
