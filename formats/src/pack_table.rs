//! Reading a pack table: the packs of one partition, without the rest of the file.
//!
//! Owns the checks of what the table says against its entry. Invariant: rows that are handed out exist in their partition,
//! each stands in one pack at most, and counts keep the budgets; opening costs nothing a pack.

use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::Int32Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::error::{Error, Result};
use crate::pack_blocks::Blocks;
use crate::pack_entry::{PackEntry, PackOptions, PackOverlong};
use crate::pack_write::{COLUMNS, GROUP_ROWS};
use crate::read_at::ReadAt;
use crate::row::Counts;

/// The rows of each pack of a partition, in the order in which they stand in the pack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// Where each pack ends in `rows`.
    ends: Vec<u32>,
    rows: Vec<u32>,
}

impl Members {
    /// Adds a pack.
    pub fn push(&mut self, rows: impl IntoIterator<Item = u32>) {
        self.rows.extend(rows);
        // A partition has fewer than 2^32 samples.
        self.ends.push(self.rows.len() as u32);
    }

    /// How many packs there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no pack.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The rows of the partition that stand in pack `pack`; none beyond the last pack.
    #[must_use]
    pub fn rows(&self, pack: u64) -> &[u32] {
        let pack = usize::try_from(pack).unwrap_or(usize::MAX);
        let Some(end) = self.ends.get(pack) else {
            return &[];
        };
        let start = pack
            .checked_sub(1)
            .and_then(|before| self.ends.get(before))
            .map_or(0, |start| *start);
        self.rows
            .get(start as usize..*end as usize)
            .unwrap_or_default()
    }

    /// The rows of every pack, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> + '_ {
        (0..self.ends.len() as u64).map(|pack| self.rows(pack))
    }
}

/// A pack table that is open. It can be shared between threads.
#[derive(Debug)]
pub struct PackTable<S = File> {
    blocks: Arc<Blocks<S>>,
    metadata: ParquetMetaData,
    options: PackOptions,
    /// The table's row where each partition begins, and the end.
    starts: Vec<u64>,
    samples: Vec<u64>,
}

fn damaged(what: &'static str, at: impl Into<String>) -> Error {
    Error::Pack {
        what,
        at: at.into(),
    }
}

fn undecodable() -> Error {
    damaged("not readable as Parquet", "footer or page")
}

/// Our own error again, or one for what Parquet makes of bytes that are not a pack table.
fn decoder(error: ParquetError) -> Error {
    match error {
        ParquetError::External(error) => error
            .downcast::<Error>()
            .map_or_else(|_| undecodable(), |error| *error),
        _ => undecodable(),
    }
}

/// What `decode` makes. The checksums keep accidents from the Parquet decoder, but not whoever made them fit: it panics at
/// some bytes.
fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err(undecodable()))
}

type Reader = ColumnReaderImpl<Int32Type>;

impl<S: ReadAt + Send + Sync + 'static> PackTable<S> {
    /// Opens the table of `entry`: reads the footer, and no pack.
    ///
    /// Fails if the file has another length, its footer is damaged, or it is not the table of the entry.
    pub fn open(source: S, entry: &PackEntry) -> Result<Self> {
        let blocks = Arc::new(Blocks::open(source, &entry.table)?);
        let metadata = guarded(|| {
            let metadata = ParquetMetaDataReader::new()
                .with_offset_index_policy(PageIndexPolicy::Required)
                .parse_and_finish(blocks.as_ref())
                .map_err(decoder)?;
            check_footer(&metadata, entry.table.rows)?;
            Ok(metadata)
        })?;
        let mut starts = Vec::with_capacity(entry.packs.len() + 1);
        let mut start = 0;
        for packs in &entry.packs {
            starts.push(start);
            start += packs;
        }
        starts.push(start);
        Ok(Self {
            blocks,
            metadata,
            options: entry.options,
            starts,
            samples: entry.samples.clone(),
        })
    }

    /// What each pack of a partition holds, in order. Reads no list of rows.
    pub fn counts(&self, partition: u32) -> Result<Vec<Counts>> {
        let counts = self.counts_of(partition..partition.saturating_add(1))?;
        Ok(counts.into_iter().flatten().collect())
    }

    /// The partitions whose packs begin in the same row group as those of `partition`: reading them together costs little more.
    pub fn beside(&self, partition: u32) -> Result<Range<u32>> {
        let group = |start: &u64| start / GROUP_ROWS as u64;
        let own = group(&self.range(partition)?.start);
        let starts = self.starts.get(..self.samples.len()).unwrap_or_default();
        let first = starts.partition_point(|start| group(start) < own);
        let end = starts.partition_point(|start| group(start) <= own);
        // Both are numbers of partitions.
        Ok(first as u32..end as u32)
    }

    /// What each pack of each of `partitions` holds, in order.
    pub fn counts_of(&self, partitions: Range<u32>) -> Result<Vec<Vec<Counts>>> {
        let Some(last) = partitions.clone().next_back() else {
            return Ok(Vec::new());
        };
        let range = self.range(partitions.start)?.start..self.range(last)?.end;
        let [of, tokens, loss_tokens, images, patches] =
            [0, 1, 2, 3, 4].map(|column| self.column(column, &range, partitions.start));
        let (of, tokens, loss_tokens) = (of?, tokens?, loss_tokens?);
        let mut packs = of
            .into_iter()
            .zip(tokens)
            .zip(loss_tokens)
            .zip(images?.into_iter().zip(patches?))
            .map(|(((of, tokens), loss_tokens), (images, patches))| {
                let counts = Counts {
                    tokens,
                    loss_tokens,
                    images,
                    patches,
                };
                (of, counts)
            });
        let of_partition = |partition| {
            let range = self.range(partition)?;
            let packs = packs.by_ref().take((range.end - range.start) as usize);
            let counts = packs.enumerate().map(|(pack, (of, counts))| {
                let what = if of != partition {
                    "a pack of another partition"
                } else if self.exceeds(&counts) {
                    "a pack counts more than it can hold"
                } else {
                    return Ok(counts);
                };
                Err(at_pack(what, partition, pack))
            });
            counts.collect()
        };
        partitions.map(of_partition).collect()
    }

    fn exceeds(&self, counts: &Counts) -> bool {
        counts.loss_tokens > counts.tokens
            || (self.options.overlong != PackOverlong::Alone
                && (counts.tokens > self.options.max_tokens
                    || Some(counts.patches) > self.options.max_patches.or(Some(u32::MAX))))
    }

    /// The rows of each pack of a partition.
    pub fn members(&self, partition: u32) -> Result<Members> {
        let range = self.range(partition)?;
        self.check_partition(partition, &range)?;
        let samples = self
            .samples
            .get(partition as usize)
            .map_or(0, |count| *count);
        let mut members = Members::default();
        for (group, rows) in groups(&range) {
            guarded(|| self.read_members(group, rows, partition, &mut members))?;
        }
        let mut seen = vec![0u64; samples.div_ceil(64) as usize];
        for (pack, rows) in members.iter().enumerate() {
            for row in rows {
                let bit = 1 << (row % 64);
                match seen.get_mut(*row as usize / 64) {
                    Some(word) if u64::from(*row) < samples && *word & bit == 0 => *word |= bit,
                    _ => {
                        let what = "a row does not exist, or stands in two packs";
                        return Err(at_pack(what, partition, pack));
                    }
                }
            }
        }
        Ok(members)
    }

    /// The table's rows of a partition.
    fn range(&self, partition: u32) -> Result<Range<u64>> {
        let number = partition as usize;
        match (self.starts.get(number), self.starts.get(number + 1)) {
            (Some(start), Some(end)) => Ok(*start..*end),
            _ => Err(damaged(
                "no packs of this partition",
                format!("partition {partition}"),
            )),
        }
    }

    fn check_partition(&self, partition: u32, range: &Range<u64>) -> Result<()> {
        let column = self.column(0, range, partition)?;
        match column.iter().position(|found| *found != partition) {
            Some(pack) => Err(at_pack("a pack of another partition", partition, pack)),
            None => Ok(()),
        }
    }

    /// The reader of a column of a row group, where row `from` of the group is next.
    fn reader(&self, group: usize, column: usize, from: u64) -> Result<Reader> {
        let fail = || {
            damaged(
                "a row group has no such column",
                format!("row group {group}"),
            )
        };
        let groups = self.metadata.row_groups();
        let rows = groups.get(group).ok_or_else(fail)?;
        let chunk = rows.columns().get(column).ok_or_else(fail)?;
        let pages = self
            .metadata
            .page_index()
            .and_then(|index| index.offset_index(group, column))
            .ok_or_else(fail)?;
        let reader = SerializedPageReader::new(
            Arc::clone(&self.blocks),
            chunk,
            usize::try_from(rows.num_rows()).map_err(|_| fail())?,
            Some(pages.page_locations().clone()),
        )
        .map_err(decoder)?;
        let ColumnReader::Int32ColumnReader(mut reader) =
            get_column_reader(chunk.column_descr_ptr(), Box::new(reader))
        else {
            return Err(fail());
        };
        let skipped = reader.skip_records(from as usize).map_err(decoder)?;
        if skipped as u64 == from {
            Ok(reader)
        } else {
            Err(fail())
        }
    }

    /// The values of a plain column.
    fn column(&self, column: usize, range: &Range<u64>, partition: u32) -> Result<Vec<u32>> {
        guarded(|| self.decode_column(column, range, partition))
    }

    fn decode_column(&self, column: usize, range: &Range<u64>, partition: u32) -> Result<Vec<u32>> {
        // What the entry says is not taken for granted.
        let packs = (range.end - range.start) as usize;
        let mut values = Vec::with_capacity(packs.min(GROUP_ROWS));
        for (group, rows) in groups(range) {
            let count = (rows.end - rows.start) as usize;
            let read = self
                .reader(group, column, rows.start)?
                .read_records(count, None, None, &mut values)
                .map_err(decoder)?;
            if read.0 != count || read.1 != count {
                return Err(at_pack("packs are missing", partition, values.len()));
            }
        }
        // Parquet has no unsigned physical type.
        Ok(values.into_iter().map(i32::cast_unsigned).collect())
    }

    /// Adds the lists of `rows` of a row group.
    fn read_members(
        &self,
        group: usize,
        rows: Range<u64>,
        partition: u32,
        members: &mut Members,
    ) -> Result<()> {
        let count = (rows.end - rows.start) as usize;
        let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let read = self
            .reader(group, COLUMNS.len() - 1, rows.start)?
            .read_records(
                count,
                Some(&mut definitions),
                Some(&mut repetitions),
                &mut values,
            )
            .map_err(decoder)?;
        // An empty list has a level and no value.
        if read.0 != count || repetitions.len() != values.len() || repetitions.first() != Some(&0) {
            return Err(at_pack(
                "packs are missing or empty",
                partition,
                members.len(),
            ));
        }
        let mut from = 0;
        for next in 1..=repetitions.len() {
            if repetitions.get(next).is_none_or(|level| *level == 0) {
                let pack = values.get(from..next).unwrap_or_default();
                members.push(pack.iter().map(|row| row.cast_unsigned()));
                from = next;
            }
        }
        Ok(())
    }
}

fn at_pack(what: &'static str, partition: u32, pack: usize) -> Error {
    damaged(what, format!("partition {partition}, pack {pack}"))
}

/// The row groups that `range` of the table takes part in, with the rows inside each.
fn groups(range: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
    let size = GROUP_ROWS as u64;
    let (start, end) = (range.start, range.end);
    (start / size..end.div_ceil(size)).filter_map(move |group| {
        let first = group * size;
        let rows = start.max(first) - first..end.min(first + size) - first;
        (!rows.is_empty()).then_some((group as usize, rows))
    })
}

/// Fails unless the footer is that of a pack table of `rows`, in groups of the fixed size.
fn check_footer(metadata: &ParquetMetaData, rows: u64) -> Result<()> {
    let schema = metadata.file_metadata().schema_descr();
    let same = schema.num_columns() == COLUMNS.len()
        && schema.columns().iter().zip(COLUMNS).all(|(column, name)| {
            let levels = i16::from(name == COLUMNS[COLUMNS.len() - 1]);
            column.path().string() == name
                && column.physical_type() == Type::INT32
                && column.max_def_level() == levels
                && column.max_rep_level() == levels
        });
    if !same {
        return Err(damaged("other columns than a pack table has", "footer"));
    }
    let mut left = rows;
    for group in metadata.row_groups() {
        let wanted = left.min(GROUP_ROWS as u64);
        if wanted == 0 || group.num_rows() != wanted as i64 {
            return Err(damaged("row groups of another size", "footer"));
        }
        left -= wanted;
    }
    if left != 0 {
        return Err(damaged("other rows than its entry says", "footer"));
    }
    Ok(())
}
