//! Walks over the ids of a partition, to find samples by name.
//!
//! Owns reading ids ahead. Invariant: ids found here are not covered by a checksum of their own; a caller that goes on to
//! use a sample reads it with [`Cache::sample`].

use std::fs::File;
use std::ops::ControlFlow;

use stoker_formats::ReadAt;
use stoker_formats::limits::MAX_ID_BYTES;

use crate::cache::Cache;
use crate::error::Result;
use crate::open_files::FileKind;

/// Bytes read at once: the ids of a record batch lie together and take some 10 KiB.
const AHEAD_BYTES: usize = 32 << 10;

/// A piece of a shard around the ids that were read last.
#[derive(Default)]
struct Window {
    shard: u32,
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `length` bytes at `offset` of the shard.
    fn get(
        &mut self,
        file: &File,
        shard: u32,
        offset: u64,
        length: usize,
    ) -> std::io::Result<&[u8]> {
        let inside = |window: &Self| {
            let from = usize::try_from(offset.checked_sub(window.start)?).ok()?;
            let to = from.checked_add(length)?;
            (window.shard == shard && to <= window.bytes.len()).then_some(from..to)
        };
        if inside(self).is_none() {
            let left = file.size()?.saturating_sub(offset);
            let ahead = usize::try_from(left).unwrap_or(usize::MAX).min(AHEAD_BYTES);
            // Longer than what is left only for a damaged entry: then the read fails.
            self.bytes.resize(ahead.max(length), 0);
            (self.shard, self.start) = (shard, offset);
            if let Err(error) = file.read_exact_at(&mut self.bytes, offset) {
                self.bytes.clear();
                return Err(error);
            }
        }
        let range = inside(self).unwrap_or_default();
        Ok(self.bytes.get(range).unwrap_or_default())
    }
}

impl Cache {
    /// Calls `visit` with row, sample id and record id of every sample of a partition, in order, until it breaks.
    ///
    /// # Errors
    /// As [`sample`](Cache::sample), but without a checksum; an id that is not UTF-8 is damage.
    pub fn visit_ids(
        &self,
        partition: u32,
        mut visit: impl FnMut(u64, &str, Option<&str>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let open = self.partition(partition)?;
        let (mut sample_ids, mut record_ids) = (Window::default(), Window::default());
        for (row, entry) in (0u64..).zip(open.samples.iter()) {
            let shard = entry.shard;
            let fault = |what| stoker_formats::Error::Row {
                kind: "sample",
                partition,
                shard,
                row,
                what,
            };
            let flow = self.in_shard(FileKind::SampleShard, (partition, shard, row), |file| {
                let id = |window: &mut Window, offset, length: u32| {
                    let length = length as usize;
                    if length > MAX_ID_BYTES {
                        return Err(fault("id too long"));
                    }
                    let bytes = window
                        .get(file, shard, offset, length)
                        .map_err(|_| fault("the shard ends before the row"))?;
                    String::from_utf8(bytes.to_vec()).map_err(|_| fault("an id is not UTF-8"))
                };
                let sample_id = id(&mut sample_ids, entry.sample_id, entry.sample_id_bytes)?;
                let record_id = entry
                    .record_id_bytes
                    .map(|bytes| id(&mut record_ids, entry.record_id, bytes))
                    .transpose()?;
                Ok(visit(row, &sample_id, record_id.as_deref()))
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
