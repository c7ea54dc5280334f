//! Packs as units: what their batches hold, and in which order they come.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

mod packed;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use packed::Groups;
use stoker_formats::Manifest;
use stoker_reader::{
    Batch, CacheOptions, Cursor, Last, Layout, Pixels, Reader, ReaderOptions, Shuffle, Step, Tail,
    Unit,
};
use synthetic::Content;

const PARTITIONS: [u64; 4] = [31, 17, 24, 5];
/// The longest samples of the synthetic cache have more.
const SHORT: (&str, u32) = ("short", 20);
const LONG: (&str, u32) = ("long", 64);

struct Made {
    folder: tempfile::TempDir,
    content: Vec<Content>,
    short: Groups,
    long: Groups,
}

fn made_of(partitions: &[u64]) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(partitions);
    let manifest = synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    let table = |table: (&str, u32)| {
        let groups = packed::grouped(&content, table.1);
        packed::write(folder.path(), &manifest, &content, table, &groups);
        groups
    };
    let (short, long) = (table(SHORT), table(LONG));
    Made {
        folder,
        content,
        short,
        long,
    }
}

impl Made {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn options(&self, table: (&str, u32), global: u32, micro: u32) -> ReaderOptions {
        let mut options = ReaderOptions::new(self.path(), global);
        options.pack = Some(table.0.to_owned());
        options.world.micro_batch_size = micro;
        options.order.tail = Tail::All;
        options.order.last = Last::Pad;
        options.sample_ids = true;
        options
    }

    /// The sample ids of a pack.
    fn ids(&self, groups: &Groups, unit: Unit) -> Vec<&str> {
        let part = &self.content[unit.partition as usize];
        let rows = &groups[unit.partition as usize][unit.number as usize];
        let sample = |row: &u32| &*part.samples[*row as usize].sample_id;
        rows.iter().map(sample).collect()
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

fn bytes<'a>(batch: &'a Batch, name: &str) -> &'a [u8] {
    batch.bytes(batch.tensor(name).unwrap())
}

fn i64s(batch: &Batch, name: &str) -> Vec<i64> {
    let (words, rest) = bytes(batch, name).as_chunks::<8>();
    assert!(rest.is_empty());
    words.iter().map(|word| i64::from_le_bytes(*word)).collect()
}

fn borders(batch: &Batch) -> Vec<usize> {
    let (words, _) = bytes(batch, "cu_seqlens").as_chunks::<4>();
    let words = words.iter().map(|word| i32::from_le_bytes(*word));
    words.map(|border| border as usize).collect()
}

/// What a batch with one sample, or one pack, must hold.
#[derive(Default, Clone)]
struct Parts {
    input_ids: Vec<i64>,
    labels: Vec<i64>,
    positions: [Vec<i64>; 4],
    grids: Vec<i64>,
    pixels: Vec<u8>,
    lengths: Vec<usize>,
    ids: Vec<String>,
}

impl Parts {
    fn of(batch: &Batch) -> Self {
        let positions = i64s(batch, "position_ids");
        let length = positions.len() / 4;
        Self {
            input_ids: i64s(batch, "input_ids"),
            labels: i64s(batch, "labels"),
            positions: [0, 1, 2, 3].map(|axis| positions[axis * length..][..length].to_vec()),
            grids: i64s(batch, "image_grid_thw"),
            pixels: bytes(batch, "pixel_values").to_vec(),
            lengths: borders(batch)
                .windows(2)
                .map(|two| two[1] - two[0])
                .collect(),
            ids: batch.sample_ids.clone().unwrap(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.input_ids.extend(&other.input_ids);
        self.labels.extend(&other.labels);
        for (axis, other) in self.positions.iter_mut().zip(&other.positions) {
            axis.extend(other);
        }
        self.grids.extend(&other.grids);
        self.pixels.extend(&other.pixels);
        self.lengths.extend(&other.lengths);
        self.ids.extend(other.ids.iter().cloned());
    }

    /// Fills up to `length` with a segment of padding.
    fn pad(&mut self, length: usize) {
        let count = length - self.input_ids.len();
        if count > 0 {
            self.input_ids.resize(length, 0);
            self.labels.resize(length, -100);
            for axis in &mut self.positions {
                axis.extend(0..count as i64);
            }
            self.lengths.push(count);
            self.ids.push(String::new());
        }
    }
}

/// Every sample as a packed batch by itself, by id.
fn singles(made: &Made, kind: Pixels) -> HashMap<String, Parts> {
    let mut options = made.options(LONG, 1, 1);
    (options.pack, options.layout, options.pixels) = (None, Some(Layout::Packed), kind);
    let batches = epoch(&mut Reader::open(options).unwrap());
    let parts = batches.iter().map(Parts::of);
    parts.map(|parts| (parts.ids[0].clone(), parts)).collect()
}

/// Tokens that a pack of `filled` tokens takes.
fn width(filled: usize, budget: usize) -> usize {
    if filled <= budget {
        budget
    } else {
        filled.div_ceil(128) * 128
    }
}

#[test]
fn a_pack_is_its_samples_one_after_another() {
    let made = made_of(&PARTITIONS);
    for kind in [Pixels::U8, Pixels::F32, Pixels::BF16] {
        let singles = singles(&made, kind);
        let (mut alone, mut several, mut text, mut paddings) = (0, 0, 0, 0);
        assert_eq!(singles.len(), 72);
        for (table, groups) in [(SHORT, &made.short), (LONG, &made.long)] {
            let budget = table.1 as usize;
            for micro in [1, 2] {
                let mut options = made.options(table, 4, micro);
                options.pixels = kind;
                let batches = epoch(&mut Reader::open(options).unwrap());
                for batch in &batches {
                    let mut expected = Parts::default();
                    for unit in &batch.units {
                        let mut pack = Parts::default();
                        let ids = unit.map_or(vec![], |unit| made.ids(groups, unit));
                        ids.iter().for_each(|id| pack.add(&singles[*id]));
                        several += usize::from(ids.len() > 1);
                        alone += usize::from(pack.input_ids.len() > budget);
                        text += usize::from(unit.is_some() && pack.grids.is_empty());
                        pack.pad(width(pack.input_ids.len(), budget));
                        expected.add(&pack);
                    }
                    let found = Parts::of(batch);
                    assert_eq!(found.ids, expected.ids);
                    assert_eq!(found.lengths, expected.lengths);
                    assert_eq!(found.input_ids, expected.input_ids);
                    assert_eq!(found.labels, expected.labels);
                    assert_eq!(found.positions, expected.positions);
                    assert_eq!(found.grids, expected.grids);
                    assert!(found.pixels == expected.pixels);
                    assert_eq!(Some(&batch.max_seqlen), expected.lengths.iter().max());
                    let length = expected.input_ids.len();
                    assert_eq!(borders(batch).last(), Some(&length));
                    assert_eq!(batch.tensor("input_ids").unwrap().shape, [1, length]);
                    assert_eq!(batch.tensor("position_ids").unwrap().shape, [4, 1, length]);
                }
                let padding = batches.iter().flat_map(|batch| &batch.units);
                let padding = padding.filter(|unit| unit.is_none()).count();
                let packs: usize = groups[..3].iter().map(Vec::len).sum();
                assert_eq!(padding, packs.next_multiple_of(4) - packs);
                paddings += padding;
            }
        }
        // All kinds were seen.
        assert!(alone > 0 && several > 0 && text > 0 && paddings > 0);
    }
}

/// Opens rank `rank` of `world` on the whole of `made`.
fn open(made: &Made, table: (&str, u32), world: u32, rank: u32) -> Reader {
    let mut options = made.options(table, 6, 1);
    (options.world.world_size, options.world.rank) = (world, rank);
    Reader::open(options).unwrap()
}

#[test]
fn every_sample_comes_once_an_epoch_whatever_the_world() {
    let made = made_of(&PARTITIONS);
    let mut batches_of: Option<BTreeMap<(u64, u64), Vec<String>>> = None;
    for world in [1, 2, 3, 6] {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut batches: BTreeMap<(u64, u64), Vec<String>> = BTreeMap::new();
        let mut loss: BTreeMap<(u64, u64), (u64, usize)> = BTreeMap::new();
        for rank in 0..world {
            for batch in epoch(&mut open(&made, LONG, world, rank)) {
                let at = (batch.epoch, batch.position);
                let ids = batch.sample_ids.iter().flatten();
                for id in ids.filter(|id| !id.is_empty()) {
                    *seen.entry(id.clone()).or_default() += 1;
                    batches.entry(at).or_default().push(id.clone());
                }
                let learnt = i64s(&batch, "labels");
                let learnt = learnt.iter().filter(|label| **label != -100).count();
                let sum = loss.entry(at).or_insert((batch.n_loss_tokens, 0));
                assert_eq!(sum.0, batch.n_loss_tokens);
                sum.1 += learnt;
            }
        }
        assert_eq!(seen.len(), 72);
        assert!(seen.values().all(|count| *count == 1));
        assert!(loss.values().all(|(said, found)| *said == *found as u64));
        // A global batch holds the same for every world.
        batches.values_mut().for_each(|ids| ids.sort());
        assert_eq!(batches_of.get_or_insert_with(|| batches.clone()), &batches);
    }
}

#[test]
fn partitions_give_equal_shares_of_packs() {
    let made = made_of(&PARTITIONS);
    let mut options = made.options(LONG, 1, 1);
    options.order.tail = Tail::Even;
    let mut reader = Reader::open(options).unwrap();
    let least = made.long[..3].iter().map(Vec::len).min().unwrap();
    for _ in 0..2 {
        let mut taken = [0; 3];
        for batch in epoch(&mut reader) {
            taken[batch.units[0].unwrap().partition as usize] += 1;
        }
        assert_eq!(taken, [least; 3]);
    }
}

/// What a batch says, for comparing runs.
fn summary(batch: &Batch) -> (u64, u64, u32, Vec<String>, Vec<i64>, Vec<u8>) {
    (
        batch.epoch,
        batch.position,
        batch.micro_batch,
        batch.sample_ids.clone().unwrap(),
        i64s(batch, "input_ids"),
        bytes(batch, "pixel_values").to_vec(),
    )
}

/// The next batch, over the ends of epochs.
fn next(reader: &mut Reader) -> Batch {
    loop {
        match reader.next_batch(None).unwrap() {
            Step::Batch(batch) => return batch,
            Step::EpochEnd => {}
            Step::TimedOut => panic!("waits without end"),
        }
    }
}

#[test]
fn a_mixture_of_packed_caches_resumes_after_every_batch() {
    let (one, two) = (made_of(&PARTITIONS), made_of(&[13, 8, 2]));
    let options = || {
        let mut options = one.options(LONG, 6, 2);
        options.caches[0].weight = Some(1.0);
        options.caches.push(CacheOptions {
            weight: Some(2.0),
            ..CacheOptions::new(two.path())
        });
        options
    };
    let mut reader = Reader::open(options()).unwrap();
    let count = reader.epoch_batches() as usize * 2 + 3;
    let (mut cursors, mut batches) = (Vec::new(), Vec::new());
    for _ in 0..count {
        cursors.push(reader.cursor().unwrap().to_json());
        batches.push(next(&mut reader));
    }
    let caches = batches.iter().flat_map(|batch| &batch.units).flatten();
    assert!(
        caches.clone().any(|unit| unit.cache == 0) && caches.clone().any(|unit| unit.cache == 1)
    );
    for (start, cursor) in cursors.iter().enumerate() {
        assert!(cursor.len() <= 1024);
        let mut resumed = Reader::open(options()).unwrap();
        resumed
            .restore(&Cursor::from_json(cursor).unwrap())
            .unwrap();
        for expected in batches[start..].iter().take(4) {
            assert!(summary(&next(&mut resumed)) == summary(expected));
        }
    }
}

#[test]
fn another_world_goes_on_at_a_border() {
    let made = made_of(&PARTITIONS);
    let rest = |from: Option<&Cursor>, world| {
        let mut ids: Vec<String> = Vec::new();
        for rank in 0..world {
            let mut reader = open(&made, LONG, world, rank);
            if let Some(cursor) = from {
                reader.restore(cursor).unwrap();
            }
            let batches = epoch(&mut reader);
            ids.extend(
                batches
                    .into_iter()
                    .flat_map(|batch| batch.sample_ids.unwrap()),
            );
        }
        ids.sort();
        ids
    };
    let mut reader = open(&made, LONG, 1, 0);
    let mut given: Vec<String> = Vec::new();
    for _ in 0..2 * 6 {
        given.extend(next(&mut reader).sample_ids.unwrap());
    }
    let cursor = reader.cursor().unwrap();
    let whole = rest(None, 1);
    for world in [1, 2, 3] {
        let mut both = [given.clone(), rest(Some(&cursor), world)].concat();
        both.sort();
        assert_eq!(both, whole);
    }
}

#[test]
fn a_cursor_of_other_units_is_refused_naming_both() {
    let made = made_of(&PARTITIONS);
    let reader = |pack: Option<&str>| {
        let mut options = made.options(LONG, 4, 4);
        options.pack = pack.map(str::to_owned);
        Reader::open(options).unwrap()
    };
    let units = [None, Some("short"), Some("long")];
    for saved in units {
        let cursor = reader(saved).cursor().unwrap();
        for given in units.into_iter().filter(|given| *given != saved) {
            let mut other = reader(given);
            let error = other.restore(&cursor).unwrap_err().to_string();
            let words =
                |pack: Option<&str>| pack.map_or("sample".into(), |name| format!("pack {name}"));
            assert!(error.contains(&words(saved)), "{error}");
            assert!(error.contains(&format!("`{}`", words(given))), "{error}");
            assert!(matches!(other.next_batch(None), Ok(Step::Batch(_))));
        }
        assert!(reader(saved).restore(&cursor).is_ok());
    }
    // Another table of the same name is other data.
    let cursor = reader(Some("long")).cursor().unwrap();
    let manifest = std::fs::read(made.path().join("manifest.json")).unwrap();
    let manifest = Manifest::parse(manifest).unwrap();
    let mut groups = made.long.clone();
    groups[0][0].reverse();
    packed::write(made.path(), &manifest, &made.content, LONG, &groups);
    let error = reader(Some("long"))
        .restore(&cursor)
        .unwrap_err()
        .to_string();
    assert!(error.contains("another data set"), "{error}");
}

#[test]
fn rows_within_a_pack_may_stand_in_any_order() {
    let made = made_of(&[9, 4]);
    let manifest = std::fs::read(made.path().join("manifest.json")).unwrap();
    let manifest = Manifest::parse(manifest).unwrap();
    let groups = vec![
        vec![vec![8, 0, 5], vec![3, 1], vec![7, 2, 4, 6]],
        vec![vec![0, 1, 2, 3]],
    ];
    packed::write(made.path(), &manifest, &made.content, ("any", 200), &groups);
    let mut options = made.options(("any", 200), 1, 1);
    options.order.shuffle = Shuffle::None;
    for (pack, batch) in epoch(&mut Reader::open(options).unwrap())
        .iter()
        .enumerate()
    {
        let unit = batch.units[0].unwrap();
        assert_eq!(unit.number, pack as u64);
        let ids = batch.sample_ids.as_ref().unwrap();
        assert_eq!(ids[..ids.len() - 1], made.ids(&groups, unit));
        assert_eq!(ids.last().unwrap(), "");
    }
}
