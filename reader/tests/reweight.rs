//! Weights that change at a cursor: they apply from it on, and no unit of any cache is lost or comes twice.

mod orders;

use orders::{DEALING, Dice, cache_of, options, through_json, uneven, world};
use stoker_reader::{
    CacheUnits, Cursor, Last, OrderError, OrderOptions, Placement, Position, Resume, Schedule,
    Shuffle, Tail, Unit,
};

/// Units from `at` on, `count` of them.
fn units_from(schedule: &Schedule, at: Position, count: u64) -> Vec<Unit> {
    let len = schedule.epoch_len();
    (0..count)
        .map(|ahead| {
            let place = at.position + ahead;
            schedule
                .unit_at(Position {
                    epoch: at.epoch + place / len,
                    position: place % len,
                })
                .unwrap()
        })
        .collect()
}

#[test]
fn weights_that_change_at_a_cursor_apply_from_it_on() {
    let caches = vec![
        uneven(1, 211, 3),
        uneven(2, 30, 2),
        cache_of(3, &[40, 41], 9),
    ];
    let options = OrderOptions {
        last: Last::Pad,
        ..options(3, Shuffle::Full, Tail::All)
    };
    let weighted = |weights: &[f64]| Schedule::new(&caches, Some(weights), &options, 8).unwrap();
    let all = [
        vec![1.0, 1.0, 1.0],
        vec![5.0, 1.0, 0.5],
        vec![0.1, 3.0, 2.0],
    ];
    let after = |at: Position, count: u64, len: u64| Position {
        epoch: at.epoch + (at.position + count) / len,
        position: (at.position + count) % len,
    };
    let mut dice = Dice(31);
    for _ in 0..40 {
        // Some stretches, each under other weights, and in a world of another size.
        let mut units = Vec::new();
        let mut at = Position::default();
        let mut cursor = Cursor::new(&weighted(&all[0]), at);
        for turn in 0..4 {
            let opened = weighted(&all[turn % 3]);
            let schedule = through_json(&cursor).schedule(&opened, turn > 0).unwrap();
            let world = world(1 + turn as u32, 1, 12);
            let placement = Placement::everywhere();
            let found = cursor
                .resume(&schedule, &world, &placement, &DEALING)
                .unwrap();
            assert_eq!(found.at, at);
            let count = dice.below(700);
            let stretch = units_from(&schedule, at, count);
            // A cursor on the way goes on in the same way without being told again, and leads to the same.
            if count > 0 {
                let taken = dice.below(count);
                let place = after(at, taken, schedule.epoch_len());
                let saved = through_json(&Cursor::new(&schedule, place));
                let again = saved.schedule(&opened, false).unwrap();
                assert_eq!(
                    units_from(&again, place, count - taken),
                    stretch[taken as usize..]
                );
                let refused = saved.schedule(&weighted(&all[(turn + 1) % 3]), false);
                let refused = refused.unwrap_err();
                assert!(refused.hint().unwrap().contains("reweight"));
            }
            // The new weights do apply.
            if count > 400 && turn == 2 {
                let share = |cache| stretch.iter().filter(|unit| unit.cache == cache).count();
                assert!(share(1) > share(0) * 5 && share(2) > share(0) * 5);
            }
            at = after(at, count, schedule.epoch_len());
            cursor = Cursor::new(&schedule, at);
            units.extend(stretch);
        }
        // Each cache went through its epochs as if nothing had happened.
        for cache in 0..3u32 {
            let alone = &caches[cache as usize..][..1];
            let own = Schedule::new(alone, None, &options, 1).unwrap();
            let found: Vec<Unit> = units
                .iter()
                .filter(|unit| unit.cache == cache)
                .copied()
                .collect();
            let mut expected = units_from(&own, Position::default(), found.len() as u64);
            expected.iter_mut().for_each(|unit| unit.cache = cache);
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn what_cannot_be_reweighted_is_refused() {
    let options = options(3, Shuffle::Full, Tail::All);
    let world = world(4, 2, 24);
    let two = [uneven(1, 211, 3), uneven(2, 30, 2)];
    let weighted = |weights: &[f64]| Schedule::new(&two, Some(weights), &options, 24).unwrap();
    let (saving, other) = (weighted(&[2.0, 1.0]), weighted(&[1.0, 7.0]));
    let resume = Resume {
        at: Position::default(),
        micro_batches_delivered: 1,
    };
    let inside = Cursor::within(&saving, resume, &world, &Placement::everywhere(), &DEALING);
    let refused = inside.schedule(&other, true).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("weights, inside a global batch")
    );
    assert!(
        refused
            .hint()
            .unwrap()
            .contains("save at a global batch border")
    );
    // The same weights need no border.
    inside.schedule(&saving, true).unwrap();
    let at = Position {
        epoch: 1,
        position: 3,
    };
    let many: Vec<CacheUnits> = (0..17).map(|name| cache_of(name, &[90], 10)).collect();
    let of = |count: usize, weights: &[f64]| {
        Schedule::new(&many[..count], Some(&weights[..count]), &options, 8).unwrap()
    };
    let (even, odd) = ([1.0; 17], [[1.0; 16].as_slice(), &[2.0]].concat());
    let uncounted = through_json(&Cursor::new(&of(17, &even), at));
    uncounted.schedule(&of(17, &even), true).unwrap();
    let refused = uncounted.schedule(&of(17, &odd), true);
    assert_eq!(refused.unwrap_err(), OrderError::Uncounted { caches: 17 });
    let odd: Vec<f64> = odd.iter().skip(1).copied().collect();
    let counted = through_json(&Cursor::new(&of(16, &even), at));
    let going_on = counted.schedule(&of(16, &odd), true).unwrap();
    // Before the change the new weights say nothing.
    assert!(going_on.unit_at(at).is_ok());
    assert!(
        going_on
            .unit_at(Position {
                epoch: 1,
                position: 2
            })
            .is_err()
    );
}
