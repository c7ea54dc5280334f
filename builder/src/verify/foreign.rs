//! Files that lie in a cache's folders although neither the manifest nor a pack table's entry names them.
//!
//! Owns telling ours from others'. Reports, never judges: such files are no damage. Invariant: looks two levels deep and
//! follows no link below a plan's folder, so no tree can hold it up.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use stoker_formats::{FileName, Folder, MANIFEST_NAME, PACKS_FOLDER, PARTS_FOLDER, PackFile};
use stoker_reader::{CacheFiles, FALLBACK_FOLDER};

use super::report::{Note, NoteKind};
use crate::build::lock::LOCK_NAME;
use crate::build::state::STATE_NAME;
use crate::error::Result;
use crate::folder;
use crate::pack::store::{self, Found};

/// What a builder keeps in the cache's folder: its lock, and of an unfinished build the state and what crashed.
const BUILDER_FILES: [&str; 4] = [LOCK_NAME, STATE_NAME, "in-flight", "crashers.json"];

/// Folders in the cache's folder that are no plans. What a reader has brought from elsewhere is checked where it is read.
const OUR_FOLDERS: [&str; 3] = [PACKS_FOLDER, PARTS_FOLDER, FALLBACK_FOLDER];

/// Folders inside a plan's folder.
const INNER: [&str; 4] = ["shards", "index", "receipts", "tables"];

/// What ends the name of a file that was being written.
const TEMPORARY: &str = ".tmp";

/// Everything found, sorted by path.
pub(super) fn find(files: &CacheFiles, packs: &[Found]) -> Result<Vec<Note>> {
    let mut notes = Vec::new();
    let plans = [files.images(), files.text()];
    for (name, is_folder) in list(files.root())? {
        let kind = match name.parse::<Folder>() {
            Ok(folder) if is_folder && plans.contains(&folder) => continue,
            Ok(_) if is_folder => NoteKind::EarlierPlan,
            Err(_) if is_folder && OUR_FOLDERS.contains(&name.as_str()) => {
                continue;
            }
            _ if name == MANIFEST_NAME || BUILDER_FILES.contains(&name.as_str()) => continue,
            _ => kind_of(&name),
        };
        notes.push(Note { path: name, kind });
    }
    let expected: BTreeSet<String> = files.expected().map(|file| file.relative()).collect();
    for plan in plans {
        find_in_plan(files.root(), plan, &expected, &mut notes)?;
    }
    find_in_packs(files, packs, &mut notes)?;
    notes.sort();
    Ok(notes)
}

/// Tables that no entry names, entries of earlier caches, and what is not ours.
fn find_in_packs(files: &CacheFiles, packs: &[Found], notes: &mut Vec<Note>) -> Result<()> {
    let entries = || packs.iter().filter_map(|found| found.entry.as_ref().ok());
    let named: BTreeSet<PackFile> = entries()
        .flat_map(store::tables)
        .map(|file| PackFile::table(file.hash))
        .collect();
    let earlier: BTreeSet<PackFile> = entries()
        .filter(|entry| entry.fingerprint != files.manifest().fingerprint)
        .map(|entry| PackFile::Entry(entry.name.clone()))
        .collect();
    for name in store::names(files.root())? {
        let kind = match PackFile::parse(&name) {
            Ok(file) if earlier.contains(&file) => NoteKind::EarlierPlan,
            Ok(table @ PackFile::Table(_)) if !named.contains(&table) => NoteKind::Unlisted,
            Ok(_) => continue,
            Err(_) => kind_of(&name),
        };
        notes.push(Note {
            path: format!("{PACKS_FOLDER}/{name}"),
            kind,
        });
    }
    Ok(())
}

fn find_in_plan(
    root: &Path,
    plan: Folder,
    expected: &BTreeSet<String>,
    notes: &mut Vec<Note>,
) -> Result<()> {
    let folder = root.join(plan.to_string());
    let mut found = Vec::new();
    for (name, _) in list(&folder)? {
        if INNER.contains(&name.as_str()) {
            for (file, _) in list(&folder.join(&name))? {
                found.push(format!("{name}/{file}"));
            }
        } else {
            found.push(name);
        }
    }
    for name in found {
        let path = format!("{plan}/{name}");
        if !expected.contains(&path) {
            let ours = FileName::parse(&name).is_ok();
            let kind = if ours {
                NoteKind::Unlisted
            } else {
                kind_of(&name)
            };
            notes.push(Note { path, kind });
        }
    }
    Ok(())
}

fn kind_of(name: &str) -> NoteKind {
    if name.ends_with(TEMPORARY) {
        NoteKind::Leftover
    } else {
        NoteKind::Foreign
    }
}

/// Names in a folder, and whether each is a folder. A folder that is not there is empty: its files are missing anyway.
fn list(folder: &Path) -> Result<Vec<(String, bool)>> {
    let entries = folder::entries(folder)?;
    let listed = entries.iter().map(|entry| {
        // A link to a plan's folder is a plan's folder.
        let is_folder = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
        (entry.file_name().to_string_lossy().into_owned(), is_folder)
    });
    Ok(listed.collect())
}
