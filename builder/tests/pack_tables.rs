//! The packer: every sample once, no limit exceeded, the same table for any number of threads, and well filled.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stoker_builder::pack::{Table, WINDOW, write_table};
use stoker_formats::{
    ContentHash, Counts, Key, PackEntry, PackOptions, PackOverlong, PackStrategy, PackTable,
    Permutation, VERSION,
};

const SEED: u64 = 11;

fn options(max_tokens: u32) -> PackOptions {
    PackOptions {
        max_tokens,
        max_patches: None,
        max_samples: None,
        by_modality: false,
        strategy: PackStrategy::BestFit,
        seed: SEED,
        window: 64,
        overlong: PackOverlong::Reject,
    }
}

fn fingerprint() -> ContentHash {
    ContentHash::of(b"a cache")
}

fn make(lengths: &[Vec<Counts>], options: &PackOptions, threads: usize) -> Table<Vec<u8>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.unwrap()
        .install(|| {
            let of = |partition: u32| Ok(lengths[partition as usize].clone());
            write_table(Vec::new(), lengths.len() as u32, fingerprint(), options, of)
        })
        .unwrap()
}

/// The packs of each partition, as lists of rows, after all promises were checked.
fn checked(lengths: &[Vec<Counts>], options: &PackOptions) -> Vec<Vec<Vec<u32>>> {
    let made = make(lengths, options, 2);
    for threads in [1, 4] {
        let again = make(lengths, options, threads);
        assert_eq!(again.out, made.out, "{threads} threads");
        assert_eq!(again.table, made.table);
    }
    let left_out = options.overlong == PackOverlong::Reject && !made.overlong.is_empty();
    let entry = PackEntry {
        format_version: VERSION,
        created_by: "test".into(),
        fingerprint: fingerprint(),
        name: "t".parse().unwrap(),
        options: *options,
        totals: made.totals,
        table: made.table,
        overlong: left_out.then(|| stoker_formats::FileEntry {
            bytes: 1,
            hash: fingerprint(),
            rows: made.overlong.len() as u64,
        }),
        samples: made.samples,
        packs: made.packs,
    };
    let entry = PackEntry::parse(&entry.to_bytes().unwrap()).unwrap();
    let table = PackTable::open(made.out, &entry).unwrap();
    let admit = |counts: &Counts| {
        counts.tokens <= options.max_tokens
            && options
                .max_patches
                .is_none_or(|most| counts.patches <= most)
    };
    let mut packs = Vec::new();
    for (partition, lengths) in (0u32..).zip(lengths) {
        let counts = table.counts(partition).unwrap();
        let members = table.members(partition).unwrap();
        let overlong: BTreeSet<u32> = made
            .overlong
            .iter()
            .filter(|sample| sample.partition == partition)
            .map(|sample| sample.row)
            .collect();
        let too_long = (0u32..).zip(lengths).filter(|(_, counts)| !admit(counts));
        assert_eq!(overlong, too_long.map(|(row, _)| row).collect());
        let mut seen = BTreeSet::new();
        for (counts, rows) in counts.iter().zip(members.iter()) {
            let of = |field: fn(&Counts) -> u32| -> u32 {
                rows.iter().map(|row| field(&lengths[*row as usize])).sum()
            };
            let sum = Counts {
                tokens: of(|counts| counts.tokens),
                loss_tokens: of(|counts| counts.loss_tokens),
                images: of(|counts| counts.images),
                patches: of(|counts| counts.patches),
            };
            assert_eq!(*counts, sum);
            let alone = options.overlong == PackOverlong::Alone && rows.len() == 1;
            assert!(admit(&sum) || (alone && overlong.contains(&rows[0])));
            assert!(
                options
                    .max_samples
                    .is_none_or(|most| rows.len() <= most as usize)
            );
            let with_images = rows
                .iter()
                .filter(|row| lengths[**row as usize].images > 0)
                .count();
            assert!(!options.by_modality || with_images == 0 || with_images == rows.len());
            for row in rows {
                assert!(seen.insert(*row), "row {row} stands twice");
            }
        }
        if options.overlong != PackOverlong::Alone {
            assert!(seen.is_disjoint(&overlong));
            seen.extend(overlong);
        }
        assert_eq!(seen.len(), lengths.len());
        packs.push(members.iter().map(<[u32]>::to_vec).collect());
    }
    packs
}

fn counts() -> impl Strategy<Value = Counts> {
    (0u32..1200, 0u32..4, 0u32..400).prop_map(|(tokens, images, patches)| Counts {
        tokens,
        loss_tokens: tokens / 2,
        images,
        patches: if images > 0 { 4 + patches } else { 0 },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_sample_stands_in_one_pack_within_all_limits(
        lengths in prop::collection::vec(prop::collection::vec(counts(), 0..260), 0..6),
        max_patches in prop::option::of(100u32..900),
        max_samples in prop::option::of(1u32..9),
        by_modality: bool,
        ffd: bool,
        overlong in prop::sample::select(vec![PackOverlong::Reject, PackOverlong::Alone, PackOverlong::Fail]),
        window in 1u32..200,
    ) {
        let options = PackOptions {
            max_patches,
            max_samples,
            by_modality,
            strategy: if ffd { PackStrategy::Ffd } else { PackStrategy::BestFit },
            overlong,
            window,
            ..options(1000)
        };
        if overlong == PackOverlong::Fail {
            // The table is written and thrown away: only the list of over-long samples counts.
            let admit = |counts: &&Counts| counts.tokens <= 1000 && max_patches.is_none_or(|most| counts.patches <= most);
            let fit: usize = lengths.iter().map(|part| part.iter().filter(admit).count()).sum();
            let all: usize = lengths.iter().map(Vec::len).sum();
            prop_assert_eq!(make(&lengths, &options, 1).overlong.len(), all - fit);
        } else {
            checked(&lengths, &options);
        }
    }
}

/// A normal number from a counter, by adding up.
fn lognormal(number: u64, max_tokens: u32) -> u32 {
    let key = Key::derive(5, "test", &[number]);
    let (words, _) = key.as_bytes().as_chunks::<4>();
    let uniform = |word: usize| f64::from(u32::from_le_bytes(words[word])) / 4_294_967_296.0;
    let normal =
        (-2.0 * (1.0 - uniform(0)).ln()).sqrt() * (std::f64::consts::TAU * uniform(1)).cos();
    let tokens = (1500f64.ln() - 0.32 + 0.8 * normal).exp();
    (tokens as u32).clamp(8, max_tokens)
}

/// First fit by decreasing size, as it is written in books; the number of packs.
fn plain_ffd(mut window: Vec<u32>, max_tokens: u32) -> usize {
    window.sort_unstable_by(|one, other| other.cmp(one));
    let mut left: Vec<u32> = Vec::new();
    for tokens in window {
        match left.iter_mut().find(|left| **left >= tokens) {
            Some(left) => *left -= tokens,
            None => left.push(max_tokens - tokens),
        }
    }
    left.len()
}

#[test]
fn packs_are_fuller_than_those_of_first_fit_over_the_same_windows() {
    let lengths: Vec<Counts> = (0..20_000)
        .map(|number| Counts {
            tokens: lognormal(number, 8192),
            ..Counts::default()
        })
        .collect();
    let tokens: u64 = lengths.iter().map(|counts| u64::from(counts.tokens)).sum();
    assert!((1400..1600).contains(&(tokens / 20_000)), "{tokens}");
    let mut numbers: Vec<u64> = fingerprint()
        .0
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    numbers.push(0);
    let order = Permutation::new(Key::derive(SEED, "pack windows", &numbers), 20_000);
    let drawn: Vec<u32> = (0..20_000)
        .map(|position| lengths[order.get(position) as usize].tokens)
        .collect();
    for window in [512, WINDOW] {
        for strategy in [PackStrategy::BestFit, PackStrategy::Ffd] {
            let options = PackOptions {
                strategy,
                window,
                ..options(8192)
            };
            let packs = make(std::slice::from_ref(&lengths), &options, 1).packs[0];
            let fill = tokens as f64 / (packs as f64 * 8192.0);
            let windows = drawn.chunks(window as usize);
            let plain: usize = windows.map(|part| plain_ffd(part.to_vec(), 8192)).sum();
            assert!(fill >= 0.97, "{fill}");
            assert!(packs <= plain as u64, "{packs} packs, plain {plain}");
        }
    }
}

/// Samples of two thirds of a pack go into no pack together: carrying them on must end, and cost little.
#[test]
fn samples_that_never_match_are_packed_alone() {
    let long = Counts {
        tokens: 700,
        ..Counts::default()
    };
    let packs = checked(&[vec![long; 1000]], &options(1000));
    assert_eq!(packs[0].len(), 1000);
}

/// Text must find room in packs whose patches are used up, and images must find the others.
#[test]
fn full_patches_do_not_hide_packs_with_room() {
    let counts = |tokens, patches| Counts {
        tokens,
        images: u32::from(patches > 0),
        patches,
        ..Counts::default()
    };
    // 500 packs are full of patches with half of their tokens left; text fills them up.
    let mut lengths = vec![counts(500, 100); 500];
    lengths.extend(vec![counts(250, 0); 1000]);
    let options = PackOptions {
        max_patches: Some(100),
        window: 2000,
        ..options(1000)
    };
    assert_eq!(checked(&[lengths], &options)[0].len(), 500);
}

/// Where patches are scarcer than tokens, most packs have tokens left that no image can use.
#[test]
fn packs_are_full_of_patches_where_these_are_scarce() {
    let lengths: Vec<Counts> = (0..12_000)
        .map(|number| {
            let tokens = lognormal(number, 4096) / 4;
            let patches = if number % 4 == 0 { 0 } else { 3 * tokens };
            Counts {
                tokens,
                images: u32::from(patches > 0),
                patches,
                ..Counts::default()
            }
        })
        .collect();
    let patches: u64 = lengths.iter().map(|counts| u64::from(counts.patches)).sum();
    for strategy in [PackStrategy::BestFit, PackStrategy::Ffd] {
        let options = PackOptions {
            max_patches: Some(8192),
            strategy,
            window: 4096,
            ..options(8192)
        };
        let packs = make(std::slice::from_ref(&lengths), &options, 1).packs[0];
        let fill = patches as f64 / (packs as f64 * 8192.0);
        assert!(fill >= 0.97, "{strategy}: {fill}");
    }
}

#[test]
fn another_seed_or_partition_is_another_draw() {
    let lengths: Vec<Counts> = (0..500)
        .map(|number| Counts {
            tokens: 1 + number * 7 % 300,
            ..Counts::default()
        })
        .collect();
    let lengths = vec![lengths.clone(), lengths];
    let packs = checked(&lengths, &options(1000));
    assert_ne!(packs[0], packs[1]);
    let other = PackOptions {
        seed: SEED + 1,
        ..options(1000)
    };
    assert_ne!(checked(&lengths, &other), packs);
}

/// The longest sample stands anywhere in its pack, and full packs anywhere in the partition.
#[test]
fn order_says_nothing_about_size() {
    let lengths: Vec<Counts> = (0..8000)
        .map(|number| Counts {
            tokens: lognormal(number, 8192),
            ..Counts::default()
        })
        .collect();
    let options = PackOptions {
        window: 1024,
        ..options(8192)
    };
    let packs = checked(std::slice::from_ref(&lengths), &options).remove(0);
    let tokens = |row: &u32| lengths[*row as usize].tokens;
    let (mut places, mut wanted) = (0.0, 0.0);
    for pack in &packs {
        let longest = (0..pack.len()).max_by_key(|place| tokens(&pack[*place]));
        places += longest.unwrap() as f64;
        wanted += (pack.len() - 1) as f64 / 2.0;
    }
    assert!((places / wanted - 1.0).abs() < 0.1, "{places} {wanted}");
    let size = |packs: &[Vec<u32>]| {
        let rows: usize = packs.iter().map(Vec::len).sum();
        rows as f64 / packs.len() as f64
    };
    let (first, second) = packs.split_at(packs.len() / 2);
    assert!((size(first) / size(second) - 1.0).abs() < 0.1);
}
