//! What every parser must withstand: bodies of the fuzz targets, shared by `tests/fuzz` and the smoke test.
//!
//! A body panics when a promise is broken, and returns otherwise. Invariant: a body reads nothing but
//! its bytes (and, for links, an empty folder).

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::OnceLock;

use stoker_builder::image::{Generation, ImageRecipe, Preparer, Profile, float_table, probe};
use stoker_builder::model::ModelFolder;
use stoker_builder::record::{ImageTag, RecordOptions, Shape, parse, scan_links};
use stoker_builder::source::{Base, Policy, resolve};
use stoker_builder::text::TextRecipe;
use stoker_formats::limits::PACK_BLOCK_BYTES;
use stoker_formats::{
    ContentHash, Counts, ImageIndex, ImageReceipt, Manifest, Members, PackEntry, PackOptions,
    PackOverlong, PackStrategy, PackTable, PackTableEntry, PackTableWriter, PackTotals, PartRecord,
    Result, SampleIndex, SampleReceipt, ShareRecord, VERSION, read_image, read_image_shard,
    read_sample, read_sample_shard,
};
use twox_hash::XxHash3_64;

use crate::corpus::model;

/// A fuzz target's body.
pub type Body = fn(&[u8]);

/// Every target by name.
pub const TARGETS: [(&str, Body); 10] = [
    ("shard", shard),
    ("index", index),
    ("receipt", receipt),
    ("manifest", manifest),
    ("record", record),
    ("link", link),
    ("image", image),
    ("recipe", recipe),
    ("pack_table", pack_table),
    ("pack_entry", pack_entry),
];

/// What ends a sealed document: `,"seal":"<64 hex digits>"}` and a line feed.
const SEAL_BYTES: usize = 9 + 64 + 3;

/// Images of the image target are small, so that many can be tried.
const PIXELS_MAX: u64 = 1 << 20;

/// Shards of both kinds: what is accepted can be read row by row.
///
/// # Panics
/// If an accepted shard has a row that cannot be read.
pub fn shard(bytes: &[u8]) {
    if let Ok((head, entries)) = read_image_shard(bytes) {
        for (row, entry) in (head.first_row..).zip(&entries) {
            let read = read_image(bytes, head.partition, row, entry);
            assert!(read.is_ok(), "row {row} of an accepted image shard");
        }
    }
    if let Ok((head, entries)) = read_sample_shard(bytes) {
        for (row, entry) in (head.first_row..).zip(&entries) {
            let read = read_sample(bytes, head.partition, row, entry);
            assert!(read.is_ok(), "row {row} of an accepted sample shard");
        }
    }
}

/// Indexes of both kinds: every row of an accepted one can be had.
///
/// # Panics
/// If one cannot.
pub fn index(bytes: &[u8]) {
    if let Ok(index) = ImageIndex::parse(bytes.to_vec()) {
        assert_eq!(index.iter().count() as u64, index.len());
        assert!(index.get(index.len()).is_none());
    }
    if let Ok(index) = SampleIndex::parse(bytes.to_vec()) {
        assert_eq!(index.iter().count() as u64, index.len());
        assert!(index.get(index.len()).is_none());
    }
}

/// `bytes` with a seal that fits, in the place of what may be one: a seal stops accidents, and nobody who means it.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let text = bytes
        .strip_suffix(b"\"}\n")
        .map_or(bytes, |_| &bytes[..bytes.len().saturating_sub(SEAL_BYTES)]);
    let tail = format!(",\"seal\":\"{}\"}}\n", blake3::hash(text));
    [text, tail.as_bytes()].concat()
}

/// Whatever passes behind its seal is written as something that means the same.
fn check_sealed<T: PartialEq + Debug>(
    bytes: &[u8],
    parse: impl Fn(&[u8]) -> Result<T>,
    write: impl Fn(&T) -> Result<Vec<u8>>,
) {
    if let Ok(document) = parse(&sealed(bytes)) {
        let again = write(&document).expect("what was read can be written");
        assert_eq!(parse(&again).expect("what was written"), document);
    }
}

/// Receipts of both kinds: an accepted one has exactly these bytes.
///
/// # Panics
/// If it is written in another way.
pub fn receipt(bytes: &[u8]) {
    if let Ok(receipt) = ImageReceipt::parse(bytes) {
        assert!(receipt.to_bytes().is_ok_and(|again| again == bytes));
    }
    if let Ok(receipt) = SampleReceipt::parse(bytes) {
        assert!(receipt.to_bytes().is_ok_and(|again| again == bytes));
    }
    check_sealed(bytes, ImageReceipt::parse, ImageReceipt::to_bytes);
    check_sealed(bytes, SampleReceipt::parse, SampleReceipt::to_bytes);
}

/// Manifests, and records of parts and shares: an accepted one has exactly these bytes.
///
/// # Panics
/// If it is written in another way.
pub fn manifest(bytes: &[u8]) {
    let parse = |bytes: &[u8]| Manifest::parse(bytes.to_vec());
    if let Ok(manifest) = parse(bytes) {
        assert!(manifest.to_bytes().is_ok_and(|again| again == bytes));
    }
    check_sealed(bytes, parse, Manifest::to_bytes);
    if let Ok(record) = PartRecord::parse(bytes) {
        assert!(record.to_bytes().is_ok_and(|again| again == bytes));
    }
    check_sealed(bytes, PartRecord::parse, PartRecord::to_bytes);
    if let Ok(record) = ShareRecord::parse(bytes) {
        assert!(record.to_bytes().is_ok_and(|again| again == bytes));
    }
    check_sealed(bytes, ShareRecord::parse, ShareRecord::to_bytes);
}

/// Records: the fast scan of the plan finds the links that the parser finds.
///
/// # Panics
/// If plan and text stage would disagree about a record.
pub fn record(bytes: &[u8]) {
    for shape in Shape::ALL {
        for image_tag in [ImageTag::Strip, ImageTag::Inplace] {
            let options = RecordOptions { image_tag };
            let scanned = scan_links(bytes, shape, &options);
            let Ok(parsed) = parse(bytes, shape, &options) else {
                continue;
            };
            let scanned = scanned.expect("a good record can be scanned");
            assert_eq!(scanned, parsed.links, "{shape:?}");
        }
    }
}

fn base() -> &'static (Base, tempfile::TempDir) {
    static BASE: OnceLock<(Base, tempfile::TempDir)> = OnceLock::new();
    BASE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().display().to_string();
        (Base::parse(&path).expect("a folder is a base"), folder)
    })
}

/// Links: whatever is allowed stays inside its root, and its canonical text means the same again.
///
/// # Panics
/// If an allowed link leaves its root or changes its meaning.
pub fn link(bytes: &[u8]) {
    let Ok(raw) = std::str::from_utf8(bytes) else {
        return;
    };
    let s3 = Base::parse("s3://bucket/prefix").expect("a bucket is a base");
    for base in [&base().0, &s3] {
        let policy = Policy::new([base], None, &[]).expect("a policy");
        let Ok(link) = resolve(raw, base, &policy) else {
            continue;
        };
        let canonical = link.canonical();
        if canonical.starts_with("data:") {
            continue;
        }
        let path = canonical.strip_prefix("s3://bucket/").unwrap_or(canonical);
        assert!(
            !canonical.starts_with('/') && !canonical.contains('\\'),
            "{canonical}"
        );
        assert!(!canonical.chars().any(char::is_control), "{canonical:?}");
        if path == canonical {
            let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
            assert!(path.split('/').all(plain), "{canonical}");
        }
        let again = resolve(canonical, base, &policy);
        assert!(
            again.is_ok_and(|again| again.key() == link.key()),
            "{canonical}"
        );
    }
}

/// Images: a header's promise is kept, and nothing above a limit is made.
///
/// # Panics
/// If patches and grid disagree, or the header promised something else.
pub fn image(bytes: &[u8]) {
    static RECIPE: OnceLock<ImageRecipe> = OnceLock::new();
    let recipe = RECIPE.get_or_init(|| {
        let model = ModelFolder::open(&model()).expect("the model");
        let made = ImageRecipe::new(
            Profile::TvPath,
            Generation::V5,
            model.family(),
            model.image(),
            Some(1024),
            Some(6144),
        );
        ImageRecipe {
            max_source_pixels: PIXELS_MAX,
            ..made.expect("a recipe")
        }
    });
    let probed = probe(bytes, recipe);
    let Ok(prepared) = Preparer::new(recipe.clone()).prepare(bytes) else {
        return;
    };
    let probed = probed.expect("what can be prepared has a good header");
    assert_eq!(probed.grid_thw, prepared.grid_thw);
    let patches: usize = prepared
        .grid_thw
        .iter()
        .map(|side| usize::try_from(*side).expect("positive"))
        .product();
    assert_eq!(prepared.patches.len(), patches * recipe.patch_bytes());
    assert!(u64::from(probed.source[0]) * u64::from(probed.source[1]) <= PIXELS_MAX);
}

/// Recipes as they stand in state files and manifests: what passes its check can be worked with.
///
/// # Panics
/// If it cannot.
pub fn recipe(bytes: &[u8]) {
    if let Ok(recipe) = serde_json::from_slice::<ImageRecipe>(bytes)
        && recipe.check().is_ok()
    {
        let table = float_table(&recipe);
        assert!(table.iter().flatten().all(|value| value.is_finite()));
        assert!(recipe.patch_bytes() > 0 && recipe.factor() > 0);
    }
    let _ = serde_json::from_slice::<TextRecipe>(bytes);
}

/// A pack table of three partitions and its entry.
///
/// # Panics
/// If it cannot be written.
#[must_use]
pub fn packed() -> (Vec<u8>, PackEntry) {
    let packs = [5u64, 0, 40];
    let mut writer = PackTableWriter::new(Vec::new()).expect("a table");
    let mut samples = Vec::new();
    for (partition, packs) in (0..).zip(packs) {
        let mut members = Members::default();
        let mut counts = Vec::new();
        let mut next = 0;
        for pack in 0..packs as u32 {
            let from = next;
            next += 1 + pack % 4;
            members.push((from..next).rev());
            counts.push(Counts {
                tokens: 100 + pack,
                loss_tokens: pack,
                images: pack % 3,
                patches: 16 * (pack % 3),
            });
        }
        writer.write(partition, &counts, &members).expect("packs");
        samples.push(u64::from(next));
    }
    let (bytes, table) = writer.finish().expect("a table");
    let entry = PackEntry {
        format_version: VERSION,
        created_by: "stoker test".into(),
        fingerprint: ContentHash::of(b"cache"),
        name: "256".parse().expect("a name"),
        options: PackOptions {
            max_tokens: 256,
            max_patches: Some(64),
            max_samples: None,
            by_modality: false,
            strategy: PackStrategy::BestFit,
            seed: 7,
            window: 4096,
            overlong: PackOverlong::Reject,
        },
        totals: PackTotals {
            samples: samples.iter().sum(),
            ..PackTotals::default()
        },
        table,
        overlong: None,
        packs: packs.to_vec(),
        samples,
    };
    (bytes, entry)
}

/// Pack tables behind their checksums: what is handed out keeps the entry's counts and limits.
///
/// # Panics
/// If it does not.
pub fn pack_table(bytes: &[u8]) {
    static ENTRY: OnceLock<PackEntry> = OnceLock::new();
    let mut entry = ENTRY.get_or_init(|| packed().1).clone();
    entry.table = PackTableEntry {
        bytes: bytes.len() as u64,
        hash: ContentHash::of(bytes),
        blocks: bytes
            .chunks(PACK_BLOCK_BYTES as usize)
            .map(XxHash3_64::oneshot)
            .collect(),
        ..entry.table
    };
    let Ok(table) = PackTable::open(bytes.to_vec(), &entry) else {
        return;
    };
    for ((partition, packs), samples) in (0..).zip(&entry.packs).zip(&entry.samples) {
        if let Ok(counts) = table.counts(partition) {
            assert_eq!(counts.len() as u64, *packs);
            let fits = |counts: &Counts| {
                counts.tokens <= entry.options.max_tokens
                    && Some(counts.patches) <= entry.options.max_patches
                    && counts.loss_tokens <= counts.tokens
            };
            assert!(counts.iter().all(fits));
        }
        if let Ok(members) = table.members(partition) {
            assert_eq!(members.len() as u64, *packs);
            let rows: Vec<u32> = members.iter().flatten().copied().collect();
            assert!(rows.iter().all(|row| u64::from(*row) < *samples));
            assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len());
        }
    }
}

/// Entries of pack tables behind their seal.
///
/// # Panics
/// If an accepted one has no fill rate, or is written as another one.
pub fn pack_entry(bytes: &[u8]) {
    check_sealed(bytes, PackEntry::parse, PackEntry::to_bytes);
    if let Ok(entry) = PackEntry::parse(&sealed(bytes)) {
        assert!(entry.fill_rate().is_finite());
    }
}

/// A target with a planted fault, to show that faults are found.
///
/// # Panics
/// For bytes that begin with a word one letter away from its seed.
pub fn canary(bytes: &[u8]) {
    assert!(!bytes.starts_with(b"STOKER"), "the canary sings");
}
