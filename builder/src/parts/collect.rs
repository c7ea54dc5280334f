//! Brings receipts, indexes and the tokenizer of all parts into the output.
//!
//! Owns the check of what a part holds, and of what the output holds already. Invariant: nothing is written before everything
//! is checked; a file in the output has the hash that its part's record names; one that says something else, whole or named by
//! a committed manifest or a record of the output, is not touched.

use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::limits::MAX_RECEIPT_BYTES;
use stoker_formats::{
    ContentHash, Error as Formats, FileName, Folder, ImageReceipt, SampleReceipt,
};
use stoker_reader::CacheFile;

use super::cover::Source;
use super::found::Part;
use super::{path, small_files, tokenizer};
use crate::build::Stop;
use crate::build::commit::publish_unless_there;
use crate::build::named::Named;
use crate::build::receipts::Layout;
use crate::error::{Error, Result};
use crate::folder::{has_file, read_regular};
use crate::publish::Publisher;
use crate::records;

/// Files that a message names.
const NAMED_FILES_MAX: usize = 20;

/// What is to be brought, and where to.
pub(super) struct Collector<'a> {
    pub(super) parts: &'a [Part],
    pub(super) sources: &'a [Source],
    pub(super) layout: Layout,
    pub(super) output: &'a Path,
    pub(super) named: &'a Named,
    pub(super) stop: &'a Stop,
}

/// A file of a part that the cache's folder shall hold.
struct Small<'a> {
    root: &'a Path,
    file: CacheFile,
}

impl Collector<'_> {
    /// Refuses parts that lack files, and an output that holds others. Shards are only looked for: a part holds all of its
    /// shards or, if its small files were copied to where the commit runs, none.
    pub(super) fn check(&self) -> Result<()> {
        self.check_records()?;
        let mut lost = Vec::new();
        for small in self.files() {
            self.stop.check()?;
            if small.read().is_none() {
                lost.push(small.from().display().to_string());
                continue;
            }
            let CacheFile {
                folder,
                name,
                entry,
            } = small.file;
            let to = path(self.output, folder, name);
            if !self.named.allows(folder, name, entry.hash) {
                return Err(Error::Otherwise { path: to });
            }
            let is_named = self.named.names(folder, name, entry.hash);
            if !is_named && small.is_contradicted(&to) {
                return Err(contradicted(&to));
            }
        }
        for part in self.parts {
            look_for_shards(part, self.layout, &mut lost);
        }
        if lost.is_empty() {
            return Ok(());
        }
        Err(lacking(lost))
    }

    /// Copies what the output lacks.
    pub(super) fn collect(&self, publisher: &Publisher) -> Result<()> {
        for small in self.files() {
            self.stop.check()?;
            let Some(bytes) = small.read() else {
                return Err(lacking(vec![small.from().display().to_string()]));
            };
            let file = PathBuf::from(small.file.relative());
            if let (Some(folder), Some(name)) = (file.parent(), file.file_name()) {
                publish_unless_there(publisher, folder, &name.to_string_lossy(), &bytes)?;
            }
        }
        Ok(())
    }

    fn files(&self) -> impl Iterator<Item = Small<'_>> {
        let tokenizer = Small {
            root: &self.parts[0].root,
            file: tokenizer(self.layout, &self.parts[0].record),
        };
        let partitions = self.sources.iter().flat_map(|source| {
            let root = self.parts[source.part].root.as_path();
            let files = small_files(self.layout, source.entry(self.parts));
            files.map(move |file| Small { root, file })
        });
        partitions.chain([tokenizer])
    }

    /// Refuses an output that has built a partition with other files, unless it has committed these.
    fn check_records(&self) -> Result<()> {
        if self.named.is_of(self.layout.ids) {
            return Ok(());
        }
        for found in records::find(self.output)? {
            let record = match found.read() {
                Err(Error::Formats(error)) if error.is_newer() => return Err(error.into()),
                Ok(record) if records::ids(&record) == self.layout.ids => record,
                _ => continue,
            };
            for entry in &record.partitions {
                let source = self.sources.get(entry.partition as usize);
                if source.is_none_or(|source| source.entry(self.parts).files != entry.files) {
                    return Err(contradicted(&found.path));
                }
            }
        }
        Ok(())
    }
}

impl Small<'_> {
    fn from(&self) -> PathBuf {
        path(self.root, self.file.folder, self.file.name)
    }

    /// Its bytes, if they are those that the record names.
    fn read(&self) -> Option<Vec<u8>> {
        let from = self.from();
        let entry = self.file.entry;
        let bytes = has_file(&from, entry.bytes).then(|| fs::read(&from).ok());
        bytes
            .flatten()
            .filter(|bytes| ContentHash::of(bytes) == entry.hash)
    }

    /// Whether a whole receipt stands at `to` that says something else: its shard may be there too.
    fn is_contradicted(&self, to: &Path) -> bool {
        if !matches!(self.file.name, FileName::Receipt { .. }) {
            return false;
        }
        let Ok(there) = read_regular(to, MAX_RECEIPT_BYTES) else {
            return false;
        };
        let fault: Option<Formats> = match self.file.folder {
            Folder::Images(_) => ImageReceipt::parse(&there).err(),
            Folder::Text(_) => SampleReceipt::parse(&there).err(),
        };
        ContentHash::of(&there) != self.file.entry.hash
            && fault.is_none_or(|error| error.is_newer())
    }
}

fn look_for_shards(part: &Part, layout: Layout, lost: &mut Vec<String>) {
    let mut there = false;
    let mut missing = Vec::new();
    for entry in &part.record.partitions {
        let partition = entry.partition;
        let kinds = [
            (layout.images(), &entry.files.images),
            (layout.text(), &entry.files.samples),
        ];
        for (folder, files) in kinds {
            for (ordinal, shard) in (0u32..).zip(&files.shards) {
                let Some(shard) = shard else { continue };
                let path = path(&part.root, folder, FileName::Shard { partition, ordinal });
                if has_file(&path, shard.bytes) {
                    there = true;
                } else {
                    missing.push(path.display().to_string());
                }
            }
        }
    }
    if there {
        lost.append(&mut missing);
    }
}

fn lacking(mut lost: Vec<String>) -> Error {
    let count = lost.len();
    lost.truncate(NAMED_FILES_MAX);
    Error::Usage {
        what: format!(
            "parts lack {count} files, or hold them damaged: `{}`",
            lost.join("`, `")
        ),
        hint: "run the build command of that worker again, or copy the files anew".into(),
    }
}

/// The output has made something else of the same partition.
fn contradicted(path: &Path) -> Error {
    Error::Usage {
        what: format!(
            "the output has built a partition with other bytes than the parts given: `{}`",
            path.display()
        ),
        hint: "give the output's own part instead of its other copy, or choose another --output"
            .into(),
    }
}
