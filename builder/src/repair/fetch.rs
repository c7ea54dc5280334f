//! Good bytes from a remote.
//!
//! Owns what a file that the remote cannot give means: the damage remains, the others are mended. Invariant: a name changes only by
//! the publisher's rename, after the last byte was checked.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use stoker_formats::{MANIFEST_NAME, PACKS_FOLDER, PackFile, PackName};
use stoker_reader::CacheFiles;

use super::damage::{Damaged, File, writer};
use super::{RepairRequest, Repaired};
use crate::error::{Error, Result};
use crate::publish::Publisher;
use crate::remote::{Remote, RemoteFile, crew, files, pack_files};
use crate::verify::progress::Progress;
use crate::verify::{Fault, check_file};

/// Replaces a damaged manifest by the remote's, if the folder has the folders of that one's plans.
pub(super) fn manifest(publisher: &Publisher, remote: &Remote) -> Result<Option<Repaired>> {
    let what = match CacheFiles::open(publisher.root()) {
        Ok(_) => return Ok(None),
        Err(error) => error.damage().ok_or(error)?,
    };
    let plans = files::folders(remote.manifest());
    if !plans
        .iter()
        .all(|plan| publisher.root().join(plan.to_string()).is_dir())
    {
        return Err(Error::Usage {
            what: format!(
                "the manifest is damaged, and the remote's is of other plans: `{}`",
                publisher.root().display()
            ),
            hint: "name the remote that this cache was pushed to".into(),
        });
    }
    publisher.replace_bytes(Path::new(""), MANIFEST_NAME, remote.manifest_bytes())?;
    Ok(Some(Repaired {
        file: MANIFEST_NAME.into(),
        fault: Fault::Changed,
        what,
        remains: None,
    }))
}

/// Mends what can be mended; says so of each.
pub(super) fn fetch(
    damaged: &[Damaged],
    publisher: &Publisher,
    remote: &Remote,
    request: &RepairRequest,
) -> Result<Vec<Repaired>> {
    let mender = Mender {
        publisher,
        remote,
        progress: Progress::new(
            "repair",
            request.show,
            damaged.iter().map(|found| found.file.bytes()).sum(),
            request.stop.clone(),
        ),
    };
    let done = Mutex::new(Vec::new());
    let mend = |(number, found): &(usize, &Damaged)| {
        let outcome = match &found.file {
            File::Cache(file) => mender.file(&RemoteFile::from(file)),
            File::PackTable(entry) => mender.file(&RemoteFile::pack_table(*entry)),
            File::PackEntry(name) => mender.entry(name),
            // A remote knows of no share.
            File::Record(_) => Ok(()),
        };
        let remains = match outcome {
            Ok(()) => match &found.file {
                File::Record(path) => Some(writer(path)),
                _ => None,
            },
            // Formats: the remote's entry of a pack table is damaged itself.
            Err(error @ (Error::Remote { .. } | Error::Formats(_))) => Some(error.to_string()),
            // No file can take the name of a folder.
            Err(error @ Error::Io { .. }) if found.fault == Fault::NotAFile => {
                Some(error.to_string())
            }
            Err(error) => return Err(error),
        };
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.push((
            *number,
            Repaired {
                file: found.file.relative(),
                fault: found.fault,
                what: found.what.clone(),
                remains,
            },
        ));
        Ok(())
    };
    let numbered = damaged.iter().enumerate();
    let (entries, files): (Vec<_>, Vec<_>) =
        numbered.partition(|(_, found)| matches!(found.file, File::PackEntry(_)));
    crew::each(request.threads, &files, mend)?;
    // Entries may name the same tables as others: nobody else writes these when one is mended.
    crew::each(1, &entries, mend)?;
    mender.progress.finish();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, repaired)| repaired).collect())
}

struct Mender<'a> {
    publisher: &'a Publisher,
    remote: &'a Remote,
    progress: Progress,
}

impl Mender<'_> {
    fn file(&self, file: &RemoteFile) -> Result<()> {
        let (folder, name) = file.place();
        let folder = Path::new(folder);
        self.publisher.create_folder(folder)?;
        let mut pending = self.publisher.create(folder, name)?;
        self.remote.bring(file, &mut |piece| {
            self.progress.advance(piece.len() as u64);
            pending.put(piece)
        })?;
        pending.publish(name)
    }

    /// The entry of a pack table and, as nobody could tell, its tables.
    fn entry(&self, name: &PackName) -> Result<()> {
        let file = PackFile::Entry(name.clone()).to_string();
        let Some((entry, bytes)) = self.remote.pack_entry(name)? else {
            return Err(Error::Remote {
                what: "the remote has no such pack table of this cache".into(),
                uri: format!(
                    "{}/{PACKS_FOLDER}/{file}",
                    self.remote.uri().trim_end_matches('/')
                ),
                hint: "make it again with `stoker pack`".into(),
            });
        };
        for table in pack_files([&entry]) {
            let path = self.publisher.root().join(&table.path);
            if check_file(&path, table.entry, &self.progress).is_some() {
                self.file(&table)?;
            }
        }
        self.publisher
            .replace_bytes(Path::new(PACKS_FOLDER), &file, &bytes)
    }
}
