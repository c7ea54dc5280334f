//! The checks of pack tables.
//!
//! Owns which tables are checked: those made for this cache; earlier ones count for nothing. Invariant: a damaged table costs
//! no sample, as samples can be read without it.

use rayon::prelude::*;
use stoker_formats::{PACKS_FOLDER, PackEntry, PackFile};
use stoker_reader::CacheFiles;

use super::progress::Progress;
use super::{Damage, Fault, files};
use crate::pack::check::contradiction;
use crate::pack::store::{self, Found};

/// The entries that were made for the cache.
fn current<'a>(files: &CacheFiles, found: &'a [Found]) -> impl Iterator<Item = &'a PackEntry> {
    let fingerprint = files.manifest().fingerprint;
    found
        .iter()
        .filter_map(|found| found.entry.as_ref().ok())
        .filter(move |entry| entry.fingerprint == fingerprint)
}

/// The names of the tables that are checked.
pub(super) fn names(files: &CacheFiles, found: &[Found]) -> Vec<String> {
    current(files, found)
        .map(|entry| entry.name.to_string())
        .collect()
}

/// Bytes that the checks will read and count.
pub(super) fn work_bytes(files: &CacheFiles, found: &[Found]) -> u64 {
    current(files, found)
        .flat_map(store::tables)
        .map(|file| file.bytes)
        .fold(0, u64::saturating_add)
}

/// The damages of all tables, by name.
pub(super) fn check(
    cache: &CacheFiles,
    found: &[Found],
    deep: bool,
    progress: &Progress,
) -> Vec<Damage> {
    let mut damages = Vec::new();
    for found in found {
        if let Err(what) = &found.entry {
            let file = PackFile::Entry(found.name.clone());
            damages.push(damage(&file, Fault::Changed, what.clone()));
        }
    }
    let entries: Vec<&PackEntry> = current(cache, found).collect();
    let tables = entries.par_iter().flat_map_iter(|entry| {
        let mut damages: Vec<Damage> = store::tables(entry)
            .filter_map(|entry| {
                let file = PackFile::table(entry.hash);
                let path = store::path(cache.root(), &file);
                let (fault, what) = files::check_file(&path, entry, progress)?;
                Some(damage(&file, fault, what))
            })
            .collect();
        if deep
            && damages.is_empty()
            && !progress.stopped()
            && let Some(what) = contradiction(cache, entry)
        {
            let file = PackFile::table(entry.table.hash);
            damages.push(damage(&file, Fault::Inconsistent, what));
        }
        damages
    });
    damages.extend(tables.collect::<Vec<_>>());
    damages
}

fn damage(file: &PackFile, fault: Fault, what: String) -> Damage {
    Damage {
        file: format!("{PACKS_FOLDER}/{file}"),
        fault,
        what,
        lost_samples: 0,
        first_lost: Vec::new(),
    }
}
