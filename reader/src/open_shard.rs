//! Opening a shard.
//!
//! Owns the check that an open file is the shard that the manifest means. Invariant: a file that is handed out has the
//! manifest's size, and its head names this partition, ordinal and first row. Rows are held against their checksums later.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use stoker_formats::{FileEntry, ShardKind, read_shard_head};

use crate::error::{Error, Result};
use crate::files::CacheFiles;
use crate::index_store::path;
use crate::open_files::{FileId, FileKind, OpenFile, OpenFiles, open_sized};

/// The shard `id` of a cache, opened by `with` unless it is open.
pub(crate) fn open_shard(
    files: &CacheFiles,
    open: &OpenFiles,
    id: FileId,
    with: impl FnOnce(&Path) -> io::Result<File>,
) -> Result<Arc<OpenFile>> {
    let path = path(files, id);
    let (shards, _) = shards(files, id)?;
    let entry = shards.get(id.ordinal as usize).copied().flatten();
    let entry = entry.ok_or_else(|| {
        let what = "the index names a shard that the manifest does not";
        damaged(&path, what)
    })?;
    let check = || check_head(files, id, &path);
    open.get(id, || open_sized(&path, entry.bytes, with), check)
}

/// Checks the head of the shard `id` at `path`. Through a handle of its own: the one that is kept may take aligned reads only.
pub(crate) fn check_head(files: &CacheFiles, id: FileId, path: &Path) -> Result<()> {
    let (shards, kind) = shards(files, id)?;
    let plain = File::open(path).map_err(Error::io("open", path))?;
    let head = read_shard_head(&plain, kind).map_err(Error::formats(path))?;
    let before = shards.iter().take(id.ordinal as usize).flatten();
    let first_row = before.map(|shard| shard.rows).sum::<u64>();
    if (head.partition, head.shard, head.first_row) == (id.partition, id.ordinal, first_row) {
        Ok(())
    } else {
        Err(damaged(path, "another shard stands in this place"))
    }
}

/// The shards of the kind and partition of `id`.
fn shards(files: &CacheFiles, id: FileId) -> Result<(&[Option<FileEntry>], ShardKind)> {
    let partition = files.partition(id.partition)?;
    Ok(match id.kind {
        FileKind::ImageShard | FileKind::ImageIndex => {
            (&partition.images.shards, ShardKind::Images)
        }
        FileKind::SampleShard | FileKind::SampleIndex => {
            (&partition.samples.shards, ShardKind::Samples)
        }
    })
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::Damaged {
        path: path.to_path_buf(),
        what: what.to_owned(),
    }
}
