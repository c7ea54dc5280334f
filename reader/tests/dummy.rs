//! Dummy images: every rank has an image where one has, and nothing else of a batch changes.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

mod packed;

use std::collections::BTreeSet;
use std::path::Path;

use stoker_reader::{Batch, Dealing, Layout, Modalities, Pixels, Reader, ReaderOptions, Step};

const RANKS: u32 = 4;

/// The batches that each rank gets in an epoch.
fn epochs(path: &Path, change: impl Fn(&mut ReaderOptions)) -> Vec<Vec<Batch>> {
    let of_rank = |rank| {
        let mut options = ReaderOptions::new(path, 8);
        options.world.micro_batch_size = 1;
        options.world.world_size = RANKS;
        options.world.rank = rank;
        options.layout = Some(Layout::Padded { multiple_of: 4 });
        options.pixels = Pixels::U8;
        change(&mut options);
        let mut reader = Reader::open(options).unwrap();
        let mut batches = Vec::new();
        while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
            batches.push(batch);
        }
        batches
    };
    (0..RANKS).map(of_rank).collect()
}

fn values<'a>(batch: &'a Batch, name: &str) -> (&'a [usize], Vec<i64>) {
    let tensor = batch.tensor(name).unwrap();
    let (words, _) = batch.bytes(tensor).as_chunks::<8>();
    let values = words.iter().map(|word| i64::from_le_bytes(*word));
    (&tensor.shape, values.collect())
}

fn images(batch: &Batch) -> usize {
    values(batch, "image_grid_thw").0[0]
}

fn bytes<'a>(batch: &'a Batch, name: &str) -> &'a [u8] {
    batch.bytes(batch.tensor(name).unwrap())
}

fn bounds(batch: &Batch) -> Vec<i32> {
    let (words, _) = bytes(batch, "cu_seqlens").as_chunks::<4>();
    words.iter().map(|word| i32::from_le_bytes(*word)).collect()
}

/// A padded batch with a dummy is `plain`, wider perhaps, and one row more.
fn check_padded(with: &Batch, plain: &Batch) {
    assert_eq!(with.units[..], [plain.units.clone(), vec![None]].concat());
    let ((shape, found), (narrow, expected)) =
        (values(with, "input_ids"), values(plain, "input_ids"));
    let (width, rows) = (shape[1], narrow[0]);
    assert_eq!((shape[0], width), (rows + 1, narrow[1].max(4)));
    for row in 0..rows {
        assert_eq!(
            found[row * width..][..narrow[1]],
            expected[row * narrow[1]..][..narrow[1]]
        );
    }
    let last = |name| values(with, name).1[rows * width..][..width].to_vec();
    assert_eq!(
        last("input_ids")[..2],
        [i64::from(synthetic::START), i64::from(synthetic::PAD)]
    );
    assert!(last("labels").iter().all(|label| *label == -100));
    assert_eq!(last("attention_mask")[..3], [1, 1, 0]);
    let positions = values(with, "position_ids").1;
    for axis in 0..3 {
        assert_eq!(positions[(axis * (rows + 1) + rows) * width..][..2], [0, 1]);
    }
}

#[test]
fn every_rank_has_an_image_where_one_has_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[120, 93, 37]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    let path = folder.path();
    for modalities in [Modalities::Any, Modalities::Same] {
        let dealing = |dummy_image| Dealing {
            modalities,
            dummy_image,
            ..Dealing::default()
        };
        let with = epochs(path, |options| options.dealing = dealing(true));
        let (mut dummies, mut steps, mut text_steps) = (0, 0, 0);
        for step in 0..with[0].len() {
            let each: Vec<&Batch> = with.iter().map(|batches| &batches[step]).collect();
            let counts: Vec<usize> = each.iter().map(|batch| images(batch)).collect();
            assert!(
                counts.iter().all(|count| (*count == 0) == (counts[0] == 0)),
                "{counts:?}"
            );
            assert!(
                each.iter()
                    .all(|batch| batch.n_loss_tokens == each[0].n_loss_tokens)
            );
            text_steps += usize::from(counts[0] == 0);
            dummies += each.iter().filter(|batch| batch.units.len() == 2).count();
            steps += each.len();
        }
        assert!(dummies > 0 && dummies < steps / 2, "{dummies} of {steps}");
        if modalities == Modalities::Same {
            assert!(text_steps > 0);
            continue;
        }
        let plain = epochs(path, |options| options.dealing = dealing(false));
        let packed = |dummy_image| {
            epochs(path, |options| {
                options.dealing = dealing(dummy_image);
                options.layout = Some(Layout::Packed);
                options.pixels = Pixels::F32;
            })
        };
        for (batch, plain) in with.iter().flatten().zip(plain.iter().flatten()) {
            if batch.units.len() == 1 {
                for tensor in plain.tensors() {
                    assert_eq!(bytes(batch, tensor.name), bytes(plain, tensor.name));
                }
                continue;
            }
            check_padded(batch, plain);
            assert_eq!(values(batch, "image_grid_thw").1, [1, 2, 2]);
            assert!(bytes(batch, "pixel_values").iter().all(|value| *value == 0));
            assert_eq!(batch.tensor("pixel_values").unwrap().shape[0], 4);
        }
        let (with, plain) = (packed(true), packed(false));
        for (batch, plain) in with.iter().flatten().zip(plain.iter().flatten()) {
            let tokens = values(plain, "input_ids").0[1];
            let mut expected = bounds(plain);
            if batch.units.len() == 2 {
                expected.push(tokens as i32 + 2);
                let labels = values(batch, "labels").1;
                assert_eq!(labels[..tokens], values(plain, "labels").1);
                assert_eq!(labels[tokens..], [-100, -100]);
                let positions = values(batch, "position_ids").1;
                for axis in 0..4 {
                    assert_eq!(positions[axis * (tokens + 2) + tokens..][..2], [0, 1]);
                }
                let (words, _) = bytes(batch, "pixel_values").as_chunks::<4>();
                // What a byte of 0 becomes in each of three channels.
                let black: BTreeSet<[u8; 4]> = words.iter().copied().collect();
                assert!(words.len() == 4 * 1536 && black.len() <= 3, "{black:?}");
            }
            assert_eq!(bounds(batch), expected);
        }
    }
}

#[test]
fn a_row_of_packs_grows_by_the_two_tokens_of_a_dummy() {
    const BUDGET: u32 = 96;
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[40, 31, 37]);
    let manifest = synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    // Text alone, and pictures with each other, so that many rows have none.
    let groups: packed::Groups = content
        .iter()
        .map(|part| {
            let all = 0..part.samples.len() as u32;
            let (text, pictures): (Vec<u32>, Vec<u32>) =
                all.partition(|row| part.samples[*row as usize].images.is_empty());
            let pictures = pictures.chunks(3).map(<[u32]>::to_vec);
            text.into_iter()
                .map(|row| vec![row])
                .chain(pictures)
                .collect()
        })
        .collect();
    packed::write(
        folder.path(),
        &manifest,
        &content,
        ("text", BUDGET),
        &groups,
    );
    for (micro, pixels) in [(1, Pixels::U8), (2, Pixels::F32)] {
        let read = |dummy_image| {
            epochs(folder.path(), |options| {
                options.world.micro_batch_size = micro;
                (options.pack, options.layout) = (Some("text".to_owned()), None);
                (options.pixels, options.sample_ids) = (pixels, true);
                options.dealing.dummy_image = dummy_image;
            })
        };
        let (with, plain) = (read(true), read(false));
        let mut dummies = 0;
        for (batch, plain) in with.iter().flatten().zip(plain.iter().flatten()) {
            let tokens = values(plain, "input_ids").0[1];
            // Packs take their budget, and an over-long one a multiple of 128.
            assert!((0..=micro as usize).any(|long| {
                let rest = tokens.checked_sub((micro as usize - long) * BUDGET as usize);
                rest.is_some_and(|rest| rest.is_multiple_of(128) && (rest > 0) == (long > 0))
            }));
            assert_eq!(batch.n_loss_tokens, plain.n_loss_tokens);
            if batch.units == plain.units {
                for tensor in plain.tensors() {
                    assert_eq!(bytes(batch, tensor.name), bytes(plain, tensor.name));
                }
                continue;
            }
            dummies += 1;
            let added = |name, more: &[i64]| {
                let ((shape, found), (narrow, expected)) =
                    (values(batch, name), values(plain, name));
                let rows = narrow.iter().product::<usize>() / tokens;
                assert_eq!(shape.last(), Some(&(tokens + 2)));
                for row in 0..rows {
                    let expected = [&expected[row * tokens..][..tokens], more].concat();
                    assert_eq!(found[row * (tokens + 2)..][..tokens + 2], expected);
                }
            };
            added(
                "input_ids",
                &[i64::from(synthetic::START), i64::from(synthetic::PAD)],
            );
            added("labels", &[-100, -100]);
            added("position_ids", &[0, 1]);
            assert_eq!(
                bounds(batch),
                [bounds(plain), vec![tokens as i32 + 2]].concat()
            );
            assert_eq!(batch.max_seqlen, plain.max_seqlen.max(2));
            assert_eq!(batch.units[..], [plain.units.clone(), vec![None]].concat());
            let ids = |batch: &Batch| batch.sample_ids.clone().unwrap();
            assert_eq!(ids(batch), [ids(plain), vec![String::new()]].concat());
            assert_eq!((images(plain), images(batch)), (0, 1));
            assert_eq!(values(batch, "image_grid_thw").1, [1, 2, 2]);
            assert_eq!(batch.tensor("pixel_values").unwrap().shape[0], 4);
        }
        assert!(dummies > 0, "{micro}");
        for step in 0..with[0].len() {
            let counts: Vec<bool> = with.iter().map(|rank| images(&rank[step]) > 0).collect();
            assert!(counts.iter().all(|has| *has == counts[0]), "{counts:?}");
        }
    }
}
