//! Asks the system for rows that will be read soon.
//!
//! Invariant: all of it is a hint, given once for each row; what fails is found by the read that follows.

use stoker_formats::{ImageEntry, SampleEntry};

use super::Rows;
use crate::open_files::OpenFile;
use crate::page_cache::will_need;
use crate::sample_text::parts;
use crate::units::Sample;

impl Rows {
    /// Asks for a sample's text, unless it was asked for before or comes from a remote.
    pub(crate) fn expect(&self, sample: Sample, entry: &SampleEntry) {
        let row = Self::sample_row(sample, entry);
        if self.fills && self.brings(Self::id(row)).is_none() && self.is_first(sample) {
            let Ok(file) = self.shard(row) else {
                return;
            };
            for (offset, bytes) in parts(entry) {
                file.expect(offset, bytes);
            }
        }
    }

    /// Has the page cache bring an image that is read next: with all that lies in its blocks, or no more than it in a `hurry`.
    pub(super) fn bring(&self, file: &OpenFile, entry: &ImageEntry, hurry: bool) {
        if self.fills && hurry {
            will_need(file.file(), entry.offset, entry.length);
        } else if self.fills {
            file.fill(entry.offset, entry.length);
        }
    }

    /// Whether nobody has asked for the sample yet.
    fn is_first(&self, sample: Sample) -> bool {
        let first = || {
            let source = self.source(sample.cache).ok()?;
            let rows = source
                .files
                .partition(sample.partition)
                .ok()?
                .samples
                .index
                .rows;
            Some(
                source
                    .asked
                    .get(sample.partition as usize)?
                    .set(rows, sample.row),
            )
        };
        first().unwrap_or(false)
    }
}
