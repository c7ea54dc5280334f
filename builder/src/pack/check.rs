//! Whether a pack table keeps its promises, sample by sample.
//!
//! Owns the checks of a whole table against the indexes. Invariant: a table without a contradiction has every sample of the
//! cache in exactly one pack or in the list of left-out ones, counts that are those of the indexes, and no pack above a
//! limit but for over-long samples that stand alone.

use std::collections::BTreeMap;
use std::fs::{self, File};

use parquet::record::Field;
use rayon::prelude::*;
use stoker_formats::{
    ContentHash, Counts, FileEntry, PackEntry, PackFile, PackOverlong, PackTable, PackTotals,
    SampleIndex,
};
use stoker_reader::CacheFiles;

use super::store;
use super::window::Limits;
use crate::verify::table_rows;

/// Left-out rows by partition, ascending.
type LeftOut = BTreeMap<u32, Vec<u64>>;

/// What contradicts the entry or the indexes in a table whose files have the right hashes; none if nothing does. Partitions
/// whose index is damaged are passed over: that is a finding of its own.
pub(crate) fn contradiction(files: &CacheFiles, entry: &PackEntry) -> Option<String> {
    let rows = files.manifest().partitions.iter();
    let rows: Vec<u64> = rows.map(|partition| partition.samples.index.rows).collect();
    if rows != entry.samples {
        return Some("its partitions have other numbers of samples than the cache's".into());
    }
    let path = store::path(files.root(), &PackFile::table(entry.table.hash));
    let table = match File::open(&path) {
        Ok(file) => PackTable::open(file, entry),
        Err(error) => return Some(format!("cannot be read: {error}")),
    };
    let table = match table {
        Ok(table) => table,
        Err(error) => return Some(error.to_string()),
    };
    let left_out = match entry.overlong.map(|file| read_left_out(files, file)) {
        None => LeftOut::new(),
        Some(Some(left_out)) => left_out,
        Some(None) => return Some("its list of left-out samples cannot be read".into()),
    };
    let sums: Result<Vec<Option<PackTotals>>, String> = (0..files.partitions())
        .into_par_iter()
        .map(|partition| {
            let Ok(index) = files.sample_index(partition) else {
                return Ok(None);
            };
            let check = Check {
                entry,
                limits: Limits::of(&entry.options),
                index: &index,
                left_out: left_out.get(&partition).map_or(&[], Vec::as_slice),
            };
            check
                .run(&table, partition)
                .map(Some)
                .map_err(|what| format!("{what}, in partition {partition}"))
        })
        .collect();
    let sums = match sums {
        Ok(sums) => sums,
        Err(what) => return Some(what),
    };
    // Without an index there is nothing to compare with.
    let sums: Option<Vec<PackTotals>> = sums.into_iter().collect();
    let total = sums?.iter().fold(PackTotals::default(), add);
    (total != entry.totals).then(|| "its totals are not those of its packs".into())
}

fn add(sum: PackTotals, part: &PackTotals) -> PackTotals {
    PackTotals {
        samples: sum.samples + part.samples,
        tokens: sum.tokens + part.tokens,
        loss_tokens: sum.loss_tokens + part.loss_tokens,
        images: sum.images + part.images,
        patches: sum.patches + part.patches,
        overlong: sum.overlong + part.overlong,
        overlong_tokens: sum.overlong_tokens + part.overlong_tokens,
    }
}

/// The list of left-out samples; none if it is not as written.
fn read_left_out(files: &CacheFiles, file: FileEntry) -> Option<LeftOut> {
    let bytes = fs::read(store::path(files.root(), &PackFile::table(file.hash))).ok()?;
    // Only what was written here reaches the decoder.
    if ContentHash::of(&bytes) != file.hash {
        return None;
    }
    let mut left_out = LeftOut::new();
    let mut whole = true;
    table_rows::read(bytes.into(), |row| {
        let (mut partition, mut number) = (None, None);
        for (name, field) in row.get_column_iter() {
            match (name.as_str(), field) {
                ("partition", Field::UInt(value)) => partition = Some(*value),
                ("row", Field::ULong(value)) => number = Some(*value),
                _ => {}
            }
        }
        match (partition, number) {
            (Some(partition), Some(number)) => left_out.entry(partition).or_default().push(number),
            _ => whole = false,
        }
        whole
    })?;
    let known = left_out.keys().all(|number| *number < files.partitions());
    (whole && known).then_some(left_out)
}

/// One partition of a table.
struct Check<'a> {
    entry: &'a PackEntry,
    limits: Limits,
    index: &'a SampleIndex,
    left_out: &'a [u64],
}

impl Check<'_> {
    /// The sums over the partition, or what is wrong in it.
    fn run(&self, table: &PackTable, partition: u32) -> Result<PackTotals, String> {
        let counts = table.counts(partition).map_err(|error| error.to_string())?;
        let members = table
            .members(partition)
            .map_err(|error| error.to_string())?;
        let mut totals = PackTotals::default();
        let mut seen = vec![false; self.index.len() as usize];
        for (number, (counts, rows)) in counts.iter().zip(members.iter()).enumerate() {
            self.check_pack(*counts, rows, &mut totals)
                .map_err(|what| format!("{what} in pack {number}"))?;
            for row in rows {
                if let Some(seen) = seen.get_mut(*row as usize) {
                    *seen = true;
                }
            }
            totals.samples += rows.len() as u64;
            totals.add(counts);
        }
        for row in self.left_out {
            let seen = usize::try_from(*row).ok().and_then(|row| seen.get_mut(row));
            match (seen, self.index.counts(*row)) {
                (Some(seen), Some(counts)) if !*seen && !self.limits.admit(&counts) => {
                    *seen = true;
                    totals.overlong += 1;
                    totals.overlong_tokens += u64::from(counts.tokens);
                }
                _ => return Err(format!("row {row} is left out without need")),
            }
        }
        match seen.iter().position(|seen| !seen) {
            Some(row) => Err(format!("row {row} is in no pack")),
            None => Ok(totals),
        }
    }

    fn check_pack(
        &self,
        counts: Counts,
        rows: &[u32],
        totals: &mut PackTotals,
    ) -> Result<(), &'static str> {
        let options = &self.entry.options;
        let mut sum = Some(Counts::default());
        let mut with_images = 0;
        for row in rows {
            let found = self.index.counts(u64::from(*row)).ok_or("no such row")?;
            sum = sum.and_then(|sum| sum.checked_add(found));
            with_images += usize::from(found.images > 0);
        }
        if sum != Some(counts) {
            return Err("other counts than the index has");
        }
        if options.by_modality && with_images != 0 && with_images != rows.len() {
            return Err("samples with images and without");
        }
        if options
            .max_samples
            .is_some_and(|most| rows.len() > most as usize)
        {
            return Err("too many samples");
        }
        if !self.limits.admit(&counts) {
            if options.overlong != PackOverlong::Alone || rows.len() != 1 {
                return Err("more than its limits allow");
            }
            totals.overlong += 1;
            totals.overlong_tokens += u64::from(counts.tokens);
        }
        Ok(())
    }
}
