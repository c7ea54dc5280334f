//! The folder of pack tables: what is there, and what may go.
//!
//! Owns reading entries, and the removal of what none names. Invariant: only regular files under names that this program
//! makes are removed, an entry before its tables; where an entry cannot be read no table is, as it may be that one's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::limits::MAX_PACK_ENTRY_BYTES;
use stoker_formats::{ContentHash, PACKS_FOLDER, PackEntry, PackFile, PackName};

use crate::error::Result;
use crate::folder;
use crate::publish::{Publisher, TEMP_SUFFIX};
use crate::verify::files::check_file;
use crate::verify::progress::Progress;

/// Names of tables while they are written: their own follow from their hashes.
pub(super) const TABLE_BASE: &str = "table";
pub(super) const OVERLONG_BASE: &str = "overlong";

/// A file named like an entry.
#[derive(Debug)]
pub(crate) struct Found {
    /// The name of the table.
    pub(crate) name: PackName,
    /// The entry, or why it is none.
    pub(crate) entry: Result<PackEntry, String>,
}

/// Where the file `file` of the cache at `root` lies.
pub(crate) fn path(root: &Path, file: &PackFile) -> PathBuf {
    root.join(PACKS_FOLDER).join(file.to_string())
}

/// The names in the folder, sorted; none if there is no folder.
pub(crate) fn names(root: &Path) -> Result<Vec<String>> {
    let entries = folder::entries(&root.join(PACKS_FOLDER))?;
    let mut names: Vec<String> = entries
        .iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

/// All entries of the cache at `root`, by name.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn entries(root: &Path) -> Result<Vec<Found>> {
    let named = names(root)?
        .into_iter()
        .filter_map(|name| match PackFile::parse(&name) {
            Ok(PackFile::Entry(name)) => Some(name),
            _ => None,
        });
    Ok(named
        .map(|name| Found {
            entry: read(root, &name),
            name,
        })
        .collect())
}

/// The entry of the table `name`, or why it is none.
fn read(root: &Path, name: &PackName) -> Result<PackEntry, String> {
    let path = path(root, &PackFile::Entry(name.clone()));
    let metadata = fs::metadata(&path).map_err(|error| format!("cannot be read: {error}"))?;
    if !metadata.is_file() || metadata.len() > MAX_PACK_ENTRY_BYTES as u64 {
        return Err("not a regular file, or too long for its kind".into());
    }
    let bytes = fs::read(&path).map_err(|error| format!("cannot be read: {error}"))?;
    let entry = PackEntry::parse(&bytes).map_err(|error| error.to_string())?;
    if entry.name == *name {
        Ok(entry)
    } else {
        Err(format!("the entry of another table: `{}`", entry.name))
    }
}

/// The files that an entry names beside its own.
pub(crate) fn tables(entry: &PackEntry) -> impl Iterator<Item = stoker_formats::FileEntry> {
    [Some(entry.table.file()), entry.overlong]
        .into_iter()
        .flatten()
}

/// Whether the files of an entry are there with their sizes and hashes.
pub(super) fn is_complete(root: &Path, entry: &PackEntry, progress: &Progress) -> bool {
    tables(entry).all(|file| {
        let path = path(root, &PackFile::table(file.hash));
        check_file(&path, file, progress).is_none()
    })
}

/// Names of the tables that were made for another cache than that of `fingerprint`.
pub(crate) fn earlier(root: &Path, fingerprint: ContentHash) -> Result<Vec<String>> {
    let other = |found: &Found| {
        let entry = found.entry.as_ref();
        entry.is_ok_and(|entry| entry.fingerprint != fingerprint)
    };
    let found = entries(root)?.into_iter().filter(other);
    Ok(found.map(|found| found.name.to_string()).collect())
}

/// Removes the tables that were made for another cache than that of `fingerprint`.
pub(crate) fn prune(publisher: &Publisher, fingerprint: ContentHash) -> Result<()> {
    for name in earlier(publisher.root(), fingerprint)? {
        publisher.remove(Path::new(PACKS_FOLDER), &format!("{name}.json"))?;
    }
    tidy(publisher)
}

/// Removes what interrupted runs have left, and tables that no entry names.
pub(crate) fn tidy(publisher: &Publisher) -> Result<()> {
    let root = publisher.root();
    let mut named = BTreeSet::new();
    let mut all_read = true;
    for found in entries(root)? {
        match &found.entry {
            Ok(entry) => named.extend(tables(entry).map(|file| PackFile::table(file.hash))),
            Err(_) => all_read = false,
        }
    }
    for name in names(root)? {
        let is_left = match PackFile::parse(&name) {
            Ok(PackFile::Entry(_)) => false,
            Ok(table) => all_read && !named.contains(&table),
            Err(_) => is_temporary(&name),
        };
        if is_left {
            remove_file(publisher, &name)?;
        }
    }
    // Not empty if a table or a stranger's file is there: then it stays.
    let _ = fs::remove_dir(root.join(PACKS_FOLDER));
    Ok(())
}

/// Removes what writers that died have left; the lock says that nobody writes there.
pub(crate) fn remove_leftovers(publisher: &Publisher) -> Result<()> {
    for name in names(publisher.root())? {
        if is_temporary(&name) {
            remove_file(publisher, &name)?;
        }
    }
    Ok(())
}

/// Removes a regular file from the folder.
fn remove_file(publisher: &Publisher, name: &str) -> Result<()> {
    let folder = Path::new(PACKS_FOLDER);
    let path = publisher.root().join(folder).join(name);
    if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        publisher.remove(folder, name)?;
    }
    Ok(())
}

/// Whether a file of this name is one of ours that was being written.
pub(crate) fn is_temporary(name: &str) -> bool {
    let base = name
        .strip_prefix('.')
        .and_then(|name| name.strip_suffix(TEMP_SUFFIX));
    base.is_some_and(|base| {
        [TABLE_BASE, OVERLONG_BASE].contains(&base) || PackFile::parse(base).is_ok()
    })
}
