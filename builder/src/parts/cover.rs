//! Which part gives which partition.
//!
//! Invariant: every partition has a source, and all parts that hold it say the same of it.

use stoker_formats::{FileName, PartEntry, PartName, PartitionFiles};

use super::found::Part;
use crate::error::{Error, Result};
use crate::held::numbers;

/// The first part that holds a partition, and where it stands in its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) part: usize,
    place: usize,
}

impl Source {
    /// What the part says of the partition.
    pub(super) fn entry(self, parts: &[Part]) -> &PartEntry {
        &parts[self.part].record.partitions[self.place]
    }
}

/// The source of each partition.
///
/// # Errors
/// [`Error::Usage`] for parts that differ, or with all partitions that no part holds and what builds them.
pub(super) fn sources(parts: &[Part]) -> Result<Vec<Source>> {
    let first = &parts[0].record;
    let mut sources = vec![None; first.all_partitions() as usize];
    for (number, part) in parts.iter().enumerate() {
        for (place, entry) in part.record.partitions.iter().enumerate() {
            let source = &mut sources[entry.partition as usize];
            match *source {
                None => {
                    *source = Some(Source {
                        part: number,
                        place,
                    });
                }
                Some(earlier) => check_same(parts, earlier, part, entry)?,
            }
        }
    }
    let missing: Vec<u32> = (0u32..)
        .zip(&sources)
        .filter(|(_, source)| source.is_none())
        .map(|(partition, _)| partition)
        .collect();
    if missing.is_empty() {
        return Ok(sources.into_iter().flatten().collect());
    }
    Err(Error::Usage {
        what: format!(
            "no part holds these of the {} partitions: `{}`",
            sources.len(),
            numbers(&missing)
        ),
        hint: command(&missing, first.name),
    })
}

/// What builds the missing partitions.
fn command(missing: &[u32], name: PartName) -> String {
    let mut workers: Vec<u32> = missing
        .iter()
        .map(|partition| partition % name.workers)
        .collect();
    workers.sort_unstable();
    workers.dedup();
    format!(
        "give all parts, or build what is missing: `stoker build ... --workers {} --worker I`, with the options of the others and I = {}",
        name.workers,
        numbers(&workers)
    )
}

fn check_same(parts: &[Part], earlier: Source, part: &Part, entry: &PartEntry) -> Result<()> {
    let first = earlier.entry(parts);
    if first == entry {
        return Ok(());
    }
    let images = first_difference(entry.partition, &first.files.images, &entry.files.images);
    let file = images
        .or_else(|| first_difference(entry.partition, &first.files.samples, &entry.files.samples));
    Err(Error::Usage {
        what: format!(
            "parts `{}` and `{}` differ in partition {}: `{}`",
            parts[earlier.part].name(),
            part.name(),
            entry.partition,
            file.map_or_else(|| "counts".into(), |file| file.to_string())
        ),
        hint: if matches!(file, Some(FileName::Receipt { .. })) {
            "the same bytes were read under other names: all workers must see the sources alike; leave out one of the two"
        } else {
            "the sources changed between the two builds: leave out one of them, or build it again"
        }
        .into(),
    })
}

/// The first file that two parts have made differently.
fn first_difference(
    partition: u32,
    one: &PartitionFiles,
    other: &PartitionFiles,
) -> Option<FileName> {
    let count = one.shards.len().max(other.shards.len());
    for (at, ordinal) in (0..count).zip(0u32..) {
        if one.shards.get(at) != other.shards.get(at) {
            return Some(FileName::Shard { partition, ordinal });
        }
        if one.receipts.get(at) != other.receipts.get(at) {
            return Some(FileName::Receipt { partition, ordinal });
        }
    }
    (one.index != other.index).then_some(FileName::Index { partition })
}
