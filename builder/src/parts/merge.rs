//! The tables of the cache, put together from those of the parts.
//!
//! Owns reading rows back. Invariant: a part's table is hashed before it is parsed, and its rows are taken partition by
//! partition, as many as the part's record counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row, RowAccessor};
use stoker_formats::tables::{ProvenanceKind, ProvenanceRow, RejectTableRow, SampleTableRow};
use stoker_formats::{FileEntry, PARTS_FOLDER, PartFile, TableKind, Tables};

use super::cover::Source;
use super::found::Part;
use crate::build::Stop;
use crate::build::receipts::Layout;
use crate::build::tables::OpenTables;
use crate::error::{Error, Result};
use crate::publish::Publisher;
use crate::quiet::caught;
use crate::source::printable;
use crate::verify::check_file;
use crate::verify::progress::Progress;

/// The tables, and what was counted on the way.
pub(super) struct Merged {
    pub(super) tables: Tables,
    /// Rejected records by reason.
    pub(super) rejects: BTreeMap<String, u64>,
}

/// Writes the cache's tables.
pub(super) fn merge(
    parts: &[Part],
    sources: &[Source],
    layout: &Layout,
    publisher: &Publisher,
    stop: &Stop,
) -> Result<Merged> {
    let mut open = parts
        .iter()
        .map(|part| OpenPart::open(part, stop))
        .collect::<Result<Vec<_>>>()?;
    let folder = Path::new(&layout.text().to_string()).join("tables");
    let mut tables = OpenTables::new(publisher, &folder, None)?;
    let mut rejects = BTreeMap::new();
    // All parts read the same inputs; what they call them is told by the part that holds the first partition.
    let teller = sources.first().map_or(0, |source| source.part);
    for (number, part) in open.iter_mut().enumerate() {
        for row in part
            .provenance
            .take(parts[number].record.inputs.len() as u64)
        {
            let row = row?;
            if number == teller {
                tables.provenance.push(row)?;
            }
        }
    }
    for (partition, source) in (0u32..).zip(sources) {
        stop.check()?;
        for (number, part) in open.iter_mut().enumerate() {
            let entries = &parts[number].record.partitions;
            let Ok(place) = entries.binary_search_by_key(&partition, |entry| entry.partition)
            else {
                continue;
            };
            let entry = &entries[place];
            let is_source = number == source.part;
            for row in part.provenance.take(entry.sources) {
                let row = row?;
                if is_source {
                    tables.provenance.push(row)?;
                }
            }
            for row in part.samples.take(entry.files.samples.index.rows) {
                let row = row?;
                if is_source {
                    tables.samples.push(row)?;
                }
            }
            for row in part.rejects.take(entry.rejects) {
                let row = row?;
                if is_source {
                    *rejects.entry(printable(&row.reason)).or_default() += 1;
                    tables.rejects.push(row)?;
                }
            }
        }
    }
    Ok(Merged {
        tables: tables.finish(publisher)?,
        rejects,
    })
}

/// The tables of one part, open.
struct OpenPart {
    samples: Rows<SampleTableRow>,
    rejects: Rows<RejectTableRow>,
    provenance: Rows<ProvenanceRow>,
}

impl OpenPart {
    fn open(part: &Part, stop: &Stop) -> Result<Self> {
        let tables = &part.record.tables;
        Ok(Self {
            samples: Rows::open(part, TableKind::Samples, tables.samples, sample, stop)?,
            rejects: Rows::open(part, TableKind::Rejects, tables.rejects, reject, stop)?,
            provenance: Rows::open(part, TableKind::Provenance, tables.provenance, source, stop)?,
        })
    }
}

/// The rows of one table, one after another.
struct Rows<R> {
    path: PathBuf,
    rows: RowIter<'static>,
    read: fn(&Row) -> Result<R, ParquetError>,
}

impl<R> Rows<R> {
    fn open(
        part: &Part,
        kind: TableKind,
        entry: FileEntry,
        read: fn(&Row) -> Result<R, ParquetError>,
        stop: &Stop,
    ) -> Result<Self> {
        let name = PartFile::Table(part.record.name, kind).to_string();
        let path = part.root.join(PARTS_FOLDER).join(name);
        let progress = Progress::new("commit", false, entry.bytes, stop.clone());
        if let Some((_, what)) = check_file(&path, entry, &progress) {
            stop.check()?;
            return Err(unreadable(&path, &what));
        }
        let on_disk = OnDisk {
            path: path.clone(),
            bytes: entry.bytes,
        };
        let open = || SerializedFileReader::new(on_disk);
        let rows = guarded(&path, || Ok(RowIter::from_file_into(Box::new(open()?))))?;
        Ok(Self { path, rows, read })
    }

    /// The next `count` rows.
    fn take(&mut self, count: u64) -> impl Iterator<Item = Result<R>> + '_ {
        (0..count).map(|_| {
            guarded(&self.path, || {
                let row = self.rows.next();
                let row = row.unwrap_or_else(|| Err(ParquetError::EOF("too few rows".into())));
                (self.read)(&row?)
            })
        })
    }
}

/// What the decoder gives. Only what somebody made the hash of can make it panic, and is then no table.
fn guarded<T>(path: &Path, decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    caught(decode)
        .unwrap_or_else(|said| {
            let message = format!("the decoder panicked: `{said}`");
            Err(ParquetError::General(message))
        })
        .map_err(|error| unreadable(path, &error.to_string()))
}

/// A file that is opened for each read: hundreds of parts have more tables than a process may have open files.
struct OnDisk {
    path: PathBuf,
    bytes: u64,
}

impl Length for OnDisk {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for OnDisk {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(file))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF("a range behind the end".into()));
        }
        let mut bytes = vec![0; length];
        File::open(&self.path)?.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

fn unreadable(path: &Path, what: &str) -> Error {
    Error::Usage {
        what: format!(
            "a part's table cannot be read, {what}: `{}`",
            path.display()
        ),
        hint: "run the build command of that worker again, or copy the file anew".into(),
    }
}

fn sample(row: &Row) -> Result<SampleTableRow, ParquetError> {
    Ok(SampleTableRow {
        sample_id: row.get_string(0)?.clone(),
        record_id: text(row, 1)?,
        split: row.get_string(2)?.clone(),
        partition: row.get_uint(3)?,
        row: row.get_ulong(4)?,
        file: row.get_string(5)?.clone(),
        line: row.get_ulong(6)?,
        byte_offset: row.get_ulong(7)?,
        n_tokens: row.get_uint(8)?,
        n_loss_tokens: row.get_uint(9)?,
        n_images: row.get_uint(10)?,
        n_patches: row.get_uint(11)?,
    })
}

fn reject(row: &Row) -> Result<RejectTableRow, ParquetError> {
    Ok(RejectTableRow {
        sample_id: row.get_string(0)?.clone(),
        file: row.get_string(1)?.clone(),
        line: row.get_ulong(2)?,
        byte_offset: row.get_ulong(3)?,
        column: value(row, 4, |row| row.get_ulong(4))?,
        reason: row.get_string(5)?.clone(),
        link: text(row, 6)?,
        message: row.get_string(7)?.clone(),
    })
}

fn source(row: &Row) -> Result<ProvenanceRow, ParquetError> {
    let kind = match row.get_string(0)?.as_str() {
        "input" => ProvenanceKind::Input,
        _ => ProvenanceKind::Image,
    };
    Ok(ProvenanceRow {
        kind,
        uri: row.get_string(1)?.clone(),
        bytes: row.get_ulong(2)?,
        etag: text(row, 3)?,
        partition: value(row, 4, |row| row.get_uint(4))?,
        key: text(row, 5)?,
    })
}

fn text(row: &Row, column: usize) -> Result<Option<String>, ParquetError> {
    value(row, column, |row| row.get_string(column).cloned())
}

/// A value that may be null.
fn value<T>(
    row: &Row,
    column: usize,
    get: impl FnOnce(&Row) -> Result<T, ParquetError>,
) -> Result<Option<T>, ParquetError> {
    match row.get_column_iter().nth(column) {
        Some((_, Field::Null)) => Ok(None),
        _ => get(row).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_there_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        let on_disk = OnDisk {
            path: file.path().into(),
            bytes: 10,
        };
        assert_eq!(on_disk.get_bytes(4, 6).unwrap(), "456789");
        for (start, length) in [(4, 7), (0, usize::MAX >> 1), (u64::MAX, 2)] {
            assert!(on_disk.get_bytes(start, length).is_err());
        }
    }
}
