//! Brings receipts, indexes and the tokenizer of all parts into the output.
//!
//! Owns the check of what a part holds. Invariant: a file in the output has the hash that its part's record names; one that
//! a committed manifest of the output names otherwise is not touched.

use std::fs;
use std::path::Path;

use stoker_formats::{ContentHash, FileEntry, FileName, Folder, PartitionFiles};

use super::cover::Source;
use super::found::Part;
use super::path;
use crate::build::Stop;
use crate::build::commit::publish_unless_there;
use crate::build::named::{Named, changed};
use crate::build::receipts::Layout;
use crate::error::{Error, Result};
use crate::folder::has_file;
use crate::publish::Publisher;

/// Files that a message names.
const NAMED_FILES_MAX: usize = 20;

struct Collector<'a> {
    publisher: &'a Publisher,
    named: &'a Named,
    /// Files that a part lacks, or holds with other bytes.
    lost: Vec<String>,
}

/// Copies what the output lacks. Shards are only looked for: a part holds all of its shards or, if its small files were copied to
/// where the commit runs, none.
pub(super) fn collect(
    parts: &[Part],
    sources: &[Source],
    layout: &Layout,
    publisher: &Publisher,
    named: &Named,
    stop: &Stop,
) -> Result<()> {
    let mut collector = Collector {
        publisher,
        named,
        lost: Vec::new(),
    };
    let (images, text) = (layout.images(), layout.text());
    for (partition, source) in (0u32..).zip(sources) {
        stop.check()?;
        let root = &parts[source.part].root;
        let files = &source.entry(parts).files;
        collector.take_all(root, images, partition, &files.images)?;
        collector.take_all(root, text, partition, &files.samples)?;
    }
    let tokenizer = parts[0].record.tokenizer;
    let hash = tokenizer.hash;
    let name = FileName::Tokenizer { hash };
    collector.take(&parts[0].root, text, name, tokenizer)?;
    for part in parts {
        collector.look_for_shards(part, layout);
    }
    collector.finish()
}

impl Collector<'_> {
    fn take_all(
        &mut self,
        root: &Path,
        folder: Folder,
        partition: u32,
        files: &PartitionFiles,
    ) -> Result<()> {
        for (ordinal, receipt) in (0u32..).zip(&files.receipts) {
            let name = FileName::Receipt { partition, ordinal };
            self.take(root, folder, name, *receipt)?;
        }
        self.take(root, folder, FileName::Index { partition }, files.index)
    }

    fn take(
        &mut self,
        root: &Path,
        folder: Folder,
        name: FileName,
        entry: FileEntry,
    ) -> Result<()> {
        let from = path(root, folder, name);
        let bytes = has_file(&from, entry.bytes).then(|| fs::read(&from).ok());
        let Some(bytes) = bytes
            .flatten()
            .filter(|bytes| ContentHash::of(bytes) == entry.hash)
        else {
            self.lost.push(from.display().to_string());
            return Ok(());
        };
        let to = path(self.publisher.root(), folder, name);
        if !self.named.allows(folder, name, entry.hash) {
            return Err(changed(&to));
        }
        let (Some(folder), Some(name)) =
            (to.parent(), to.file_name().and_then(|name| name.to_str()))
        else {
            return Ok(());
        };
        let folder = folder.strip_prefix(self.publisher.root()).unwrap_or(folder);
        publish_unless_there(self.publisher, folder, name, &bytes)
    }

    fn look_for_shards(&mut self, part: &Part, layout: &Layout) {
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
            self.lost.append(&mut missing);
        }
    }

    fn finish(mut self) -> Result<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let count = self.lost.len();
        self.lost.truncate(NAMED_FILES_MAX);
        Err(Error::Usage {
            what: format!(
                "parts lack {count} files, or hold them damaged: `{}`",
                self.lost.join("`, `")
            ),
            hint: "run the build command of that worker again, or copy the files anew".into(),
        })
    }
}
