//! Removing what is no longer needed: state, spooled inputs, folders of dropped or earlier plans.
//!
//! Invariant: only regular files under names that this program makes are removed, and folders only
//! when they are then empty. A stranger's file survives, and so does its folder.

use std::fs;
use std::path::Path;

use stoker_formats::{FileName, Folder, PARTS_FOLDER, PartFile, TableKind};

use super::in_flight::{CRASHERS_NAME, IN_FLIGHT_NAME};
use super::named::Named;
use super::setup::SPOOL_FOLDER;
use super::state::STATE_NAME;
use crate::error::{Error, Result};
use crate::folder;
use crate::plan::PlanIds;
use crate::publish::{Publisher, TEMP_SUFFIX};
use crate::records;

/// Folders inside a plan's folder; the plan's own folder holds files too.
const SUBFOLDERS: [&str; 5] = ["shards", "receipts", "index", "tables", ""];

/// Removes the state of the build that the manifest now describes.
pub(crate) fn after_commit(publisher: &Publisher) -> Result<()> {
    for name in [STATE_NAME, CRASHERS_NAME, IN_FLIGHT_NAME] {
        publisher.remove(Path::new(""), name)?;
    }
    remove_spooled(publisher.root())
}

/// Removes what only a running build needs: its parts are finished, the build is not before the commit.
pub(super) fn after_parts(publisher: &Publisher) -> Result<()> {
    publisher.remove(Path::new(""), IN_FLIGHT_NAME)?;
    remove_spooled(publisher.root())
}

/// Removes records and tables of parts: the folder holds a whole cache, or the build that they belong to is dropped.
pub(super) fn remove_parts(publisher: &Publisher) -> Result<()> {
    let folder = publisher.root().join(PARTS_FOLDER);
    if !is_folder(&folder) {
        return Ok(());
    }
    let temporary = TableKind::ALL.map(|kind| format!(".{}{TEMP_SUFFIX}", kind.name()));
    for entry in folder::entries(&folder)? {
        let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        let name = entry.file_name().to_string_lossy().into_owned();
        if regular && (PartFile::parse(&name).is_ok() || temporary.contains(&name)) {
            let file = entry.path();
            fs::remove_file(&file).map_err(Error::io("remove", &file))?;
        }
    }
    // Not empty if a stranger's file is there: then it stays.
    let _ = fs::remove_dir(&folder);
    Ok(())
}

/// Removes spooled inputs, also those of earlier runs and of other inputs; the lock says nobody reads them.
fn remove_spooled(root: &Path) -> Result<()> {
    let spool = root.join(SPOOL_FOLDER);
    if !is_folder(&spool) {
        return Ok(());
    }
    for entry in fs::read_dir(&spool).map_err(Error::io("list", &spool))? {
        let entry = entry.map_err(Error::io("list", &spool))?;
        let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
        if regular && entry.file_name().to_str().is_some_and(is_spooled) {
            let file = entry.path();
            fs::remove_file(&file).map_err(Error::io("remove", &file))?;
        }
    }
    // Not empty if a stranger's file is there: then it stays.
    let _ = fs::remove_dir(&spool);
    Ok(())
}

/// Whether the spool makes files of this name: 32 hex digits, whole or partial.
fn is_spooled(name: &str) -> bool {
    let stem = [".jsonl", ".partial"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending));
    stem.is_some_and(|stem| {
        stem.len() == 32
            && stem
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

/// A link is no folder: what it points at is a stranger's, perhaps the pixels of another cache.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir())
}

/// Drops the unfinished build `earlier`, except what the committed cache `named` shares with it and, if it is another one, the build
/// `now`.
pub(super) fn drop_unfinished(
    publisher: &Publisher,
    named: &Named,
    earlier: PlanIds,
    now: PlanIds,
) -> Result<()> {
    let mut kept = if earlier == now {
        Vec::new()
    } else {
        vec![Folder::Images(now.image), Folder::Text(now.text)]
    };
    match named.ids() {
        // Records of a committed share say what it holds, and their folder that it is one.
        Some(ids) => {
            records::remove(publisher, None, |of| of == Some(earlier) && earlier != ids)?;
            kept.extend([Folder::Images(ids.image), Folder::Text(ids.text)]);
        }
        None => remove_parts(publisher)?,
    }
    for folder in [Folder::Images(earlier.image), Folder::Text(earlier.text)] {
        if !kept.contains(&folder) {
            remove_plan_folder(publisher.root(), folder)?;
        }
    }
    for name in [CRASHERS_NAME, IN_FLIGHT_NAME, STATE_NAME] {
        publisher.remove(Path::new(""), name)?;
    }
    Ok(())
}

/// Removes the folders of all plans but `kept`.
pub(crate) fn prune(publisher: &Publisher, kept: [Folder; 2]) -> Result<()> {
    let root = publisher.root();
    for entry in fs::read_dir(root).map_err(Error::io("list", root))? {
        let name = entry.map_err(Error::io("list", root))?.file_name();
        let folder = name.to_str().and_then(|name| name.parse::<Folder>().ok());
        if let Some(folder) = folder.filter(|folder| !kept.contains(folder)) {
            remove_plan_folder(root, folder)?;
        }
    }
    Ok(())
}

/// Removes what writers that died have left in the folders of these plans; the lock says that nobody writes there.
pub(crate) fn remove_leftovers(publisher: &Publisher, plans: [Folder; 2]) -> Result<()> {
    for (plan, subfolder) in plans
        .into_iter()
        .flat_map(|plan| SUBFOLDERS.map(|sub| (plan, sub)))
    {
        let path = publisher.root().join(plan.to_string()).join(subfolder);
        for entry in folder::entries(&path)? {
            let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
            let name = entry.file_name();
            let is_left = |name: &str| name.ends_with(TEMP_SUFFIX) && is_ours(subfolder, name);
            if regular && name.to_str().is_some_and(is_left) {
                let file = entry.path();
                fs::remove_file(&file).map_err(Error::io("remove", &file))?;
            }
        }
    }
    Ok(())
}

fn remove_plan_folder(root: &Path, folder: Folder) -> Result<()> {
    let top = root.join(folder.to_string());
    if !is_folder(&top) {
        return Ok(());
    }
    for subfolder in SUBFOLDERS {
        let path = if subfolder.is_empty() {
            top.clone()
        } else {
            top.join(subfolder)
        };
        if !is_folder(&path) {
            continue;
        }
        let entries = fs::read_dir(&path).map_err(Error::io("list", &path))?;
        for entry in entries {
            let entry = entry.map_err(Error::io("list", &path))?;
            let regular = entry.file_type().is_ok_and(|kind| kind.is_file());
            let name = entry.file_name();
            if regular && name.to_str().is_some_and(|name| is_ours(subfolder, name)) {
                let file = entry.path();
                fs::remove_file(&file).map_err(Error::io("remove", &file))?;
            }
        }
        // Not empty if a stranger's file is there: then it stays.
        let _ = fs::remove_dir(&path);
    }
    Ok(())
}

/// Whether a file of this name in this folder was made by a build, finished or not.
fn is_ours(subfolder: &str, name: &str) -> bool {
    let temp = name
        .strip_prefix('.')
        .and_then(|name| name.strip_suffix(TEMP_SUFFIX));
    let finished = temp.unwrap_or(name);
    if subfolder == "tables" && temp.is_some() {
        return ["samples", "rejects", "provenance"].contains(&finished);
    }
    let path = if subfolder.is_empty() {
        finished.to_owned()
    } else {
        format!("{subfolder}/{finished}")
    };
    FileName::parse(&path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_ours() {
        for (subfolder, name) in [
            ("shards", "p0000-000000.arrow"),
            ("shards", ".p0000-000000.arrow.tmp"),
            ("receipts", "p0012-000003.json"),
            ("index", "p0000.arrow"),
            ("tables", ".rejects.tmp"),
        ] {
            assert!(is_ours(subfolder, name), "{subfolder}/{name}");
        }
        for (subfolder, name) in [
            ("shards", "p0000-000000.arrow.bak"),
            ("shards", "p0-0.arrow"),
            ("shards", "p0000-000000.json"),
            ("shards", ".p0000-000000.arrow.tmp2"),
            ("index", "notes.txt"),
            ("tables", "samples.parquet"),
            ("", "manifest.json"),
            ("", "README"),
        ] {
            assert!(!is_ours(subfolder, name), "{subfolder}/{name}");
        }
    }
}
