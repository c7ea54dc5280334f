//! What a check found, for people and for machines.
//!
//! Owns the report's fields and its text. Invariant: damages stand in the manifest's order and notes by path, so two
//! checks of the same cache say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;
use stoker_formats::{MANIFEST_NAME, PACKS_FOLDER, PARTS_FOLDER, PartFile, PartName};
use stoker_reader::{CacheFile, CacheFiles};

use super::table_rows::sample_ids;
use super::{Finding, NAMED_SAMPLES_MAX};
use crate::held::{self, numbers};
use crate::source::printable;

/// Notes that the text shows; `--json` has all.
const SHOWN_NOTES_MAX: usize = 10;

/// How a file is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It is not there.
    Missing,
    /// A folder, a device or the like stands in its place.
    NotAFile,
    /// The system refuses to read it.
    Unreadable,
    /// It is shorter than the manifest says.
    Truncated,
    /// It is longer than the manifest says.
    Extended,
    /// It has the right size and other content.
    Changed,
    /// Its hash is right, but it contradicts another file or a rule of the format.
    Inconsistent,
}

/// One damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file, relative to the cache.
    pub file: String,
    /// How it is damaged.
    pub fault: Fault,
    /// The same for a person.
    pub what: String,
    /// How many samples cannot be read, or not with all their images, because of it.
    pub lost_samples: u64,
    /// The ids of the first of them; `row N` of the cache where the id is lost too.
    pub first_lost: Vec<String>,
}

/// Why a file is noted that the manifest does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Named like a file of a cache, but neither the manifest nor the entry of a pack table names it.
    Unlisted,
    /// A folder of another plan, or the entry of a pack table that was made for another fingerprint.
    EarlierPlan,
    /// Left over by a write that did not end.
    Leftover,
    /// Not ours.
    Foreign,
}

/// A file that the manifest does not name. No damage.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The file or folder, relative to the cache.
    pub path: String,
    /// Why it is noted.
    pub kind: NoteKind,
}

/// The verdict on a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The cache's folder.
    pub cache: String,
    /// Whether nothing is damaged.
    pub sound: bool,
    /// Whether every row was checked.
    pub deep: bool,
    /// The manifest's fingerprint; none if it cannot be read.
    pub fingerprint: Option<String>,
    /// Partitions whose shards are on other nodes, and were not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_held: Vec<u32>,
    /// Partitions of which shards are here although the last sync put them on other nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<u32>,
    /// Files that the manifest names, but for shards of partitions that are not held.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples of the cache.
    pub samples: u64,
    /// Image rows of the cache.
    pub images: u64,
    /// The pack tables that were made for the cache.
    pub pack_tables: Vec<String>,
    /// Samples that some damage costs.
    pub lost_samples: u64,
    /// The damaged files.
    pub damages: Vec<Damage>,
    /// Files that the manifest does not name.
    pub notes: Vec<Note>,
    /// Whether a sync has brought the folder's share, and would bring it again.
    #[serde(skip)]
    pub(super) is_synced: bool,
}

/// Puts findings and notes together; names the first lost samples.
pub(super) fn make(
    files: &CacheFiles,
    deep: bool,
    mut findings: Vec<Finding>,
    notes: Vec<Note>,
) -> Report {
    let order: BTreeMap<_, usize> = files
        .expected()
        .zip(0..)
        .map(|(file, place)| (super::key(&file), place))
        .collect();
    findings.sort_by_key(|found| order.get(&super::key(&found.file)).copied());
    let named: BTreeSet<(u32, u64)> = findings.iter().flat_map(first_lost).collect();
    let ids = sample_ids(files, &named);
    let name = |place: (u32, u64)| {
        let number = row_number(files, place);
        ids.get(&place)
            .cloned()
            .unwrap_or_else(|| format!("row {number}"))
    };
    let lost: BTreeSet<(u32, u64)> = findings
        .iter()
        .flat_map(|found| {
            found
                .lost
                .rows
                .iter()
                .map(move |row| (found.lost.partition, *row))
        })
        .collect();
    let splits = &files.manifest().splits;
    Report {
        cache: files.root().display().to_string(),
        sound: findings.is_empty(),
        deep,
        fingerprint: Some(files.manifest().fingerprint.to_string()),
        not_held: Vec::new(),
        extra: Vec::new(),
        files: 0,
        bytes: 0,
        samples: splits.iter().map(|split| split.samples).sum(),
        images: splits.iter().map(|split| split.images).sum(),
        pack_tables: Vec::new(),
        lost_samples: lost.len() as u64,
        damages: findings
            .iter()
            .map(|found| Damage {
                file: found.file.relative(),
                fault: found.fault,
                what: found.what.clone(),
                lost_samples: found.lost.rows.len() as u64,
                first_lost: first_lost(found).map(name).collect(),
            })
            .collect(),
        notes,
        is_synced: held::is_synced(files.root()),
    }
}

fn first_lost(found: &Finding) -> impl Iterator<Item = (u32, u64)> + '_ {
    let rows = found.lost.rows.iter().take(NAMED_SAMPLES_MAX);
    rows.map(move |row| (found.lost.partition, *row))
}

/// The number in the cache of a partition's row.
fn row_number(files: &CacheFiles, (partition, row): (u32, u64)) -> u64 {
    let before = files.manifest().partitions.iter().take(partition as usize);
    before
        .map(|partition| partition.samples.index.rows)
        .sum::<u64>()
        + row
}

impl Report {
    /// The report on a cache whose manifest cannot be read.
    pub(super) fn of_manifest(root: &Path, deep: bool, what: String) -> Self {
        let mut report = Self {
            cache: root.display().to_string(),
            sound: true,
            deep,
            fingerprint: None,
            not_held: Vec::new(),
            extra: Vec::new(),
            files: 0,
            bytes: 0,
            samples: 0,
            images: 0,
            pack_tables: Vec::new(),
            lost_samples: 0,
            damages: Vec::new(),
            notes: Vec::new(),
            is_synced: held::is_synced(root),
        };
        report.add(Damage {
            file: MANIFEST_NAME.into(),
            fault: Fault::Changed,
            what,
            lost_samples: 0,
            first_lost: Vec::new(),
        });
        report
    }

    /// Says which files were checked.
    pub(super) fn count(&mut self, checked: &[CacheFile]) {
        self.files = checked.len() as u64;
        let bytes = checked.iter().map(|file| file.entry.bytes);
        self.bytes = bytes.fold(0, u64::saturating_add);
    }

    pub(super) fn add(&mut self, damage: Damage) {
        self.sound = false;
        self.damages.insert(0, damage);
    }

    /// The report for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "cache        {}", self.cache);
        if let Some(fingerprint) = &self.fingerprint {
            let _ = writeln!(text, "fingerprint  {fingerprint}");
            let _ = writeln!(
                text,
                "checked      {}, {}{}",
                counted(self.files, "file"),
                HumanBytes(self.bytes),
                if self.deep && !self.not_held.is_empty() {
                    ", every row that is here".into()
                } else if self.deep {
                    format!(
                        ", every row of {} and {}",
                        counted(self.samples, "sample"),
                        counted(self.images, "image")
                    )
                } else {
                    String::new()
                }
            );
        }
        if !self.not_held.is_empty() {
            let _ = writeln!(
                text,
                "not here     the shards of partitions {}: on other nodes, not checked",
                numbers(&self.not_held)
            );
        }
        if !self.extra.is_empty() {
            let _ = writeln!(text, "more here    {}", extra_text(&self.extra));
        }
        if !self.pack_tables.is_empty() {
            let _ = writeln!(text, "pack tables  {}", self.pack_tables.join(", "));
        }
        for damage in &self.damages {
            let _ = writeln!(text, "DAMAGED      {}", damage.file);
            let _ = writeln!(text, "             {}", printable(&damage.what));
            if self.fingerprint.is_some() {
                let _ = writeln!(text, "             {}", cost_text(damage));
            }
        }
        for note in self.notes.iter().take(SHOWN_NOTES_MAX) {
            let what = match note.kind {
                NoteKind::Unlisted => "not in the manifest",
                NoteKind::EarlierPlan => "of another plan",
                NoteKind::Leftover => "left over by an interrupted write",
                NoteKind::Foreign => "not ours",
            };
            let _ = writeln!(text, "note         {}: {what}", printable(&note.path));
        }
        if let Some(more) = self
            .notes
            .len()
            .checked_sub(SHOWN_NOTES_MAX)
            .filter(|more| *more > 0)
        {
            let _ = writeln!(text, "note         and {more} more such files");
        }
        let _ = match (self.sound, &self.fingerprint) {
            (true, _) if self.not_held.is_empty() => writeln!(text, "result       sound"),
            (true, _) => writeln!(text, "result       sound, as far as it is here"),
            (false, None) => writeln!(text, "result       damaged: the manifest"),
            (false, Some(_)) => writeln!(
                text,
                "result       damaged: {}, {} lost",
                counted(self.damages.len() as u64, "file"),
                counted(self.lost_samples, "sample")
            ),
        };
        if !self.sound {
            let _ = writeln!(text, "hint         {}", self.hint());
        }
        text
    }

    /// What to do about the damaged files.
    fn hint(&self) -> String {
        let again = format!("run {} again", self.makers());
        // No remote holds the record of a share or part.
        if self.damages.iter().all(is_record) {
            return again;
        }
        let delete = if self.is_synced {
            ""
        } else {
            "delete them and "
        };
        format!(
            "bring the damaged files with `stoker repair CACHE --from REMOTE`, or {delete}{again}"
        )
    }

    /// What makes the damaged files.
    fn makers(&self) -> String {
        // In the order in which they need each other.
        let maker = |damage: &Damage| match part_record(&damage.file) {
            Some(_) if is_record(damage) => (1, "the build command of that part"),
            _ if is_record(damage) || self.is_synced => (3, "`stoker sync`"),
            _ if is_in(damage, PACKS_FOLDER) => (2, "`stoker pack`"),
            _ => (0, "the build command"),
        };
        let makers: BTreeSet<_> = self.damages.iter().map(maker).collect();
        let makers: Vec<_> = makers.into_iter().map(|(_, maker)| maker).collect();
        makers.join(", then ")
    }
}

/// Whether it is the record of a share or a part.
fn is_record(damage: &Damage) -> bool {
    is_in(damage, PARTS_FOLDER)
}

fn is_in(damage: &Damage, folder: &str) -> bool {
    Path::new(&damage.file).parent() == Some(Path::new(folder))
}

/// The part whose record lies at this path, if it is that of a part.
pub(crate) fn part_record(file: &str) -> Option<PartName> {
    let name = Path::new(file).file_name()?.to_str()?;
    match PartFile::parse(name) {
        Ok(PartFile::Record(name)) => Some(name),
        _ => None,
    }
}

/// That partitions are here which nobody wants here, for a person.
pub(crate) fn extra_text(extra: &[u32]) -> String {
    format!(
        "shards of partitions {}, which the last sync put on other nodes; `stoker sync --prune` removes them",
        numbers(extra)
    )
}

fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {what}{plural}", HumanCount(count))
}

fn cost_text(damage: &Damage) -> String {
    if is_record(damage) {
        return "costs no sample; but it says what shall be here, and what is lost of that whole will count as another node's".into();
    }
    if damage.lost_samples == 0 {
        return "costs no sample".into();
    }
    let mut text = format!(
        "costs {}: {}",
        counted(damage.lost_samples, "sample"),
        printable(&damage.first_lost.join(", "))
    );
    if damage.lost_samples > damage.first_lost.len() as u64 {
        text.push_str(", ...");
    }
    text
}
