//! `stoker verify` against every kind of damage: it names the file, and exactly the samples that can no longer be read.

#[path = "../../tests/src/synthetic.rs"]
#[expect(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};

use stoker_builder::verify::{Fault, NoteKind, Report, verify};
use stoker_formats::FileName;
use stoker_formats::tables::{
    ProvenanceRow, RejectTableRow, SampleTableRow, TableRow, TableWriter,
};
use stoker_reader::{Cache, CacheFiles};
use synthetic::{Content, TableBytes};

fn table<R: TableRow>(rows: Vec<R>) -> (Vec<u8>, u64) {
    let mut writer = TableWriter::new(Vec::new()).unwrap();
    for row in rows {
        writer.push(row).unwrap();
    }
    let (bytes, entry) = writer.finish().unwrap();
    (bytes, entry.rows)
}

/// The tables that a builder would write for `content`.
fn tables(content: &[Content]) -> TableBytes {
    let mut samples = Vec::new();
    for (partition, content) in (0u32..).zip(content) {
        for (row, sample) in (0u64..).zip(&content.samples) {
            samples.push(SampleTableRow {
                sample_id: sample.sample_id.clone(),
                record_id: sample.record_id.clone(),
                split: "train".into(),
                partition,
                row,
                file: "train.jsonl".into(),
                line: 1,
                byte_offset: 0,
                n_tokens: sample.input_ids.len() as u32,
                n_loss_tokens: 0,
                n_images: sample.images.len() as u32,
                n_patches: 0,
            });
        }
    }
    let reject = |line: u64, reason: &str| RejectTableRow {
        sample_id: format!("train.jsonl:{line}"),
        file: "train.jsonl".into(),
        line,
        byte_offset: 0,
        column: None,
        reason: reason.into(),
        link: None,
        message: "no".into(),
    };
    let rejects = vec![
        reject(24, "bad_json"),
        reject(25, "missing_image"),
        reject(26, "bad_json"),
    ];
    [
        table(samples),
        table(rejects),
        table(Vec::<ProvenanceRow>::new()),
    ]
}

fn made(content: &[Content]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    synthetic::write(folder.path(), content, &tables(content));
    folder
}

fn check(root: &Path, deep: bool) -> Report {
    verify(root, deep, false).unwrap()
}

/// The ids of the samples that our reader can no longer give with all their images.
fn lost_to_the_reader(root: &Path, content: &[Content]) -> Vec<String> {
    let cache = Cache::open(root).unwrap();
    let mut lost = Vec::new();
    for (partition, content) in (0u32..).zip(content) {
        for (row, sample) in (0u64..).zip(&content.samples) {
            let whole = cache.sample(partition, row).is_ok()
                && sample
                    .images
                    .iter()
                    .all(|image| cache.image(partition, u64::from(*image)).is_ok());
            if !whole {
                lost.push(sample.sample_id.clone());
            }
        }
    }
    lost
}

fn files(root: &Path) -> Vec<(String, PathBuf, FileName)> {
    let files = CacheFiles::open(root).unwrap();
    files
        .expected()
        .map(|file| {
            (
                file.relative(),
                files.path(file.folder, file.name),
                file.name,
            )
        })
        .collect()
}

#[test]
fn an_intact_cache_is_sound() {
    let folder = made(&synthetic::content());
    for deep in [false, true] {
        let report = check(folder.path(), deep);
        assert!(report.sound, "{}", report.to_text());
        assert_eq!(
            (report.samples, report.images, report.lost_samples),
            (23, 13, 0)
        );
        assert!(report.notes.is_empty(), "{:?}", report.notes);
    }
}

#[test]
fn every_damaged_file_is_named_with_its_fault() {
    let folder = made(&synthetic::content());
    for (relative, path, _) in files(folder.path()) {
        let intact = fs::read(&path).unwrap();
        let mut flipped = intact.clone();
        flipped[intact.len() / 2] ^= 4;
        let cases = [
            (Some(flipped), Fault::Changed),
            (Some(intact[..intact.len() - 1].to_vec()), Fault::Truncated),
            (Some(Vec::new()), Fault::Truncated),
            (Some([&intact[..], b"\0"].concat()), Fault::Extended),
            (None, Fault::Missing),
        ];
        for (bytes, fault) in cases {
            match bytes {
                Some(bytes) => fs::write(&path, bytes).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let report = check(folder.path(), false);
            let found: Vec<_> = report
                .damages
                .iter()
                .map(|it| (it.file.as_str(), it.fault))
                .collect();
            assert_eq!(found, [(relative.as_str(), fault)]);
            assert!(!report.sound);
        }
        fs::write(&path, &intact).unwrap();
    }
    assert!(check(folder.path(), false).sound);
}

#[test]
fn flipped_shards_cost_exactly_what_the_reader_loses() {
    let content = synthetic::content();
    let folder = made(&content);
    let (mut none, mut some) = (0, 0);
    for (relative, path, name) in files(folder.path()) {
        if !matches!(
            name,
            FileName::Shard {
                partition: 0 | 2,
                ..
            }
        ) {
            continue;
        }
        let intact = fs::read(&path).unwrap();
        for step in 0..12 {
            let at = (intact.len() - 1) * step / 11;
            let mut bytes = intact.clone();
            bytes[at] ^= 1 << (step % 8);
            fs::write(&path, bytes).unwrap();
            let report = check(folder.path(), false);
            let lost = lost_to_the_reader(folder.path(), &content);
            assert_eq!(report.damages.len(), 1);
            let damage = &report.damages[0];
            assert_eq!(damage.file, relative);
            assert_eq!(
                damage.lost_samples,
                lost.len() as u64,
                "byte {at} of {relative}: {lost:?}"
            );
            assert_eq!(damage.first_lost, lost[..lost.len().min(5)]);
            if lost.is_empty() {
                none += 1
            } else {
                some += 1
            }
        }
        fs::write(&path, intact).unwrap();
    }
    assert!(none > 0 && some > 20, "{none} {some}");
}

#[test]
fn a_missing_shard_costs_its_rows_or_the_samples_that_use_them() {
    let content = synthetic::content();
    let folder = made(&content);
    for (relative, path, name) in files(folder.path()) {
        let FileName::Shard { partition, ordinal } = name else {
            continue;
        };
        let kept = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let rows = u64::from(ordinal) * 4..u64::from(ordinal) * 4 + 4;
        let samples = (0u64..).zip(&content[partition as usize].samples);
        let lost: Vec<String> = samples
            .filter(|(row, sample)| {
                if relative.starts_with("text") {
                    rows.contains(row)
                } else {
                    sample
                        .images
                        .iter()
                        .any(|image| rows.contains(&u64::from(*image)))
                }
            })
            .map(|(_, sample)| sample.sample_id.clone())
            .collect();
        let report = check(folder.path(), true);
        let damage = &report.damages[0];
        assert_eq!(
            (report.damages.len(), damage.fault),
            (1, Fault::Missing),
            "{}",
            report.to_text()
        );
        assert_eq!(damage.lost_samples, lost.len() as u64, "{relative}");
        assert_eq!(damage.first_lost, lost[..lost.len().min(5)]);
        fs::write(&path, kept).unwrap();
    }
}

#[test]
fn an_index_costs_its_partition_and_a_receipt_nothing() {
    let folder = made(&synthetic::content());
    for (relative, path, name) in files(folder.path()) {
        let with_images = [8, 5, 4];
        let wanted = match name {
            FileName::Index { partition } if relative.starts_with("text") => {
                [11, 7, 5][partition as usize]
            }
            FileName::Index { partition } => with_images[partition as usize],
            FileName::Shard { .. } => continue,
            _ => 0,
        };
        let kept = fs::read(&path).unwrap();
        fs::write(&path, &kept[1..]).unwrap();
        let report = check(folder.path(), true);
        assert_eq!(report.lost_samples, wanted, "{}", report.to_text());
        assert_eq!(report.damages.len(), 1, "{}", report.to_text());
        fs::write(&path, kept).unwrap();
    }
}

/// Content with one rule broken, and what the deep check says about it.
fn broken(change: impl FnOnce(&mut Vec<Content>)) -> String {
    let mut content = synthetic::content();
    change(&mut content);
    let folder = made(&content);
    assert!(check(folder.path(), false).sound);
    let report = check(folder.path(), true);
    assert_eq!(report.damages.len(), 1, "{}", report.to_text());
    let damage = &report.damages[0];
    assert_eq!(damage.fault, Fault::Inconsistent);
    assert_eq!(damage.lost_samples, 1, "{}", report.to_text());
    format!("{}: {}", &damage.file[38..], damage.what)
}

#[test]
fn each_broken_rule_is_found_by_the_deep_check_alone() {
    assert_eq!(
        broken(|content| content[1].samples[4].labels[0] = 11),
        "shards/p0001-000001.arrow: sample row 4: label 0 is 11, neither -100 nor the token id 4"
    );
    assert_eq!(
        broken(|content| content[0].samples[0].input_ids[3] = 8),
        "shards/p0000-000000.arrow: sample row 0: 0 image tokens for 4 patches in blocks of 4"
    );
    assert_eq!(
        broken(|content| content[0].samples[3].images[0] = 99),
        "shards/p0000-000000.arrow: sample row 3: image 99 is none of the partition's 6"
    );
    assert_eq!(
        broken(|content| content[0].samples[3].images[0] = 1),
        "shards/p0000-000000.arrow: sample row 3: image 1 has grid [1, 2, 2] here and [1, 4, 4] in its index"
    );
    assert_eq!(
        broken(|content| content[2].samples[4].sample_id = content[2].samples[1].sample_id.clone()),
        "shards/p0002-000001.arrow: sample row 4: another sample of the partition has the same sample id"
    );
}

#[test]
fn files_that_are_not_in_the_manifest_are_noted_and_no_damage() {
    let folder = made(&synthetic::content());
    let (images, text) = (
        format!("images-{}", "11".repeat(16)),
        format!("text-{}", "22".repeat(16)),
    );
    let old = format!("text-{}", "33".repeat(16));
    fs::create_dir(folder.path().join(&old)).unwrap();
    let names = [
        ("notes.txt".to_owned(), NoteKind::Foreign),
        (
            format!("{images}/shards/.p0000-000009.arrow.tmp"),
            NoteKind::Leftover,
        ),
        (
            format!("{images}/shards/p0000-000009.arrow"),
            NoteKind::Unlisted,
        ),
        (old.clone(), NoteKind::EarlierPlan),
        (format!("{text}/shards/readme"), NoteKind::Foreign),
    ];
    for (name, _) in names.iter().filter(|(name, _)| *name != old) {
        fs::write(folder.path().join(name), b"x").unwrap();
    }
    fs::write(folder.path().join("stoker.lock"), b"").unwrap();
    let report = check(folder.path(), false);
    let mut wanted = names.to_vec();
    wanted.sort();
    let found: Vec<_> = report
        .notes
        .iter()
        .map(|note| (note.path.clone(), note.kind))
        .collect();
    assert_eq!(found, wanted);
    assert!(report.sound);
}

#[test]
fn a_damaged_manifest_is_damage_and_none_is_an_error() {
    let folder = made(&synthetic::content());
    let path = folder.path().join("manifest.json");
    let intact = fs::read(&path).unwrap();
    for at in (0..intact.len()).step_by(97) {
        let mut bytes = intact.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        let report = check(folder.path(), false);
        assert_eq!(
            (report.sound, report.damages[0].file.as_str()),
            (false, "manifest.json")
        );
    }
    fs::remove_file(&path).unwrap();
    assert!(verify(folder.path(), false, false).is_err());
}

#[test]
fn the_text_names_files_samples_and_what_to_do() {
    let folder = made(&synthetic::content());
    let shard = format!("text-{}/shards/p0001-000001.arrow", "22".repeat(16));
    fs::remove_file(folder.path().join(&shard)).unwrap();
    let tokenizer = files(folder.path()).pop().unwrap();
    fs::write(&tokenizer.1, b"{}").unwrap();
    let size = synthetic::tokenizer().len();
    let report = check(folder.path(), false);
    let mut text = report.to_text();
    for (value, name) in [
        (folder.path().display().to_string(), "CACHE"),
        (report.fingerprint.clone().unwrap(), "FINGERPRINT"),
        (tokenizer.0, "TOKENIZER"),
    ] {
        text = text.replace(&value, name);
    }
    let checked = text
        .lines()
        .find(|line| line.starts_with("checked"))
        .unwrap()
        .to_owned();
    assert!(checked.starts_with("checked      32 files, "), "{checked}");
    assert_eq!(
        text.replace(&checked, "CHECKED"),
        format!(
            "cache        CACHE\n\
             fingerprint  FINGERPRINT\n\
             CHECKED\n\
             DAMAGED      {shard}\n             missing\n             \
             costs 3 samples: train.jsonl:16, train.jsonl:17, train.jsonl:18\n\
             DAMAGED      TOKENIZER\n             truncated to 2 of {size} bytes\n             \
             costs no sample\n\
             result       damaged: 2 files, 3 samples lost\n\
             hint         bring the damaged files with `stoker repair CACHE --from REMOTE`, or delete them and run the build command again\n"
        )
    );
}

/// Files and samples are named by others, and a terminal obeys.
#[test]
fn the_text_shows_no_control_character_of_a_name() {
    let mut content = synthetic::content();
    content[1].samples[4].sample_id = "train\u{1b}[2J:16".into();
    let folder = made(&content);
    let shard = format!("text-{}/shards/p0001-000001.arrow", "22".repeat(16));
    fs::remove_file(folder.path().join(shard)).unwrap();
    fs::write(folder.path().join("a\u{1b}[2Jb"), b"").unwrap();
    let report = check(folder.path(), false);
    assert_eq!(report.damages[0].first_lost[0], "train\u{1b}[2J:16");
    let text = report.to_text();
    assert!(
        text.contains("costs 3 samples: train\u{fffd}[2J:16, "),
        "{text:?}"
    );
    assert!(text.contains("a\u{fffd}[2Jb: not ours"), "{text:?}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}
