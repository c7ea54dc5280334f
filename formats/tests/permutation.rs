//! The keyed permutation: a bijection, without bias, and the same for ever.

use proptest::prelude::*;
use stoker_formats::{Key, Permutation, last_entries};

fn key(number: u64) -> Key {
    Key::derive(number, "test", &[1, 2])
}

#[test]
fn small_ones_are_bijections() {
    for len in (0..260).chain([1000, 4096, 65_535, 65_536]) {
        let permutation = Permutation::new(key(len), len);
        let mut seen = vec![false; len as usize];
        for position in 0..len {
            let value = permutation.get(position);
            assert!(!std::mem::replace(&mut seen[value as usize], true), "{len}");
            assert_eq!(permutation.position_of(value), position);
        }
    }
}

#[test]
fn the_last_entries_are_those_of_the_whole_table() {
    for len in [0, 1, 2, 3, 64, 1000, 5000, 65_536] {
        let permutation = Permutation::new(key(len), len);
        for (skipped, count) in [
            (0, 0),
            (0, 1),
            (0, 7),
            (1, 2),
            (len / 2, 9),
            (len.saturating_sub(2), 5),
            (len, 3),
            (0, len),
            (0, u64::MAX),
            (u64::MAX, 1),
        ] {
            let expected: Vec<u16> = (0..len)
                .rev()
                .skip(skipped.min(len) as usize)
                .take(count.min(len) as usize)
                .map(|position| permutation.get(position) as u16)
                .collect();
            assert_eq!(*last_entries(key(len), len, skipped, count), expected);
        }
    }
}

#[test]
fn the_network_is_a_bijection_on_every_kind_of_size() {
    // A square, one more, one less, a product of two, a prime.
    for len in [65_537, 66_049, 66_050, 66_048, 65_792, 131_101] {
        let permutation = Permutation::new(key(len), len);
        let mut seen = vec![false; len as usize];
        for position in 0..len {
            let value = permutation.get(position);
            assert!(!std::mem::replace(&mut seen[value as usize], true), "{len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn large_ones_invert(seed in any::<u64>(), len in 65_537..1u64 << 48, picks in proptest::collection::vec(any::<u64>(), 20)) {
        let permutation = Permutation::new(key(seed), len);
        for pick in picks {
            let position = pick % len;
            let value = permutation.get(position);
            prop_assert!(value < len);
            prop_assert_eq!(permutation.position_of(value), position);
        }
    }
}

/// Chi-square of where `position` goes, over many keys, in `buckets` of equal width; about normal with mean 0, deviation 1.
fn deviation(len: u64, buckets: u64, position: u64, keys: u64) -> f64 {
    let mut counts = vec![0u64; buckets as usize];
    for number in 0..keys {
        let value = Permutation::new(key(number), len).get(position);
        counts[(value * buckets / len) as usize] += 1;
    }
    let expected = keys as f64 / buckets as f64;
    let chi: f64 = counts
        .iter()
        .map(|count| (*count as f64 - expected).powi(2) / expected)
        .sum();
    let freedom = (buckets - 1) as f64;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn every_value_is_equally_likely_everywhere() {
    for (len, buckets, position) in [(2, 2, 0), (3, 3, 2), (7, 7, 3), (50, 50, 0), (50, 50, 49)] {
        let found = deviation(len, buckets, position, 20_000);
        assert!(found.abs() < 5.0, "{len} {position}: {found}");
    }
    for (len, position) in [
        (65_792, 0),
        (65_792, 65_791),
        (100_000, 317),
        (1 << 40, 12_345),
    ] {
        let found = deviation(len, 64, position, 20_000);
        assert!(found.abs() < 5.0, "{len} {position}: {found}");
    }
}

#[test]
fn orders_of_three_are_equally_likely() {
    let mut counts = std::collections::BTreeMap::new();
    for number in 0..12_000 {
        let permutation = Permutation::new(key(number), 3);
        *counts
            .entry([0, 1, 2].map(|position| permutation.get(position)))
            .or_insert(0u32) += 1;
    }
    assert_eq!(counts.len(), 6);
    assert!(
        counts.values().all(|count| (1800..2200).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn neighbours_do_not_stay_neighbours() {
    let len = 1 << 20;
    let permutation = Permutation::new(key(3), len);
    let close = (1..100_000)
        .filter(|position| {
            permutation
                .get(*position)
                .abs_diff(permutation.get(position - 1))
                < 1000
        })
        .count();
    // Expected: 100,000 * 2000 / 2^20 = 191.
    assert!((130..260).contains(&close), "{close}");
}

#[test]
fn purposes_numbers_and_seeds_give_other_keys() {
    let keys = [
        Key::derive(1, "a", &[]),
        Key::derive(2, "a", &[]),
        Key::derive(1, "b", &[]),
        Key::derive(1, "a", &[0]),
        Key::derive(1, "a", &[0, 0]),
        Key::derive(1, "", &[0, 0]),
    ];
    for (number, one) in keys.iter().enumerate() {
        assert!(keys[..number].iter().all(|other| other != one));
    }
}

#[test]
fn vectors_of_the_specification_hold() {
    let key = Key::derive(42, "example", &[7, 8]);
    let start: String = key.as_bytes()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let first = |len| {
        let permutation = Permutation::new(key, len);
        (0..8u64.min(len))
            .map(|position| permutation.get(position))
            .collect::<Vec<_>>()
    };
    let found = format!(
        "{start} {:?} {:?} {:?} {:?} {:?}",
        first(1),
        first(10),
        first(65_536),
        first(65_537),
        first(1_000_000_007)
    );
    assert_eq!(
        found,
        "3fd93e9fd7753d97 [0] [7, 0, 1, 9, 6, 4, 5, 3] [54086, 50013, 25898, 11431, 17833, 15470, 28391, 1427] [51225, 31155, 10461, 48298, 61162, 42035, 8103, 14352] [882085185, 549283047, 326271906, 804608487, 797210659, 881536038, 580049031, 489165069]"
    );
}
