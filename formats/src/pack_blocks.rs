//! The file of a pack table, as Parquet reads it: in blocks, each held against its checksum first.
//!
//! Owns that check. Invariant: no byte reaches the Parquet decoder that the entry does not vouch for, so that damage is an
//! error here and never a surprise there.

use std::sync::{Mutex, PoisonError};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::checksum::block_checksum;
use crate::error::Error;
use crate::limits::PACK_BLOCK_BYTES;
use crate::pack_entry::PackTableEntry;
use crate::read_at::ReadAt;

/// A file and the checksums of its blocks.
#[derive(Debug)]
pub(crate) struct Blocks<S> {
    source: S,
    bytes: u64,
    checksums: Vec<u64>,
    /// What was read last, and from where: the next page of a column is mostly in it.
    last: Mutex<(u64, Bytes)>,
}

impl<S: ReadAt> Blocks<S> {
    /// Fails if `source` is not as long as its entry says.
    pub(crate) fn open(source: S, entry: &PackTableEntry) -> Result<Self, Error> {
        let found = source.size().map_err(Error::io("read a pack table"))?;
        if found != entry.bytes {
            return Err(Error::Pack {
                what: "the file has another length than its entry says",
                at: format!("byte {}", found.min(entry.bytes)),
            });
        }
        Ok(Self {
            source,
            bytes: entry.bytes,
            checksums: entry.blocks.clone(),
            last: Mutex::default(),
        })
    }

    /// The bytes of `start..start + length`, of blocks that are what they should be.
    fn read(&self, start: u64, length: usize) -> Result<Bytes, Error> {
        let outside = || Error::Pack {
            what: "a part lies outside of the file",
            at: format!("byte {start}"),
        };
        let end = start
            .checked_add(length as u64)
            .filter(|end| *end <= self.bytes)
            .ok_or_else(outside)?;
        let first = start / PACK_BLOCK_BYTES;
        let from = first * PACK_BLOCK_BYTES;
        let to = end
            .div_ceil(PACK_BLOCK_BYTES)
            .max(first)
            .saturating_mul(PACK_BLOCK_BYTES)
            .min(self.bytes);
        // Nothing is half done under the lock.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if from < last.0 || to > last.0 + last.1.len() as u64 {
            *last = (from, self.blocks(first, from, to)?);
        }
        let inside = (start - last.0) as usize;
        Ok(last.1.slice(inside..inside + length))
    }

    /// The bytes of `from..to`, which are the blocks from number `first` on, all of them checked.
    fn blocks(&self, first: u64, from: u64, to: u64) -> Result<Bytes, Error> {
        let mut buffer = vec![0; to.saturating_sub(from) as usize];
        self.source
            .read_exact_at(&mut buffer, from)
            .map_err(Error::io("read a pack table"))?;
        for (number, block) in (first..).zip(buffer.chunks(PACK_BLOCK_BYTES as usize)) {
            if self.checksums.get(number as usize) != Some(&block_checksum(block)) {
                return Err(Error::Pack {
                    what: "a block does not match its checksum",
                    at: format!("byte {}", number * PACK_BLOCK_BYTES),
                });
            }
        }
        Ok(Bytes::from(buffer))
    }
}

impl<S> Length for Blocks<S> {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl<S: ReadAt + Send + Sync> ChunkReader for Blocks<S> {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        // Asked for the end of the footer, and for nothing else where the places of pages are known.
        let length = self.bytes.saturating_sub(start).min(PACK_BLOCK_BYTES);
        Ok(self.get_bytes(start, length as usize)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.read(start, length)
            .map_err(|error| ParquetError::External(Box::new(error)))
    }
}
