//! Histograms as text.
//!
//! Owns their layout. Invariant: no line is longer than 80 columns, whatever the numbers.

use std::fmt::Write;

use indicatif::HumanCount;

use super::distribution::Distribution;

/// Columns of the longest bar: 80 without label, count and share.
const BAR_COLUMNS: u64 = 30;

/// Numbers and bars of one distribution, under its name.
pub(super) fn draw(name: &str, found: &Distribution) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{name}: {} values, sum {}, mean {:.1}",
        HumanCount(found.count),
        HumanCount(found.sum),
        found.mean
    );
    let _ = writeln!(
        text,
        "  min {}  p1 {}  p10 {}  p50 {}  p90 {}  p99 {}  max {}",
        found.min, found.p1, found.p10, found.p50, found.p90, found.p99, found.max
    );
    let most = found
        .bins
        .iter()
        .map(|bin| bin.count)
        .max()
        .unwrap_or(0)
        .max(1);
    for bin in &found.bins {
        let label = match bin.to {
            Some(to) if to == bin.from + 1 => bin.from.to_string(),
            Some(to) => format!("{}..{}", bin.from, to - 1),
            None if bin.from == found.max => bin.from.to_string(),
            None => format!("{}..{}", bin.from, found.max),
        };
        let scaled = u128::from(bin.count) * u128::from(BAR_COLUMNS);
        // A bin that is not empty shows.
        let bar = "#".repeat(usize::try_from(scaled.div_ceil(u128::from(most))).unwrap_or(0));
        let share = bin.count as f64 * 100.0 / found.count.max(1) as f64;
        let count = HumanCount(bin.count).to_string();
        let line = format!("  {label:>18} {bar:<30} {count:>13} {share:>5.1} %");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::distribution::Counts;

    #[test]
    fn a_histogram_looks_like_this() {
        let mut counts = Counts::default();
        for (value, times) in [(100, 4), (120, 8), (199, 1), (250, 2), (900, 1)] {
            (0..times).for_each(|_| counts.add(value));
        }
        assert_eq!(
            draw("tokens", &counts.distribution()),
            "tokens: 16 values, sum 2,959, mean 184.9\n  \
               min 100  p1 100  p10 100  p50 120  p90 250  p99 900  max 900\n            \
                 100..199 ##############################            13  81.2 %\n            \
                 200..299 #####                                      2  12.5 %\n            \
                 300..399                                            0   0.0 %\n            \
                 400..499                                            0   0.0 %\n            \
                 500..599                                            0   0.0 %\n            \
                 600..699                                            0   0.0 %\n            \
                 700..799                                            0   0.0 %\n            \
                 800..899                                            0   0.0 %\n                 \
                      900 ###                                        1   6.2 %\n"
        );
    }

    #[test]
    fn lines_fit_a_screen() {
        // Values of six digits, counts of ten: no real sample or cache has more.
        let mut counts = Counts::default();
        for value in 0..2000u64 {
            counts.add(value * 500);
        }
        let mut found = counts.distribution();
        for bin in &mut found.bins {
            bin.count *= 10_000_000;
        }
        found.count *= 10_000_000;
        let text = draw("tokens", &found);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
