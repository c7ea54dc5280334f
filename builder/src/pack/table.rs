//! All partitions: packed in parallel, written in order.
//!
//! Owns the bound on memory. Invariant: the table's bytes depend on lengths, options and fingerprint only, never on
//! threads; a few partitions are in memory at once.

use std::io::Write;

use rayon::prelude::*;
use stoker_formats::{
    ContentHash, Counts, PackOptions, PackOverlong, PackTableEntry, PackTableWriter, PackTotals,
};

use super::partition::{Packed, Place, pack_partition};
use crate::error::Result;

/// Partitions in memory for each thread: one in work, one that waits to be written.
const PARTITIONS_A_THREAD: usize = 2;

/// A sample that exceeds a limit by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverlongSample {
    /// Its partition.
    pub partition: u32,
    /// Its row in the partition.
    pub row: u32,
    /// What it holds.
    pub counts: Counts,
}

/// A table that was written.
#[derive(Debug)]
pub struct Table<W> {
    /// Where it was written.
    pub out: W,
    /// What the entry says of it.
    pub table: PackTableEntry,
    /// Samples of each partition.
    pub samples: Vec<u64>,
    /// Packs of each partition.
    pub packs: Vec<u64>,
    /// Sums over all packs.
    pub totals: PackTotals,
    /// Over-long samples, in order, whatever became of them.
    pub overlong: Vec<OverlongSample>,
    /// Tokens that the packed samples would take in padded batches of
    /// [`PADDED_BATCH`](super::PADDED_BATCH).
    pub padded_tokens: u64,
}

/// Packs `partitions` partitions, for which `lengths` says what each sample holds, and writes the table.
///
/// # Errors
/// The first error of `lengths` or of writing.
pub fn write_table<W: Write + Send>(
    out: W,
    partitions: u32,
    fingerprint: ContentHash,
    options: &PackOptions,
    lengths: impl Fn(u32) -> Result<Vec<Counts>> + Sync,
) -> Result<Table<W>> {
    let mut writer = PackTableWriter::new(out)?;
    let mut sums = Sums::default();
    let at_once = u32::try_from(rayon::current_num_threads() * PARTITIONS_A_THREAD).unwrap_or(1);
    let mut first = 0;
    while first < partitions {
        let end = partitions.min(first.saturating_add(at_once));
        let packed: Vec<(u64, Packed)> = (first..end)
            .into_par_iter()
            .map(|partition| {
                let lengths = lengths(partition)?;
                let place = Place {
                    fingerprint,
                    partition,
                };
                let packed = pack_partition(&lengths, place, options);
                Ok((lengths.len() as u64, packed))
            })
            .collect::<Result<_>>()?;
        for (partition, (samples, packed)) in (first..end).zip(packed) {
            writer.write(partition, &packed.counts, &packed.members)?;
            sums.add(partition, samples, &packed, options);
        }
        first = end;
    }
    let (out, table) = writer.finish()?;
    Ok(Table {
        out,
        table,
        samples: sums.samples,
        packs: sums.packs,
        totals: sums.totals,
        overlong: sums.overlong,
        padded_tokens: sums.padded_tokens,
    })
}

#[derive(Default)]
struct Sums {
    samples: Vec<u64>,
    packs: Vec<u64>,
    totals: PackTotals,
    overlong: Vec<OverlongSample>,
    padded_tokens: u64,
}

impl Sums {
    fn add(&mut self, partition: u32, samples: u64, packed: &Packed, options: &PackOptions) {
        let overlong = packed.overlong.len() as u64;
        let left_out = if options.overlong == PackOverlong::Alone {
            0
        } else {
            overlong
        };
        self.samples.push(samples);
        self.packs.push(packed.counts.len() as u64);
        let totals = &mut self.totals;
        totals.samples += samples - left_out;
        totals.overlong += overlong;
        let tokens = packed
            .overlong
            .iter()
            .map(|(_, counts)| u64::from(counts.tokens));
        totals.overlong_tokens += tokens.sum::<u64>();
        for counts in &packed.counts {
            totals.add(counts);
        }
        self.padded_tokens += packed.padded_tokens;
        let place = packed.overlong.iter().map(|(row, counts)| OverlongSample {
            partition,
            row: *row,
            counts: *counts,
        });
        self.overlong.extend(place);
    }
}
