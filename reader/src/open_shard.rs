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
    let damaged = |what: &str| Error::Damaged {
        path: path.clone(),
        what: what.to_owned(),
    };
    let partition = files.partition(id.partition)?;
    let (shards, kind) = match id.kind {
        FileKind::ImageShard | FileKind::ImageIndex => {
            (&partition.images.shards, ShardKind::Images)
        }
        FileKind::SampleShard | FileKind::SampleIndex => {
            (&partition.samples.shards, ShardKind::Samples)
        }
    };
    let before = shards.iter().take(id.ordinal as usize).flatten();
    let entry: FileEntry = shards
        .get(id.ordinal as usize)
        .copied()
        .flatten()
        .ok_or_else(|| damaged("the index names a shard that the manifest does not"))?;
    // Through a handle of its own: the one that is kept may take aligned reads only.
    let check = || {
        let plain = File::open(&path).map_err(Error::io("open", &path))?;
        let head = read_shard_head(&plain, kind).map_err(Error::formats(&path))?;
        let first_row = before.map(|shard| shard.rows).sum::<u64>();
        if (head.partition, head.shard, head.first_row) == (id.partition, id.ordinal, first_row) {
            Ok(())
        } else {
            Err(damaged("another shard stands in this place"))
        }
    };
    open.get(id, || open_sized(&path, entry.bytes, with), check)
}
