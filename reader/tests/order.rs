//! The order of one cache: complete, bounded in memory, and the same for ever.

mod orders;

use std::collections::{BTreeMap, BTreeSet};

use orders::{Dice, SHUFFLES, TAILS, cache_of, options, uneven};
use proptest::prelude::*;
use stoker_reader::{CacheUnits, Memo, Order, OrderError, Shuffle, Tail};

const MEMO: usize = 1 << 20;

/// The units of an epoch, in order.
fn epoch(order: &Order, epoch: u64) -> Vec<(u32, u64)> {
    let mut memo = Memo::new(MEMO, order.partitions());
    (0..order.epoch_len())
        .map(|position| order.unit_at(&mut memo, epoch, position))
        .collect()
}

fn sizes(cache: &CacheUnits) -> Vec<u64> {
    cache.partitions.iter().map(|part| part.units).collect()
}

#[test]
fn every_epoch_takes_the_units_that_its_tail_says() {
    for units in 1..=64 {
        for partitions in 1..=5 {
            let cache = uneven(1, units, partitions);
            let sizes = sizes(&cache);
            let taking: Vec<u64> = sizes.iter().copied().filter(|units| *units > 0).collect();
            let least = *taking.iter().min().unwrap();
            for (shuffle, tail) in SHUFFLES.into_iter().flat_map(|s| TAILS.map(|t| (s, t))) {
                let order = Order::new(&options(units, shuffle, tail), &cache).unwrap();
                for number in 0..3 {
                    let found = epoch(&order, number);
                    let once: BTreeSet<_> = found.iter().copied().collect();
                    assert_eq!(once.len(), found.len(), "a unit came twice");
                    for (partition, units) in (0..).zip(&sizes) {
                        let rows = once.iter().filter(|(p, _)| *p == partition);
                        assert!(rows.clone().all(|(_, row)| row < units));
                        let expected = match tail {
                            Tail::All => *units,
                            Tail::Even => least.min(*units),
                        };
                        assert_eq!(rows.count() as u64, expected);
                    }
                }
                assert_eq!(order.epoch_len() + order.left_out(), units);
                let even = least * taking.len() as u64;
                assert_eq!(
                    order.epoch_len(),
                    if tail == Tail::All { units } else { even }
                );
            }
        }
    }
}

#[test]
fn partitions_take_turns_as_long_as_they_have_units() {
    let cache = cache_of(1, &[7, 3, 0, 12, 3, 9], 4);
    let all = Order::new(&options(5, Shuffle::None, Tail::All), &cache).unwrap();
    let found = epoch(&all, 0);
    // Unshuffled, the row is the round: in round r comes every partition with more than r units.
    assert!(found.is_sorted_by_key(|(_, row)| *row));
    for round in 0..12 {
        let rows = found.iter().filter(|(_, row)| *row == round);
        let partitions: Vec<u32> = rows.map(|(partition, _)| *partition).collect();
        let expected: &[u32] = match round {
            0..3 => &[0, 1, 3, 4, 5],
            // By size from here on.
            3..7 => &[0, 5, 3],
            7..9 => &[5, 3],
            _ => &[3],
        };
        assert_eq!(partitions, expected);
    }
    for shuffle in SHUFFLES {
        let even = Order::new(&options(5, shuffle, Tail::Even), &cache).unwrap();
        let all = Order::new(&options(5, shuffle, Tail::All), &cache).unwrap();
        assert_eq!(epoch(&even, 2), epoch(&all, 2)[..15]);
    }
}

#[test]
fn epochs_seeds_caches_and_partitions_are_ordered_in_their_own_way() {
    let of = |seed, name, shuffle| {
        let cache = cache_of(name, &[40, 40], 8);
        Order::new(&options(seed, shuffle, Tail::All), &cache).unwrap()
    };
    for shuffle in [Shuffle::Full, Shuffle::Shard] {
        let order = of(1, 1, shuffle);
        let mut orders = BTreeSet::new();
        for found in [
            epoch(&order, 0),
            epoch(&order, 1),
            epoch(&of(2, 1, shuffle), 0),
            epoch(&of(1, 2, shuffle), 0),
        ] {
            for partition in 0..2 {
                let rows = found.iter().filter(|(p, _)| *p == partition);
                orders.insert(rows.map(|(_, row)| *row).collect::<Vec<_>>());
            }
        }
        assert_eq!(orders.len(), 8);
    }
    let stored = of(1, 1, Shuffle::None);
    assert_eq!(epoch(&stored, 0), epoch(&stored, 7));
}

#[test]
fn an_even_epoch_leaves_out_other_units_each_time() {
    let cache = cache_of(1, &[50, 40], 5);
    for (shuffle, expected) in [
        (Shuffle::Full, 50),
        (Shuffle::Shard, 50),
        (Shuffle::None, 40),
    ] {
        let order = Order::new(&options(3, shuffle, Tail::Even), &cache).unwrap();
        assert_eq!(order.left_out(), 10);
        let seen: BTreeSet<u64> = (0..30)
            .flat_map(|number| epoch(&order, number))
            .filter_map(|(partition, row)| (partition == 0).then_some(row))
            .collect();
        assert_eq!(seen.len(), expected, "{shuffle}");
    }
}

#[test]
fn shards_are_read_one_after_the_other() {
    let mut cache = cache_of(1, &[64], 64);
    // Of the shards two have no units.
    cache.partitions[0].shard_starts = vec![0, 10, 10, 13, 40, 63, 64];
    let starts = [0, 10, 13, 40, 63];
    let order = Order::new(&options(9, Shuffle::Shard, Tail::All), &cache).unwrap();
    let mut firsts = BTreeSet::new();
    let mut moved = 0;
    for number in 0..40 {
        let rows: Vec<u64> = epoch(&order, number).iter().map(|unit| unit.1).collect();
        let shard = |row: &u64| starts.partition_point(|start| start <= row);
        let runs: Vec<&[u64]> = rows.chunk_by(|a, b| shard(a) == shard(b)).collect();
        assert_eq!(runs.len(), starts.len(), "a shard was read twice");
        firsts.insert(shard(&rows[0]));
        moved += runs.iter().filter(|run| !run.is_sorted()).count();
    }
    assert_eq!(firsts.len(), starts.len());
    // Four shards of 40 epochs have more than one unit; an order of three is the stored one every sixth time.
    assert!(moved > 130, "{moved}");
}

#[test]
fn what_is_kept_changes_nothing_and_stays_small() {
    let sizes: Vec<u64> = (0..60).map(|part| 2000 + part).collect();
    let mut cache = cache_of(1, &sizes, 900);
    // One of them too large for a table.
    cache.partitions[7].units = 70_000;
    for shuffle in [Shuffle::Full, Shuffle::Shard] {
        let order = Order::new(&options(4, shuffle, Tail::All), &cache).unwrap();
        let mut small = Memo::new(40 << 10, order.partitions());
        let mut large = Memo::new(8 << 20, order.partitions());
        let mut dice = Dice(11);
        for step in 0..6000 {
            let (number, position) = if step % 6 == 5 {
                (dice.below(3), dice.below(order.epoch_len()))
            } else {
                (1, 100_000 + step)
            };
            assert_eq!(
                order.unit_at(&mut small, number, position),
                order.unit_at(&mut large, number, position)
            );
            assert!(small.bytes() <= 40 << 10 && large.bytes() <= 8 << 20);
        }
        assert!(small.bytes() > 10 << 10, "nothing was kept");
    }
}

#[test]
fn a_million_million_positions_take_no_more_memory() {
    let sizes: Vec<u64> = (0..960).map(|part| 1_041_666_667 + part).collect();
    let mut cache = cache_of(1, &sizes, 1 << 31);
    cache.partitions[3].units -= 7;
    for shuffle in [Shuffle::Full, Shuffle::Shard, Shuffle::None] {
        for tail in TAILS {
            let order = Order::new(&options(8, shuffle, tail), &cache).unwrap();
            assert!(order.epoch_len() >= 1_000_000_000_000 - 10_000);
            let mut memo = Memo::new(MEMO, order.partitions());
            let mut dice = Dice(5);
            let mut seen = BTreeMap::new();
            for _ in 0..2000 {
                // Also near the end, where the turns are uneven.
                let most = [100_000, 1_000_000_000_000 - 10_000][dice.below(2) as usize];
                let back = dice.below(most);
                let position = order.epoch_len() - 1 - back;
                let (partition, row) = order.unit_at(&mut memo, 1 << 40, position);
                assert!(row < cache.partitions[partition as usize].units);
                let other = seen.insert((partition, row), position);
                assert!(other.is_none_or(|other| other == position));
            }
            assert!(memo.bytes() <= MEMO);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn up_to_a_million_units_come_once(
        seed in any::<u64>(),
        (scale, parts) in (0u32..16, proptest::collection::vec(0u64..1 << 17, 1..9)),
        shuffle in 0usize..3,
        number in any::<u32>(),
    ) {
        let sizes: Vec<u64> = parts.iter().map(|part| (part >> scale) + 1).collect();
        let cache = cache_of(1, &sizes, 1 + (sizes[0] / 3));
        let order = Order::new(&options(seed, SHUFFLES[shuffle], Tail::All), &cache).unwrap();
        let mut memo = Memo::new(MEMO, order.partitions());
        let mut seen: Vec<Vec<bool>> = sizes.iter().map(|units| vec![false; *units as usize]).collect();
        for position in 0..order.epoch_len() {
            let (partition, row) = order.unit_at(&mut memo, u64::from(number), position);
            let seen = &mut seen[partition as usize][row as usize];
            prop_assert!(!*seen);
            *seen = true;
        }
        prop_assert!(seen.iter().flatten().all(|seen| *seen));
    }
}

#[test]
fn counts_that_make_no_sense_are_refused() {
    let new = |change: fn(&mut CacheUnits)| {
        let mut cache = cache_of(1, &[10, 10], 5);
        change(&mut cache);
        Order::new(&options(0, Shuffle::Shard, Tail::Even), &cache).unwrap_err()
    };
    assert_eq!(new(|cache| cache.partitions.clear()), OrderError::NoUnits);
    assert_eq!(
        new(|cache| *cache = cache_of(1, &[0, 0], 5)),
        OrderError::NoUnits
    );
    let refused = new(|cache| cache.partitions[1].partition = 0);
    assert_eq!(refused, OrderError::Partitions { partition: 0 });
    let refused = new(|cache| cache.partitions[1].units = 1 << 60);
    assert!(matches!(
        refused,
        OrderError::TooManyUnits { partition: 1, .. }
    ));
    for starts in [&[][..], &[1, 5], &[0, 6, 5], &[0, 11]] {
        let mut cache = cache_of(1, &[10], 5);
        cache.partitions[0].shard_starts = starts.to_vec();
        let refused = Order::new(&options(0, Shuffle::Shard, Tail::Even), &cache).unwrap_err();
        assert_eq!(refused, OrderError::ShardStarts { partition: 0 });
        // Nobody else looks at them.
        assert!(Order::new(&options(0, Shuffle::Full, Tail::Even), &cache).is_ok());
    }
}

#[test]
fn vectors_of_the_specification_hold() {
    let mut cache = cache_of(7, &[6, 4, 8], 3);
    cache.partitions[1].partition = 5;
    cache.partitions[2].partition = 6;
    cache.fingerprint.0 = std::array::from_fn(|byte| byte as u8);
    let line = |shuffle, tail, number| {
        let order = Order::new(&options(42, shuffle, tail), &cache).unwrap();
        let units = epoch(&order, number);
        let units: Vec<String> = units.iter().map(|(p, row)| format!("{p}:{row}")).collect();
        units.join(" ")
    };
    let found = [
        line(Shuffle::None, Tail::All, 0),
        line(Shuffle::Full, Tail::All, 0),
        line(Shuffle::Full, Tail::Even, 1),
        line(Shuffle::Shard, Tail::All, 0),
    ];
    let specification = include_str!("../ORDER.md");
    for line in &found {
        assert!(specification.contains(&format!("| {line} |")), "{found:#?}");
    }
}
