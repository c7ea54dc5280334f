//! Batches of a reader, against the rows that were written.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::HashMap;
use std::path::Path;

use stoker_formats::SampleData;
use stoker_reader::{
    Backend, Batch, CacheOptions, Cursor, Dtype, Last, Layout, Pixels, Reader, ReaderOptions,
    Shuffle, Step, Tail, Verify,
};
use synthetic::Content;

const PARTITIONS: [u64; 4] = [11, 7, 9, 5];

struct Made {
    folder: tempfile::TempDir,
    content: Vec<Content>,
}

fn made() -> Made {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&PARTITIONS);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    Made { folder, content }
}

impl Made {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn options(&self, global: u32, micro: u32) -> ReaderOptions {
        let mut options = ReaderOptions::new(self.path(), global);
        options.world.micro_batch_size = micro;
        options.order.tail = Tail::All;
        options.order.last = Last::Pad;
        options.sample_ids = true;
        options
    }

    fn sample(&self, id: &str) -> (&SampleData, &Content) {
        let all = self.content.iter();
        all.flat_map(|part| part.samples.iter().map(move |sample| (sample, part)))
            .find(|(sample, _)| sample.sample_id == id)
            .unwrap()
    }
}

fn epoch(reader: &mut Reader) -> Vec<Batch> {
    let mut batches = Vec::new();
    loop {
        match reader.next_batch(None).unwrap() {
            Step::Batch(batch) => batches.push(batch),
            Step::EpochEnd => return batches,
            Step::TimedOut => panic!("waits without end"),
        }
    }
}

fn i64s(batch: &Batch, name: &str) -> Vec<i64> {
    let tensor = batch.tensor(name).unwrap();
    assert_eq!(tensor.dtype, Dtype::I64, "{name}");
    let (words, rest) = batch.bytes(tensor).as_chunks::<8>();
    assert!(rest.is_empty());
    words.iter().map(|word| i64::from_le_bytes(*word)).collect()
}

fn shape<'a>(batch: &'a Batch, name: &str) -> &'a [usize] {
    &batch.tensor(name).unwrap().shape
}

/// Positions by the rule's own words, for grids of one frame.
fn positions(sample: &SampleData) -> [Vec<i64>; 3] {
    let mut axes = [const { Vec::new() }; 3];
    let (mut next, mut token, mut grids) = (0, 0, sample.image_grid_thw.iter());
    while token < sample.input_ids.len() {
        if sample.input_ids[token] != synthetic::PAD {
            axes.iter_mut().for_each(|axis| axis.push(next));
            (next, token) = (next + 1, token + 1);
            continue;
        }
        let [_, h, w] = grids.next().unwrap().map(|side| i64::from(side / 2));
        for (row, column) in (0..h).flat_map(|row| (0..w).map(move |column| (row, column))) {
            let at = [next, next + row, next + column];
            axes.iter_mut().zip(at).for_each(|(axis, at)| axis.push(at));
        }
        token += (h * w).max(1) as usize;
        next += h.max(w);
    }
    axes
}

/// The bytes of `pixel_values` that a batch must have.
fn pixels(made: &Made, batch: &Batch, kind: Pixels) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in batch.sample_ids.as_ref().unwrap() {
        if id.is_empty() {
            continue;
        }
        let (sample, part) = made.sample(id);
        for image in &sample.images {
            for patch in part.images[*image as usize].patches.chunks_exact(768) {
                if kind == Pixels::U8 {
                    bytes.extend_from_slice(patch);
                    continue;
                }
                for (channel, plane) in patch.chunks_exact(256).enumerate() {
                    for byte in [plane, plane].concat() {
                        let value = synthetic::float(channel, byte);
                        match kind {
                            Pixels::F32 => bytes.extend(value.to_le_bytes()),
                            _ => {
                                let bits = value.to_bits();
                                let rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
                                bytes.extend((rounded as u16).to_le_bytes());
                            }
                        }
                    }
                }
            }
        }
    }
    bytes
}

/// Holds a batch against the samples that it names.
fn check(made: &Made, batch: &Batch, layout: Layout, kind: Pixels) {
    let ids = batch.sample_ids.as_ref().unwrap();
    let samples: Vec<Option<&SampleData>> = ids
        .iter()
        .map(|id| (!id.is_empty()).then(|| made.sample(id).0))
        .collect();
    assert_eq!(
        batch.units.iter().map(Option::is_some).collect::<Vec<_>>(),
        samples.iter().map(Option::is_some).collect::<Vec<_>>()
    );
    assert!(batch.bytes(batch.tensor("pixel_values").unwrap()) == pixels(made, batch, kind));
    let grids: Vec<i64> = samples
        .iter()
        .flatten()
        .flat_map(|sample| sample.image_grid_thw.iter().flatten())
        .map(|side| i64::from(*side))
        .collect();
    assert_eq!(i64s(batch, "image_grid_thw"), grids);
    assert_eq!(shape(batch, "image_grid_thw"), [grids.len() / 3, 3]);

    let (input_ids, labels) = (i64s(batch, "input_ids"), i64s(batch, "labels"));
    let position_ids = i64s(batch, "position_ids");
    let plane = input_ids.len();
    let lengths: Vec<usize> = samples
        .iter()
        .map(|sample| sample.map_or(1, |sample| sample.input_ids.len()))
        .collect();
    let longest = *lengths.iter().max().unwrap();
    let width = match layout {
        Layout::Padded { multiple_of } => longest.next_multiple_of(multiple_of),
        Layout::Packed => plane,
    };
    let mut at = 0;
    for (row, (sample, length)) in samples.iter().zip(&lengths).enumerate() {
        if let Layout::Padded { .. } = layout {
            at = row * width;
            let mask = i64s(batch, "attention_mask");
            let ones = mask[at..at + width].iter().filter(|value| **value == 1);
            assert_eq!(ones.count(), *length);
            assert!(mask[at..at + length].iter().all(|value| *value == 1));
            assert!(input_ids[at + length..at + width].iter().all(|id| *id == 0));
            assert!(
                labels[at + length..at + width]
                    .iter()
                    .all(|label| *label == -100)
            );
            for axis in 0..3 {
                let pad = &position_ids[axis * plane..][at + length..at + width];
                assert!(pad.iter().all(|position| *position == 1));
            }
        }
        let Some(sample) = sample else {
            assert_eq!(labels[at], -100);
            at += length;
            continue;
        };
        let wide = |values: &[i32]| values.iter().copied().map(i64::from).collect::<Vec<_>>();
        assert_eq!(input_ids[at..at + length], wide(&sample.input_ids));
        assert_eq!(labels[at..at + length], wide(&sample.labels));
        let axes = positions(sample);
        let first = usize::from(layout == Layout::Packed);
        if first == 1 {
            assert!(
                (0i64..)
                    .zip(&position_ids[at..at + length])
                    .all(|(count, position)| count == *position)
            );
        }
        for (axis, expected) in axes.iter().enumerate() {
            let start = (axis + first) * plane + at;
            assert_eq!(
                &position_ids[start..start + length],
                expected,
                "axis {axis}"
            );
        }
        at += length;
    }
    if layout == Layout::Packed {
        let tensor = batch.tensor("cu_seqlens").unwrap();
        assert_eq!(tensor.dtype, Dtype::I32);
        let (words, _) = batch.bytes(tensor).as_chunks::<4>();
        let mut sum = 0;
        let mut bounds = vec![0];
        bounds.extend(lengths.iter().map(|length| {
            sum += *length as i32;
            sum
        }));
        let found: Vec<i32> = words.iter().map(|word| i32::from_le_bytes(*word)).collect();
        assert_eq!(found, bounds);
        assert_eq!(batch.max_seqlen, longest);
    }
}

#[test]
fn batches_hold_what_was_written_in_every_layout_type_and_backend() {
    let made = made();
    let layouts = [
        Layout::default(),
        Layout::Padded { multiple_of: 16 },
        Layout::Packed,
    ];
    for layout in layouts {
        for kind in [Pixels::U8, Pixels::F32, Pixels::BF16] {
            for backend in [Backend::Pread, Backend::Direct, Backend::Mmap] {
                let mut options = made.options(8, 2);
                (options.layout, options.pixels) = (Some(layout), kind);
                options.position_pad = 1;
                options.backend = backend;
                let mut reader = match Reader::open(options) {
                    Ok(reader) => reader,
                    Err(error) => panic!("{error}"),
                };
                let mut counts: HashMap<String, usize> = HashMap::new();
                let batches = match backend {
                    // Memory file systems may have no direct reads; the backend's own test runs elsewhere.
                    Backend::Direct => match reader.next_batch(None) {
                        Ok(Step::Batch(batch)) => vec![batch],
                        Ok(other) => panic!("{other:?}"),
                        Err(error) if error.to_string().contains("no direct reads") => continue,
                        Err(error) => panic!("{error}"),
                    },
                    _ => epoch(&mut reader),
                };
                for batch in &batches {
                    check(&made, batch, layout, kind);
                    for id in batch.sample_ids.iter().flatten() {
                        *counts.entry(id.clone()).or_default() += 1;
                    }
                }
                if backend != Backend::Direct {
                    assert_eq!(batches.len() as u64, reader.epoch_batches());
                    // 27 samples of `train` in 4 batches of 8: 5 padding rows.
                    assert_eq!(counts.remove(""), Some(5));
                    assert_eq!(counts.len(), 27);
                    assert!(counts.values().all(|count| *count == 1));
                }
            }
        }
    }
}

#[test]
fn the_loss_tokens_are_those_of_the_global_batch_on_every_rank() {
    let made = made();
    let mut by_position: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for rank in 0..4 {
        let mut options = made.options(8, 1);
        options.world.world_size = 4;
        options.world.rank = rank;
        for batch in epoch(&mut Reader::open(options).unwrap()) {
            let own: usize = i64s(&batch, "labels")
                .iter()
                .filter(|label| **label != -100)
                .count();
            let entry = by_position
                .entry((batch.epoch, batch.position))
                .or_insert((batch.n_loss_tokens, 0));
            assert_eq!(entry.0, batch.n_loss_tokens);
            entry.1 += own as u64;
        }
    }
    assert_eq!(by_position.len(), 4);
    assert!(by_position.values().all(|(said, found)| said == found));
}

#[test]
fn text_only_batches_have_empty_tensors() {
    let made = made();
    let mut options = made.options(1, 1);
    options.order.shuffle = Shuffle::None;
    let mut reader = Reader::open(options).unwrap();
    let batches = epoch(&mut reader);
    let text = batches
        .iter()
        .find(|batch| i64s(batch, "image_grid_thw").is_empty())
        .unwrap();
    assert_eq!(shape(text, "pixel_values"), [0, 1536]);
    assert_eq!(shape(text, "image_grid_thw"), [0, 3]);
    let names = |batch: &Batch| {
        batch
            .tensors()
            .iter()
            .map(|tensor| tensor.name)
            .collect::<Vec<_>>()
    };
    assert!(batches.iter().all(|batch| names(batch) == names(text)));
}

/// What a batch says, for comparing runs.
fn summary(batch: &Batch) -> (u64, u64, u32, Vec<String>, u64, u64) {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for tensor in batch.tensors() {
        for byte in batch.bytes(tensor) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    (
        batch.epoch,
        batch.position,
        batch.micro_batch,
        batch.sample_ids.clone().unwrap_or_default(),
        batch.n_loss_tokens,
        hash,
    )
}

#[test]
fn a_cursor_saved_before_any_batch_gives_the_same_rest() {
    let (made, other) = (made(), made());
    for (layout, depth, threads, mixed) in [
        (Layout::default(), 0, 1, false),
        (Layout::Packed, 1, 2, true),
        (Layout::Packed, 8, 3, false),
        (Layout::default(), 8, 2, true),
    ] {
        let options = || {
            let mut options = made.options(6, 2);
            if mixed {
                options.caches.push(CacheOptions::new(other.path()));
                for (cache, weight) in options.caches.iter_mut().zip([2.0, 1.0]) {
                    cache.weight = Some(weight);
                }
            }
            options.layout = Some(layout);
            options.prefetch_batches = depth;
            options.threads = threads;
            options
        };
        let mut reader = Reader::open(options()).unwrap();
        let (mut cursors, mut batches) = (Vec::new(), Vec::new());
        let mut epochs = 0;
        while epochs < 3 {
            let cursor = reader.cursor().unwrap().to_json();
            match reader.next_batch(None).unwrap() {
                Step::Batch(batch) => {
                    cursors.push(cursor);
                    batches.push(summary(&batch));
                }
                Step::EpochEnd => epochs += 1,
                Step::TimedOut => panic!("waits without end"),
            }
        }
        assert_eq!(batches.len() as u64, 3 * reader.epoch_batches());
        for (start, cursor) in cursors.iter().enumerate() {
            let mut resumed = Reader::open(options()).unwrap();
            resumed
                .restore(&Cursor::from_json(cursor).unwrap())
                .unwrap();
            for expected in &batches[start..] {
                loop {
                    match resumed.next_batch(None).unwrap() {
                        Step::Batch(batch) => {
                            assert_eq!(&summary(&batch), expected);
                            break;
                        }
                        Step::EpochEnd => {}
                        Step::TimedOut => panic!("waits without end"),
                    }
                }
            }
        }
    }
}

#[test]
fn any_budget_delivers_everything() {
    let made = made();
    let mut expected = None;
    for budget in [1, 10_000, 1 << 30] {
        for depth in [0, 1, 8] {
            let mut options = made.options(4, 4);
            options.prefetch_bytes = Some(budget);
            options.prefetch_batches = depth;
            options.threads = 3;
            let mut reader = Reader::open(options).unwrap();
            let found: Vec<_> = epoch(&mut reader).iter().map(summary).collect();
            assert_eq!(expected.get_or_insert_with(|| found.clone()), &found);
        }
    }
}

#[test]
fn a_dropped_reader_leaves_no_thread_and_no_descriptor() {
    let made = made();
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    let opened = |budget| {
        let mut options = made.options(4, 4);
        options.prefetch_bytes = Some(budget);
        let mut reader = Reader::open(options).unwrap();
        assert!(matches!(reader.next_batch(None).unwrap(), Step::Batch(_)));
    };
    opened(1 << 20);
    let before = (count("task"), count("fd"));
    for round in 0..1000 {
        opened(if round % 2 == 0 { 1 } else { 1 << 20 });
    }
    // Other tests of this file may run threads and open files of their own meanwhile.
    let after = (count("task"), count("fd"));
    assert!(
        after.0 < before.0 + 50 && after.1 < before.1 + 200,
        "{before:?} {after:?}"
    );
}

#[test]
fn damage_is_named_and_never_delivered() {
    let made = made();
    let shard = made.path().join(format!(
        "images-{}/shards/p0000-000000.arrow",
        "11".repeat(16)
    ));
    let intact = std::fs::read(&shard).unwrap();
    let mut changed = intact.clone();
    // Inside the patches of the first image.
    let at = intact
        .windows(4)
        .position(|four| four == [0, 13, 26, 39])
        .unwrap_or(intact.len() / 2);
    changed[at] ^= 1;
    for (bytes, verify) in [
        (changed.clone(), Verify::FirstRead),
        (changed, Verify::Always),
        (intact[..intact.len() - 100].to_vec(), Verify::Off),
    ] {
        let mut options = made.options(1, 1);
        options.verify = verify;
        let mut reader = Reader::open(options).unwrap();
        std::fs::write(&shard, &bytes).unwrap();
        let error = loop {
            match reader.next_batch(None) {
                Ok(Step::Batch(batch)) => check(&made, &batch, Layout::default(), Pixels::BF16),
                Ok(_) => panic!("damage was not noticed"),
                Err(error) => break error,
            }
        };
        let text = error.to_string();
        assert!(text.contains("p0000-000000.arrow"), "{text}");
        assert!(text.contains("partition 0"), "{text}");
        let stopped = reader.next_batch(None).unwrap_err().to_string();
        assert!(stopped.contains("has stopped"), "{stopped}");
        std::fs::write(&shard, &intact).unwrap();
        let cursor = reader.cursor().unwrap();
        reader.restore(&cursor).unwrap();
        assert!(!epoch(&mut reader).is_empty());
    }
    std::fs::remove_file(&shard).unwrap();
    let missing = Reader::open(made.options(1, 1)).unwrap_err().to_string();
    assert!(missing.contains("1 file is missing"), "{missing}");
}
