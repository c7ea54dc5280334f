//! `stoker pack`: samples planned into full token budgets, once for all runs and worlds.
//!
//! Owns the order of the steps. Reads indexes, and of shards only the ids of samples that are left out. Invariant: the
//! table and the list of left-out samples are durable before the entry that makes them count; whatever ends a run leaves the
//! cache as it was.

pub(crate) mod check;
mod partition;
mod report;
mod rooms;
pub(crate) mod store;
mod table;
mod window;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use stoker_formats::tables::{OverlongTableRow, TableWriter};
use stoker_formats::{
    Counts, FileEntry, FileName, PACKS_FOLDER, PackEntry, PackFile, PackName, PackOptions,
    PackOverlong, SampleIndex, VERSION, read_sample,
};
use stoker_reader::CacheFiles;

use crate::build::Stop;
use crate::build::commit::CREATED_BY;
use crate::build::lock::Lock;
use crate::error::{Error, Result};
use crate::publish::Publisher;
use crate::verify::progress::Progress;
pub use report::Report;
pub use table::{OverlongSample, Table, write_table};

/// Samples of a padded batch that packs are compared with in a report.
pub const PADDED_BATCH: usize = partition::PADDED_BATCH;

/// Samples that are packed together: enough that sizes match, few enough that a pack is a draw from a small part.
pub const WINDOW: u32 = 8192;

/// Of a table, as an estimate for the message of a full disk.
const TABLE_BYTES_A_SAMPLE: u64 = 4;

/// What is to be packed, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// The cache's folder.
    pub cache: PathBuf,
    /// The table's name; none: after its tokens.
    pub name: Option<PackName>,
    /// How samples are packed.
    pub options: PackOptions,
    /// Threads that pack.
    pub threads: usize,
    /// Whether progress is drawn on stderr.
    pub show: bool,
}

/// The name of a table of `max_tokens` tokens: `8k` for 8192, `5000` for 5000.
#[must_use]
pub fn default_name(max_tokens: u32) -> String {
    if max_tokens.is_multiple_of(1024) {
        format!("{}k", max_tokens / 1024)
    } else {
        max_tokens.to_string()
    }
}

/// Makes the pack table of `request`, or finds that it is there.
///
/// # Errors
/// If there is no committed cache or an index of it is damaged, another process writes it, a table of that name and other
/// options is there, or the disk refuses; [`Error::Overlong`] where over-long samples are to fail.
pub fn pack(request: &Request, stop: &Stop) -> Result<Report> {
    let start = Instant::now();
    // Where there is no cache, there shall be no lock either.
    CacheFiles::open(&request.cache)?;
    let _lock = Lock::take(&request.cache)?;
    // Again: until now, a build may have committed another one.
    let files = CacheFiles::open(&request.cache)?;
    let name = match &request.name {
        Some(name) => name.clone(),
        None => default_name(request.options.max_tokens).parse()?,
    };
    let publisher = Publisher::new(request.cache.clone());
    let made = find_or_make(&files, &publisher, request, name, stop);
    // Also after a failure, and what an earlier run has left: it is nobody's.
    let tidied = store::tidy(&publisher);
    let (entry, padded_tokens) = made?;
    tidied?;
    // The run that made what was found may have died before its names were durable.
    publisher.sync(Path::new(PACKS_FOLDER))?;
    publisher.sync(Path::new(""))?;
    Ok(Report::new(&entry, padded_tokens, start.elapsed()))
}

/// The entry, and the tokens of padded batches if it was made now.
fn find_or_make(
    files: &CacheFiles,
    publisher: &Publisher,
    request: &Request,
    name: PackName,
    stop: &Stop,
) -> Result<(PackEntry, Option<u64>)> {
    if let Some(entry) = find(files, &name, &request.options)? {
        let bytes = store::tables(&entry).map(|file| file.bytes).sum();
        let progress = Progress::new("check", request.show, bytes, stop.clone());
        let complete = store::is_complete(files.root(), &entry, &progress);
        progress.finish();
        stop.check()?;
        if complete {
            return Ok((entry, None));
        }
    }
    publisher.create_folder(Path::new(PACKS_FOLDER))?;
    let (entry, padded_tokens) = make(files, publisher, request, name, stop)?;
    Ok((entry, Some(padded_tokens)))
}

/// The entry of that name, if it is of the wanted table; none if it is to be made.
fn find(files: &CacheFiles, name: &PackName, options: &PackOptions) -> Result<Option<PackEntry>> {
    let found = store::entries(files.root())?;
    let Some(found) = found.into_iter().find(|found| found.name == *name) else {
        return Ok(None);
    };
    let entry = found.entry.map_err(|what| Error::Usage {
        what: format!("{what}, in `{PACKS_FOLDER}/{name}.json`"),
        hint: "remove that file, or give the new table another --name".into(),
    })?;
    if entry.fingerprint != files.manifest().fingerprint {
        return Ok(None);
    }
    if entry.options != *options {
        return Err(Error::Usage {
            what: format!("a pack table with other options is there already: `{name}`"),
            hint: format!(
                "give the new table another --name, or remove {PACKS_FOLDER}/{name}.json"
            ),
        });
    }
    Ok(Some(entry))
}

/// Packs, writes and commits.
fn make(
    files: &CacheFiles,
    publisher: &Publisher,
    request: &Request,
    name: PackName,
    stop: &Stop,
) -> Result<(PackEntry, u64)> {
    let folder = Path::new(PACKS_FOLDER);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(request.threads)
        .build()
        .map_err(|error| Error::io("start", "threads")(std::io::Error::other(error)))?;
    let bytes = |partition: u32| {
        let entry = files.partition(partition);
        entry.map_or(0, |entry| entry.samples.index.bytes)
    };
    let total = (0..files.partitions()).map(bytes).sum();
    let progress = Progress::new("pack", request.show, total, stop.clone());
    let fingerprint = files.manifest().fingerprint;
    let samples = files.manifest().splits.iter().map(|split| split.samples);
    publisher.set_remaining_bytes(samples.sum::<u64>().saturating_mul(TABLE_BYTES_A_SAMPLE));
    let out = publisher.create(folder, store::TABLE_BASE)?;
    let table = pool
        .install(|| {
            write_table(
                out,
                files.partitions(),
                fingerprint,
                &request.options,
                |partition| {
                    stop.check()?;
                    let lengths = lengths(&files.sample_index(partition)?, partition)?;
                    progress.advance(bytes(partition));
                    Ok(lengths)
                },
            )
        })
        .map_err(|error| publisher.explain(error));
    progress.finish();
    let table = table?;
    if request.options.overlong == PackOverlong::Fail {
        refuse_overlong(&table.overlong)?;
    }
    let overlong = if request.options.overlong == PackOverlong::Reject {
        list_overlong(files, publisher, &table.overlong, stop)
            .map_err(|error| publisher.explain(error))?
    } else {
        None
    };
    stop.check()?;
    table
        .out
        .publish(&PackFile::table(table.table.hash).to_string())?;
    let entry = PackEntry {
        format_version: VERSION,
        created_by: CREATED_BY.into(),
        fingerprint,
        name,
        options: request.options,
        totals: table.totals,
        table: table.table,
        overlong,
        samples: table.samples,
        packs: table.packs,
    };
    let file = PackFile::Entry(entry.name.clone()).to_string();
    publisher.publish_bytes(folder, &file, &entry.to_bytes()?)?;
    Ok((entry, table.padded_tokens))
}

/// What each sample of a partition holds.
fn lengths(index: &SampleIndex, partition: u32) -> Result<Vec<Counts>> {
    if index.len() > u64::from(u32::MAX) {
        return Err(Error::Usage {
            what: format!("more samples than a pack table can number, in partition `{partition}`"),
            hint: "build the cache with more --partitions".into(),
        });
    }
    Ok((0..index.len())
        .map_while(|row| index.counts(row))
        .collect())
}

fn refuse_overlong(samples: &[OverlongSample]) -> Result<()> {
    let longest = samples
        .iter()
        .max_by_key(|sample| (sample.counts.tokens, sample.counts.patches));
    longest.map_or(Ok(()), |longest| {
        Err(Error::Overlong {
            count: samples.len() as u64,
            tokens: longest.counts.tokens,
            patches: longest.counts.patches,
            partition: longest.partition,
            row: longest.row,
        })
    })
}

/// Writes the list of samples that are left out; none if there are none.
fn list_overlong(
    files: &CacheFiles,
    publisher: &Publisher,
    samples: &[OverlongSample],
    stop: &Stop,
) -> Result<Option<FileEntry>> {
    if samples.is_empty() {
        return Ok(None);
    }
    let out = publisher.create(Path::new(PACKS_FOLDER), store::OVERLONG_BASE)?;
    let mut writer = TableWriter::new(out)?;
    for samples in samples.chunk_by(|one, next| one.partition == next.partition) {
        let Some(partition) = samples.first().map(|sample| sample.partition) else {
            continue;
        };
        let index = files.sample_index(partition)?;
        let mut shard: Option<(u32, File)> = None;
        for sample in samples {
            stop.check()?;
            let row = u64::from(sample.row);
            let Some(entry) = index.get(row) else {
                continue;
            };
            let ordinal = entry.shard;
            let path = files.path(files.text(), FileName::Shard { partition, ordinal });
            let open = match shard.take().filter(|(open, _)| *open == ordinal) {
                Some((_, open)) => open,
                None => File::open(&path).map_err(|error| no_ids(&path, error))?,
            };
            let read = read_sample(&open, partition, row, &entry);
            let sample_id = read.map_err(|error| error.in_file(&path))?.sample_id;
            shard = Some((ordinal, open));
            writer.push(OverlongTableRow {
                partition,
                row,
                sample_id,
                n_tokens: entry.n_tokens,
                n_patches: entry.n_patches,
            })?;
        }
    }
    let (out, entry) = writer.finish()?;
    out.publish(&PackFile::table(entry.hash).to_string())?;
    Ok(Some(entry))
}

/// A shard with ids of left-out samples that cannot be opened: other nodes may hold it.
fn no_ids(path: &Path, error: std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::NotFound {
        return Error::io("open", path)(error);
    }
    Error::Usage {
        what: format!(
            "a shard with ids of left-out samples is not here: `{}`",
            path.display()
        ),
        hint:
            "pack where all sample shards are and copy packs/ from there, or say --overlong alone"
                .into(),
    }
}
