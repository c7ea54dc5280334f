//! The reader for Python.
//!
//! Owns the waiting. Invariant: the reader's lock is only ever taken without the interpreter's, for a tenth of a second
//! at most, or a second while threads are stopped; in a fork of the process that opened the reader it is not taken at all.

use std::process;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use serde_json::{Value, json};
use stoker_builder::build::Stop;
use stoker_builder::build::options::parse_bytes;
use stoker_builder::remote::{RemoteOptions, fallbacks};
use stoker_reader::{
    CacheOptions, Cursor, Dealing, Error, Held, Layout, NodePlan, OrderOptions, Pixels, Placement,
    ReaderOptions, Stats, WorldSizes,
};

use crate::batch::Batch;
use crate::device::DeviceBatch;
use crate::errors::{ConfigError, builder_error, cursor_error, reader_error};
use crate::feed::{Feed, Given};
use crate::wait::{SIGNAL_CHECK, interruptible};

/// No remote answers within a shorter time.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);

/// What `stoker.Reader` passes on.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options {
    caches: Vec<(std::path::PathBuf, Option<f64>)>,
    fallbacks: Vec<Option<String>>,
    cache_disk: Option<String>,
    cache_folder: Option<std::path::PathBuf>,
    remote_timeout: Option<f64>,
    s3_endpoint: Option<String>,
    split: String,
    global_batch_size: u32,
    micro_batch_size: u32,
    rank: u32,
    world_size: u32,
    node_rank: u32,
    num_nodes: u32,
    seed: u64,
    shuffle: String,
    order: String,
    tail: String,
    last: String,
    balance: String,
    modalities: String,
    dummy_image: bool,
    placement: Option<Vec<Vec<(u32, u32)>>>,
    dtype: String,
    pack: Option<String>,
    layout: Option<String>,
    multiple_of: usize,
    position_pad: i64,
    prefetch_bytes: Option<String>,
    prefetch_batches: Option<u64>,
    threads: Option<usize>,
    backend: Option<String>,
    verify: String,
    sample_ids: bool,
    gpu: Option<u32>,
}

impl Options {
    fn read(self) -> PyResult<ReaderOptions> {
        let mut options = ReaderOptions::new("", self.global_batch_size);
        options.caches = self
            .caches
            .into_iter()
            .map(|(path, weight)| CacheOptions {
                weight,
                ..CacheOptions::new(path)
            })
            .collect();
        let uris: Vec<String> = self.fallbacks.iter().flatten().cloned().collect();
        if !uris.is_empty() {
            let remote = RemoteOptions {
                endpoint: self.s3_endpoint,
                ..RemoteOptions::default()
            };
            let mut found = fallbacks(&uris, &remote)
                .map_err(builder_error)?
                .into_iter();
            for (cache, uri) in options.caches.iter_mut().zip(&self.fallbacks) {
                cache.fallback = uri.as_ref().and_then(|_| found.next());
            }
        }
        options.remote.cache_folder = self.cache_folder;
        if let Some(bytes) = self.cache_disk {
            options.remote.cache_disk = Some(size("cache_disk", &bytes)?);
        }
        if let Some(seconds) = self.remote_timeout {
            options.remote.timeout = timeout(seconds)?;
        }
        options.split = self.split;
        options.world = WorldSizes {
            rank: self.rank,
            world_size: self.world_size,
            node_rank: self.node_rank,
            num_nodes: self.num_nodes,
            micro_batch_size: self.micro_batch_size,
            global_batch_size: self.global_batch_size,
        };
        options.order = OrderOptions {
            seed: self.seed,
            shuffle: choice(&self.shuffle)?,
            order: choice(&self.order)?,
            tail: choice(&self.tail)?,
            last: choice(&self.last)?,
        };
        options.dealing = Dealing {
            balance: choice(&self.balance)?,
            modalities: choice(&self.modalities)?,
            dummy_image: self.dummy_image,
        };
        if let Some(nodes) = self.placement {
            let held = |(cache, partition)| Held { cache, partition };
            let nodes: Vec<Vec<Held>> = nodes
                .into_iter()
                .map(|node| node.into_iter().map(held).collect())
                .collect();
            options.placement =
                Placement::new(&nodes).map_err(|error| reader_error(error.into()))?;
        }
        let padded = Layout::Padded {
            multiple_of: self.multiple_of,
        };
        options.layout = match (self.layout, &self.pack) {
            (None, Some(_)) => None,
            (None, None) => Some(padded),
            (Some(layout), _) => match choice(&layout)? {
                Layout::Padded { .. } => Some(padded),
                Layout::Packed => Some(Layout::Packed),
            },
        };
        options.pack = self.pack;
        options.pixels = pixels(&self.dtype)?;
        options.position_pad = self.position_pad;
        options.sample_ids = self.sample_ids;
        if let Some(bytes) = self.prefetch_bytes {
            options.prefetch_bytes = Some(size("prefetch_bytes", &bytes)?);
        }
        options.prefetch_batches = self.prefetch_batches.unwrap_or(options.prefetch_batches);
        options.threads = self.threads.unwrap_or(options.threads);
        if let Some(backend) = self.backend {
            options.backend = choice(&backend)?;
        }
        options.verify = choice(&self.verify)?;
        Ok(options)
    }
}

fn choice<T: FromStr<Err: ToString>>(name: &str) -> PyResult<T> {
    name.parse()
        .map_err(|error: T::Err| refused(error.to_string()))
}

fn pixels(name: &str) -> PyResult<Pixels> {
    [Pixels::U8, Pixels::F32, Pixels::BF16]
        .into_iter()
        .find(|pixels| pixels.name() == name)
        .ok_or_else(|| refused(format!("dtype is uint8, float32 or bfloat16, not `{name}`")))
}

/// Bytes, as a number or with a unit.
fn size(name: &str, text: &str) -> PyResult<u64> {
    parse_bytes(text).map_err(|what| {
        let hint = "give bytes, such as 1 << 30, or a text such as \"1GiB\"";
        ConfigError::new_err((format!("{name}: {what}"), Some(hint)))
    })
}

/// How long a batch waits for a shard.
fn timeout(seconds: f64) -> PyResult<Duration> {
    let time = Duration::try_from_secs_f64(seconds).ok();
    time.filter(|time| *time > SHORTEST_TIMEOUT).ok_or_else(|| {
        let what = format!("remote_timeout is in seconds, more than 0.001: `{seconds}`");
        ConfigError::new_err((what, Some("give a number such as 300")))
    })
}

fn refused(what: String) -> PyErr {
    ConfigError::new_err((what, None::<String>))
}

/// A reader of one rank.
#[pyclass(frozen, module = "stoker._stoker")]
pub(crate) struct Reader {
    reader: Mutex<Option<Feed>>,
    opened_by: u32,
}

impl Reader {
    /// Does `work` with the reader, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut Feed) -> stoker_reader::Result<T>,
    ) -> PyResult<T> {
        self.ask(py, work)?.map_err(reader_error)
    }

    /// The same, with the error as the reader gave it.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        work: impl Send + FnOnce(&mut Feed) -> stoker_reader::Result<T>,
    ) -> PyResult<stoker_reader::Result<T>> {
        if process::id() != self.opened_by {
            return Err(reader_error(Error::Forked {
                what: "the reader",
                pid: self.opened_by,
            }));
        }
        py.detach(|| {
            let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.as_mut().map(work)
        })
        .ok_or_else(|| refused("the reader is closed".into()))
    }
}

#[pymethods]
impl Reader {
    #[new]
    fn new(py: Python<'_>, options: Options) -> PyResult<Self> {
        let gpu = options.gpu;
        let options = options.read()?;
        // It looks at no stop: some seconds after a signal it goes on alone, and what it has opened is dropped.
        let open = move || Feed::open(options, gpu);
        let reader = interruptible(py, &Stop::default(), open)?.map_err(reader_error)?;
        Ok(Self {
            reader: Mutex::new(Some(reader)),
            opened_by: process::id(),
        })
    }

    /// The next batch, or none where an epoch ends. One on a GPU stays the next one until it is written.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        loop {
            match self.with(py, |reader| reader.next(SIGNAL_CHECK))? {
                Given::Host(batch) => {
                    let batch = Batch::new(batch, self.opened_by);
                    return Ok(Some(Py::new(py, batch)?.into_any()));
                }
                Given::Device(batch) => return Ok(Some(Py::new(py, batch)?.into_any())),
                Given::EpochEnd => return Ok(None),
                Given::TimedOut => py.check_signals()?,
            }
        }
    }

    /// Writes each tensor of a batch on a GPU to its address, in the order of a stream of the GPU, and comes back at once. Says
    /// no where the batch is not the next one any more: another thread has it, or the reader has gone elsewhere.
    fn write(
        &self,
        py: Python<'_>,
        batch: &DeviceBatch,
        addresses: Vec<u64>,
        stream: u64,
    ) -> PyResult<bool> {
        let targets = batch.targets(&addresses, stream);
        self.with(py, |reader| reader.write(batch.number, targets))
    }

    /// Micro-batches of an epoch.
    fn epoch_batches(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |reader| Ok(reader.epoch_batches()))
    }

    /// Epoch and position of the next batch.
    fn place(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |reader| reader.cursor().map(|cursor| cursor.at()))
            .map(|at| (at.epoch, at.position))
    }

    /// The cursor, as JSON.
    fn cursor(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |reader| reader.cursor().map(|cursor| cursor.to_json()))
    }

    /// Goes on at a cursor, which may have been saved under other weights if `reweight`.
    fn restore(&self, py: Python<'_>, cursor: &str, reweight: bool) -> PyResult<()> {
        self.ask(py, |reader| {
            let cursor = Cursor::from_json(cursor)?;
            if reweight {
                reader.restore_reweighted(&cursor)
            } else {
                reader.restore(&cursor)
            }
        })?
        .map_err(cursor_error)
    }

    /// Goes on after so many samples, or packs, of all ranks.
    fn seek(&self, py: Python<'_>, consumed_samples: u64) -> PyResult<()> {
        self.with(py, |reader| reader.seek(consumed_samples))
    }

    /// What each node will have to bring, as JSON.
    fn plan(&self, py: Python<'_>) -> PyResult<String> {
        // Without the reader, which others may ask meanwhile.
        let planner = self.with(py, |reader| reader.planner())?;
        let stop = Stop::default();
        let asked = stop.clone();
        let plan = move || planner.plan(&|| asked.check().is_err());
        let plans = interruptible(py, &stop, plan)?.map_err(reader_error)?;
        // There are none only where a signal has ended it, whose exception was given before.
        let nodes = plans.iter().flatten().map(node);
        Ok(json!(nodes.collect::<Vec<_>>()).to_string())
    }

    /// What was measured, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |reader| reader.stats())
            .map(|stats| text(&stats))
    }

    /// Ends the reader's threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if process::id() == self.opened_by {
            py.detach(|| {
                let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
                drop(reader.take());
            });
        }
        Ok(())
    }
}

fn node(plan: &NodePlan) -> Value {
    let partitions = plan.partitions.iter();
    let partitions = partitions.map(|held| (held.cache, held.partition));
    json!({
        "node": plan.node,
        "units": plan.units,
        "partitions": partitions.collect::<Vec<_>>(),
        "shards": plan.shards,
        "bytes": plan.bytes,
        "bytes_at_most": plan.bytes_at_most,
    })
}

fn text(stats: &Stats) -> String {
    let slow_reads = stats.slow_reads.iter();
    let slow_reads = slow_reads.map(|read| json!({"path": read.path, "seconds": read.seconds}));
    json!({
        "batches": stats.batches,
        "wait_ratio": stats.wait_ratio,
        "wait_seconds": stats.wait_seconds,
        "last_wait_seconds": stats.last_wait_seconds,
        "first_batch_seconds": stats.first_batch_seconds,
        "limit": stats.limit.name(),
        "sample_bytes": stats.sample_bytes,
        "image_bytes": stats.image_bytes,
        "read_seconds": stats.read_seconds,
        "assemble_seconds": stats.assemble_seconds,
        "budget_seconds": stats.budget_seconds,
        "idle_seconds": stats.idle_seconds,
        "remote_seconds": stats.remote_seconds,
        "fetched_files": stats.fetched_files,
        "fetched_bytes": stats.fetched_bytes,
        "evicted_bytes": stats.evicted_bytes,
        "held_bytes": stats.held_bytes,
        "queued": stats.queued,
        "bytes_in_flight": stats.bytes_in_flight,
        "peak_bytes_in_flight": stats.peak_bytes_in_flight,
        "anonymous_bytes": stats.anonymous_bytes,
        "file_bytes": stats.file_bytes,
        "slow_reads": slow_reads.collect::<Vec<_>>(),
    })
    .to_string()
}
