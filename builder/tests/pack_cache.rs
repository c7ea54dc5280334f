//! `stoker pack` on a cache: what it leaves, what it refuses, what `verify` says of damaged and of wrong tables, and what
//! becomes of tables that no run needs any more.

#[path = "../../tests/src/synthetic.rs"]
#[expect(unreachable_pub, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use stoker_builder::Error;
use stoker_builder::build::Stop;
use stoker_builder::inspect::summarise;
use stoker_builder::pack::{Report, Request, default_name, pack};
use stoker_builder::verify::{Fault, NoteKind, verify};
use stoker_formats::{
    Members, PackEntry, PackFile, PackOptions, PackOverlong, PackStrategy, PackTable,
    PackTableWriter,
};
use stoker_reader::{Cache, CacheFiles};

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(
        folder.path(),
        &synthetic::content(),
        &synthetic::opaque_tables(),
    );
    folder
}

fn request(root: &Path, max_tokens: u32) -> Request {
    Request {
        cache: root.to_path_buf(),
        name: None,
        options: PackOptions {
            max_tokens,
            max_patches: None,
            max_samples: None,
            by_modality: false,
            strategy: PackStrategy::BestFit,
            seed: 3,
            window: 8,
            overlong: PackOverlong::Reject,
        },
        threads: 2,
        show: false,
    }
}

fn run(request: &Request) -> Result<Report, Error> {
    pack(request, &Stop::default())
}

/// The token counts of all samples, ascending.
fn lengths(root: &Path) -> Vec<u32> {
    let files = CacheFiles::open(root).unwrap();
    let mut lengths: Vec<u32> = (0..files.partitions())
        .flat_map(|partition| {
            let index = files.sample_index(partition).unwrap();
            index.iter().map(|entry| entry.n_tokens).collect::<Vec<_>>()
        })
        .collect();
    lengths.sort_unstable();
    lengths
}

fn packs(root: &Path) -> PathBuf {
    root.join("packs")
}

fn names(root: &Path) -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir(packs(root)) else {
        return BTreeSet::new();
    };
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn entry(root: &Path, name: &str) -> PackEntry {
    let path = packs(root).join(format!("{name}.json"));
    PackEntry::parse(&fs::read(path).unwrap()).unwrap()
}

/// What `verify` says is damaged: file, fault and what.
fn damages(root: &Path, deep: bool) -> Vec<(String, Fault, String)> {
    let report = verify(root, deep, false).unwrap();
    assert_eq!(report.sound, report.damages.is_empty());
    assert_eq!(report.lost_samples, 0);
    let damages = report.damages.into_iter();
    damages
        .map(|damage| (damage.file, damage.fault, damage.what))
        .collect()
}

/// A partition of at most eight samples is one padded batch, whatever the draw.
#[test]
fn padding_is_that_of_padded_batches() {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[7, 8, 3]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    let (mut real, mut padded) = (0, 0);
    for part in &content {
        let lengths = || part.samples.iter().map(|sample| sample.input_ids.len());
        real += lengths().sum::<usize>();
        padded += lengths().max().unwrap() * part.samples.len();
    }
    assert!(real < padded);
    let report = run(&request(folder.path(), 1000)).unwrap();
    let expected = 1.0 - real as f64 / padded as f64;
    let found = report.padded_batch_padding.unwrap();
    assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
    let fill = real as f64 / (report.packs * 1000) as f64;
    assert!(
        (report.fill_rate - fill).abs() < 1e-9,
        "{}",
        report.fill_rate
    );
}

#[test]
fn a_table_holds_every_sample_once_and_is_sound() {
    let folder = made();
    let root = folder.path();
    let max_tokens = lengths(root).last().unwrap() * 3;
    let report = run(&request(root, max_tokens)).unwrap();
    assert!(report.made && report.padded_batch_padding.is_some());
    assert_eq!((report.samples, report.overlong), (23, 0));
    assert_eq!(
        report.tokens,
        lengths(root).iter().map(|n| u64::from(*n)).sum::<u64>()
    );
    assert_eq!(names(root).len(), 2);
    assert_eq!(damages(root, false), []);
    assert_eq!(damages(root, true), []);
    let report = verify(root, true, false).unwrap();
    assert_eq!(report.pack_tables, [max_tokens.to_string()]);
    assert_eq!(report.notes, []);
    let summary = summarise(&CacheFiles::open(root).unwrap()).unwrap();
    assert_eq!(summary.pack_tables.len(), 1);
    assert!(summary.pack_tables[0].current);
    // Every way to pack keeps all promises.
    for (number, change) in [
        |options: &mut PackOptions| options.by_modality = true,
        |options: &mut PackOptions| options.strategy = PackStrategy::Ffd,
        |options: &mut PackOptions| options.max_patches = Some(12),
        |options: &mut PackOptions| options.max_samples = Some(2),
        |options: &mut PackOptions| options.overlong = PackOverlong::Alone,
        |options: &mut PackOptions| options.seed = 4,
    ]
    .into_iter()
    .enumerate()
    {
        let mut other = request(root, max_tokens / 4);
        change(&mut other.options);
        other.name = Some(format!("t{number}").parse().unwrap());
        run(&other).unwrap();
        assert_eq!(damages(root, true), [], "table {number}");
    }
}

#[test]
fn the_same_command_again_finds_the_table_and_another_is_refused() {
    let folder = made();
    let root = folder.path();
    let first = run(&request(root, 100)).unwrap();
    let before = names(root);
    let again = run(&request(root, 100)).unwrap();
    assert!(first.made && !again.made);
    assert_eq!(
        (again.table, again.packs, again.padded_batch_padding),
        (first.table, first.packs, None)
    );
    let mut other = request(root, 100);
    other.options.seed = 9;
    let error = run(&other).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a pack table with other options is there already: `100`"
    );
    assert!(error.hint().unwrap().contains("another --name"));
    assert_eq!(names(root), before);
    other.name = Some("other".parse().unwrap());
    assert!(run(&other).unwrap().made);
    assert!(names(root).is_superset(&before));

    // Without its file the table is made again, with the same bytes.
    let table = root
        .join(&first.entry)
        .with_file_name(PackFile::table(entry(root, "100").table.hash).to_string());
    let bytes = fs::read(&table).unwrap();
    fs::remove_file(&table).unwrap();
    assert!(run(&request(root, 100)).unwrap().made);
    assert_eq!(fs::read(&table).unwrap(), bytes);
}

#[test]
fn over_long_samples_are_listed_or_alone_or_refused() {
    let folder = made();
    let root = folder.path();
    let lengths = lengths(root);
    let limit = lengths[lengths.len() / 2];
    let over = lengths.iter().filter(|tokens| **tokens > limit).count() as u64;
    assert!(over > 0);

    let mut fail = request(root, limit);
    fail.options.overlong = PackOverlong::Fail;
    let error = run(&fail).unwrap_err();
    assert_eq!(error.exit_code(), 1);
    assert!(
        error
            .to_string()
            .starts_with(&format!("{over} over-long samples fit into no pack"))
    );
    assert!(names(root).is_empty() && !packs(root).exists());

    let report = run(&request(root, limit)).unwrap();
    assert_eq!((report.overlong, report.samples), (over, 23 - over));
    let list = fs::File::open(root.join(report.overlong_table.unwrap())).unwrap();
    let cache = Cache::open(root).unwrap();
    let mut listed = 0;
    for row in SerializedFileReader::new(list)
        .unwrap()
        .get_row_iter(None)
        .unwrap()
    {
        let row = row.unwrap();
        let sample = cache
            .sample(row.get_uint(0).unwrap(), row.get_ulong(1).unwrap())
            .unwrap();
        assert_eq!(row.get_string(2).unwrap(), &sample.sample_id);
        assert_eq!(row.get_uint(3).unwrap() as usize, sample.input_ids.len());
        assert!(sample.input_ids.len() > limit as usize);
        listed += 1;
    }
    assert_eq!(listed, over);
    assert_eq!(damages(root, true), []);

    let mut alone = request(root, limit);
    alone.options.overlong = PackOverlong::Alone;
    alone.name = Some("alone".parse().unwrap());
    let report = run(&alone).unwrap();
    assert_eq!(
        (report.overlong, report.samples, report.overlong_table),
        (over, 23, None)
    );
    // Those that stand alone have no budget that they could fill.
    let shorter = run(&request(root, limit)).unwrap();
    assert_eq!(report.fill_rate, shorter.fill_rate);
    assert_eq!(damages(root, true), []);
}

#[test]
fn damage_of_entry_and_tables_is_found() {
    let folder = made();
    let root = folder.path();
    let limit = lengths(root)[15];
    let report = run(&request(root, limit)).unwrap();
    for file in [
        &report.entry,
        &report.table,
        report.overlong_table.as_ref().unwrap(),
    ] {
        let path = root.join(file);
        let bytes = fs::read(&path).unwrap();
        let change = |bytes: &[u8]| {
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
        };
        for at in (0..bytes.len()).step_by(bytes.len() / 20 + 1) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            change(&flipped);
            for deep in [false, true] {
                let found = damages(root, deep);
                assert_eq!(found.len(), 1, "byte {at}: {found:?}");
                assert_eq!((&found[0].0, found[0].1), (file, Fault::Changed));
            }
        }
        change(&bytes[..bytes.len() / 2]);
        assert_eq!(damages(root, true).len(), 1);
        fs::remove_file(&path).unwrap();
        let found = damages(root, false);
        // Without an entry there is no table, and its files are nobody's.
        if *file == report.entry {
            assert_eq!(found, []);
            let notes = verify(root, false, false).unwrap().notes;
            assert!(notes.len() == 2 && notes.iter().all(|note| note.kind == NoteKind::Unlisted));
        } else {
            assert_eq!((&found[0].0, found[0].1), (file, Fault::Missing));
        }
        fs::write(&path, &bytes).unwrap();
        assert_eq!(damages(root, true), []);
    }
    fs::write(root.join(&report.entry).with_file_name("bad.json"), b"{}").unwrap();
    let mut bad = request(root, limit);
    bad.name = Some("bad".parse().unwrap());
    let error = run(&bad).unwrap_err();
    assert!(
        error.to_string().ends_with("in `packs/bad.json`"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("remove that file"));
}

/// Writes the table of `entry` again after `change`, with right hashes, and says what a deep check finds.
fn forged(root: &Path, change: impl Fn(u32, &mut Vec<Vec<u32>>)) -> String {
    let mut entry = entry(root, "300");
    let path = packs(root).join(PackFile::table(entry.table.hash).to_string());
    let table = PackTable::open(fs::File::open(path).unwrap(), &entry).unwrap();
    let files = CacheFiles::open(root).unwrap();
    let mut writer = PackTableWriter::new(Vec::new()).unwrap();
    entry.packs.clear();
    for partition in 0..files.partitions() {
        let members = table.members(partition).unwrap();
        let mut rows: Vec<Vec<u32>> = members.iter().map(<[u32]>::to_vec).collect();
        let mut counts = table.counts(partition).unwrap();
        change(partition, &mut rows);
        let mut changed = Members::default();
        for rows in &rows {
            changed.push(rows.iter().copied());
        }
        counts.resize(rows.len(), counts[0]);
        writer.write(partition, &counts, &changed).unwrap();
        entry.packs.push(rows.len() as u64);
    }
    let (bytes, table) = writer.finish().unwrap();
    entry.table = table;
    entry.name = "forged".parse().unwrap();
    let file = PackFile::table(entry.table.hash).to_string();
    fs::write(packs(root).join(&file), bytes).unwrap();
    fs::write(packs(root).join("forged.json"), entry.to_bytes().unwrap()).unwrap();
    assert_eq!(damages(root, false), [], "hashes are right");
    let found = damages(root, true);
    fs::remove_file(packs(root).join("forged.json")).unwrap();
    fs::remove_file(packs(root).join(&file)).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0].0, found[0].1),
        (&format!("packs/{file}"), Fault::Inconsistent)
    );
    found[0].2.clone()
}

#[test]
fn a_deep_check_finds_tables_that_break_their_promises() {
    let folder = made();
    let root = folder.path();
    run(&request(root, 300)).unwrap();
    let last = forged(root, |partition, rows| {
        if partition == 1 {
            let pack = rows.iter_mut().find(|rows| rows.len() > 1).unwrap();
            pack.pop();
        }
    });
    assert!(
        last.contains("other counts than the index has in pack 0, in partition 1"),
        "{last}"
    );
    let twice = forged(root, |partition, rows| {
        if partition == 0 {
            let row = rows[0][0];
            rows[0].push(row);
        }
    });
    assert!(twice.contains("stands in two packs"), "{twice}");
    let beyond = forged(root, |partition, rows| {
        if partition == 2 {
            rows[0][0] = 1000;
        }
    });
    assert!(beyond.contains("does not exist"), "{beyond}");
    let missing = forged(root, |_, rows| rows.truncate(1));
    assert!(
        missing.contains("is in no pack") || missing.contains("other counts"),
        "{missing}"
    );
}

#[test]
fn what_interrupted_runs_left_goes_and_what_is_not_ours_stays() {
    let folder = made();
    let root = folder.path();
    run(&request(root, 300)).unwrap();
    let sound = names(root);
    let left = [
        ".table.tmp",
        ".overlong.tmp",
        ".8k.json.tmp",
        "0123456789abcdef.parquet",
    ];
    let others = ["notes.txt", ".notes.tmp", "0123.parquet"];
    for name in left.into_iter().chain(others) {
        fs::write(packs(root).join(name), b"x").unwrap();
    }
    let notes = verify(root, false, false).unwrap().notes;
    assert_eq!(notes.len(), left.len() + others.len());
    let mut other = request(root, 400);
    other.name = Some("other".parse().unwrap());
    run(&other).unwrap();
    let now = names(root);
    assert!(now.is_superset(&sound));
    for name in left {
        assert!(!now.contains(name), "{name}");
    }
    for name in others {
        assert!(now.contains(name), "{name}");
    }
}

#[test]
fn a_stopped_run_leaves_the_cache_as_it_was() {
    let folder = made();
    let root = folder.path();
    let stop = Stop::default();
    stop.request(15);
    let error = pack(&request(root, 300), &stop).unwrap_err();
    assert!(matches!(error, Error::Interrupted { signal: 15 }));
    assert!(!packs(root).exists());
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(&request(folder.path(), 300)).unwrap_err();
    assert!(error.to_string().starts_with("no cache"), "{error}");

    let folder = made();
    let root = folder.path();
    fs::write(packs(root), b"a file").unwrap();
    assert!(run(&request(root, 300)).is_err());
    fs::remove_file(packs(root)).unwrap();
    let files = CacheFiles::open(root).unwrap();
    let index = files
        .expected()
        .find(|file| file.relative().contains("text-") && file.relative().contains("index"));
    let path = root.join(index.unwrap().relative());
    let mut bytes = fs::read(&path).unwrap();
    bytes[200] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = run(&request(root, 300)).unwrap_err();
    assert!(error.to_string().contains("index"), "{error}");
    assert!(!packs(root).exists());
}

#[test]
fn names_follow_the_tokens() {
    assert_eq!(default_name(8192), "8k");
    assert_eq!(default_name(131_072), "128k");
    assert_eq!(default_name(5000), "5000");
}
