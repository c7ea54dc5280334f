//! Mixtures, epochs and global batches.

mod orders;

use std::collections::BTreeSet;

use orders::{Dice, SHUFFLES, TAILS, cache_of, options, uneven};
use stoker_reader::{
    CacheUnits, Curriculum, Last, Memo, Order, OrderError, OrderOptions, Position, Schedule,
    Shuffle, Tail, Unit,
};

const FULL: OrderOptions = OrderOptions {
    seed: 6,
    shuffle: Shuffle::Full,
    order: Curriculum::Random,
    tail: Tail::All,
    last: Last::Drop,
};

fn at(epoch: u64, position: u64) -> Position {
    Position { epoch, position }
}

/// The units of an epoch, in order, one by one.
fn epoch(schedule: &Schedule, epoch: u64) -> Vec<Unit> {
    (0..schedule.epoch_len())
        .map(|position| schedule.unit_at(at(epoch, position)).unwrap())
        .collect()
}

/// The first `count` units of one cache alone, epoch after epoch.
fn alone(units: &CacheUnits, options: &OrderOptions, count: usize) -> Vec<(u32, u64)> {
    let order = Order::new(options, units).unwrap();
    let mut memo = Memo::new(1 << 20, order.partitions());
    (0..)
        .flat_map(|epoch| (0..order.epoch_len()).map(move |position| (epoch, position)))
        .take(count)
        .map(|(epoch, position)| order.unit_at(&mut memo, epoch, position))
        .collect()
}

#[test]
fn without_weights_an_epoch_is_one_of_every_cache() {
    let caches = [
        uneven(1, 5000, 4),
        uneven(2, 37, 3),
        uneven(3, 1, 1),
        uneven(4, 1700, 2),
    ];
    let schedule = Schedule::new(&caches, None, &FULL, 16).unwrap();
    assert_eq!(schedule.epoch_len(), 6738);
    for number in 0..3 {
        let found = epoch(&schedule, number);
        let once: BTreeSet<_> = found.iter().collect();
        assert_eq!(once.len(), 6738);
        // And mixed: the place of each cache's n-th unit is near its due place.
        for (cache, units) in [(0, 5000), (1, 37), (3, 1700)] {
            let places = found
                .iter()
                .enumerate()
                .filter(|(_, unit)| unit.cache == cache);
            for (number, (place, _)) in places.enumerate() {
                let due = (2 * number + 1) * 6738 / (2 * units);
                let spread = 6738 / units + 8;
                assert!(place.abs_diff(due) <= spread, "{cache}: {place} for {due}");
            }
        }
    }
}

#[test]
fn with_weights_each_cache_goes_through_its_own_epochs() {
    let caches = [uneven(1, 900, 3), uneven(2, 70, 2), uneven(3, 4000, 5)];
    for (shuffle, tail) in SHUFFLES.into_iter().flat_map(|s| TAILS.map(|t| (s, t))) {
        let options = options(3, shuffle, tail);
        let schedule = Schedule::new(&caches, Some(&[1.0, 0.5, 0.25]), &options, 8).unwrap();
        let mut found = vec![Vec::new(); 3];
        for unit in (0..3).flat_map(|number| epoch(&schedule, number)) {
            found[unit.cache as usize].push((unit.partition, unit.number));
        }
        let sum: u64 = schedule.quotas().iter().sum();
        assert_eq!(sum, schedule.epoch_len());
        for (cache, share) in [4, 2, 1].into_iter().enumerate() {
            let quota = schedule.quotas()[cache];
            assert!(quota.abs_diff(sum * share / 7) <= 1, "{quota} of {sum}");
            assert_eq!(found[cache].len() as u64, 3 * quota);
            assert_eq!(
                found[cache],
                alone(&caches[cache], &options, found[cache].len())
            );
        }
    }
}

#[test]
fn every_stretch_of_a_mixture_holds_each_cache_by_its_weight() {
    let caches: Vec<_> = (0..200)
        .map(|name| cache_of(name, &[500, 501], 100))
        .collect();
    let mut weights = vec![1.0; 200];
    (weights[0], weights[150]) = (300.0, 100.0);
    let sum: f64 = weights.iter().sum();
    let schedule = Schedule::new(&caches, Some(&weights), &FULL, 256).unwrap();
    let found = epoch(&schedule, 0);
    for window in found.chunks_exact(1200) {
        for cache in 0..200 {
            let count = window.iter().filter(|unit| unit.cache == cache).count();
            let due = weights[cache as usize] / sum * 1200.0;
            assert!(
                (count as f64 - due).abs() < 3.0 + due / 50.0,
                "{cache}: {count} for {due}"
            );
        }
    }
    // Small caches do not come in a row: between two of the large one there are at most a few.
    let large: Vec<usize> = (0..found.len()).filter(|n| found[*n].cache == 0).collect();
    let widest = large.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(widest.unwrap() <= 6, "{widest:?}");
}

#[test]
fn the_same_cache_twice_comes_in_two_orders() {
    let caches = [uneven(1, 500, 1), uneven(2, 9, 1), uneven(1, 500, 1)];
    let schedule = Schedule::new(&caches, None, &FULL, 4).unwrap();
    let found = epoch(&schedule, 0);
    let rows = |cache| {
        let units = found.iter().filter(move |unit| unit.cache == cache);
        units.map(|unit| unit.number).collect::<Vec<_>>()
    };
    assert_ne!(rows(0), rows(2));
    assert_eq!(BTreeSet::from_iter(rows(0)), BTreeSet::from_iter(rows(2)));
}

#[test]
fn any_place_is_found_as_if_all_before_had_been_read() {
    let caches: Vec<_> = (1..9).map(|name| uneven(name, 900, 3)).collect();
    let weights: Vec<f64> = (1..9).map(f64::from).collect();
    let schedule = Schedule::new(&caches, Some(&weights), &FULL, 32).unwrap();
    let epochs = [epoch(&schedule, 0), epoch(&schedule, 1)];
    let mut dice = Dice(3);
    for _ in 0..2000 {
        let (number, position) = (dice.below(2), dice.below(schedule.epoch_len()));
        let expected = epochs[number as usize][position as usize];
        assert_eq!(schedule.unit_at(at(number, position)).unwrap(), expected);
    }
}

#[test]
fn a_mixture_read_backwards_is_the_same() {
    let mut dice = Dice(12);
    for caches in [2, 3, 10, 60, 300] {
        let weights: Vec<f64> = (0..caches).map(|_| 1.0 + dice.below(50) as f64).collect();
        let caches: Vec<_> = (0..caches)
            .map(|name| cache_of(name as u8, &[1 + 9000 / caches], 10))
            .collect();
        let options = options(1, Shuffle::None, Tail::All);
        let new = || Schedule::new(&caches, Some(&weights), &options, 4).unwrap();
        let forward = epoch(&new(), 2);
        let backward = new();
        for (position, unit) in forward.iter().enumerate().rev() {
            assert_eq!(backward.unit_at(at(2, position as u64)).unwrap(), *unit);
        }
    }
}

#[test]
fn a_huge_mixture_is_exact_too() {
    let caches: Vec<_> = (0..100)
        .map(|name| cache_of(name, &[1 << 47], 1 << 46))
        .collect();
    let weights: Vec<f64> = (0..100).map(|cache| 0.01 + f64::from(cache)).collect();
    let schedule = Schedule::new(&caches, Some(&weights), &FULL, 1024).unwrap();
    assert_eq!(schedule.quotas().iter().sum::<u64>(), schedule.epoch_len());
    let mut dice = Dice(9);
    for _ in 0..50 {
        let place = at(dice.below(100), dice.below(schedule.epoch_len()));
        let batch = schedule.batch(place).unwrap();
        let last = batch
            .units
            .iter()
            .flatten()
            .filter(|unit| unit.cache == 99)
            .count();
        assert!((18..24).contains(&last), "{last}");
        let middle = at(place.epoch, place.position + 511);
        assert_eq!(batch.units[511], schedule.unit_at(middle).ok());
    }
}

#[test]
fn batches_follow_each_other_and_end_with_the_epoch() {
    for (last, ends) in [
        (Last::Drop, [(20, 2)].as_slice()),
        (Last::Pad, &[(20, 3), (22, 2)]),
        (Last::Error, &[(20, 2), (24, 3)]),
    ] {
        for (units, batches) in ends {
            let options = OrderOptions { last, ..FULL };
            let size = if *units == 20 && last == Last::Error {
                10
            } else {
                8
            };
            let size = if *units == 22 { 11 } else { size };
            let cache = [uneven(1, *units, 3)];
            let schedule = Schedule::new(&cache, None, &options, size).unwrap();
            assert_eq!(schedule.epoch_batches(), *batches);
            let mut place = Position::default();
            for number in 0..3 {
                let expected = epoch(&schedule, number);
                let mut found = Vec::new();
                for step in 0..*batches {
                    assert_eq!(place, at(number, step * u64::from(size)));
                    let batch = schedule.batch(place).unwrap();
                    assert_eq!((batch.at, batch.units.len()), (place, size as usize));
                    // Padding comes last.
                    assert!(batch.units.is_sorted_by_key(Option::is_none));
                    found.extend(batch.units.into_iter().flatten());
                    place = batch.next;
                }
                let dropped = if last == Last::Drop { units % 8 } else { 0 };
                assert_eq!(found, expected[..(units - dropped) as usize]);
            }
            assert_eq!(place, at(3, 0));
        }
    }
}

#[test]
fn the_batch_size_may_change_anywhere() {
    let caches = [uneven(1, 301, 3), uneven(2, 44, 1)];
    let options = OrderOptions {
        last: Last::Pad,
        ..FULL
    };
    let schedules: Vec<_> = [1, 2, 3, 7, 16, 50, 345, 400]
        .map(|size| Schedule::new(&caches, Some(&[2.0, 1.0]), &options, size).unwrap())
        .into();
    let expected: Vec<Unit> = (0..3).flat_map(|n| epoch(&schedules[0], n)).collect();
    let mut dice = Dice(1);
    for _ in 0..20 {
        let (mut place, mut found) = (Position::default(), Vec::new());
        while place.epoch < 3 {
            let schedule = &schedules[dice.below(8) as usize];
            let batch = schedule.batch(place).unwrap();
            found.extend(batch.units.into_iter().flatten());
            place = batch.next;
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn too_little_for_a_batch_is_dropped_padded_or_refused() {
    let cache = [uneven(1, 20, 3)];
    let new = |last, size| Schedule::new(&cache, None, &OrderOptions { last, ..FULL }, size);
    let drop = new(Last::Drop, 8).unwrap();
    // Three are left here: the next batch is that of the next epoch.
    assert_eq!(
        drop.batch(at(0, 17)).unwrap(),
        drop.batch(at(1, 0)).unwrap()
    );
    let pad = new(Last::Pad, 64).unwrap();
    assert_eq!(
        pad.batch(at(0, 0)).unwrap().units.iter().flatten().count(),
        20
    );
    let too_few = OrderError::ShortEpoch {
        units: 20,
        global_batch_size: 64,
    };
    assert_eq!(new(Last::Drop, 64).unwrap_err(), too_few);
    assert_eq!(new(Last::Error, 64).unwrap_err(), too_few);
    let short = |left| OrderError::ShortBatch {
        global_batch_size: 8,
        left,
    };
    assert_eq!(new(Last::Error, 8).unwrap_err(), short(4));
    let even = [uneven(1, 16, 1)];
    let even = Schedule::new(
        &even,
        None,
        &OrderOptions {
            last: Last::Error,
            ..FULL
        },
        8,
    )
    .unwrap();
    assert_eq!(
        even.batch(at(0, 11)).unwrap_err().to_string(),
        short(5).to_string()
    );
    for place in [at(0, 16), at(0, u64::MAX), at(u64::MAX, 0), at(1 << 60, 0)] {
        let refused = OrderError::NoPosition {
            epoch: place.epoch,
            position: place.position,
        };
        assert_eq!(
            even.batch(place).unwrap_err().to_string(),
            refused.to_string()
        );
        assert_eq!(
            even.unit_at(place).unwrap_err().to_string(),
            refused.to_string()
        );
    }
}

#[test]
fn a_counter_of_samples_finds_the_place() {
    for (last, size) in [
        (Last::Drop, 8),
        (Last::Pad, 8),
        (Last::Drop, 7),
        (Last::Error, 13),
    ] {
        let cache = [uneven(1, 91, 3)];
        let schedule = Schedule::new(&cache, None, &OrderOptions { last, ..FULL }, size).unwrap();
        let mut place = Position::default();
        for step in 0..100 {
            assert_eq!(schedule.seek(step * u64::from(size)).unwrap(), place);
            place = schedule.batch(place).unwrap().next;
        }
        assert!(schedule.seek(u64::MAX).is_err());
    }
}

#[test]
fn weights_that_make_no_sense_are_refused() {
    let caches = [uneven(1, 100, 1), uneven(2, 100, 1)];
    let new = |weights: &[f64]| Schedule::new(&caches, Some(weights), &FULL, 4).unwrap_err();
    assert_eq!(
        new(&[1.0]),
        OrderError::WeightCount {
            caches: 2,
            weights: 1
        }
    );
    for weight in [0.0, -1.0, f64::INFINITY] {
        assert_eq!(new(&[1.0, weight]), OrderError::Weight { cache: 1, weight });
    }
    assert!(matches!(
        new(&[f64::NAN, 1.0]),
        OrderError::Weight { cache: 0, .. }
    ));
    for weight in [1e-4, f64::MIN_POSITIVE] {
        let refused = OrderError::WeightTooSmall {
            cache: 1,
            epoch: 200,
            weight,
        };
        assert_eq!(new(&[1.0, weight]), refused);
    }
    assert_eq!(
        Schedule::new(&[], None, &FULL, 4).unwrap_err(),
        OrderError::NoUnits
    );
    assert!(matches!(
        Schedule::new(&caches, None, &FULL, 0),
        Err(OrderError::Size {
            what: "global batch size",
            given: 0,
            ..
        })
    ));
    let huge: Vec<_> = (0..2)
        .map(|name| cache_of(name, &[1 << 48; 200], 1 << 40))
        .collect();
    assert!(matches!(
        Schedule::new(&huge, None, &FULL, 4),
        Err(OrderError::TooLargeMixture { caches: 2 })
    ));
}

#[test]
fn choices_read_back_from_their_names() {
    for shuffle in SHUFFLES {
        assert_eq!(shuffle.to_string().parse(), Ok(shuffle));
    }
    for tail in TAILS {
        assert_eq!(tail.to_string().parse(), Ok(tail));
    }
    for last in [Last::Drop, Last::Pad, Last::Error] {
        assert_eq!(last.to_string().parse(), Ok(last));
    }
    let error = "Full".parse::<Shuffle>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "shuffle must be one of full, shard, none, not `Full`"
    );
}

/// The units of an epoch as the specification writes them.
fn written(schedule: &Schedule, number: u64) -> String {
    let units = epoch(schedule, number);
    let units = units
        .iter()
        .map(|unit| format!("{}:{}:{}", unit.cache, unit.partition, unit.number));
    units.collect::<Vec<_>>().join(" ")
}

#[test]
fn vectors_of_the_specification_hold() {
    let caches = [cache_of(1, &[6, 4], 3), cache_of(2, &[5], 5)];
    let line = |weights: Option<&[f64]>, number| {
        let options = options(42, Shuffle::Full, Tail::All);
        written(
            &Schedule::new(&caches, weights, &options, 5).unwrap(),
            number,
        )
    };
    let found = [
        line(None, 0),
        line(Some(&[1.0, 2.0]), 0),
        line(Some(&[1.0, 2.0]), 1),
    ];
    let specification = include_str!("../ORDER.md");
    for line in &found {
        assert!(specification.contains(&format!("| {line} |")), "{found:#?}");
    }
    let caches = [
        cache_of(1, &[900, 700], 9),
        cache_of(2, &[3000], 5),
        cache_of(1, &[900, 700], 9),
    ];
    let options = options(42, Shuffle::None, Tail::All);
    let schedule = Schedule::new(&caches, Some(&[1.0, 0.3, 2.5]), &options, 5).unwrap();
    let hash = stoker_formats::ContentHash::of(written(&schedule, 3).as_bytes());
    assert!(specification.contains(&format!("`{hash}`")), "{hash}");
}
