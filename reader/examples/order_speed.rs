//! Prints how long the order, the assignment and a cursor take on this machine.
//!
//! `cargo run --release -p stoker-reader --example order_speed`. Owns figures for the documentation, no promise.

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::hint::black_box;
use std::time::Instant;

use stoker_formats::{ContentHash, Counts};
use stoker_reader::{
    CacheUnits, Cursor, Dealing, GlobalBatch, Held, Modalities, OrderOptions, PartitionUnits,
    Placement, Position, Resume, Schedule, Shuffle, World, WorldSizes, assign, deal,
};

/// A cache of `partitions` partitions of about `units` units, in shards of 1,000.
fn cache(name: u8, partitions: u32, units: u64) -> CacheUnits {
    let counts = (0..partitions).map(|partition| {
        let units = units + u64::from(partition % 7);
        PartitionUnits {
            partition,
            units,
            shard_starts: (0..units.div_ceil(1000).min(10_000))
                .map(|n| n * 1000)
                .collect(),
        }
    });
    CacheUnits {
        fingerprint: ContentHash([name; 32]),
        pack: None,
        partitions: counts.collect(),
    }
}

/// Prints the best, the median and the worst of `runs` runs, in microseconds.
fn time(what: &str, runs: u64, mut run: impl FnMut(u64)) {
    let mut times: Vec<f64> = (0..runs)
        .map(|number| {
            let start = Instant::now();
            run(number);
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let (best, median, worst) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    println!("{what:64} {best:10.1} {median:10.1} {worst:10.1}");
}

fn batches(what: &str, caches: &[CacheUnits], weights: Option<&[f64]>, shuffle: Shuffle) {
    let options = OrderOptions {
        shuffle,
        ..OrderOptions::default()
    };
    let open = |size| Schedule::new(caches, weights, &options, size).expect("an order");
    for (place, part) in [("first", 0), ("middle", 2), ("last", 1)] {
        time(&format!("{what}: open, {place} 256 units"), 9, |number| {
            let schedule = open(256);
            let position = match part {
                0 => 0,
                part => schedule.epoch_len() / part - 256,
            };
            let at = Position {
                epoch: number,
                position,
            };
            black_box(schedule.batch(at).expect("a batch"));
        });
    }
    let schedule = open(1024);
    let mut at = Position::default();
    time(&format!("{what}: next 1,024 units"), 1000, |_| {
        at = black_box(schedule.batch(at).expect("a batch")).next;
    });
    let len = schedule.epoch_len();
    time(&format!("{what}: one unit anywhere"), 300, |number| {
        let position = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % len;
        black_box(
            schedule
                .unit_at(Position {
                    epoch: number,
                    position,
                })
                .expect("a unit"),
        );
    });
}

/// 64 ranks on 8 nodes.
const SIZES: WorldSizes = WorldSizes {
    rank: 0,
    world_size: 64,
    node_rank: 0,
    num_nodes: 8,
    micro_batch_size: 4,
    global_batch_size: 1024,
};

/// Dealing by cost, of units whose lengths are spread as those of chats are.
fn dealings(what: &str, batch: &GlobalBatch, world: &World, placement: &Placement) {
    let mut state = 1u64;
    let mut dice = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % below
    };
    for modalities in [Modalities::Any, Modalities::Same] {
        let dealing = Dealing {
            modalities,
            ..Dealing::default()
        };
        let rounds: Vec<Vec<Counts>> = (0..100)
            .map(|_| {
                let count = |_| {
                    // Products of dice are about lognormal.
                    let tokens = 16 + dice(30) * dice(30) * dice(30) / 2;
                    let images = dice(10).min(1);
                    Counts {
                        tokens: tokens as u32,
                        loss_tokens: 0,
                        images: images as u32,
                        patches: (images * (4 + dice(60) * dice(60))) as u32,
                    }
                };
                (0..1024).map(count).collect()
            })
            .collect();
        time(
            &format!("deal 1,024 units to {what}, modalities {modalities}"),
            1000,
            |number| {
                let counts = &rounds[number as usize % rounds.len()];
                black_box(deal(batch, counts, world, placement, &dealing).expect("a dealing"));
            },
        );
    }
}

/// Saving cursors of mixtures, and inside of a global batch.
fn cursors(world: &World) {
    for count in [2, 16] {
        let caches: Vec<_> = (0..count).map(|name| cache(name, 96, 5_000)).collect();
        let weights: Vec<f64> = (0..count).map(|cache| 1.0 + f64::from(cache)).collect();
        let options = OrderOptions::default();
        let schedule = Schedule::new(&caches, Some(&weights), &options, 1024).expect("an order");
        let what = format!("save a cursor, {count} caches, at the next border");
        time(&what, 400, |number| {
            let at = Position {
                epoch: 3,
                position: number * 1024,
            };
            black_box(Cursor::new(&schedule, at).to_json());
        });
    }
    let one = Schedule::new(
        &[cache(1, 960, 10_417)],
        None,
        &OrderOptions::default(),
        1024,
    );
    let one = one.expect("an order");
    let held = |node| {
        let partitions = (0..960).filter(|partition| partition % 8 == node);
        partitions
            .map(|partition| Held {
                cache: 0,
                partition,
            })
            .collect()
    };
    let placement = Placement::new(&(0..8).map(held).collect::<Vec<Vec<_>>>());
    let placement = placement.expect("a placement");
    let resume = Resume {
        at: Position::default(),
        micro_batches_delivered: 1,
    };
    let dealing = Dealing::default();
    time(
        "save a cursor inside of a batch, 8 x 8, 960 partitions",
        1000,
        |_| {
            black_box(Cursor::within(&one, resume, world, &placement, &dealing).to_json());
        },
    );
}

fn main() {
    println!(
        "{:64} {:>10} {:>10} {:>10}",
        "microseconds", "best", "median", "worst"
    );
    time("open 200 caches of 240 partitions", 20, |_| {
        let caches: Vec<_> = (0..200).map(|name| cache(name, 240, 300)).collect();
        black_box(Schedule::new(&caches, None, &OrderOptions::default(), 256).expect("an order"));
    });
    for shuffle in [Shuffle::Full, Shuffle::Shard, Shuffle::None] {
        batches(
            &format!("10^7 units, {shuffle}"),
            &[cache(1, 960, 10_417)],
            None,
            shuffle,
        );
    }
    batches(
        "6 x 10^7 units, full",
        &[cache(1, 960, 65_000)],
        None,
        Shuffle::Full,
    );
    batches(
        "10^12 units, full",
        &[cache(1, 960, 1_041_666_667)],
        None,
        Shuffle::Full,
    );
    let many: Vec<_> = (0..200).map(|name| cache(name, 48, 2_000)).collect();
    let weights: Vec<f64> = (0..200).map(|cache| 1.0 + f64::from(cache)).collect();
    batches(
        "200 caches of 10^5 units, full",
        &many,
        Some(&weights),
        Shuffle::Full,
    );

    let schedule = Schedule::new(
        &[cache(1, 960, 10_417)],
        None,
        &OrderOptions::default(),
        1024,
    );
    let schedule = schedule.expect("an order");
    let world = World::new(SIZES);
    let world = world.expect("a world");
    let batch = schedule.batch(Position::default()).expect("a batch");
    for copies in 1..=3 {
        let held = |node| {
            let holds = move |partition: &u32| {
                (0..copies).any(|copy| partition.wrapping_mul(copy + 1) % (8 - copy) == node)
            };
            let partitions = (0..960).filter(holds);
            partitions
                .map(|partition| Held {
                    cache: 0,
                    partition,
                })
                .collect()
        };
        let placement =
            Placement::new(&(0..8).map(held).collect::<Vec<Vec<_>>>()).expect("a placement");
        let remote = assign(&batch, &world, &placement).remote();
        time(
            &format!("assign 1,024 units to 8 x 8, {copies} copies, {remote} remote"),
            1000,
            |_| {
                black_box(assign(&batch, &world, &placement));
            },
        );
        dealings(
            &format!("8 x 8, {copies} copies"),
            &batch,
            &world,
            &placement,
        );
    }
    let one_node = World::new(WorldSizes {
        num_nodes: 1,
        ..SIZES
    });
    let one_node = one_node.expect("a world");
    dealings("64 on a node", &batch, &one_node, &Placement::everywhere());
    cursors(&world);
    let cursor = Cursor::new(&schedule, batch.next);
    let json = cursor.to_json();
    time("save a cursor, one cache, at a border", 1000, |_| {
        black_box(Cursor::new(&schedule, batch.next).to_json());
    });
    time("read a cursor and resume", 1000, |_| {
        let cursor = Cursor::from_json(&json).expect("a cursor");
        black_box(
            cursor
                .resume(
                    &schedule,
                    &world,
                    &Placement::everywhere(),
                    &Dealing::default(),
                )
                .expect("its schedule"),
        );
    });
    println!("a cursor has {} bytes", json.len());
}
