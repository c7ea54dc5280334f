//! The packs of one cache.
//!
//! Owns what is kept of a pack table. Invariant: opening reads the table's entry alone; counts and members of a partition are
//! read when they are first needed, and kept.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use stoker_formats::limits::MAX_PACK_ENTRY_BYTES;
use stoker_formats::{
    Counts, Members, PACKS_FOLDER, PackEntry, PackFile, PackName, PackTable, SplitEntry,
};

use crate::error::{Error, Result};
use crate::files::{CacheFiles, check_size, read_whole};
use crate::unit::{CacheUnits, PackId, Unit};

/// A pack table of a cache.
#[derive(Debug)]
pub struct Packs {
    files: Arc<CacheFiles>,
    entry: PackEntry,
    /// Of the table's file.
    path: PathBuf,
    table: OnceLock<PackTable>,
    partitions: Vec<Kept>,
}

/// What was read of a partition.
#[derive(Debug, Default)]
struct Kept {
    counts: OnceLock<Vec<Counts>>,
    members: OnceLock<Members>,
}

impl Packs {
    /// Reads the entry of the table called `name` and looks whether its file is there.
    ///
    /// # Errors
    /// [`Error::NoPack`], [`Error::OtherPack`] if it is another cache's, [`Error::Missing`], or what is damaged.
    pub fn open(files: Arc<CacheFiles>, name: &str) -> Result<Self> {
        let folder = files.root().join(PACKS_FOLDER);
        let missing = || Error::NoPack {
            pack: name.chars().take(80).collect(),
            root: files.root().to_path_buf(),
            packs: names(&files),
        };
        let name: PackName = name.parse().map_err(|_| missing())?;
        let path = folder.join(PackFile::Entry(name.clone()).to_string());
        let metadata = fs::metadata(&path).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => missing(),
            _ => Error::io("read", &path)(source),
        })?;
        let bytes = read_whole(&path, &metadata, MAX_PACK_ENTRY_BYTES as u64)?;
        let entry = PackEntry::parse(&bytes).map_err(Error::formats(&path))?;
        if entry.name != name {
            return Err(Error::Damaged {
                path,
                what: format!("the pack table calls itself {}", entry.name),
            });
        }
        let samples = files.manifest().partitions.iter();
        let samples = samples.map(|partition| partition.samples.index.rows);
        if entry.fingerprint != files.manifest().fingerprint || !samples.eq(entry.samples.clone()) {
            return Err(Error::OtherPack { path });
        }
        let file = PackFile::table(entry.table.hash).to_string();
        let path = folder.join(&file);
        let metadata = fs::metadata(&path).map_err(|source| match source.kind() {
            ErrorKind::NotFound => Error::Missing {
                root: files.root().to_path_buf(),
                files: vec![format!("{PACKS_FOLDER}/{file}")],
            },
            _ => Error::io("read", &path)(source),
        })?;
        check_size(&path, &metadata, entry.table.bytes)?;
        Ok(Self {
            path,
            table: OnceLock::new(),
            partitions: entry.packs.iter().map(|_| Kept::default()).collect(),
            entry,
            files,
        })
    }

    /// The packs of `split`.
    #[must_use]
    pub fn units(&self, split: &SplitEntry) -> CacheUnits {
        let pack = PackId {
            name: self.entry.name.to_string(),
            table: self.entry.table.hash,
        };
        CacheUnits::of_packs(self.files.manifest(), split, pack, &self.entry.packs)
    }

    /// Tokens that a pack is planned into.
    pub(crate) fn max_tokens(&self) -> u32 {
        self.entry.options.max_tokens
    }

    /// The cache's folder.
    pub(crate) fn root(&self) -> &std::path::Path {
        self.files.root()
    }

    fn table(&self) -> Result<&PackTable> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let file = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        let table = PackTable::open(file, &self.entry).map_err(Error::formats(&self.path))?;
        Ok(self.table.get_or_init(|| table))
    }

    fn kept(&self, partition: u32) -> Result<&Kept> {
        let kept = self.partitions.get(partition as usize);
        kept.ok_or(Error::NoPartition {
            partition,
            partitions: self.files.partitions(),
        })
    }

    /// Reads the counts of a partition and of those beside it, which the next units of a batch are in.
    fn count_around(&self, partition: u32) -> Result<()> {
        let table = self.table()?;
        let read = || {
            let partitions = table.beside(partition)?;
            let counts = table.counts_of(partitions.clone())?;
            Ok(partitions.zip(counts))
        };
        for (partition, counts) in read().map_err(Error::formats(&self.path))? {
            // Another thread may have been faster; what it read is the same.
            self.kept(partition)?.counts.get_or_init(|| counts);
        }
        Ok(())
    }

    /// What a pack holds, as it was planned. Reads the counts of its partition when they are first asked for.
    ///
    /// # Errors
    /// [`Error::NoPartition`]; [`Error::Formats`] if the table is damaged.
    pub fn counts(&self, unit: Unit) -> Result<Counts> {
        let kept = self.kept(unit.partition)?;
        let counts = match kept.counts.get() {
            Some(counts) => counts,
            None => {
                self.count_around(unit.partition)?;
                let counts = kept.counts.get();
                counts.ok_or(Error::Internal("the counts of a partition"))?
            }
        };
        let number = usize::try_from(unit.number).ok();
        let found = number.and_then(|number| counts.get(number));
        found.copied().ok_or(Error::Internal("a pack's number"))
    }

    /// The sample rows of a pack, in order.
    pub(crate) fn rows(&self, unit: Unit) -> Result<&[u32]> {
        let kept = self.kept(unit.partition)?;
        let members = match kept.members.get() {
            Some(members) => members,
            None => {
                let members = self.table()?.members(unit.partition);
                let members = members.map_err(Error::formats(&self.path))?;
                kept.members.get_or_init(|| members)
            }
        };
        match members.rows(unit.number) {
            [] => Err(Error::Internal("a pack's number")),
            rows => Ok(rows),
        }
    }

    /// Fails unless a pack's samples have together what it was planned with.
    pub(crate) fn check(&self, unit: Unit, found: Option<Counts>) -> Result<()> {
        if found == Some(self.counts(unit)?) {
            return Ok(());
        }
        Err(Error::Damaged {
            path: self.path.clone(),
            what: "the table counts other tokens, images or patches than the samples have".into(),
        })
    }

    /// What is wrong with a sample of a pack.
    pub(crate) fn fault(&self, unit: Unit, error: Error) -> Error {
        Error::InPack {
            pack: self.entry.name.to_string(),
            partition: unit.partition,
            number: unit.number,
            error: Box::new(error),
        }
    }
}

/// The pack tables that a cache has, sorted.
fn names(files: &CacheFiles) -> Vec<String> {
    // What cannot be listed is not there to be chosen.
    let entries = fs::read_dir(files.root().join(PACKS_FOLDER));
    let files = entries.into_iter().flatten().flatten();
    let mut names: Vec<String> = files
        .filter_map(
            |file| match PackFile::parse(file.file_name().to_str()?).ok()? {
                PackFile::Entry(name) => Some(name.to_string()),
                PackFile::Table(_) => None,
            },
        )
        .collect();
    names.sort();
    names
}
