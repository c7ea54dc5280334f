//! What is damaged or missing.
//!
//! Owns which files a folder should hold: those of the manifest but for shards of other nodes, and those of its pack tables. Reads
//! only. Invariant: every one of them is read through and hashed.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use stoker_formats::{FileEntry, PACKS_FOLDER, PackFile, PackName};
use stoker_reader::{CacheFile, CacheFiles};

use crate::build::Stop;
use crate::error::Result;
use crate::held;
use crate::pack::store;
use crate::remote::crew;
use crate::verify::progress::Progress;
use crate::verify::{Fault, check_file, is_here, part_record};

/// A file that is not what it should be.
#[derive(Debug, Clone)]
pub(super) struct Damaged {
    pub(super) file: File,
    pub(super) fault: Fault,
    pub(super) what: String,
}

/// Which file.
#[derive(Debug, Clone)]
pub(super) enum File {
    /// The manifest names it.
    Cache(CacheFile),
    /// The entry of a pack table names it.
    PackTable(FileEntry),
    /// The entry of a pack table.
    PackEntry(PackName),
    /// What a sync, or the build of a part, has said of this share; its path.
    Record(String),
}

/// What mends the record of a share or of a part: nobody else knows.
pub(super) fn writer(record: &str) -> String {
    let writer = match part_record(record) {
        Some(_) => "the build command of that part",
        None => "`stoker sync`",
    };
    format!("{writer} writes it again")
}

impl File {
    /// Its path in the cache.
    pub(super) fn relative(&self) -> String {
        let pack = |file: PackFile| format!("{PACKS_FOLDER}/{file}");
        match self {
            Self::Cache(file) => file.relative(),
            Self::PackTable(entry) => pack(PackFile::table(entry.hash)),
            Self::PackEntry(name) => pack(PackFile::Entry(name.clone())),
            Self::Record(path) => path.clone(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Cache(file) => file.entry.bytes,
            Self::PackTable(entry) => entry.bytes,
            Self::PackEntry(_) | Self::Record(_) => 0,
        }
    }
}

/// What a look at all files found.
pub(super) struct Look {
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) not_held: Vec<u32>,
    /// In the order of the manifest, then by name.
    pub(super) damaged: Vec<Damaged>,
}

/// Looks at all files of the cache, on so many threads.
pub(super) fn find(files: &CacheFiles, threads: usize, show: bool, stop: &Stop) -> Result<Look> {
    let held::Held {
        elsewhere, damages, ..
    } = held::look(files)?;
    let here = files.expected().filter(|file| is_here(file, &elsewhere));
    let mut all: Vec<File> = here.map(File::Cache).collect();
    let mut damaged: Vec<Damaged> = damages
        .into_iter()
        .map(|record| Damaged {
            file: File::Record(record.file),
            fault: Fault::Changed,
            what: record.what,
        })
        .collect();
    // Two entries may name the same file.
    let mut named = BTreeSet::new();
    for found in store::entries(files.root())? {
        match found.entry {
            Ok(entry) if entry.fingerprint == files.manifest().fingerprint => {
                let tables = store::tables(&entry).filter(|table| named.insert(table.hash));
                all.extend(tables.map(File::PackTable));
            }
            // Made for another cache.
            Ok(_) => {}
            Err(what) => damaged.push(Damaged {
                file: File::PackEntry(found.name),
                fault: Fault::Changed,
                what,
            }),
        }
    }
    let bytes = all.iter().map(File::bytes).fold(0, u64::saturating_add);
    let progress = Progress::new("check", show, bytes, stop.clone());
    let numbered: Vec<(usize, &File)> = all.iter().enumerate().collect();
    let found = Mutex::new(Vec::new());
    crew::each(threads, &numbered, |(number, file)| {
        let entry = match file {
            File::Cache(file) => file.entry,
            File::PackTable(entry) => *entry,
            File::PackEntry(_) | File::Record(_) => return Ok(()),
        };
        let path = files.root().join(file.relative());
        if let Some((fault, what)) = check_file(&path, entry, &progress) {
            let file = (*file).clone();
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push((*number, Damaged { file, fault, what }));
        }
        progress.check()
    })?;
    progress.finish();
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(number, _)| *number);
    let mut all_damaged: Vec<Damaged> = found.into_iter().map(|(_, damaged)| damaged).collect();
    all_damaged.append(&mut damaged);
    Ok(Look {
        files: all.len() as u64,
        bytes,
        not_held: elsewhere,
        damaged: all_damaged,
    })
}
