//! The numbers that a simulation is fed with, and where they come from.
//!
//! Owns names, defaults and bounds. Invariant: what measured files say beats the defaults, and what the user says beats both.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A cluster, its data and its training. Bytes are of one sample, rates in GB (10^9 bytes) a second.
///
/// The defaults are round numbers of the order of a common GPU node, of no machine in particular.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Constants {
    /// GPUs of a node.
    pub ranks: u32,
    /// Samples of one step on one GPU.
    pub batch_per_rank: u32,
    /// Seconds of one step.
    pub step_seconds: f64,
    /// Data streams that are mixed.
    pub streams: u32,
    /// Samples of all streams together.
    pub samples: u64,
    /// Cores of a node that prepare samples.
    pub cores: u32,
    /// Seconds from asking the object store for an image until its first byte.
    pub get_seconds: f64,
    /// Images that one rank, or one worker, asks for at once.
    pub gets: u32,
    /// CPU seconds that one core needs to prepare a sample on the training path.
    pub prepare_seconds: f64,
    /// Coefficient of variation of those two, 0 to 1.
    pub variation: f64,
    /// Batches that are made ahead, where anything is.
    pub ahead_batches: u32,
    /// Bytes of the encoded image.
    pub source_bytes: f64,
    /// Bytes of the prepared sample as training takes it.
    pub made_bytes: f64,
    /// Bytes of the sample in the cache.
    pub cached_bytes: f64,
    /// A node's network card, each way.
    pub nic_gb_s: f64,
    /// The object store, all nodes together.
    pub store_gb_s: f64,
    /// Requests a second that the object store answers, all nodes together.
    pub store_gets: f64,
    /// A node's disk.
    pub disk_gb_s: f64,
    /// The link to one GPU.
    pub link_gb_s: f64,
    /// One thread's copies in memory.
    pub copy_gb_s: f64,
    /// Workers of all nodes together; 0 for what the rate needs, and at least one a stream.
    pub workers: u32,
    /// Cores that the worker of one stream claims when workers are placed.
    pub worker_cores: f64,
    /// Seconds in which one rank's reader makes one sample ready.
    pub read_seconds: f64,
    /// Seconds from opening a cache to its first batch.
    pub open_seconds: f64,
    /// Bytes of a shard.
    pub shard_bytes: f64,
    /// Share of a node's shards that is not on its disk, with a fallback.
    pub missing: f64,
    /// Size of a shard in the remote copy, as a share of its own.
    pub compressed: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            ranks: 8,
            // A batch of 256 a node, times four.
            batch_per_rank: 128,
            step_seconds: 8.0,
            streams: 200,
            samples: 10_000_000,
            cores: 64,
            get_seconds: 0.03,
            gets: 32,
            prepare_seconds: 0.025,
            variation: 0.3,
            ahead_batches: 2,
            source_bytes: 250e3,
            // 1,024 patches of 1,536 floats, and as stored.
            made_bytes: 6.3e6,
            cached_bytes: 0.8e6,
            nic_gb_s: 12.5,
            store_gb_s: 200.0,
            store_gets: 200.0 * 5500.0,
            disk_gb_s: 3.0,
            link_gb_s: 25.0,
            copy_gb_s: 8.0,
            workers: 0,
            worker_cores: 0.25,
            read_seconds: 0.8e6 / 4e9,
            open_seconds: 0.05,
            shard_bytes: 512.0 * 1024.0 * 1024.0,
            missing: 0.125,
            compressed: 0.8,
        }
    }
}

impl Constants {
    /// The defaults, then what `bench`, the output of `stoker bench --json`, says, then the object in the file `constants`, then
    /// each `NAME=NUMBER` of `set`.
    ///
    /// # Errors
    /// If a file cannot be read, or a name or number is no constant's.
    pub fn collect(bench: Option<&Path>, constants: Option<&Path>, set: &[String]) -> Result<Self> {
        let mut values = match serde_json::to_value(Self::default()) {
            Ok(Value::Object(values)) => values,
            _ => Map::new(),
        };
        if let Some(path) = bench {
            values.extend(measured(&object(path)?));
        }
        if let Some(path) = constants {
            for (name, value) in object(path)? {
                replace(&mut values, &name, value)?;
            }
        }
        for word in set {
            let (name, number) = word.split_once('=').unwrap_or((word, ""));
            let number: Value = number
                .parse()
                .map_err(|_| refused(format!("no NAME=NUMBER: `{word}`")))?;
            replace(&mut values, name, number)?;
        }
        let constants: Self = serde_json::from_value(Value::Object(values))
            .map_err(|error| refused(error.to_string()))?;
        constants.checked()
    }

    fn checked(self) -> Result<Self> {
        let Ok(Value::Object(values)) = serde_json::to_value(&self) else {
            return Ok(self);
        };
        for (name, value) in values {
            let number = value.as_f64().unwrap_or(f64::NAN);
            let (least, most) = match name.as_str() {
                "variation" | "missing" => (0.0, 1.0),
                "ranks" | "streams" | "cores" | "gets" => (1.0, 1e4),
                "workers" => (0.0, 1e7),
                "batch_per_rank" => (1.0, 16_384.0),
                "ahead_batches" => (1.0, 64.0),
                name if name.ends_with("seconds") => (0.0, 1e6),
                _ => (1e-9, 1e18),
            };
            if !(least..=most).contains(&number) {
                return Err(refused(format!(
                    "{name} must be {least:?} to {most:?}: `{value}`"
                )));
            }
        }
        if self.ranks * self.batch_per_rank > MAX_NODE_BATCH || self.step_seconds == 0.0 {
            return Err(refused(format!(
                "a step takes more than 0 s, for at most {MAX_NODE_BATCH} samples of a node: `{}` s, `{}` samples",
                self.step_seconds,
                u64::from(self.ranks) * u64::from(self.batch_per_rank)
            )));
        }
        Ok(self)
    }

    /// Samples of one step on one node.
    pub(super) fn node_batch(&self) -> u32 {
        self.ranks * self.batch_per_rank
    }
}

/// Keeps the events of one run below some ten million.
const MAX_NODE_BATCH: u32 = 65_536;

/// The constants that stand in a report of `stoker bench`.
fn measured(report: &Map<String, Value>) -> Map<String, Value> {
    let number = |name: &str| report.get(name).and_then(Value::as_f64);
    let rate = number("reader_batches_s")
        .zip(number("batch_size"))
        .map(|(batches, size)| batches * size);
    let found = [
        ("copy_gb_s", number("memcpy_gb_s")),
        ("disk_gb_s", number("disk_gb_s")),
        ("link_gb_s", number("gpu_link_gb_s")),
        ("open_seconds", number("first_batch_seconds")),
        ("read_seconds", rate.map(|rate| 1.0 / rate)),
        ("prepare_seconds", number("prepare_seconds")),
        ("source_bytes", number("source_bytes")),
        ("cached_bytes", number("sample_bytes")),
    ];
    let given = found
        .into_iter()
        // A rate of nothing is none.
        .filter_map(|(name, value)| {
            Some((name.to_owned(), value.filter(|value| value.is_finite())?))
        })
        .map(|(name, value)| (name, Value::from(value)));
    given.collect()
}

fn replace(values: &mut Map<String, Value>, name: &str, value: Value) -> Result<()> {
    let place = values
        .get_mut(name)
        .ok_or_else(|| refused(format!("no constant is called `{name}`")))?;
    let number = value
        .as_f64()
        .ok_or_else(|| refused(format!("{name} must be a number: `{value}`")))?;
    // 1e7 is a whole number, however it is written.
    *place = match (
        place.is_u64(),
        number.fract() == 0.0 && (0.0..1e18).contains(&number),
    ) {
        (true, true) => Value::from(number as u64),
        (true, false) => return Err(refused(format!("{name} must be a whole number: `{value}`"))),
        (false, _) => value,
    };
    Ok(())
}

fn object(path: &Path) -> Result<Map<String, Value>> {
    let text = fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&text)
        .map_err(|error| refused(format!("no JSON object, {error}: `{}`", path.display())))
}

fn refused(what: String) -> Error {
    Error::Usage {
        what,
        hint: "`stoker simulate --json` shows every constant with its value".into(),
    }
}
