//! How large cursors get, and which old ones are read.

mod orders;

use orders::{DEALING, cache_of, options, uneven, world};
use stoker_reader::{
    Balance, CacheUnits, Cursor, Dealing, Modalities, OrderError, OrderOptions, Placement,
    Position, Resume, Schedule, Shuffle, Tail,
};

#[test]
fn the_largest_cursor_has_less_than_a_kibibyte() {
    let caches: Vec<CacheUnits> = (0..16)
        .map(|name| cache_of(name, &[1 << 40], 1 << 39))
        .collect();
    let options = OrderOptions {
        order: stoker_reader::Curriculum::Length,
        ..options(u64::MAX, Shuffle::Shard, Tail::Even)
    };
    let world = world(1 << 20, 1, 1 << 24);
    let schedule = Schedule::new(&caches, None, &options, 1 << 24).unwrap();
    let resume = Resume {
        at: Position {
            epoch: (1 << 18) - 1,
            position: (1 << 43) - 7,
        },
        micro_batches_delivered: 11,
    };
    let dealing = Dealing {
        modalities: Modalities::Same,
        dummy_image: true,
        ..DEALING
    };
    let cursor = Cursor::within(
        &schedule,
        resume,
        &world,
        &Placement::everywhere(),
        &dealing,
    );
    let json = cursor.to_json();
    assert!(json.len() <= 1024, "{json}");
    assert_eq!(Cursor::from_json(&json).unwrap(), cursor);
}

#[test]
fn cursors_of_version_1_are_read() {
    // As version 1 wrote them, but for the hashes, which are this test's.
    let options = options(u64::MAX, Shuffle::Shard, Tail::Even);
    let caches = [uneven(1, 211, 3), uneven(2, 30, 2)];
    let weighted = |weights: &[f64]| Schedule::new(&caches, Some(weights), &options, 24).unwrap();
    let schedule = weighted(&[2.0, 1.0]);
    let (world, placement) = (world(4, 2, 24), Placement::everywhere());
    let resume = Resume {
        at: Position {
            epoch: 9,
            position: 72,
        },
        micro_batches_delivered: 2,
    };
    let saved = Cursor::within(&schedule, resume, &world, &placement, &DEALING);
    let mut value: serde_json::Value = serde_json::from_str(&saved.to_json()).unwrap();
    let old = |value: &mut serde_json::Value| {
        value["version"] = 1.into();
        for key in ["order", "given", "check"] {
            value.as_object_mut().unwrap().shift_remove(key);
        }
        let check = stoker_formats::ContentHash::of(format!("stoker cursor 1\n{value}").as_bytes());
        value["check"] = check.to_string().into();
        Cursor::from_json(&value.to_string())
    };
    // Version 1 knew no way of dealing but one.
    assert!(matches!(
        old(&mut value),
        Err(OrderError::DamagedCursor { .. })
    ));
    value["within"]
        .as_object_mut()
        .unwrap()
        .shift_remove("dealing");
    let cursor = old(&mut value).unwrap();
    let none = Dealing {
        balance: Balance::None,
        ..DEALING
    };
    let schedule = cursor.schedule(&schedule, false).unwrap();
    let resumed = cursor.resume(&schedule, &world, &placement, &none).unwrap();
    assert_eq!(resumed.micro_batches_delivered, 2);
    let refused = cursor
        .resume(&schedule, &world, &placement, &DEALING)
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the cursor was saved with another choice of balance, modalities and dummy_image, inside a global batch: none any, here it is `cost any`"
    );
    let uncounted = weighted(&[1.0, 7.0]);
    value.as_object_mut().unwrap().shift_remove("within");
    let border = old(&mut value).unwrap();
    assert_eq!(
        border.schedule(&uncounted, true).unwrap_err(),
        OrderError::Uncounted { caches: 2 }
    );
    // Nor did it know packs.
    let version = value.as_object_mut().unwrap().shift_remove("version");
    let rest = value.as_object().unwrap().clone();
    value = serde_json::json!({"version": version, "pack": "8k"});
    value.as_object_mut().unwrap().extend(rest);
    assert!(matches!(
        old(&mut value),
        Err(OrderError::DamagedCursor { .. })
    ));
}

#[test]
fn a_cursor_of_version_2_counts_each_cache_of_a_mixture_and_no_other() {
    let options = options(7, Shuffle::Full, Tail::Even);
    let schedule = |caches: &[CacheUnits]| Schedule::new(caches, None, &options, 24).unwrap();
    let (one, two) = (uneven(1, 211, 3), uneven(2, 30, 2));
    let alone = schedule(std::slice::from_ref(&one));
    let mixed = schedule(&[one, two]);
    let at = Position {
        epoch: 0,
        position: 24,
    };
    for (schedule, given) in [(&alone, None), (&mixed, Some(()))] {
        let saved = Cursor::new(schedule, at).to_json();
        let mut value: serde_json::Value = serde_json::from_str(&saved).unwrap();
        let fields = value.as_object_mut().unwrap();
        assert_eq!(fields.shift_remove("given").is_some(), given.is_some());
        fields.shift_remove("check");
        if given.is_none() {
            fields.insert("given".into(), serde_json::json!([24]));
        }
        let check = stoker_formats::ContentHash::of(format!("stoker cursor 2\n{value}").as_bytes());
        value["check"] = check.to_string().into();
        let cursor = Cursor::from_json(&value.to_string()).unwrap();
        for refused in [
            cursor.schedule(schedule, false).err(),
            cursor.schedule(schedule, true).err(),
            cursor
                .resume(
                    schedule,
                    &world(4, 2, 24),
                    &Placement::everywhere(),
                    &DEALING,
                )
                .err(),
        ] {
            assert!(
                matches!(refused, Some(OrderError::DamagedCursor { .. })),
                "{refused:?}"
            );
        }
    }
}
