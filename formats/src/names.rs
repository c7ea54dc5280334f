//! Every file name of a cache: built here, and recognised here.
//!
//! Owns the patterns. Invariant: [`FileName::parse`] accepts exactly what `Display` writes; nothing that comes from an
//! input ever becomes part of a name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::checksum::ContentHash;
use crate::error::{Error, Result};
use crate::hex;

/// The manifest's name in the cache folder.
pub const MANIFEST_NAME: &str = "manifest.json";

/// The folder of the pack tables in the cache folder.
pub const PACKS_FOLDER: &str = "packs";

/// The longest piece of a bad name that a message shows.
const SHOWN_CHARACTERS: usize = 80;

/// The 128-bit id of an image plan or a text plan; 32 lower-case hex digits in names and JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanId(pub [u8; 16]);

impl From<ContentHash> for PlanId {
    /// The first half of `hash`.
    fn from(hash: ContentHash) -> Self {
        let mut id = [0; 16];
        id.copy_from_slice(&hash.0[..16]);
        Self(id)
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PlanId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        hex::decode(text.as_bytes())
            .map(Self)
            .ok_or_else(|| bad(text))
    }
}

impl Serialize for PlanId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PlanId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        hex::decode(text.as_bytes())
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("not 32 lower-case hex digits"))
    }
}

/// A folder of a cache that one plan owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Folder {
    /// `images-<image plan id>`.
    Images(PlanId),
    /// `text-<text plan id>`.
    Text(PlanId),
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Images(id) => write!(f, "images-{id}"),
            Self::Text(id) => write!(f, "text-{id}"),
        }
    }
}

impl FromStr for Folder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('-') {
            Some(("images", id)) => id.parse().map(Self::Images).map_err(|_| bad(text)),
            Some(("text", id)) => id.parse().map(Self::Text).map_err(|_| bad(text)),
            _ => Err(bad(text)),
        }
    }
}

/// The longest name of a pack table; it stands in messages and options.
const MAX_PACK_NAME_BYTES: usize = 64;

/// The name that a pack table was given: letters, digits, `.`, `_`, `-`, beginning with a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackName(String);

impl PackName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PackName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fit = (1..=MAX_PACK_NAME_BYTES).contains(&text.len())
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if fit {
            Ok(Self(text.to_owned()))
        } else {
            Err(bad(text))
        }
    }
}

impl Serialize for PackName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for PackName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(|_| serde::de::Error::custom("not a name of a pack table"))
    }
}

/// A file inside [`PACKS_FOLDER`]; `Display` gives its name there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackFile {
    /// `<name>.json`: the entry of a pack table, its commit.
    Entry(PackName),
    /// `<first 16 digits of its hash>.parquet`: a pack table, or a table of over-long samples.
    Table([u8; 8]),
}

impl PackFile {
    /// The table whose bytes have `hash`.
    #[must_use]
    pub fn table(hash: ContentHash) -> Self {
        let mut id = [0; 8];
        id.copy_from_slice(&hash.0[..8]);
        Self::Table(id)
    }

    /// The file that `name` names. Fails for every other text.
    pub fn parse(name: &str) -> Result<Self> {
        if let Some(stem) = name.strip_suffix(".json") {
            return stem.parse().map(Self::Entry).map_err(|_| bad(name));
        }
        name.strip_suffix(".parquet")
            .and_then(|stem| hex::decode(stem.as_bytes()))
            .map(Self::Table)
            .ok_or_else(|| bad(name))
    }
}

impl fmt::Display for PackFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(name) => write!(f, "{name}.json"),
            Self::Table(id) => write!(f, "{}.parquet", hex::encode(id)),
        }
    }
}

/// One of the Parquet tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableKind {
    /// One row a sample.
    Samples,
    /// One row a reject.
    Rejects,
    /// One row an input and an image that was read.
    Provenance,
}

impl TableKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Samples, Self::Rejects, Self::Provenance];

    /// The first word of its file name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Rejects => "rejects",
            Self::Provenance => "provenance",
        }
    }
}

/// A file inside a [`Folder`]; `Display` gives its path there, with `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileName {
    /// `shards/p0007-000042.arrow`.
    Shard {
        /// The partition.
        partition: u32,
        /// The ordinal in the partition.
        ordinal: u32,
    },
    /// `index/p0007.arrow`.
    Index {
        /// The partition.
        partition: u32,
    },
    /// `receipts/p0007-000042.json`, of the shard with the same numbers.
    Receipt {
        /// The partition.
        partition: u32,
        /// The ordinal in the partition.
        ordinal: u32,
    },
    /// `tables/samples-<hash of the file>.parquet`.
    Table {
        /// Which table.
        kind: TableKind,
        /// The hash of its bytes.
        hash: ContentHash,
    },
    /// `tokenizer-<hash of the file>.json`: what token ids mean.
    Tokenizer {
        /// The hash of its bytes.
        hash: ContentHash,
    },
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard { partition, ordinal } => {
                write!(f, "shards/p{partition:04}-{ordinal:06}.arrow")
            }
            Self::Index { partition } => write!(f, "index/p{partition:04}.arrow"),
            Self::Receipt { partition, ordinal } => {
                write!(f, "receipts/p{partition:04}-{ordinal:06}.json")
            }
            Self::Tokenizer { hash } => write!(f, "tokenizer-{hash}.json"),
            Self::Table { kind, hash } => write!(f, "tables/{}-{hash}.parquet", kind.name()),
        }
    }
}

impl FileName {
    /// The file that `path`, relative to its plan's folder, names. Fails for every other text.
    pub fn parse(path: &str) -> Result<Self> {
        recognise(path).ok_or_else(|| bad(path))
    }
}

/// The number that is written with at least `digits` digits, and no more than it needs beyond these.
fn padded(text: &str, digits: usize) -> Option<u32> {
    let longer = text.len() > digits && !text.starts_with('0');
    let fit = (text.len() == digits || longer) && text.bytes().all(|byte| byte.is_ascii_digit());
    if fit { text.parse().ok() } else { None }
}

fn recognise(path: &str) -> Option<FileName> {
    let Some((folder, file)) = path.split_once('/') else {
        let hash = path.strip_prefix("tokenizer-")?.strip_suffix(".json")?;
        let hash = ContentHash::from_hex(hash)?;
        return Some(FileName::Tokenizer { hash });
    };
    let (stem, extension) = file.split_once('.')?;
    if folder == "tables" {
        let (name, hash) = stem.split_once('-')?;
        let kind = TableKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)?;
        let hash = ContentHash::from_hex(hash)?;
        return (extension == "parquet").then_some(FileName::Table { kind, hash });
    }
    let numbers = stem.strip_prefix('p')?;
    if folder == "index" && extension == "arrow" {
        return Some(FileName::Index {
            partition: padded(numbers, 4)?,
        });
    }
    let (partition, ordinal) = numbers.split_once('-')?;
    let (partition, ordinal) = (padded(partition, 4)?, padded(ordinal, 6)?);
    match (folder, extension) {
        ("shards", "arrow") => Some(FileName::Shard { partition, ordinal }),
        ("receipts", "json") => Some(FileName::Receipt { partition, ordinal }),
        _ => None,
    }
}

pub(crate) fn bad(text: &str) -> Error {
    Error::Name {
        name: text.chars().take(SHOWN_CHARACTERS).collect(),
    }
}
