//! A cache that is open: its indexes in memory, its rows within reach.
//!
//! Owns the numbering of rows and the reading of one row; what a file is, is `files.rs`'s. Invariant: row N of the cache
//! counts the sample rows of its partitions in order, so numbers never depend on where files lie.

use std::fs;
use std::io;

use stoker_formats::{
    FileName, ImageData, ImageIndex, Manifest, SampleData, SampleIndex, SplitEntry, read_image,
    read_sample,
};

use crate::error::{Error, Result};
use crate::files::{CacheFiles, check_size};
use crate::index_store::path;
use crate::open_files::{FileId, FileKind, OpenFiles};
use crate::open_shard::open_shard;

/// Where a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The partition.
    pub partition: u32,
    /// The row in it.
    pub row: u64,
}

/// One partition: both indexes.
#[derive(Debug)]
pub(crate) struct OpenPartition {
    /// The number in the cache of its first sample.
    first_row: u64,
    pub(crate) samples: SampleIndex,
    images: ImageIndex,
}

/// A cache that is open. It can be shared between threads.
#[derive(Debug)]
pub struct Cache {
    files: CacheFiles,
    open: OpenFiles,
    partitions: Vec<OpenPartition>,
    /// The partitions whose shards are on other nodes, ascending.
    elsewhere: Vec<u32>,
    samples: u64,
}

impl Cache {
    /// Opens the cache at `root`: reads manifest and indexes, checks their hashes, and that every shard is in its place
    /// with the size that the manifest gives it. Costs nothing a row.
    ///
    /// # Errors
    /// [`Error::NotACache`], [`Error::Missing`] with all missing files at once, or the first file that is damaged.
    pub fn open(root: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::open_share(CacheFiles::open(root)?, Vec::new())
    }

    /// The same of a share: the shards of the partitions `elsewhere`, which ascend, are on other nodes. Reading a row of them is
    /// [`Error::Elsewhere`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_share(files: CacheFiles, elsewhere: Vec<u32>) -> Result<Self> {
        check_presence(&files, &elsewhere)?;
        let mut partitions = Vec::with_capacity(files.partitions() as usize);
        let mut samples = 0;
        for number in 0..files.partitions() {
            let partition = OpenPartition {
                first_row: samples,
                samples: files.sample_index(number)?,
                images: files.image_index(number)?,
            };
            samples += partition.samples.len();
            partitions.push(partition);
        }
        Ok(Self {
            files,
            open: OpenFiles::new(),
            partitions,
            elsewhere,
            samples,
        })
    }

    /// The files of the cache.
    #[must_use]
    pub fn files(&self) -> &CacheFiles {
        &self.files
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        self.files.manifest()
    }

    /// The splits, in order.
    #[must_use]
    pub fn splits(&self) -> &[SplitEntry] {
        &self.manifest().splits
    }

    /// The split that a partition belongs to.
    #[must_use]
    pub fn split_of(&self, partition: u32) -> Option<&SplitEntry> {
        self.splits().iter().find(|split| {
            partition
                .checked_sub(split.first_partition)
                .is_some_and(|number| number < split.partitions)
        })
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        self.files.partitions()
    }

    /// The partitions whose shards are on other nodes, ascending.
    #[must_use]
    pub fn elsewhere(&self) -> &[u32] {
        &self.elsewhere
    }

    /// Whether the shards of a partition are on other nodes.
    #[must_use]
    pub fn is_elsewhere(&self, partition: u32) -> bool {
        self.elsewhere.binary_search(&partition).is_ok()
    }

    /// Samples in the cache.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Where sample `number` of the cache is; none beyond the last.
    #[must_use]
    pub fn place(&self, number: u64) -> Option<Place> {
        if number >= self.samples {
            return None;
        }
        // The last partition that begins at or before it; empty ones share their beginning with the next.
        let after = self
            .partitions
            .partition_point(|partition| partition.first_row <= number);
        let partition = after.checked_sub(1)?;
        let row = number - self.partitions.get(partition)?.first_row;
        Some(Place {
            partition: u32::try_from(partition).ok()?,
            row,
        })
    }

    /// The number in the cache of the sample at `place`; none where there is no sample.
    #[must_use]
    pub fn number(&self, place: Place) -> Option<u64> {
        let partition = self.partitions.get(place.partition as usize)?;
        (place.row < partition.samples.len()).then(|| partition.first_row + place.row)
    }

    /// The sample index of a partition.
    ///
    /// # Errors
    /// [`Error::NoPartition`].
    pub fn sample_index(&self, partition: u32) -> Result<&SampleIndex> {
        Ok(&self.partition(partition)?.samples)
    }

    /// The image index of a partition.
    ///
    /// # Errors
    /// [`Error::NoPartition`].
    pub fn image_index(&self, partition: u32) -> Result<&ImageIndex> {
        Ok(&self.partition(partition)?.images)
    }

    /// Reads sample row `row` of a partition and checks it.
    ///
    /// # Errors
    /// [`Error::NoPartition`], [`Error::NoRow`]; [`Error::Row`] or [`Error::Formats`] naming partition, shard, row and
    /// file if the shard is missing, another one or damaged.
    pub fn sample(&self, partition: u32, row: u64) -> Result<SampleData> {
        let open = self.partition(partition)?;
        let entry = open.samples.get(row).ok_or(Error::NoRow {
            kind: "sample",
            partition,
            row,
            rows: open.samples.len(),
        })?;
        self.in_shard(
            FileKind::SampleShard,
            (partition, entry.shard, row),
            |file| read_sample(file, partition, row, &entry),
        )
    }

    /// Reads image row `row` of a partition and checks it.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn image(&self, partition: u32, row: u64) -> Result<ImageData> {
        let open = self.partition(partition)?;
        let entry = open.images.get(row).ok_or(Error::NoRow {
            kind: "image",
            partition,
            row,
            rows: open.images.len(),
        })?;
        self.in_shard(
            FileKind::ImageShard,
            (partition, entry.shard, row),
            |file| read_image(file, partition, row, &entry),
        )
    }

    pub(crate) fn partition(&self, partition: u32) -> Result<&OpenPartition> {
        self.partitions
            .get(partition as usize)
            .ok_or(Error::NoPartition {
                partition,
                partitions: self.partitions(),
            })
    }

    /// Reads in the shard of a row (partition, shard, row); errors get the row and the file.
    pub(crate) fn in_shard<T>(
        &self,
        kind: FileKind,
        (partition, shard, row): (u32, u32, u64),
        read: impl FnOnce(&fs::File) -> stoker_formats::Result<T>,
    ) -> Result<T> {
        if self.is_elsewhere(partition) {
            return Err(Error::Elsewhere {
                root: self.files.root().to_path_buf(),
                partitions: vec![partition],
            });
        }
        let id = FileId {
            cache: 0,
            kind,
            partition,
            ordinal: shard,
        };
        let at_row = |error| Error::Row {
            kind: kind.rows(),
            partition,
            shard,
            row,
            error: Box::new(error),
        };
        let file = open_shard(&self.files, &self.open, id, |path| fs::File::open(path));
        let file = file.map_err(at_row)?;
        read(file.file()).map_err(|error| {
            let named = matches!(error, stoker_formats::Error::Row { .. });
            let error = Error::formats(&path(&self.files, id))(error);
            if named { error } else { at_row(error) }
        })
    }
}

/// Fails if a shard that should be here, or an index, is missing or has another size. Receipts and tables are not read from here.
fn check_presence(files: &CacheFiles, elsewhere: &[u32]) -> Result<()> {
    let mut missing = Vec::new();
    let mut damaged = None;
    let needed = files.expected().filter(|file| match file.name {
        FileName::Shard { partition, .. } => elsewhere.binary_search(&partition).is_err(),
        FileName::Index { .. } => true,
        _ => false,
    });
    for file in needed {
        let path = files.path(file.folder, file.name);
        match fs::metadata(&path) {
            Ok(metadata) => {
                let fits = check_size(&path, &metadata, file.entry.bytes);
                damaged = damaged.or(fits.err());
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                missing.push(file.relative());
            }
            Err(error) => return Err(Error::io("open", &path)(error)),
        }
    }
    if !missing.is_empty() {
        return Err(Error::Missing {
            root: files.root().to_path_buf(),
            files: missing,
        });
    }
    damaged.map_or(Ok(()), Err)
}
