//! The record of a synced share: which partitions of a cache a sync has brought to a folder, or is about to bring.
//!
//! Owns its JSON form and its consistency; its name is `part.rs`'s. Invariant: the partitions ascend, and are some that a cache can
//! have.

use serde::{Deserialize, Serialize};

use crate::checksum::ContentHash;
use crate::error::Result;
use crate::limits::{MAX_ID_BYTES, MAX_PARTITIONS, MAX_SHARE_BYTES};
use crate::manifest::Version;
use crate::sealed::{self, document_fault};

const KIND: &str = "share record";

/// What a folder shall hold of one cache. Its JSON has the fields in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRecord {
    /// The version of the format.
    pub format_version: Version,
    /// The program that wrote it.
    pub created_by: String,
    /// The cache. The record counts for nothing where the manifest has another fingerprint.
    pub fingerprint: ContentHash,
    /// The partitions, ascending.
    pub partitions: Vec<u32>,
}

impl ShareRecord {
    /// The bytes of the record's file, sealed so that every changed bit is noticed.
    ///
    /// Fails if the record contradicts itself.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        sealed::seal(KIND, self)
    }

    /// Reads a record.
    ///
    /// Fails if a bit changed, the version is newer, a field is unknown or missing, or the record contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let record: Self = sealed::parse(KIND, bytes.to_vec(), MAX_SHARE_BYTES)?;
        record.check()?;
        Ok(record)
    }

    fn check(&self) -> Result<()> {
        self.format_version.check(KIND)?;
        if self.created_by.len() > MAX_ID_BYTES {
            return Err(document_fault(KIND, "text too long", "created_by"));
        }
        let mut next = 0;
        for number in &self.partitions {
            if !(next..MAX_PARTITIONS).contains(number) {
                let at = format!("partition {number}");
                return Err(document_fault(KIND, "partitions do not ascend", at));
            }
            next = number + 1;
        }
        Ok(())
    }
}
