//! Checks every file of the manifest by size and hash.
//!
//! Owns reading whole files of any size in small memory, several at once. What is inside them is `deep.rs`'s. Invariant:
//! a file without a finding has the very bytes that the manifest names.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rayon::prelude::*;
use stoker_formats::{ContentHasher, FileEntry};
use stoker_reader::{CacheFile, CacheFiles};

use super::progress::Progress;
use super::{Fault, Finding};

/// Bytes read at once: large enough that a disk streams, small enough for a thread each.
const READ_BYTES: usize = 1 << 20;

/// The findings of all files, in the manifest's order.
pub(super) fn check(files: &CacheFiles, progress: &Progress) -> Vec<Finding> {
    let expected: Vec<CacheFile> = files.expected().collect();
    expected
        .par_iter()
        .filter_map(|file| {
            let (fault, what) =
                check_file(&files.path(file.folder, file.name), file.entry, progress)?;
            Some(Finding::new(*file, fault, what))
        })
        .collect()
}

/// What is wrong with a file, if anything is.
pub(crate) fn check_file(
    path: &Path,
    entry: FileEntry,
    progress: &Progress,
) -> Option<(Fault, String)> {
    let wanted = entry.bytes;
    let found = compare(path, entry, progress);
    if !matches!(found, Ok(None | Some((Fault::Changed, _)))) {
        // Not read, but done with.
        progress.advance(wanted);
    }
    match found {
        Ok(found) => found,
        Err(error) if is_absent(&error) => Some((Fault::Missing, "missing".into())),
        Err(error) => Some((Fault::Unreadable, format!("cannot be read: {error}"))),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn compare(
    path: &Path,
    entry: FileEntry,
    progress: &Progress,
) -> io::Result<Option<(Fault, String)>> {
    let wanted = entry.bytes;
    // Before it is opened: opening a FIFO would wait for ever.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Ok(Some((Fault::NotAFile, "not a regular file".into())));
    }
    let found = metadata.len();
    if found < wanted {
        return Ok(Some((
            Fault::Truncated,
            format!("truncated to {found} of {wanted} bytes"),
        )));
    }
    if found > wanted {
        let more = found - wanted;
        return Ok(Some((
            Fault::Extended,
            format!("longer than its {wanted} bytes by {more}"),
        )));
    }
    let mut input = File::open(path)?;
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![
        0;
        READ_BYTES
            .min(usize::try_from(wanted).unwrap_or(READ_BYTES))
            .max(1)
    ];
    while !progress.stopped() {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                hasher.update(buffer.get(..count).unwrap_or_default());
                progress.advance(count as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let same = hasher.finish() == entry.hash;
    Ok((!same).then(|| (Fault::Changed, "its content does not match its hash".into())))
}
