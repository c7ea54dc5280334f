//! The order has no bias that statistics can see: places, neighbours, and both of one after the other.
//!
//! Seeds are fixed, so the outcomes are too. A deviation is measured in standard deviations; some thousand are taken, so
//! the worst of an unbiased order is about 4.

mod orders;

use orders::{cache_of, options};
use stoker_reader::{Memo, Order, Shuffle, Tail};

const WORST: f64 = 5.5;

/// `order[position]` of one partition, read as the reader does.
struct Epochs {
    order: Order,
    memo: Memo,
}

impl Epochs {
    fn new(units: u64, shuffle: Shuffle, shard: u64) -> Self {
        let cache = cache_of(1, &[units], shard);
        let order = Order::new(&options(units, shuffle, Tail::All), &cache).unwrap();
        Self {
            order,
            memo: Memo::new(1 << 20, 1),
        }
    }

    fn row(&mut self, epoch: u64, position: u64) -> u64 {
        self.order.unit_at(&mut self.memo, epoch, position).1
    }
}

/// How far counts are from all being equally likely: chi-square, as a nearly normal deviate (Wilson and Hilferty).
fn deviation(counts: &[u32]) -> f64 {
    let freedom = counts.len() as f64 - 1.0;
    deviate(chi_square(counts), freedom)
}

/// The same for a table of places and rows filled by whole permutations: all sums of its lines are fixed.
fn table_deviation(counts: &[u32]) -> f64 {
    let size = (counts.len() as f64).sqrt();
    deviate(
        chi_square(counts) * (size - 1.0) / size,
        (size - 1.0).powi(2),
    )
}

fn chi_square(counts: &[u32]) -> f64 {
    let sum: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let expected = sum / counts.len() as f64;
    let squares = counts
        .iter()
        .map(|count| (f64::from(*count) - expected).powi(2));
    squares.sum::<f64>() / expected
}

fn deviate(chi: f64, freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Every size up to 64, over many epochs: place and row, neighbours, and the same place in two epochs after each other.
fn small_sizes(shuffle: Shuffle, keys: u64, shard: fn(u64) -> u64) {
    for units in 2..=64u64 {
        let mut epochs = Epochs::new(units, shuffle, shard(units));
        let size = units as usize;
        let mut places = vec![0u32; size * size];
        let mut steps = vec![0u32; size - 1];
        let mut again = vec![0u32; size];
        let mut serial = 0.0;
        let mut before = vec![0; size];
        for epoch in 0..keys {
            let rows: Vec<usize> = (0..units)
                .map(|position| epochs.row(epoch, position) as usize)
                .collect();
            for (position, row) in rows.iter().enumerate() {
                places[position * size + row] += 1;
            }
            // From one unit to the next, around the end: every step but 0 is equally likely.
            let at = epoch as usize % size;
            if epoch > 0 {
                again[(size + rows[at] - before[at]) % size] += 1;
            }
            steps[(size + rows[(at + 1) % size] - rows[at]) % size - 1] += 1;
            let mean = (units - 1) as f64 / 2.0;
            let variance = (units * units - 1) as f64 / 12.0;
            serial += (rows[0] as f64 - mean) * (rows[1] as f64 - mean) / variance;
            before = rows;
        }
        let mut found = vec![
            ("places", table_deviation(&places)),
            ("again", deviation(&again)),
        ];
        // Within a shard the next unit is of the same one; of two units there is but one step.
        if shuffle == Shuffle::Full && units > 2 {
            found.push(("steps", deviation(&steps)));
        }
        for (what, found) in found {
            assert!(found < WORST, "{shuffle} {units} {what}: {found}");
        }
        if shuffle == Shuffle::Full && units > 2 {
            // Two rows of one permutation are a little apart: their correlation is -1 / (n - 1).
            let mean = -1.0 / (units - 1) as f64;
            let found = (serial / keys as f64 - mean) * (keys as f64).sqrt();
            assert!(found.abs() < WORST, "{units} serial: {found}");
        }
    }
}

#[test]
fn small_partitions_are_shuffled_without_bias() {
    small_sizes(Shuffle::Full, 1500, |units| units);
}

#[test]
fn equal_shards_are_shuffled_without_bias() {
    // With shards of unequal size a place is not equally likely for all rows.
    small_sizes(Shuffle::Shard, 400, |units| {
        let divides = |shard: &u64| units.is_multiple_of(*shard);
        (units.isqrt()..=units).find(divides).unwrap_or(units)
    });
}

#[test]
fn large_partitions_are_shuffled_without_bias() {
    for units in [
        1000,
        30_011,
        65_536,
        65_537,
        1_000_003,
        1 << 30,
        1_000_000_000,
    ] {
        let table = units <= 65_536;
        let (keys, each) = if table {
            (12, units.min(4000))
        } else {
            (200, 240)
        };
        let mut epochs = Epochs::new(units, Shuffle::Full, units);
        const BUCKETS: usize = 16;
        let bucket = |row: u64| (u128::from(row) * BUCKETS as u128 / u128::from(units)) as usize;
        let mut places = vec![0u32; BUCKETS * BUCKETS];
        let mut pairs = vec![0u32; BUCKETS * BUCKETS];
        let mut again = vec![0u32; BUCKETS * BUCKETS];
        let mut low = vec![0u32; 7];
        let (mut serial, mut count) = (0.0, 0.0);
        for epoch in 0..keys {
            for step in 0..each {
                let position = step * units / each;
                let row = epochs.row(epoch, position);
                let next = epochs.row(epoch, (position + 1) % units);
                let later = epochs.row(epoch + 1, position);
                places[bucket(position) * BUCKETS + bucket(row)] += 1;
                pairs[bucket(row) * BUCKETS + bucket(next)] += 1;
                again[bucket(row) * BUCKETS + bucket(later)] += 1;
                low[((row + 7 * units - position) % 7) as usize] += 1;
                let centred = |row: u64| (row as f64 / units as f64 - 0.5) * 12f64.sqrt();
                serial += centred(row) * centred(next);
                count += 1.0;
            }
        }
        for (what, counts) in [
            ("places", &places),
            ("pairs", &pairs),
            ("again", &again),
            ("low", &low),
        ] {
            let found = deviation(counts);
            assert!(found < WORST, "{units} {what}: {found}");
        }
        let found = serial / f64::sqrt(count);
        assert!(found.abs() < WORST, "{units} serial: {found}");
    }
}

#[test]
fn a_biased_order_would_be_noticed() {
    // A shuffle by swapping each place with any place, the classical mistake, for six units.
    let mut dice = orders::Dice(4);
    let mut places = vec![0u32; 36];
    for _ in 0..1500 {
        let mut rows: Vec<usize> = (0..6).collect();
        for place in 0..6 {
            rows.swap(place, dice.below(6) as usize);
        }
        for (place, row) in rows.iter().enumerate() {
            places[place * 6 + row] += 1;
        }
    }
    let found = table_deviation(&places);
    assert!(found > WORST, "{found}");
}
