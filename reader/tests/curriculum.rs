//! `order=length`: batches of one length, and still each unit once, from every place.

#![allow(
    clippy::print_stdout,
    reason = "the figures that the tests bound are worth a look"
)]

mod orders;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orders::{Dice, SHUFFLES, TAILS, cache_of, options, uneven};
use stoker_reader::{
    CacheUnits, Curriculum, Error, Last, Lengths, OrderError, OrderOptions, Position, Result,
    Schedule, Shuffle, Tail, Unit,
};

/// Made-up lengths; says how many were asked for, and fails for one unit if told so.
#[derive(Debug, Default)]
struct MadeUp {
    asked: AtomicU64,
    missing: Option<Unit>,
}

fn tokens(unit: Unit) -> u32 {
    let place = u64::from(unit.cache) << 40 | u64::from(unit.partition) << 32 | unit.number;
    Dice(place).lognormal(1500.0, 0.8).min(8192.0) as u32
}

impl Lengths for MadeUp {
    fn tokens(&self, unit: Unit) -> Result<u32> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.missing == Some(unit) {
            return Err(Error::NoPartition {
                partition: unit.partition,
                partitions: 0,
            });
        }
        Ok(tokens(unit))
    }
}

fn by_length(options: &OrderOptions) -> OrderOptions {
    OrderOptions {
        order: Curriculum::Length,
        last: Last::Pad,
        ..*options
    }
}

fn schedule(caches: &[CacheUnits], options: &OrderOptions, global: u32) -> Schedule {
    let weights: Vec<f64> = (0..caches.len()).map(|cache| 1.0 + cache as f64).collect();
    let schedule = Schedule::new(caches, Some(&weights), options, global).unwrap();
    schedule.with_lengths(Arc::new(MadeUp::default()))
}

fn epoch(schedule: &Schedule, epoch: u64) -> Vec<Unit> {
    let at = |position| Position { epoch, position };
    (0..schedule.epoch_len())
        .map(|position| schedule.unit_at(at(position)).unwrap())
        .collect()
}

#[test]
fn an_epoch_has_each_unit_once_and_the_turns_of_partitions_stay() {
    for (shuffle, tail) in SHUFFLES.into_iter().flat_map(|s| TAILS.map(|t| (s, t))) {
        let caches = [uneven(1, 1500, 4)];
        let shuffled = options(4, shuffle, tail);
        let (random, ordered) = (
            schedule(&caches, &shuffled, 24),
            schedule(&caches, &by_length(&shuffled), 24),
        );
        for number in 0..2 {
            let (found, plain) = (epoch(&ordered, number), epoch(&random, number));
            assert_ne!(found, plain);
            let partitions =
                |units: &[Unit]| -> Vec<u32> { units.iter().map(|unit| unit.partition).collect() };
            assert_eq!(partitions(&found), partitions(&plain));
            let set = |units: &[Unit]| units.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(set(&found).len(), found.len());
            assert_eq!(set(&found), set(&plain));
        }
    }
}

#[test]
fn every_place_is_found_at_once_and_only_its_windows_are_looked_into() {
    for caches in [
        vec![uneven(1, 5000, 3)],
        vec![uneven(1, 900, 3), uneven(2, 700, 2)],
    ] {
        let options = by_length(&options(9, Shuffle::Full, Tail::All));
        let all = [0, 1, 2].map(|number| epoch(&schedule(&caches, &options, 24), number));
        let mut dice = Dice(1);
        for _ in 0..60 {
            let asked = Arc::new(MadeUp::default());
            let weights: Vec<f64> = (0..caches.len()).map(|cache| 1.0 + cache as f64).collect();
            let fresh = Schedule::new(&caches, Some(&weights), &options, 24).unwrap();
            let fresh = fresh.with_lengths(asked.clone());
            let position = dice.below(fresh.epoch_len());
            let number = dice.below(3);
            let at = Position {
                epoch: number,
                position,
            };
            let batch = fresh.batch(at).unwrap();
            let units: Vec<Unit> = batch.units.into_iter().flatten().collect();
            let place = position as usize;
            assert_eq!(units, all[number as usize][place..place + units.len()]);
            // A batch may reach from one window of a partition into the next.
            let partitions: u64 = fresh.orders().iter().map(|o| o.partitions() as u64).sum();
            assert!(asked.asked.load(Ordering::Relaxed) <= 2 * 4096 * partitions);
        }
    }
}

#[test]
fn padded_batches_have_much_less_padding() {
    let caches = [cache_of(1, &[6000; 4], 1000)];
    let shuffled = options(2, Shuffle::Full, Tail::Even);
    let waste = |options: &OrderOptions| {
        let schedule = schedule(&caches, options, 64);
        let (mut filled, mut real) = (0u64, 0u64);
        for unit in epoch(&schedule, 0).chunks_exact(64) {
            let lengths = unit.iter().map(|unit| u64::from(tokens(*unit)));
            filled += 64 * lengths.clone().max().unwrap();
            real += lengths.sum::<u64>();
        }
        1.0 - real as f64 / filled as f64
    };
    let (random, ordered) = (waste(&shuffled), waste(&by_length(&shuffled)));
    println!("padding: {random:.3} of a padded batch in random order, {ordered:.3} by length");
    assert!(random > 0.7 && ordered < 0.2, "{random} {ordered}");
}

#[test]
fn a_length_that_cannot_be_read_is_an_error() {
    let caches = [cache_of(1, &[100, 100], 10)];
    let options = by_length(&options(2, Shuffle::Full, Tail::Even));
    let new = || Schedule::new(&caches, None, &options, 8).unwrap();
    let refused = new().batch(Position::default()).unwrap_err();
    assert!(matches!(refused, Error::Order(OrderError::NoLengths)));
    let missing = Unit {
        cache: 0,
        partition: 1,
        number: 7,
    };
    let lengths = MadeUp {
        missing: Some(missing),
        ..MadeUp::default()
    };
    let schedule = new().with_lengths(Arc::new(lengths));
    for _ in 0..2 {
        let refused = schedule.batch(Position::default()).unwrap_err();
        assert!(matches!(refused, Error::NoPartition { partition: 1, .. }));
    }
}

/// The vector of `ORDER.md`, which was made by another program after its text.
#[test]
fn the_specification_has_the_same_vector() {
    let caches = [cache_of(1, &[40, 36], 10)];
    let options = OrderOptions {
        order: Curriculum::Length,
        ..options(42, Shuffle::None, Tail::All)
    };
    #[derive(Debug)]
    struct Squares;
    impl Lengths for Squares {
        fn tokens(&self, unit: Unit) -> Result<u32> {
            Ok((unit.number * unit.number % (17 + u64::from(unit.partition))) as u32)
        }
    }
    let schedule = Schedule::new(&caches, None, &options, 4).unwrap();
    let schedule = schedule.with_lengths(Arc::new(Squares));
    for number in 0..2 {
        let units: Vec<String> = epoch(&schedule, number)
            .iter()
            .map(|unit| format!("{}:{}", unit.partition, unit.number))
            .collect();
        let line = format!("| {number} | {} |", units.join(" "));
        assert!(include_str!("../ORDER.md").contains(&line), "{line}");
    }
}
