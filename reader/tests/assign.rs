//! Who reads what: complete, even, and as local as can be.

mod orders;

use std::collections::BTreeSet;

use orders::{Dice, SHUFFLES, TAILS, cache_of, options, uneven};
use stoker_reader::{
    GlobalBatch, Held, Last, OrderError, OrderOptions, Placement, Position, Schedule, Shuffle,
    Tail, Unit, World, WorldSizes, assign, survey,
};

fn sizes(world_size: u32, num_nodes: u32, micro: u32, global: u32) -> WorldSizes {
    WorldSizes {
        rank: 0,
        world_size,
        node_rank: 0,
        num_nodes,
        micro_batch_size: micro,
        global_batch_size: global,
    }
}

fn world(world_size: u32, num_nodes: u32, micro: u32, global: u32) -> World {
    World::new(sizes(world_size, num_nodes, micro, global)).unwrap()
}

/// Node `n` of `nodes` holds every `nodes`-th partition of every cache, from `n` on, moved by `shift` nodes.
fn in_turn(nodes: u32, caches: u32, partitions: u32, shift: u32) -> Placement {
    let of_node = |node| {
        let partitions = (0..partitions).filter(move |p| (p + shift) % nodes == node);
        let each = move |partition| (0..caches).map(move |cache| Held { cache, partition });
        partitions.flat_map(each).collect()
    };
    Placement::new(&(0..nodes).map(of_node).collect::<Vec<_>>()).unwrap()
}

/// The rows of all ranks, one after the other; each rank must have its equal part.
fn rows(batch: &GlobalBatch, world: &World, placement: &Placement) -> Vec<Option<Unit>> {
    let assignment = assign(batch, world, placement);
    let mut rows = Vec::new();
    for rank in 0..world.world_size() {
        assert_eq!(assignment.rank(rank).len() as u32, world.rank_units());
        rows.extend_from_slice(assignment.rank(rank));
    }
    rows
}

#[test]
fn every_unit_of_an_epoch_goes_to_one_rank_of_every_world() {
    let mut dice = Dice(2);
    for units in 1..=64 {
        for partitions in 1..=5 {
            let cache = [uneven(1, units, partitions)];
            let global = [6, 8, 7, 10, 9][dice.below(5) as usize];
            for (shuffle, tail) in SHUFFLES.into_iter().flat_map(|s| TAILS.map(|t| (s, t))) {
                let options = OrderOptions {
                    last: Last::Pad,
                    ..options(units, shuffle, tail)
                };
                let schedule = Schedule::new(&cache, None, &options, global).unwrap();
                for size in 1..=9 {
                    if !global.is_multiple_of(size) {
                        let refused = World::new(sizes(size, 1, 1, global)).unwrap_err();
                        assert!(matches!(refused, OrderError::Indivisible { .. }));
                        continue;
                    }
                    let nodes = if size.is_multiple_of(2) { 2 } else { 1 };
                    let world = world(size, nodes, 1, global);
                    let placement = in_turn(nodes, 1, partitions as u32, 0);
                    let mut at = Position::default();
                    for epoch in 0..3 {
                        let (mut found, mut steps) = (Vec::new(), 0);
                        while at.epoch == epoch {
                            let batch = schedule.batch(at).unwrap();
                            found.extend(rows(&batch, &world, &placement).into_iter().flatten());
                            (at, steps) = (batch.next, steps + 1);
                        }
                        assert_eq!(steps, schedule.epoch_batches());
                        assert_eq!(found.len() as u64, schedule.epoch_len());
                        let once: BTreeSet<_> = found.into_iter().collect();
                        assert_eq!(once.len() as u64, schedule.epoch_len());
                        if tail == Tail::All {
                            assert_eq!(once.len() as u64, units);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_global_batch_is_the_same_for_every_world() {
    let caches = [uneven(1, 2000, 12), uneven(2, 300, 4)];
    let options = OrderOptions {
        last: Last::Pad,
        ..options(1, Shuffle::Full, Tail::All)
    };
    let schedule = Schedule::new(&caches, Some(&[3.0, 2.0]), &options, 48).unwrap();
    for position in [0, 48, 1000, 2288] {
        let batch = schedule.batch(Position { epoch: 1, position }).unwrap();
        let mut expected = batch.units.clone();
        expected.sort_unstable();
        for (nodes, each) in [
            (1, 1),
            (1, 8),
            (2, 4),
            (3, 2),
            (4, 3),
            (6, 8),
            (12, 1),
            (48, 1),
        ] {
            for micro in [1, 2, 3]
                .into_iter()
                .filter(|micro| 48 % (nodes * each * micro) == 0)
            {
                let world = world(nodes * each, nodes, micro, 48);
                for placement in [in_turn(nodes, 2, 12, 0), Placement::everywhere()] {
                    let mut found = rows(&batch, &world, &placement);
                    found.sort_unstable();
                    assert_eq!(found, expected);
                }
            }
        }
    }
}

#[test]
fn the_rows_of_a_node_are_dealt_in_turn_and_in_order() {
    let cache = [cache_of(1, &[64; 4], 64)];
    let schedule = Schedule::new(&cache, None, &options(1, Shuffle::Full, Tail::All), 16).unwrap();
    let batch = schedule.batch(Position::default()).unwrap();
    let assignment = assign(&batch, &world(4, 2, 2, 16), &in_turn(2, 1, 4, 0));
    assert_eq!(assignment.remote(), 0);
    for (rank, positions) in [[0, 4, 8, 12], [2, 6, 10, 14], [1, 5, 9, 13], [3, 7, 11, 15]]
        .iter()
        .enumerate()
    {
        let expected = positions.map(|position| batch.units[position]);
        assert_eq!(assignment.rank(rank as u32), expected);
    }
}

#[test]
fn nothing_is_remote_where_whole_partitions_are_held_evenly() {
    for (nodes, partitions) in [
        (1, 12),
        (2, 12),
        (3, 12),
        (4, 48),
        (6, 48),
        (12, 48),
        (8, 240),
    ] {
        let cache = [cache_of(1, &vec![90; partitions as usize], 40)];
        for shift in 0..2 {
            let placement = in_turn(nodes, 1, partitions, shift);
            for shuffle in SHUFFLES {
                let schedule =
                    Schedule::new(&cache, None, &options(1, shuffle, Tail::Even), 96).unwrap();
                let world = world(nodes * 4, nodes, 96 / 4 / nodes, 96);
                let mut at = Position::default();
                while at.epoch < 2 {
                    let batch = schedule.batch(at).unwrap();
                    assert_eq!(assign(&batch, &world, &placement).remote(), 0);
                    at = batch.next;
                }
            }
        }
    }
}

/// The most units that can be read where they are, unit by unit along augmenting paths.
fn most_local(batch: &GlobalBatch, world: &World, placement: &Placement) -> usize {
    struct Matching<'a> {
        holders: &'a [Vec<usize>],
        share: Vec<usize>,
        taken: Vec<Vec<usize>>,
    }
    impl Matching<'_> {
        fn place(&mut self, unit: usize, tried: &mut [bool]) -> bool {
            let holders = self.holders;
            for &node in &holders[unit] {
                if std::mem::replace(&mut tried[node], true) {
                    continue;
                }
                if self.taken[node].len() < self.share[node] {
                    self.taken[node].push(unit);
                    return true;
                }
                for slot in 0..self.taken[node].len() {
                    if self.place(self.taken[node][slot], tried) {
                        self.taken[node][slot] = unit;
                        return true;
                    }
                }
            }
            false
        }
    }
    let nodes = world.num_nodes();
    let holders: Vec<Vec<usize>> = batch
        .units
        .iter()
        .flatten()
        .map(|unit| {
            let held = Held {
                cache: unit.cache,
                partition: unit.partition,
            };
            let on = (0..nodes).filter(|node| placement.holds(*node, held));
            on.map(|node| node as usize).collect()
        })
        .collect();
    let mut share = vec![0; nodes as usize];
    for node in world.nodes() {
        share[*node as usize] += world.rank_units() as usize;
    }
    let mut matching = Matching {
        holders: &holders,
        taken: vec![Vec::new(); share.len()],
        share,
    };
    (0..holders.len())
        .filter(|unit| matching.place(*unit, &mut vec![false; nodes as usize]))
        .count()
}

#[test]
fn no_more_is_remote_than_must_be() {
    let mut dice = Dice(77);
    let (mut remote, mut held_twice) = (0, 0);
    for _ in 0..400 {
        let caches: Vec<_> = (0..1 + dice.below(3))
            .map(|name| {
                let sizes: Vec<u64> = (0..1 + dice.below(12))
                    .map(|_| dice.below(40) + 1)
                    .collect();
                cache_of(name as u8, &sizes, 7)
            })
            .collect();
        let nodes = 1 + dice.below(6) as u32;
        let each = 1 + dice.below(3) as u32;
        let global = nodes * each * (1 + dice.below(6) as u32);
        let options = OrderOptions {
            last: Last::Pad,
            ..options(
                dice.below(1000),
                Shuffle::Full,
                TAILS[dice.below(2) as usize],
            )
        };
        let weights: Vec<f64> = caches.iter().map(|_| 1.0 + dice.below(4) as f64).collect();
        let Ok(schedule) = Schedule::new(&caches, Some(&weights), &options, global) else {
            continue;
        };
        // Some partitions on no node, some on one, some on many; and a table that knows more nodes than there are.
        let mut held = vec![Vec::new(); nodes as usize + dice.below(3) as usize];
        for (cache, units) in (0u32..).zip(&caches) {
            for part in &units.partitions {
                let copies = [1, 1, 1, 2, 2, 3, 0][dice.below(7) as usize];
                for _ in 0..copies {
                    let node = dice.below(held.len() as u64) as usize;
                    held[node].push(Held {
                        cache,
                        partition: part.partition,
                    });
                }
                held_twice += usize::from(copies > 1);
            }
        }
        let placement = Placement::new(&held).unwrap();
        // Ranks spread unevenly, and in no order.
        let of_rank: Vec<u32> = (0..nodes * each)
            .map(|_| dice.below(u64::from(nodes)) as u32)
            .collect();
        let mut sizes = sizes(nodes * each, nodes, 1, global);
        sizes.node_rank = of_rank[0];
        let world = World::with_nodes(sizes, of_rank).unwrap();
        let batch = schedule
            .batch(Position {
                epoch: dice.below(5),
                position: dice.below(schedule.epoch_len()),
            })
            .unwrap();
        let units = batch.units.iter().flatten().count();
        let assignment = assign(&batch, &world, &placement);
        assert_eq!(
            assignment.remote(),
            units - most_local(&batch, &world, &placement)
        );
        let next = assign(&schedule.batch(batch.next).unwrap(), &world, &placement).remote();
        let survey = survey(&schedule, &world, &placement, batch.at, 2).unwrap();
        assert_eq!(survey.remote as usize, assignment.remote() + next);
        let mut found = rows(&batch, &world, &placement);
        let mut expected = batch.units.clone();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        // What it says is remote, is.
        let away = (0..world.world_size()).flat_map(|rank| {
            let node = world.nodes()[rank as usize];
            assignment
                .rank(rank)
                .iter()
                .flatten()
                .map(move |unit| (node, *unit))
        });
        let away = away.filter(|(node, unit)| {
            !placement.holds(
                *node,
                Held {
                    cache: unit.cache,
                    partition: unit.partition,
                },
            )
        });
        assert_eq!(away.count(), assignment.remote());
        remote += assignment.remote();
    }
    // The test has seen both what it is about.
    assert!(remote > 500 && held_twice > 500, "{remote} {held_twice}");
}

#[test]
fn placements_are_equal_whatever_order_they_were_found_in() {
    let held = |cache, partition| Held { cache, partition };
    let one = [
        vec![held(0, 1), held(1, 0), held(0, 7)],
        vec![held(0, 2), held(0, 1)],
    ];
    let other = [
        vec![held(0, 7), held(0, 1), held(0, 1), held(1, 0)],
        vec![held(0, 1), held(0, 2)],
    ];
    let table = Placement::new(&one).unwrap();
    assert_eq!(table, Placement::new(&other).unwrap());
    assert_eq!(table.hash(), Placement::new(&other).unwrap().hash());
    let mut hashes = BTreeSet::from([table.hash(), Placement::everywhere().hash()]);
    for change in [
        [one[1].clone(), one[0].clone()],
        [one[0].clone(), vec![held(0, 2)]],
        [one[0][1..].to_vec(), one[1].clone()],
        [Vec::new(), Vec::new()],
    ] {
        hashes.insert(Placement::new(&change).unwrap().hash());
    }
    assert_eq!(hashes.len(), 6);
    assert!(table.holds(0, held(0, 7)) && !table.holds(1, held(0, 7)));
    assert!(!table.holds(0, held(0, 3)) && !table.holds(0, held(5, 0)));
    assert!(Placement::everywhere().holds(9, held(5, 0)));
    for wrong in [held(0, u32::MAX), held(u32::MAX, 0)] {
        let refused = Placement::new(&[vec![wrong]]).unwrap_err();
        assert!(matches!(
            refused,
            OrderError::Placement {
                given: u32::MAX,
                ..
            }
        ));
    }
}

#[test]
fn worlds_that_make_no_sense_are_refused_with_the_numbers() {
    let refused = |change: fn(&mut WorldSizes)| {
        let mut sizes = sizes(8, 2, 4, 256);
        change(&mut sizes);
        World::new(sizes).unwrap_err().to_string()
    };
    for (found, expected) in [
        (
            refused(|sizes| sizes.global_batch_size = 250),
            "a global batch of 250 does not divide by world size 8 x micro-batch 4; nearest: `224` or `256`",
        ),
        (
            refused(|sizes| sizes.global_batch_size = 31),
            "a global batch of 31 does not divide by world size 8 x micro-batch 4; nearest: `32`",
        ),
        (
            refused(|sizes| sizes.rank = 8),
            "rank must be below 8, not `8`",
        ),
        (
            refused(|sizes| sizes.node_rank = 2),
            "node rank must be below 2, not `2`",
        ),
        (
            refused(|sizes| sizes.rank = 4),
            "rank 4 is on node 1, not on `0`",
        ),
        (
            refused(|sizes| sizes.num_nodes = 3),
            "a world of 8 ranks does not spread evenly over nodes: `3`",
        ),
        (
            refused(|sizes| sizes.world_size = 0),
            "world size must be from 1 to 1048576, not `0`",
        ),
        (
            refused(|sizes| sizes.micro_batch_size = 0),
            "micro-batch size must be from 1 to 16777216, not `0`",
        ),
    ] {
        assert_eq!(found, expected);
    }
    let short = World::with_nodes(sizes(4, 2, 1, 8), vec![0, 1, 0]);
    assert!(matches!(short, Err(OrderError::UnevenNodes { .. })));
    let beyond = World::with_nodes(sizes(4, 2, 1, 8), vec![0, 1, 0, 2]);
    assert!(matches!(beyond, Err(OrderError::Number { given: 2, .. })));
}
