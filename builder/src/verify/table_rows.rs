//! Reads the Parquet tables of a cache.
//!
//! Owns turning their rows into what messages need. Invariant: a table is hashed before it is parsed, so that no accident
//! reaches the Parquet decoder; where somebody made the hash fit, a panic of the decoder is a table that cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use stoker_formats::TableKind;
use stoker_reader::CacheFiles;

use crate::quiet::caught;

/// The sample ids of the rows `wanted` (partition, row), by the samples table; fewer if it is damaged.
pub(crate) fn sample_ids(
    files: &CacheFiles,
    wanted: &BTreeSet<(u32, u64)>,
) -> BTreeMap<(u32, u64), String> {
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return found;
    }
    // What was found before a fault is as good as without it.
    let _ = visit(files, TableKind::Samples, |row| {
        let (mut id, mut place) = (None, (None, None));
        for (name, field) in row.get_column_iter() {
            match (name.as_str(), field) {
                ("sample_id", Field::Str(text)) => id = Some(text),
                ("partition", Field::UInt(number)) => place.0 = Some(*number),
                ("row", Field::ULong(number)) => place.1 = Some(*number),
                _ => {}
            }
        }
        if let (Some(id), (Some(partition), Some(number))) = (id, place)
            && wanted.contains(&(partition, number))
        {
            found.insert((partition, number), id.clone());
        }
        found.len() < wanted.len()
    });
    found
}

/// How many records were rejected for each reason; none if the table is missing or damaged.
pub(crate) fn reject_counts(files: &CacheFiles) -> Option<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    visit(files, TableKind::Rejects, |row| {
        for (name, field) in row.get_column_iter() {
            if let ("reason", Field::Str(reason)) = (name.as_str(), field) {
                *counts.entry(reason.clone()).or_insert(0) += 1;
            }
        }
        true
    })?;
    Some(counts)
}

/// Calls `each` with every row of a table until it says no; none if the table cannot be read.
fn visit(files: &CacheFiles, kind: TableKind, each: impl FnMut(&Row) -> bool) -> Option<()> {
    let wanted = |file: &stoker_reader::CacheFile| matches!(file.name, stoker_formats::FileName::Table { kind: found, .. } if found == kind);
    let bytes = files.read(&files.expected().find(wanted)?).ok()?;
    read(bytes.into(), each)
}

/// The same, of a table whose hash is right.
pub(crate) fn read(bytes: Bytes, each: impl FnMut(&Row) -> bool) -> Option<()> {
    caught(|| decode(bytes, each)).ok()?.ok()
}

fn decode(bytes: Bytes, mut each: impl FnMut(&Row) -> bool) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(bytes)?;
    for row in reader.get_row_iter(None)? {
        if !each(&row?) {
            break;
        }
    }
    Ok(())
}
