//! Lists of file entries in JSON, column by column: `{"bytes":[..],"rows":[..],"hashes":"<64 digits each>"}`.
//!
//! Owns that form, which keeps a manifest of a million shards small and quick to parse. Invariant: a list has one form.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::checksum::ContentHash;
use crate::hex;
use crate::manifest::FileEntry;

/// Stands for a file that does not exist.
const ABSENT: FileEntry = FileEntry {
    bytes: 0,
    hash: ContentHash([0; 32]),
    rows: 0,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Columns<'a> {
    bytes: Vec<u64>,
    rows: Vec<u64>,
    /// From where it stands: a manifest has a megabyte of them.
    #[serde(borrow)]
    hashes: Cow<'a, str>,
}

fn write<S: Serializer>(
    entries: impl Iterator<Item = FileEntry>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut columns = Columns {
        bytes: Vec::new(),
        rows: Vec::new(),
        hashes: Cow::default(),
    };
    for entry in entries {
        columns.bytes.push(entry.bytes);
        columns.rows.push(entry.rows);
        hex::push(columns.hashes.to_mut(), &entry.hash.0);
    }
    columns.serialize(serializer)
}

fn read<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    make: impl Fn(FileEntry) -> T,
) -> Result<Vec<T>, D::Error> {
    let columns = Columns::deserialize(deserializer)?;
    let count = columns.bytes.len();
    if columns.rows.len() != count || columns.hashes.len() != count * 64 {
        return Err(D::Error::custom("columns differ in length"));
    }
    let mut entries = Vec::with_capacity(count);
    for ((bytes, rows), hash) in columns
        .bytes
        .iter()
        .zip(&columns.rows)
        .zip(columns.hashes.as_bytes().chunks_exact(64))
    {
        let hash = hex::decode(hash).ok_or_else(|| D::Error::custom("not a hash"))?;
        entries.push(make(FileEntry {
            bytes: *bytes,
            rows: *rows,
            hash: ContentHash(hash),
        }));
    }
    Ok(entries)
}

/// Lists of files that all exist.
pub(crate) mod plain {
    use super::{Deserializer, FileEntry, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        entries: &[FileEntry],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        super::write(entries.iter().copied(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<FileEntry>, D::Error> {
        super::read(deserializer, |entry| entry)
    }
}

/// Lists of files some of which do not exist: zero bytes, zero rows and a hash of zeros.
pub(crate) mod optional {
    use super::{ABSENT, Deserializer, FileEntry, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        entries: &[Option<FileEntry>],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        super::write(
            entries.iter().map(|entry| entry.unwrap_or(ABSENT)),
            serializer,
        )
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<Option<FileEntry>>, D::Error> {
        super::read(deserializer, |entry| {
            Some(entry).filter(|entry| *entry != ABSENT)
        })
    }
}
