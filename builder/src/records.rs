//! The part records that a folder holds.
//!
//! Owns how they are found, read and removed. Invariant: a record may be anybody's, so it is read as a regular file of bounded
//! size; only what this release could have written is ever removed.

use std::path::{Path, PathBuf};

use stoker_formats::{
    PARTS_FOLDER, PartFile, PartName, PartRecord, TableKind, limits::MAX_MANIFEST_BYTES,
};

use crate::error::{Error, Result};
use crate::folder;
use crate::plan::PlanIds;
use crate::publish::Publisher;

/// A record on disk, not read yet.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) name: PartName,
    pub(crate) path: PathBuf,
}

/// The records in the cache folder `root`, in the order of their names.
///
/// # Errors
/// If the folder of part records cannot be listed.
pub(crate) fn find(root: &Path) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in folder::entries(&root.join(PARTS_FOLDER))? {
        if let Some(Ok(PartFile::Record(name))) = entry.file_name().to_str().map(PartFile::parse) {
            found.push(Found {
                name,
                path: entry.path(),
            });
        }
    }
    found.sort();
    Ok(found)
}

impl Found {
    /// What it says.
    ///
    /// # Errors
    /// If it cannot be read, is no record, or of a newer version.
    pub(crate) fn read(&self) -> Result<PartRecord> {
        let bytes = folder::read_regular(&self.path, MAX_MANIFEST_BYTES)
            .map_err(Error::io("read", &self.path))?;
        PartRecord::parse(&bytes).map_err(|error| error.in_file(&self.path).into())
    }
}

/// The plans that a record belongs to.
pub(crate) fn ids(record: &PartRecord) -> PlanIds {
    PlanIds {
        image: record.image_plan_id,
        text: record.text_plan_id,
    }
}

/// Removes the records whose plans are `gone`, and their tables unless they are `kept`'s, which are new. A damaged record goes
/// too; one of a newer version is not ours to judge.
pub(crate) fn remove(
    publisher: &Publisher,
    kept: Option<PartName>,
    gone: impl Fn(Option<PlanIds>) -> bool,
) -> Result<()> {
    let parts = Path::new(PARTS_FOLDER);
    for found in find(publisher.root())? {
        let of = match found.read() {
            Ok(record) => Some(ids(&record)),
            Err(Error::Formats(error)) if !error.is_newer() => None,
            Err(_) => continue,
        };
        if !gone(of) {
            continue;
        }
        publisher.remove(parts, &PartFile::Record(found.name).to_string())?;
        for kind in TableKind::ALL
            .into_iter()
            .filter(|_| kept != Some(found.name))
        {
            publisher.remove(parts, &PartFile::Table(found.name, kind).to_string())?;
        }
    }
    Ok(())
}
