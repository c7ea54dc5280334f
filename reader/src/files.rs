//! A cache as a set of files: the manifest, and every file that it names.
//!
//! Owns where a file lies and the check of whole small files against the manifest; rows are `cache.rs`'s. Invariant:
//! bytes that [`CacheFiles::read`] returns have the hash that the manifest gives them.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stoker_formats::limits::MAX_MANIFEST_BYTES;
use stoker_formats::{
    ContentHasher, FileEntry, FileName, Folder, ImageIndex, MANIFEST_NAME, Manifest, Partition,
    PartitionFiles, SampleIndex,
};

use crate::error::{Error, Result};

/// A file that the manifest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheFile {
    /// The folder of its plan.
    pub folder: Folder,
    /// Its name there.
    pub name: FileName,
    /// What the manifest says of it.
    pub entry: FileEntry,
}

impl CacheFile {
    /// Every file that `manifest` names, in a fixed order: partitions, then tables, then the tokenizer.
    pub fn named_by(manifest: &Manifest) -> impl Iterator<Item = Self> + '_ {
        let images = Folder::Images(manifest.image_plan_id);
        let text = Folder::Text(manifest.text_plan_id);
        let partitions = (0u32..).zip(&manifest.partitions);
        let hash = manifest.tokenizer.hash;
        let tokenizer = (FileName::Tokenizer { hash }, manifest.tokenizer);
        let whole = manifest.tables.files().into_iter().chain([tokenizer]);
        partitions
            .flat_map(move |(number, partition)| {
                Self::of_partition(images, number, &partition.images).chain(Self::of_partition(
                    text,
                    number,
                    &partition.samples,
                ))
            })
            .chain(whole.map(move |(name, entry)| Self {
                folder: text,
                name,
                entry,
            }))
    }

    /// The files of one plan in one partition: shards, receipts, index.
    pub fn of_partition(
        folder: Folder,
        partition: u32,
        files: &PartitionFiles,
    ) -> impl Iterator<Item = Self> + '_ {
        let file = move |name, entry| Self {
            folder,
            name,
            entry,
        };
        let shards = (0u32..)
            .zip(&files.shards)
            .filter_map(move |(ordinal, entry)| {
                entry.map(|entry| file(FileName::Shard { partition, ordinal }, entry))
            });
        let receipts = (0u32..)
            .zip(&files.receipts)
            .map(move |(ordinal, entry)| file(FileName::Receipt { partition, ordinal }, *entry));
        let index = file(FileName::Index { partition }, files.index);
        shards.chain(receipts).chain([index])
    }

    /// Its path relative to the cache, with `/`.
    #[must_use]
    pub fn relative(&self) -> String {
        format!("{}/{}", self.folder, self.name)
    }
}

/// A cache whose manifest was read; nothing else of it is open.
#[derive(Debug)]
pub struct CacheFiles {
    root: PathBuf,
    manifest: Manifest,
    /// Files that lie elsewhere, by their paths relative to the folder.
    moved: OnceLock<HashMap<String, PathBuf>>,
}

impl CacheFiles {
    /// Reads the manifest of the cache at `root`.
    ///
    /// # Errors
    /// [`Error::NotACache`] without a manifest; [`Error::Formats`] if it is damaged or of a newer major version.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref().to_path_buf();
        let path = root.join(MANIFEST_NAME);
        let metadata = fs::metadata(&path).map_err(|source| {
            if source.kind() == io::ErrorKind::NotFound {
                Error::NotACache { path: root.clone() }
            } else {
                Error::io("read", &path)(source)
            }
        })?;
        let bytes = read_whole(&path, &metadata, MAX_MANIFEST_BYTES as u64)?;
        let manifest = Manifest::parse(bytes).map_err(Error::formats(&path))?;
        Ok(Self::of_manifest(root, manifest))
    }

    /// The cache at `root`, which may lack everything, if `manifest` is its manifest.
    #[must_use]
    pub fn of_manifest(root: PathBuf, manifest: Manifest) -> Self {
        Self {
            root,
            manifest,
            moved: OnceLock::new(),
        }
    }

    /// From now on these files, named as [`CacheFile::relative`] does, are looked for where they lie. Only once.
    pub(crate) fn move_to(&self, places: HashMap<String, PathBuf>) {
        let _ = self.moved.set(places);
    }

    /// The cache's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many partitions there are.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        // The manifest's own check bounds them far below.
        u32::try_from(self.manifest.partitions.len()).unwrap_or(u32::MAX)
    }

    /// The manifest's entry of a partition.
    ///
    /// # Errors
    /// [`Error::NoPartition`].
    pub fn partition(&self, partition: u32) -> Result<&Partition> {
        self.manifest
            .partitions
            .get(partition as usize)
            .ok_or(Error::NoPartition {
                partition,
                partitions: self.partitions(),
            })
    }

    /// The folder of the images.
    #[must_use]
    pub fn images(&self) -> Folder {
        Folder::Images(self.manifest.image_plan_id)
    }

    /// The folder of the samples.
    #[must_use]
    pub fn text(&self) -> Folder {
        Folder::Text(self.manifest.text_plan_id)
    }

    /// Where a file lies.
    #[must_use]
    pub fn path(&self, folder: Folder, name: FileName) -> PathBuf {
        let moved = self.moved.get();
        if let Some(place) = moved.and_then(|moved| moved.get(&format!("{folder}/{name}"))) {
            return place.clone();
        }
        self.root.join(folder.to_string()).join(name.to_string())
    }

    /// Every file that the manifest names, in a fixed order: partitions, then tables, then the tokenizer.
    pub fn expected(&self) -> impl Iterator<Item = CacheFile> + '_ {
        CacheFile::named_by(&self.manifest)
    }

    /// Reads a whole file and checks size and hash.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::Damaged`] or [`Error::Formats`] if it holds other bytes.
    pub fn read(&self, file: &CacheFile) -> Result<Vec<u8>> {
        let path = self.path(file.folder, file.name);
        let metadata = fs::metadata(&path).map_err(Error::io("read", &path))?;
        check_size(&path, &metadata, file.entry.bytes)?;
        let bytes = read_whole(&path, &metadata, file.entry.bytes)?;
        let kind = match file.name {
            FileName::Shard { .. } => "a shard",
            FileName::Index { .. } => "an index",
            FileName::Receipt { .. } => "a receipt",
            FileName::Table { .. } => "a table",
            FileName::Tokenizer { .. } => "the tokenizer",
        };
        file.entry
            .hash
            .check(kind, &bytes)
            .map_err(Error::formats(&path))?;
        Ok(bytes)
    }

    /// Hashes a file against its entry without keeping it; gives up without a fault when `stop` says so.
    pub(crate) fn check_hash(
        &self,
        path: &Path,
        entry: FileEntry,
        stop: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        let mut hasher = ContentHasher::new();
        let mut piece = vec![0; 256 << 10];
        loop {
            if stop() {
                return Ok(());
            }
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => hasher.update(&piece[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", path)(error)),
            }
        }
        if hasher.finish() == entry.hash {
            return Ok(());
        }
        Err(Error::Damaged {
            path: path.to_path_buf(),
            what: "its content does not match the hash in the manifest".into(),
        })
    }

    /// Reads and checks the sample index of a partition.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Formats`] if it has another layout, [`Error::Damaged`] if it is another's.
    pub fn sample_index(&self, partition: u32) -> Result<SampleIndex> {
        let entry = self.partition(partition)?.samples.index;
        let (path, bytes) = self.index(self.text(), partition, entry)?;
        let index = SampleIndex::parse(bytes).map_err(Error::formats(&path))?;
        check_index(
            path,
            (index.partition(), index.len()),
            (partition, entry.rows),
        )?;
        Ok(index)
    }

    /// Reads and checks the image index of a partition.
    ///
    /// # Errors
    /// As [`sample_index`](Self::sample_index).
    pub fn image_index(&self, partition: u32) -> Result<ImageIndex> {
        let entry = self.partition(partition)?.images.index;
        let (path, bytes) = self.index(self.images(), partition, entry)?;
        let index = ImageIndex::parse(bytes).map_err(Error::formats(&path))?;
        check_index(
            path,
            (index.partition(), index.len()),
            (partition, entry.rows),
        )?;
        Ok(index)
    }

    fn index(
        &self,
        folder: Folder,
        partition: u32,
        entry: FileEntry,
    ) -> Result<(PathBuf, Vec<u8>)> {
        let name = FileName::Index { partition };
        let bytes = self.read(&CacheFile {
            folder,
            name,
            entry,
        })?;
        Ok((self.path(folder, name), bytes))
    }
}

/// Fails unless the index at `path` is the one that the manifest means, by its partition and its rows.
pub(crate) fn check_index(path: PathBuf, found: (u32, u64), wanted: (u32, u64)) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Error::Damaged {
        path,
        what: "the index is of another partition, or has another number of rows".into(),
    })
}

/// Fails unless `metadata` is that of a regular file of `bytes`.
pub(crate) fn check_size(path: &Path, metadata: &Metadata, bytes: u64) -> Result<()> {
    let found = metadata.len();
    let what = if !metadata.is_file() {
        "not a regular file".to_owned()
    } else if found < bytes {
        format!("truncated to {found} of {bytes} bytes")
    } else if found > bytes {
        format!("longer than its {bytes} bytes by {}", found - bytes)
    } else {
        return Ok(());
    };
    Err(Error::Damaged {
        path: path.to_path_buf(),
        what,
    })
}

/// The bytes of a regular file of at most `limit` bytes.
pub(crate) fn read_whole(path: &Path, metadata: &Metadata, limit: u64) -> Result<Vec<u8>> {
    if !metadata.is_file() || metadata.len() > limit {
        return Err(Error::Damaged {
            path: path.to_path_buf(),
            what: "not a regular file, or too long for its kind".into(),
        });
    }
    let file = File::open(path).map_err(Error::io("open", path))?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // A file that grows meanwhile is not followed beyond the limit; its hash will not match.
    file.take(limit)
        .read_to_end(&mut bytes)
        .map_err(Error::io("read", path))?;
    Ok(bytes)
}
