//! Cursors: what resumes is exactly the rest, and nothing else is taken for it.

mod orders;

use orders::{DEALING, Dice, SHUFFLES, TAILS, cache_of, options, through_json, uneven, world};
use stoker_reader::{
    CacheUnits, Cursor, Difference, Held, Last, OrderError, OrderOptions, Placement, Position,
    Resume, Schedule, Shuffle, Tail, Unit, World, WorldSizes, assign,
};

fn caches() -> Vec<CacheUnits> {
    vec![uneven(1, 211, 3), uneven(2, 30, 2)]
}

const WEIGHTS: [f64; 2] = [2.0, 1.0];

fn schedule(options: &OrderOptions, global: u32) -> Schedule {
    Schedule::new(&caches(), Some(&WEIGHTS), options, global).unwrap()
}

/// What all ranks are given from `resume` on to the end of epoch 2: one list a micro-step.
fn rest(schedule: &Schedule, world: &World, resume: Resume) -> Vec<Vec<Option<Unit>>> {
    let placement = Placement::everywhere();
    let (mut at, mut skip) = (resume.at, resume.micro_batches_delivered);
    let mut steps = Vec::new();
    while at.epoch < 3 {
        let batch = schedule.batch(at).unwrap();
        let assignment = assign(&batch, world, &placement);
        let micro = world.micro_batch_size() as usize;
        for step in skip..world.micro_batches() {
            let from = step as usize * micro;
            let rows =
                (0..world.world_size()).flat_map(|rank| &assignment.rank(rank)[from..from + micro]);
            steps.push(rows.copied().collect());
        }
        (at, skip) = (batch.next, 0);
    }
    steps
}

#[test]
fn the_rest_is_the_same_from_every_micro_batch() {
    for (shuffle, tail) in SHUFFLES.into_iter().flat_map(|s| TAILS.map(|t| (s, t))) {
        for last in [Last::Drop, Last::Pad] {
            let options = OrderOptions {
                last,
                ..options(3, shuffle, tail)
            };
            let (saving, world) = (schedule(&options, 24), world(4, 2, 24));
            let placement = Placement::everywhere();
            let all = rest(&saving, &world, Resume::default());
            let (mut at, mut given) = (Position::default(), 0);
            while at.epoch < 3 {
                let batch = saving.batch(at).unwrap();
                for micro_batches_delivered in 0..world.micro_batches() {
                    let resume = Resume {
                        at,
                        micro_batches_delivered,
                    };
                    let cursor = through_json(&Cursor::within(
                        &saving, resume, &world, &placement, &DEALING,
                    ));
                    // Another process knows nothing but the options.
                    let resumed = schedule(&options, 24);
                    let found = cursor
                        .resume(&resumed, &world, &placement, &DEALING)
                        .unwrap();
                    assert_eq!(found, resume);
                    if given % 7 == 0 {
                        assert_eq!(rest(&resumed, &world, found), all[given..]);
                    }
                    given += 1;
                }
                at = batch.next;
            }
            assert_eq!(given, all.len());
        }
    }
}

#[test]
fn every_world_and_batch_size_goes_on_from_a_border() {
    let options = OrderOptions {
        last: Last::Pad,
        ..options(5, Shuffle::Full, Tail::All)
    };
    let one = schedule(&options, 1);
    let units = |at: Position, schedule: &Schedule, world: &World| {
        let rest = rest(
            schedule,
            world,
            Resume {
                at,
                micro_batches_delivered: 0,
            },
        );
        let mut units: Vec<Unit> = rest.into_iter().flatten().flatten().collect();
        units.sort_unstable();
        units
    };
    let mut dice = Dice(8);
    for _ in 0..50 {
        let at = Position {
            epoch: dice.below(3),
            position: dice.below(one.epoch_len()),
        };
        let mut expected = units(at, &one, &world(1, 1, 1));
        expected.sort_unstable();
        // Saved by the one, resumed by the other.
        let (from, to) = (1 + dice.below(8) as u32, 1 + dice.below(8) as u32);
        let saving = schedule(&options, from * (1 + dice.below(4) as u32));
        let cursor = through_json(&Cursor::new(&saving, at));
        let micro = 1 + dice.below(3) as u32;
        let global = to * micro * (1 + dice.below(3) as u32);
        let (resuming, world) = (schedule(&options, global), world(to, micro, global));
        let placement = Placement::new(&[vec![Held {
            cache: 0,
            partition: 1,
        }]])
        .unwrap();
        let found = cursor
            .resume(&resuming, &world, &placement, &DEALING)
            .unwrap();
        assert_eq!(
            found,
            Resume {
                at,
                micro_batches_delivered: 0
            }
        );
        assert_eq!(units(found.at, &resuming, &world), expected);
    }
}

#[test]
fn a_batch_begun_is_resumed_in_its_own_geometry_only() {
    let options = options(5, Shuffle::Full, Tail::All);
    let saving = schedule(&options, 24);
    let placement = Placement::everywhere();
    let at = Position {
        epoch: 1,
        position: 48,
    };
    let resume = Resume {
        at,
        micro_batches_delivered: 1,
    };
    let cursor = through_json(&Cursor::within(
        &saving,
        resume,
        &world(4, 2, 24),
        &placement,
        &DEALING,
    ));
    let refused = |global, world: &World, placement: &Placement| {
        let error = cursor
            .resume(&schedule(&options, global), world, placement, &DEALING)
            .unwrap_err();
        assert!(
            error
                .hint()
                .unwrap()
                .contains("save at a global batch border")
        );
        error.to_string()
    };
    for (found, expected) in [
        (
            refused(24, &world(2, 2, 24), &placement),
            "the cursor was saved with another world size, inside a global batch: 4, here it is `2`",
        ),
        (
            refused(24, &world(4, 3, 24), &placement),
            "the cursor was saved with another micro-batch size, inside a global batch: 2, here it is `3`",
        ),
        (
            refused(32, &world(4, 2, 32), &placement),
            "the cursor was saved with another global batch size, inside a global batch: 24, here it is `32`",
        ),
    ] {
        assert_eq!(found, expected);
    }
    let other = Placement::new(&[vec![Held {
        cache: 0,
        partition: 1,
    }]])
    .unwrap();
    assert!(refused(24, &world(4, 2, 24), &other).contains("another placement of ranks"));
    let mut sizes = WorldSizes {
        rank: 0,
        world_size: 4,
        node_rank: 0,
        num_nodes: 2,
        micro_batch_size: 2,
        global_batch_size: 24,
    };
    let nodes = World::new(sizes).unwrap();
    assert!(refused(24, &nodes, &placement).contains("another placement of ranks"));
    // Every rank resumes from the same cursor.
    (sizes.rank, sizes.num_nodes) = (3, 1);
    let last = World::new(sizes).unwrap();
    assert_eq!(
        cursor.resume(&saving, &last, &placement, &DEALING),
        Ok(resume)
    );
}

#[test]
fn what_differs_is_named() {
    let right = OrderOptions {
        last: Last::Pad,
        ..options(5, Shuffle::Full, Tail::All)
    };
    let world = world(1, 1, 8);
    let cursor = Cursor::new(
        &schedule(&right, 8),
        Position {
            epoch: 0,
            position: 8,
        },
    );
    let refused = |caches: &[CacheUnits], weights: Option<&[f64]>, options: &OrderOptions| {
        let schedule = Schedule::new(caches, weights, options, 8).unwrap();
        match cursor.resume(&schedule, &world, &Placement::everywhere(), &DEALING) {
            Err(OrderError::OtherCursor { what, saved, given }) => {
                assert_ne!(saved, given);
                Some(what)
            }
            found => {
                assert_eq!(found.unwrap().at.position, 8);
                None
            }
        }
    };
    let caches = caches();
    let same = |options: &OrderOptions| refused(&caches, Some(&WEIGHTS), options);
    assert_eq!(same(&right), None);
    assert_eq!(refused(&caches, Some(&[1.0, 0.5]), &right), None);
    let other = OrderOptions { seed: 6, ..right };
    assert_eq!(same(&other), Some(Difference::Seed));
    let other = OrderOptions {
        shuffle: Shuffle::Shard,
        ..right
    };
    assert_eq!(same(&other), Some(Difference::Shuffle));
    let other = OrderOptions {
        tail: Tail::Even,
        ..right
    };
    assert_eq!(same(&other), Some(Difference::Tail));
    let other = OrderOptions {
        last: Last::Drop,
        ..right
    };
    assert_eq!(same(&other), Some(Difference::Last));
    assert_eq!(
        refused(&caches, Some(&[1.0, 1.0]), &right),
        Some(Difference::Weights)
    );
    assert_eq!(refused(&caches, None, &right), Some(Difference::Weights));
    let data = |change: &dyn Fn(&mut Vec<CacheUnits>)| {
        let mut caches = caches.clone();
        change(&mut caches);
        let weights = vec![1.0; caches.len()];
        refused(&caches, Some(&weights), &right)
    };
    for found in [
        data(&|caches| caches.swap(0, 1)),
        data(&|caches| caches.push(cache_of(9, &[50], 5))),
        data(&|caches| caches[1].fingerprint.0[31] ^= 1),
        data(&|caches| drop(caches[0].partitions.pop())),
    ] {
        assert_eq!(found, Some(Difference::Data));
    }
    let error = cursor.resume(
        &schedule(&OrderOptions { seed: 6, ..right }, 8),
        &world,
        &Placement::everywhere(),
        &DEALING,
    );
    let error = error.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the cursor was saved with another seed: 5, here it is `6`"
    );
}

#[test]
fn a_batch_size_that_does_not_fit_is_refused_or_goes_on_with_the_next_epoch() {
    let cache = [cache_of(1, &[48], 8)];
    let resume = |last, position, global| {
        let options = OrderOptions {
            last,
            ..options(5, Shuffle::Full, Tail::All)
        };
        let new = |global| Schedule::new(&cache, None, &options, global).unwrap();
        let cursor = Cursor::new(&new(4), Position { epoch: 0, position });
        let resume = cursor.resume(
            &new(global),
            &world(1, 1, global),
            &Placement::everywhere(),
            &DEALING,
        );
        resume.map(|resume| (resume.at.epoch, resume.at.position))
    };
    assert_eq!(resume(Last::Error, 4, 2), Ok((0, 4)));
    let short = OrderError::ShortBatch {
        global_batch_size: 8,
        left: 4,
    };
    assert_eq!(resume(Last::Error, 4, 8), Err(short));
    assert_eq!(resume(Last::Drop, 4, 8), Ok((0, 4)));
    assert_eq!(resume(Last::Drop, 44, 8), Ok((1, 0)));
    assert_eq!(resume(Last::Pad, 44, 8), Ok((0, 44)));
}

fn example() -> String {
    let options = options(u64::MAX, Shuffle::Shard, Tail::Even);
    let at = Position {
        epoch: 9,
        position: 72,
    };
    let resume = Resume {
        at,
        micro_batches_delivered: 2,
    };
    let placement = Placement::everywhere();
    Cursor::within(
        &schedule(&options, 24),
        resume,
        &world(4, 2, 24),
        &placement,
        &DEALING,
    )
    .to_json()
}

#[test]
fn every_changed_bit_is_noticed() {
    let json = example();
    let mut newer = 0;
    for bit in 0..json.len() * 8 {
        let mut bytes = json.clone().into_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        match Cursor::from_json(&text) {
            Err(OrderError::DamagedCursor { .. }) => {}
            // The version itself became another digit.
            Err(OrderError::NewerCursor { .. }) => newer += 1,
            other => panic!("{other:?} from {text}"),
        }
    }
    assert!(newer < 8);
    for cut in 0..json.len() {
        assert!(matches!(
            Cursor::from_json(&json[..cut]),
            Err(OrderError::DamagedCursor { .. })
        ));
    }
}

#[test]
fn only_what_a_cursor_says_matters() {
    let json = example();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let cursor = Cursor::from_json(&json).unwrap();
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(Cursor::from_json(&pretty).unwrap(), cursor);
    let mut pairs: Vec<_> = value.as_object().unwrap().clone().into_iter().collect();
    pairs.reverse();
    let reversed = serde_json::Value::Object(pairs.into_iter().collect());
    assert_eq!(Cursor::from_json(&reversed.to_string()).unwrap(), cursor);
    let mut later = value.clone();
    later["version"] = 3.into();
    later["new"] = "field".into();
    assert_eq!(
        Cursor::from_json(&later.to_string())
            .unwrap_err()
            .to_string(),
        "the cursor has version 3, this program reads up to version `2`"
    );
    let damaged = |change: fn(&mut serde_json::Value)| {
        let mut value = value.clone();
        change(&mut value);
        matches!(
            Cursor::from_json(&value.to_string()),
            Err(OrderError::DamagedCursor { .. })
        )
    };
    assert!(damaged(|value| value["new"] = 1.into()));
    assert!(damaged(|value| value["seed"] = (-1).into()));
    assert!(damaged(|value| value["version"] = 0.into()));
    assert!(damaged(|value| value["check"] = serde_json::Value::Null));
    assert!(damaged(|value| value["within"] = serde_json::Value::Null));
    assert!(damaged(|value| *value = serde_json::Value::Null));
    assert!(damaged(|value| value["last"] = "x".repeat(5000).into()));
}

#[test]
fn a_cursor_made_by_hand_is_checked_too() {
    let options = options(u64::MAX, Shuffle::Shard, Tail::Even);
    let schedule = schedule(&options, 24);
    let resume = |change: fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(&example()).unwrap();
        change(&mut value);
        value.as_object_mut().unwrap().shift_remove("check");
        let written = format!("stoker cursor 2\n{value}");
        let check = stoker_formats::ContentHash::of(written.as_bytes());
        value["check"] = check.to_string().into();
        let cursor = Cursor::from_json(&value.to_string()).unwrap();
        cursor.resume(
            &schedule,
            &world(4, 2, 24),
            &Placement::everywhere(),
            &DEALING,
        )
    };
    let delivered = resume(|_| ()).unwrap().micro_batches_delivered;
    assert_eq!(delivered, 2);
    let damaged = resume(|value| value["within"]["micro_batches_delivered"] = 3.into());
    assert!(matches!(damaged, Err(OrderError::DamagedCursor { .. })));
    let beyond = resume(|value| value["position"] = 1_000_000.into());
    assert!(matches!(beyond, Err(OrderError::NoPosition { .. })));
    let beyond = resume(|value| value["epoch"] = u64::MAX.into());
    assert!(matches!(beyond, Err(OrderError::NoPosition { .. })));
}
