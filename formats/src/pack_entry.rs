//! The entry of a pack table: how it was made, which file it is, and how many packs each partition has.
//!
//! Owns its JSON form and its consistency. Invariant: no file name stands in it but its own; names follow from hashes. An
//! entry names every byte of its table, block by block, so that a part can be read and trusted without the rest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::checksum::ContentHash;
use crate::error::{Error, Result};
use crate::hex;
use crate::limits::{
    MAX_ID_BYTES, MAX_PACK_ENTRY_BYTES, MAX_PARTITIONS, MAX_TOKENS, PACK_BLOCK_BYTES,
};
use crate::manifest::{FileEntry, Version};
use crate::names::PackName;
use crate::row::Counts;
use crate::sealed::{self, document_fault};

const KIND: &str = "entry of a pack table";

/// How a sample finds its pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackStrategy {
    /// The largest sample first, into the fullest pack that has room.
    BestFit,
    /// The largest sample first, into the first pack that has room.
    Ffd,
}

/// What becomes of a sample that fits into no pack by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackOverlong {
    /// It is left out of all packs and listed in a table.
    Reject,
    /// It has a pack of its own, which exceeds the limits.
    Alone,
    /// No table is made.
    Fail,
}

macro_rules! named {
    ($kind:ty, $($value:path => $name:literal),+) => {
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($value => $name),+ })
            }
        }

        impl FromStr for $kind {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(Error::Name { name: text.chars().take(80).collect() }),
                }
            }
        }
    };
}

named!(PackStrategy, Self::BestFit => "best-fit", Self::Ffd => "ffd");
named!(PackOverlong, Self::Reject => "reject", Self::Alone => "alone", Self::Fail => "fail");

/// All that decides which samples stand together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackOptions {
    /// Tokens that a pack may hold.
    pub max_tokens: u32,
    /// Patches that a pack may hold.
    pub max_patches: Option<u32>,
    /// Samples that a pack may hold.
    pub max_samples: Option<u32>,
    /// Whether samples with images and samples without stand in packs of their own.
    pub by_modality: bool,
    /// How a sample finds its pack.
    pub strategy: PackStrategy,
    /// Seed of windows and orders.
    pub seed: u64,
    /// Samples that are packed together.
    pub window: u32,
    /// What becomes of samples that fit into no pack.
    pub overlong: PackOverlong,
}

/// The file of a pack table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackTableEntry {
    /// Bytes of the file.
    pub bytes: u64,
    /// Hash of the file, which names it.
    pub hash: ContentHash,
    /// Packs in it.
    pub rows: u64,
    /// Checksum of each block of [`PACK_BLOCK_BYTES`], the last one shorter.
    #[serde(serialize_with = "write_blocks", deserialize_with = "read_blocks")]
    pub blocks: Vec<u64>,
}

impl PackTableEntry {
    /// The same without the blocks.
    #[must_use]
    pub fn file(&self) -> FileEntry {
        FileEntry {
            bytes: self.bytes,
            hash: self.hash,
            rows: self.rows,
        }
    }
}

/// Sums over all packs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackTotals {
    /// Samples in packs.
    pub samples: u64,
    /// Tokens in packs.
    pub tokens: u64,
    /// Labels in packs that take part in the loss.
    pub loss_tokens: u64,
    /// Images in packs.
    pub images: u64,
    /// Patches in packs.
    pub patches: u64,
    /// Over-long samples: left out, or alone in a pack, as the options say.
    pub overlong: u64,
    /// Tokens in them.
    pub overlong_tokens: u64,
}

impl PackTotals {
    /// Counts what a pack holds; its samples are counted apart.
    pub fn add(&mut self, counts: &Counts) {
        self.tokens += u64::from(counts.tokens);
        self.loss_tokens += u64::from(counts.loss_tokens);
        self.images += u64::from(counts.images);
        self.patches += u64::from(counts.patches);
    }
}

/// What `packs/<name>.json` says of a pack table, with the fields in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackEntry {
    /// The version of the format.
    pub format_version: Version,
    /// The program that wrote it.
    pub created_by: String,
    /// The fingerprint of the cache that it was made for.
    pub fingerprint: ContentHash,
    /// The name that it was given.
    pub name: PackName,
    /// How it was made.
    pub options: PackOptions,
    /// Sums over all packs.
    pub totals: PackTotals,
    /// The table's file.
    pub table: PackTableEntry,
    /// The table of over-long samples that were left out; none if there are none.
    pub overlong: Option<FileEntry>,
    /// Samples of each partition of the cache, left-out ones included.
    pub samples: Vec<u64>,
    /// Packs of each partition.
    pub packs: Vec<u64>,
}

impl PackEntry {
    /// The bytes of the entry's file, sealed so that every changed bit is noticed.
    ///
    /// Fails if the entry contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        sealed::seal(KIND, self)
    }

    /// Reads an entry.
    ///
    /// Fails if a bit changed, the version is newer, a field is unknown or missing, or the entry contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let entry: Self = sealed::parse(KIND, bytes.to_vec(), MAX_PACK_ENTRY_BYTES)?;
        entry.check()?;
        Ok(entry)
    }

    /// The share of the token budgets of all packs that is used; 0 without packs. Over-long samples that stand alone have no
    /// budget, and do not count.
    #[must_use]
    pub fn fill_rate(&self) -> f64 {
        let (mut packs, mut tokens) = (self.table.rows, self.totals.tokens);
        if self.options.overlong == PackOverlong::Alone {
            packs = packs.saturating_sub(self.totals.overlong);
            tokens = tokens.saturating_sub(self.totals.overlong_tokens);
        }
        let budget = packs as f64 * f64::from(self.options.max_tokens);
        if budget > 0.0 {
            tokens as f64 / budget
        } else {
            0.0
        }
    }

    fn check(&self) -> Result<()> {
        self.format_version.check(KIND)?;
        let fail = |what, at: &str| Err(document_fault(KIND, what, at));
        if self.created_by.len() > MAX_ID_BYTES {
            return fail("text too long", "created_by");
        }
        if let Some(at) = self.options.fault() {
            return fail("a limit out of range", at);
        }
        if self.samples.len() != self.packs.len() || self.packs.len() > MAX_PARTITIONS as usize {
            return fail("not one number of samples and packs a partition", "packs");
        }
        let impossible =
            |(samples, packs): (&u64, &u64)| *samples > u64::from(u32::MAX) || packs > samples;
        if let Some(partition) = self.samples.iter().zip(&self.packs).position(impossible) {
            return Err(document_fault(
                KIND,
                "more packs than samples, or too many samples",
                format!("partition {partition}"),
            ));
        }
        // Both are bounded by 2^20 partitions of 2^32 samples.
        if self.packs.iter().sum::<u64>() != self.table.rows {
            return fail("the table has other rows than there are packs", "table");
        }
        if self.table.bytes == 0
            || self.table.blocks.len() as u64 != self.table.bytes.div_ceil(PACK_BLOCK_BYTES)
        {
            return fail("another number of blocks than the table has", "table");
        }
        let left_out = self.overlong.map_or(0, |file| file.rows);
        let listed = self.options.overlong == PackOverlong::Reject;
        if (listed && left_out != self.totals.overlong)
            || (!listed && self.overlong.is_some())
            || self
                .overlong
                .is_some_and(|file| file.rows == 0 || file.bytes == 0)
            || self.totals.samples.checked_add(left_out) != Some(self.samples.iter().sum())
        {
            return fail("samples in packs and left-out ones are not all", "totals");
        }
        Ok(())
    }
}

impl PackOptions {
    /// The limit that makes no sense, if one does not.
    fn fault(&self) -> Option<&'static str> {
        if self.max_tokens == 0 || self.max_tokens as usize > MAX_TOKENS {
            Some("max_tokens")
        } else if self.max_patches == Some(0) {
            Some("max_patches")
        } else if self.max_samples == Some(0) {
            Some("max_samples")
        } else if self.window == 0 {
            Some("window")
        } else {
            None
        }
    }
}

fn write_blocks<S: Serializer>(blocks: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = String::with_capacity(blocks.len() * 16);
    for block in blocks {
        hex::push(&mut text, &block.to_be_bytes());
    }
    serializer.serialize_str(&text)
}

fn read_blocks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let (blocks, rest) = text.as_bytes().as_chunks::<16>();
    blocks
        .iter()
        .map(|digits| hex::decode(digits).map(u64::from_be_bytes))
        .collect::<Option<Vec<u64>>>()
        .filter(|_| rest.is_empty())
        .ok_or_else(|| serde::de::Error::custom("not checksums of blocks"))
}
