//! Patches without a copy: views into mapped shards.
//!
//! Owns their lifetime. Invariant: a view keeps its mapping alive. What a mapping does when its file changes is the
//! caller's risk: other bytes, or SIGBUS if the file shrinks; nothing is held against a checksum here.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::files::CacheFiles;
use crate::index_store::KEPT_BYTES;
use crate::io::Backend;
use crate::open_files::OpenFile;
use crate::rows::{How, Rows};
use crate::stats::Counters;
use crate::units::{Sample, Units};
use crate::verify::Verify;

/// Hands out the patches of a cache's images where they lie.
#[derive(Debug)]
pub struct Views {
    files: Arc<CacheFiles>,
    rows: Rows,
}

/// The uint8 patches of one image, row after row.
#[derive(Debug, Clone)]
pub struct ImageView {
    file: Arc<OpenFile>,
    offset: u64,
    length: u64,
}

impl Views {
    /// Opens the cache at `path`.
    ///
    /// # Errors
    /// As [`CacheFiles::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let files = Arc::new(CacheFiles::open(path)?);
        let rows = Rows::new(
            vec![(Arc::clone(&files), Vec::new())],
            Units::Samples,
            How {
                backend: Backend::Mmap,
                verify: Verify::Off,
                drop_pages: false,
                fills: false,
                kept_bytes: KEPT_BYTES,
            },
            None,
            Arc::new(Counters::default()),
        );
        Ok(Self { files, rows })
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.files.partitions()
    }

    /// Image rows of a partition.
    ///
    /// # Errors
    /// [`Error::NoPartition`].
    pub fn images(&self, partition: u32) -> Result<u64> {
        Ok(self.files.partition(partition)?.images.index.rows)
    }

    /// The patches of image `row` of a partition.
    ///
    /// # Errors
    /// [`Error::NoRow`]; [`Error::Row`] if its shard is missing or has another size.
    pub fn image(&self, partition: u32, row: u64) -> Result<ImageView> {
        let (file, offset, length) = self.rows.mapped_image(sample(partition), row)?;
        Ok(ImageView {
            file,
            offset,
            length,
        })
    }

    /// The file of image `row` of a partition, and where its patches lie in it: first byte, bytes.
    ///
    /// # Errors
    /// As [`image`](Self::image).
    pub fn range(&self, partition: u32, row: u64) -> Result<(PathBuf, u64, u64)> {
        let number = u32::try_from(row).map_err(|_| Error::Internal("an image number"))?;
        let entry = self.rows.image_entry(sample(partition), number)?;
        let path = self
            .rows
            .path_of(Rows::image_shard(sample(partition), &entry));
        let path = path.ok_or(Error::Internal("the only cache"))?;
        Ok((path, entry.offset, entry.length))
    }
}

/// Stands for any sample of a partition: images are found by their own numbers.
fn sample(partition: u32) -> Sample {
    Sample {
        cache: 0,
        partition,
        row: 0,
    }
}

impl Deref for ImageView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let mapping = self.file.mapping();
        // The range was held against the mapping when the view was made.
        mapping
            .and_then(|mapping| mapping.bytes(self.offset, self.length))
            .unwrap_or_default()
    }
}
