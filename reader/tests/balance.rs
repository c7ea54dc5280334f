//! Dealing by cost: even by both costs, complete, as local as can be, and the same everywhere.

#![allow(
    clippy::print_stdout,
    reason = "the figures that the tests bound are worth a look"
)]

mod orders;

use std::cell::Cell;

use orders::{Dice, limited_sample, pack, sample};
use stoker_formats::Counts;
use stoker_reader::{
    Assignment, Balance, Dealing, GlobalBatch, Held, Modalities, OrderError, Placement, Position,
    Unit, World, WorldSizes, assign, deal,
};

const COST: Dealing = Dealing {
    balance: Balance::Cost,
    modalities: Modalities::Any,
    dummy_image: false,
};

const NONE: Dealing = Dealing {
    balance: Balance::None,
    ..COST
};

fn world_of(nodes: &[u32], micro: u32, global: u32) -> World {
    let sizes = WorldSizes {
        rank: 0,
        world_size: nodes.len() as u32,
        node_rank: nodes[0],
        num_nodes: 1 + nodes.iter().copied().max().unwrap(),
        micro_batch_size: micro,
        global_batch_size: global,
    };
    World::with_nodes(sizes, nodes.to_vec()).unwrap()
}

/// `ranks` ranks in a row on `nodes` nodes.
fn world(ranks: u32, nodes: u32, micro: u32, global: u32) -> World {
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / (ranks / nodes)).collect();
    world_of(&nodes, micro, global)
}

/// Units number 0, 1, 2, ... of `partitions` partitions in turn, the last `padding` rows for padding.
fn batch(rows: u32, partitions: u32, padding: u32) -> GlobalBatch {
    let unit = |row: u32| Unit {
        cache: 0,
        partition: row % partitions,
        number: u64::from(row),
    };
    let units = (0..rows).map(|row| (row < rows - padding).then(|| unit(row)));
    GlobalBatch {
        at: Position {
            epoch: 3,
            position: 96,
        },
        units: units.collect(),
        next: Position::default(),
    }
}

/// Each of `partitions` partitions is on `copies` of `nodes` nodes, if `held` says so.
fn placed(nodes: u32, partitions: u32, copies: u32, held: impl Fn(u32) -> bool) -> Placement {
    let on = |partition: u32, node: u32| {
        (0..copies).any(|copy| (partition + copy * (1 + partition / nodes)) % nodes == node)
    };
    let of_node = |node| {
        let mine = (0..partitions).filter(|partition| on(*partition, node) && held(*partition));
        let held = mine.map(|partition| Held {
            cache: 0,
            partition,
        });
        held.collect()
    };
    Placement::new(&(0..nodes).map(of_node).collect::<Vec<Vec<_>>>()).unwrap()
}

fn rows(assignment: &Assignment, world: &World) -> Vec<Vec<Option<Unit>>> {
    let ranks = 0..world.world_size();
    ranks.map(|rank| assignment.rank(rank).to_vec()).collect()
}

/// The most of `parts` over their mean.
fn unevenness(parts: impl Iterator<Item = u64> + Clone) -> f64 {
    let (sum, count) = (parts.clone().sum::<u64>(), parts.clone().count());
    let most = parts.max().unwrap();
    most as f64 * count as f64 / (sum as f64).max(1.0)
}

/// How uneven tokens and patches of `dealt` lists of rows are.
fn uneven(dealt: &[&[Option<Unit>]], counts: &[Counts]) -> [f64; 2] {
    let by = |of: fn(&Counts) -> u32| {
        unevenness(dealt.iter().map(|rows| {
            let rows = rows.iter().flatten();
            rows.map(|unit| u64::from(of(&counts[unit.number as usize])))
                .sum()
        }))
    };
    [by(|counts| counts.tokens), by(|counts| counts.patches)]
}

fn uneven_ranks(assignment: &Assignment, world: &World, counts: &[Counts]) -> [f64; 2] {
    let ranks = (0..world.world_size()).map(|rank| assignment.rank(rank));
    uneven(&ranks.collect::<Vec<_>>(), counts)
}

/// How uneven tokens and patches must be, whatever is done: one rank has the heaviest unit, or two of the heaviest if there are
/// more of them than ranks, and besides at least the lightest units.
fn bounds(counts: &[Counts], ranks: usize) -> [f64; 2] {
    let by = |of: fn(&Counts) -> u32| {
        let mut costs: Vec<u64> = counts.iter().map(|counts| u64::from(of(counts))).collect();
        costs.sort_unstable_by(|a, b| b.cmp(a));
        let each = costs.len() / ranks;
        let lightest = |count: usize| costs[costs.len() - count..].iter().sum::<u64>();
        let one = costs[0] + lightest(each - 1);
        let two = costs[ranks - 1] + costs[ranks] + lightest(each - 2);
        let sum: u64 = costs.iter().sum();
        one.max(two) as f64 * ranks as f64 / (sum as f64).max(1.0)
    };
    [by(|counts| counts.tokens), by(|counts| counts.patches)]
}

/// Deals `batches` made-up batches to 64 ranks; what `check` is given is how uneven that was, and could not but be. Prints the
/// median, the 99th of 100 and the worst of tokens and of patches.
fn measured(
    what: &str,
    each: u32,
    batches: u32,
    (world_nodes, copies): (u32, Option<u32>),
    unit: fn(&mut Dice) -> Counts,
    check: impl Fn([f64; 2], [f64; 2]),
) {
    let mut dice = Dice(11);
    let global = 64 * each;
    let world = world(64, world_nodes, each / 2, global);
    let placement = copies.map_or_else(Placement::everywhere, |copies| {
        placed(world_nodes, 64, copies, |_| true)
    });
    let batch = batch(global, 64, 0);
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..batches {
        let counts: Vec<Counts> = (0..global).map(|_| unit(&mut dice)).collect();
        let assignment = deal(&batch, &counts, &world, &placement, &COST).unwrap();
        assert_eq!(assignment.remote(), 0);
        let uneven = uneven_ranks(&assignment, &world, &counts);
        check(uneven, bounds(&counts, 64));
        found[0].push(uneven[0]);
        found[1].push(uneven[1]);
    }
    for (cost, found) in ["tokens", "patches"].into_iter().zip(&mut found) {
        found.sort_by(f64::total_cmp);
        let at = |part: usize| found[(found.len() - 1) * part / 100];
        println!("{what}, {cost}: {:.3} {:.3} {:.3}", at(50), at(99), at(100));
    }
}

#[test]
fn packs_are_even_to_a_twentieth_over_a_thousand_batches() {
    measured("4 packs a rank", 4, 1000, (1, None), pack, |uneven, _| {
        assert!(uneven[0] <= 1.05 && uneven[1] <= 1.05, "{uneven:?}");
    });
}

/// A sample may have more patches than a rank's share of them: then its rank has little else, and of a thousand batches `beyond`
/// are about as even as can be. All others are even to a seventh.
fn samples_are_even(what: &str, unit: fn(&mut Dice) -> Counts, beyond: u32) {
    let found = Cell::new(0);
    let what = format!("8 samples a rank, {what}");
    measured(&what, 8, 1000, (8, None), unit, |uneven, bounds| {
        found.set(found.get() + u32::from(bounds.iter().any(|bound| *bound > 1.15)));
        for (uneven, bound) in uneven.into_iter().zip(bounds) {
            let most = if bound > 1.15 { 1.04 * bound } else { 1.15 };
            assert!(uneven <= most, "{uneven} {bound}");
        }
    });
    assert_eq!(found.get(), beyond);
}

#[test]
fn samples_are_even_to_a_seventh_where_one_of_them_does_not_forbid_it() {
    samples_are_even("pictures of at most a megapixel", limited_sample, 15);
    samples_are_even("pictures of any size", sample, 32);
}

#[test]
fn what_nodes_hold_is_kept_to_and_evened_out_as_far_as_that_goes() {
    for (copies, bound) in [(1, 1.5), (2, 1.35), (3, 1.2)] {
        let what = format!("8 packs a rank, {copies} copies on 8 nodes");
        measured(&what, 8, 60, (8, Some(copies)), pack, |uneven, _| {
            assert!(uneven[0] <= 1.05 && uneven[1] <= bound, "{uneven:?}");
        });
    }
}

#[test]
fn micro_batches_of_a_step_are_alike() {
    let mut dice = Dice(3);
    let (world, batch) = (world(16, 2, 2, 256), batch(256, 16, 0));
    let mut sums = [[0.0; 2]; 2];
    for _ in 0..20 {
        let counts: Vec<Counts> = (0..256).map(|_| sample(&mut dice)).collect();
        for (sum, dealing) in sums.iter_mut().zip([COST, NONE]) {
            let dealt = deal(&batch, &counts, &world, &Placement::everywhere(), &dealing);
            let dealt = dealt.unwrap();
            for step in 0..8 {
                let step: Vec<&[Option<Unit>]> = (0..16)
                    .map(|rank| &dealt.rank(rank)[step * 2..step * 2 + 2])
                    .collect();
                let uneven = uneven(&step, &counts);
                sum[0] += uneven[0] / 160.0;
                sum[1] += uneven[1] / 160.0;
            }
        }
    }
    let [even, dealt_in_turn] = sums;
    println!("micro-steps: {even:.3?}, in turn {dealt_in_turn:.3?}");
    for (even, dealt_in_turn) in even.into_iter().zip(dealt_in_turn) {
        assert!(even < 1.6 && dealt_in_turn > 2.2, "{even} {dealt_in_turn}");
    }
}

/// A made-up world and placement for `batch`-like batches: uneven nodes, partitions on no, one or more nodes.
fn anywhere(dice: &mut Dice) -> (World, Placement, GlobalBatch) {
    let num_nodes = 1 + dice.below(5);
    let ranks = num_nodes * (1 + dice.below(3));
    let mut nodes: Vec<u32> = (0..ranks).map(|_| dice.below(num_nodes) as u32).collect();
    nodes[0] = num_nodes as u32 - 1;
    let micro = 1 + dice.below(3) as u32;
    let global = ranks as u32 * micro * (1 + dice.below(5) as u32);
    let partitions = 1 + dice.below(12) as u32;
    let placement = if dice.below(4) == 0 {
        Placement::everywhere()
    } else {
        let (copies, away) = (1 + dice.below(3) as u32, dice.below(24) as u32);
        placed(num_nodes as u32, partitions, copies, |partition| {
            partition != away
        })
    };
    let padding = if dice.below(3) == 0 {
        dice.below(u64::from(global)) as u32
    } else {
        0
    };
    (
        world_of(&nodes, micro, global),
        placement,
        batch(global, partitions, padding),
    )
}

fn some_counts(dice: &mut Dice, batch: &GlobalBatch, with_images: u64) -> Vec<Counts> {
    let counts = |unit: &Option<Unit>| {
        let mut counts = sample(dice);
        if dice.below(100) >= with_images {
            (counts.images, counts.patches) = (0, 0);
        } else {
            counts.images = counts.images.max(1);
        }
        unit.map_or_else(Counts::default, |_| counts)
    };
    batch.units.iter().map(counts).collect()
}

fn holds(placement: &Placement, node: u32, unit: Unit) -> bool {
    let (cache, partition) = (unit.cache, unit.partition);
    placement.holds(node, Held { cache, partition })
}

/// Every row once; what is said to be remote is.
fn check_complete(
    assignment: &Assignment,
    world: &World,
    placement: &Placement,
    batch: &GlobalBatch,
) {
    let dealt = rows(assignment, world);
    let mut away = 0;
    for (rows, node) in dealt.iter().zip(world.nodes()) {
        assert_eq!(rows.len() as u32, world.rank_units());
        let units = rows.iter().flatten();
        away += units
            .filter(|unit| !holds(placement, *node, **unit))
            .count();
    }
    assert_eq!(away, assignment.remote());
    let mut found = dealt.concat();
    let mut expected = batch.units.clone();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn any_dealing_is_complete_and_as_local_as_that_in_turn() {
    let mut dice = Dice(17);
    let mut remote = 0;
    for _ in 0..400 {
        let (world, placement, batch) = anywhere(&mut dice);
        let counts = some_counts(&mut dice, &batch, 60);
        let in_turn = assign(&batch, &world, &placement);
        assert_eq!(
            deal(&batch, &counts, &world, &placement, &NONE).as_ref(),
            Ok(&in_turn)
        );
        let dealt = deal(&batch, &counts, &world, &placement, &COST).unwrap();
        check_complete(&dealt, &world, &placement, &batch);
        assert_eq!(dealt.remote(), in_turn.remote());
        remote += dealt.remote();
    }
    assert!(remote > 500, "{remote}");
}

#[test]
fn with_one_micro_batch_of_one_rank_nothing_moves() {
    let batch = batch(24, 3, 2);
    let counts = some_counts(&mut Dice(1), &batch, 50);
    let world = world(1, 1, 24, 24);
    let dealt = deal(&batch, &counts, &world, &Placement::everywhere(), &COST).unwrap();
    assert_eq!(dealt.rank(0), batch.units);
}

/// In how many micro-batches of `dealt` there is an image, step by step.
fn ranks_with_images(dealt: &Assignment, world: &World, counts: &[Counts]) -> Vec<u32> {
    let micro = world.micro_batch_size() as usize;
    let has = |rank: u32, step: usize| {
        let rows = &dealt.rank(rank)[step * micro..][..micro];
        let mut units = rows.iter().flatten();
        units.any(|unit| counts[unit.number as usize].images > 0)
    };
    (0..world.micro_batches() as usize)
        .map(|step| {
            (0..world.world_size())
                .filter(|rank| has(*rank, step))
                .count() as u32
        })
        .collect()
}

#[test]
fn all_ranks_have_images_in_the_same_steps_or_it_is_refused() {
    let mut dice = Dice(23);
    let (mut refused, mut dealt_apart, mut text_steps) = (0, 0, 0);
    for round in 0..600 {
        let (world, placement, batch) = anywhere(&mut dice);
        let counts = some_counts(&mut dice, &batch, [20, 50, 80, 95][round % 4]);
        let images = counts.iter().filter(|counts| counts.images > 0).count() as u32;
        let (ranks, micro) = (world.world_size(), world.micro_batch_size());
        // By trying: with so many steps each micro-batch gets one at least, and they are not too many.
        let possible = (0..=world.micro_batches())
            .any(|steps| steps * ranks <= images && images <= steps * ranks * micro);
        for balance in [Balance::Cost, Balance::None] {
            let same = Dealing {
                balance,
                modalities: Modalities::Same,
                dummy_image: false,
            };
            let dealt = match deal(&batch, &counts, &world, &placement, &same) {
                Ok(dealt) => dealt,
                Err(error) => {
                    assert_eq!(
                        error,
                        OrderError::Modalities {
                            epoch: 3,
                            position: 96,
                            images,
                            ranks,
                            micro_batch_size: micro
                        }
                    );
                    assert!(!possible && error.hint().unwrap().contains("dummy_image=True"));
                    refused += 1;
                    continue;
                }
            };
            assert!(possible);
            check_complete(&dealt, &world, &placement, &batch);
            let steps = ranks_with_images(&dealt, &world, &counts);
            assert!(
                steps.iter().all(|with| [0, ranks].contains(with)),
                "{steps:?}"
            );
            text_steps += steps.iter().filter(|with| **with == 0).count();
            let in_turn = assign(&batch, &world, &placement).remote();
            assert!(dealt.remote() >= in_turn);
            dealt_apart += usize::from(dealt.remote() > in_turn);
            if placement == Placement::everywhere() {
                assert_eq!(dealt.remote(), 0);
            }
        }
        // With dummies nothing is refused, and they are as few as can be.
        let dummies = Dealing {
            modalities: Modalities::Same,
            dummy_image: true,
            ..COST
        };
        let dealt = deal(&batch, &counts, &world, &placement, &dummies).unwrap();
        check_complete(&dealt, &world, &placement, &batch);
        let steps = ranks_with_images(&dealt, &world, &counts);
        let missing: u32 = steps
            .iter()
            .filter(|with| **with > 0)
            .map(|with| ranks - with)
            .sum();
        let least = images.div_ceil(ranks * micro) * ranks;
        let expected = if possible { 0 } else { least - images };
        assert_eq!(missing, expected, "{steps:?}");
    }
    assert!(
        refused > 100 && dealt_apart > 20 && text_steps > 100,
        "{refused} {dealt_apart} {text_steps}"
    );
}

#[test]
fn ranks_stay_even_where_all_need_images() {
    let mut dice = Dice(29);
    let (world, batch) = (world(32, 4, 2, 512), batch(512, 32, 0));
    let same = Dealing {
        modalities: Modalities::Same,
        ..COST
    };
    for _ in 0..30 {
        let counts: Vec<Counts> = (0..512).map(|_| sample(&mut dice)).collect();
        let dealt = deal(&batch, &counts, &world, &Placement::everywhere(), &same).unwrap();
        let uneven = uneven_ranks(&dealt, &world, &counts);
        assert!(
            uneven[0] <= 1.1 && uneven[1] <= bounds(&counts, 32)[1].max(1.1),
            "{uneven:?}"
        );
    }
}

/// The vectors of `ORDER.md`, which were made by another program after its text.
#[test]
fn the_specification_has_the_same_vectors() {
    let specification = include_str!("../ORDER.md");
    let mut dice = Dice(7);
    let modalities = Modalities::Same;
    let same = |balance, dummy_image| Dealing {
        balance,
        modalities,
        dummy_image,
    };
    let cases: [(&str, &[u32], u32, u32, Dealing); 5] = [
        ("0 0 0 0 0 0 0 0", &[0; 8], 3, 0, COST),
        ("0 0 1 1 2 2 3 3", &[0, 0, 1, 1, 2, 2, 3, 3], 2, 2, COST),
        (
            "0 0 0 0 1 1 1 1",
            &[0, 0, 0, 0, 1, 1, 1, 1],
            2,
            1,
            same(Balance::Cost, false),
        ),
        (
            "0 1 0 1 0 1 0 1",
            &[0, 1, 0, 1, 0, 1, 0, 1],
            1,
            2,
            same(Balance::Cost, true),
        ),
        ("0 0 1 1", &[0, 0, 1, 1], 4, 1, same(Balance::None, false)),
    ];
    for (name, nodes, micro, copies, dealing) in cases {
        let world = world_of(nodes, micro, 48);
        let placement = if copies == 0 {
            Placement::everywhere()
        } else {
            placed(world.num_nodes(), 8, copies, |partition| partition != 7)
        };
        let batch = batch(48, 8, 2);
        let counts: Vec<Counts> = (0..48)
            .map(|row| {
                let tokens = (100 + dice.below(50) * dice.below(50)) as u32;
                let images = u32::from(dice.below(10) < 7);
                let patches = (4 + dice.below(40) * dice.below(40)) as u32;
                let unit = Counts {
                    tokens,
                    loss_tokens: 0,
                    images,
                    patches: images * patches,
                };
                if row < 46 { unit } else { Counts::default() }
            })
            .collect();
        let dealt = deal(&batch, &counts, &world, &placement, &dealing).unwrap();
        let number =
            |unit: &Option<Unit>| unit.map_or("-".to_owned(), |unit| unit.number.to_string());
        let ranks: Vec<String> = rows(&dealt, &world)
            .iter()
            .map(|rows| rows.iter().map(number).collect::<Vec<_>>().join(" "))
            .collect();
        let line = format!("| {name} | {} |", ranks.join(", "));
        assert!(specification.contains(&line), "{line}");
    }
}
