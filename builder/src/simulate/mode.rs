//! The ways to feed a cluster that are compared, each as a line of stations for one node.
//!
//! Owns what each way costs where. One node stands for all: their loads are equal, so what nodes share (object store, the network
//! cards of the nodes that hold the workers) counts as this node's share of it, and what the slowest of them takes is put on this
//! one's times. So 1,024 nodes take as many events as one. Invariant: no number is here that is not one of the constants, but
//! for the two named below.

use std::collections::HashMap;

use serde::Serialize;

use super::constants::Constants;
use super::line::{Station, uniform};
use super::training::Supply;

/// Requests one after another that opening a stream takes: find it, read its first records.
const OPENING_GETS: f64 = 2.0;
/// Workers that are started for what is needed on average, where their number is not given.
const SPARE_WORKERS: f64 = 1.25;
/// Serves any number of samples at once.
const NO_QUEUE: u32 = u32::MAX;

/// A way to feed a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Each rank fetches and prepares its batch image by image when a step wants it.
    Serial,
    /// Each rank fetches and prepares many images of its batch at once.
    Concurrent,
    /// The same, some batches ahead.
    Prefetch,
    /// Workers fill an object store ahead, placed on as few nodes as can hold them; batches are copied out of it.
    StoreColocated,
    /// The same workers on all nodes; batches are used where they lie.
    StoreSpread,
    /// Stoker with each node's shards on its own disk.
    Stoker,
    /// Stoker on a node that fetches the shards it lacks in the order of need.
    StokerFallback,
}

impl Mode {
    /// All, in the order in which people find them.
    pub const ALL: [Self; 7] = [
        Self::Serial,
        Self::Concurrent,
        Self::Prefetch,
        Self::StoreColocated,
        Self::StoreSpread,
        Self::Stoker,
        Self::StokerFallback,
    ];

    /// As on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "serial",
            Self::Concurrent => "concurrent",
            Self::Prefetch => "prefetch",
            Self::StoreColocated => "store-colocated",
            Self::StoreSpread => "store-spread",
            Self::Stoker => "stoker",
            Self::StokerFallback => "stoker-fallback",
        }
    }
}

/// A node's supply, and what passes its network card.
pub(super) struct Feed {
    pub(super) supply: Supply,
    /// Bytes through the busiest direction of the busiest card, for each sample of a node.
    pub(super) nic_bytes: f64,
    /// Bytes through it in all, whatever is trained.
    pub(super) nic_bytes_once: f64,
}

/// What feeds one of `nodes` nodes for `steps` steps.
pub(super) fn feed(mode: Mode, of: &Constants, nodes: u32, steps: usize, seed: u64) -> Feed {
    match mode {
        Mode::Serial => online(of, nodes, 1, 0),
        Mode::Concurrent => online(of, nodes, of.gets, 0),
        Mode::Prefetch => online(of, nodes, of.gets, of.ahead_batches),
        Mode::StoreColocated => store(of, nodes, true),
        Mode::StoreSpread => store(of, nodes, false),
        Mode::Stoker => stoker(of),
        Mode::StokerFallback => fallback(of, nodes, steps, seed),
    }
}

/// How much longer than the mean the slowest of `nodes` nodes takes for a batch: its samples' mean varies by the root of their
/// number less than they do, and the largest of K normal draws lies about sqrt(2 ln K) deviations above the mean.
fn slowest(of: &Constants, nodes: u32) -> f64 {
    let samples = f64::from(of.node_batch());
    1.0 + of.variation * (2.0 * f64::from(nodes).ln() / samples).sqrt()
}

fn gb(rate: f64) -> f64 {
    rate * 1e9
}

/// From asking for an image to its last byte, on a node that takes `load` times the images of one node.
fn fetching(of: &Constants, nodes: u32, load: f64) -> [Station; 3] {
    let one = (of.source_bytes / gb(of.store_gb_s)).max(1.0 / of.store_gets);
    [
        Station {
            name: "latency",
            servers: NO_QUEUE,
            seconds: of.get_seconds * slowest(of, nodes),
            variation: of.variation,
        },
        Station::single("object store", one * f64::from(nodes)),
        Station::single("network card", of.source_bytes / gb(of.nic_gb_s) * load),
    ]
}

fn preparing(of: &Constants, nodes: u32, cores: f64) -> Station {
    let seconds = of.prepare_seconds * slowest(of, nodes);
    Station::shared("cores", cores, seconds, of.variation)
}

/// Seconds in which a rank copies its batch `copies` times, and waits for its upload.
fn taking(of: &Constants, copies: f64) -> (f64, f64) {
    let bytes = f64::from(of.batch_per_rank) * of.made_bytes;
    (bytes * copies / gb(of.copy_gb_s), bytes / gb(of.link_gb_s))
}

fn online(of: &Constants, nodes: u32, gets: u32, ahead: u32) -> Feed {
    let mut stations = fetching(of, nodes, 1.0).to_vec();
    stations.push(preparing(of, nodes, f64::from(of.cores)));
    // Each rank's copies are made by one of the cores that otherwise prepare.
    let copying = Some((stations.len() - 1, of.ranks.min(of.cores)));
    let (copy_seconds, upload_seconds) = taking(of, 1.0);
    let rounds = (f64::from(of.streams) / f64::from(gets)).ceil();
    Feed {
        supply: Supply {
            stations,
            window: (of.ranks * gets) as usize,
            ahead: ahead as usize,
            batch_by_batch: true,
            copy_seconds,
            copying,
            upload_seconds,
            open_seconds: rounds * OPENING_GETS * of.get_seconds,
            not_before: Vec::new(),
        },
        nic_bytes: of.source_bytes,
        nic_bytes_once: 0.0,
    }
}

fn store(of: &Constants, nodes: u32, colocated: bool) -> Feed {
    let all = f64::from(nodes);
    let rate = f64::from(of.node_batch()) / of.step_seconds;
    let wanted = SPARE_WORKERS * all * rate * of.prepare_seconds;
    let (workers, claimed) = if of.workers == 0 {
        let claimed = wanted.max(f64::from(of.streams) * of.worker_cores);
        (wanted.max(f64::from(of.streams)), claimed)
    } else {
        let given = f64::from(of.workers);
        (given, given * of.worker_cores)
    };
    let holders = if colocated {
        (claimed / f64::from(of.cores)).ceil().clamp(1.0, all)
    } else {
        all
    };
    let cores = workers.min(holders * f64::from(of.cores)) / all;
    // A node without workers takes all from others; one with workers has its share at hand.
    let remote = if holders < all { 1.0 } else { 1.0 - 1.0 / all };
    let fetched = of.source_bytes * all / holders;
    let sent = of.made_bytes * (all - 1.0) / holders;
    let taken = of.made_bytes * remote;
    let mut stations = fetching(of, nodes, all / holders).to_vec();
    stations.push(preparing(of, nodes, cores));
    stations.push(Station::single(
        "network card of workers",
        sent / gb(of.nic_gb_s),
    ));
    stations.push(Station::single(
        "network card of ranks",
        taken / gb(of.nic_gb_s),
    ));
    let (copy_seconds, upload_seconds) = taking(of, f64::from(u8::from(colocated)));
    let received = if holders < all {
        fetched.max(taken)
    } else {
        fetched + taken
    };
    Feed {
        supply: Supply {
            stations,
            window: (workers / all * f64::from(of.gets)).ceil() as usize,
            ahead: of.ahead_batches as usize,
            batch_by_batch: false,
            copy_seconds,
            // Workers are processes of their own, on the nodes that hold them.
            copying: None,
            upload_seconds,
            open_seconds: (f64::from(of.streams) / workers).ceil() * OPENING_GETS * of.get_seconds,
            not_before: Vec::new(),
        },
        nic_bytes: sent.max(received),
        nic_bytes_once: 0.0,
    }
}

fn stoker(of: &Constants) -> Feed {
    let each_rank = |name, seconds| Station {
        name,
        servers: of.ranks,
        seconds,
        variation: 0.0,
    };
    Feed {
        supply: Supply {
            stations: vec![
                Station::single("disk", of.cached_bytes / gb(of.disk_gb_s)),
                each_rank("reader", of.read_seconds),
                each_rank("link to the GPU", of.cached_bytes / gb(of.link_gb_s)),
            ],
            window: usize::MAX,
            ahead: of.ahead_batches as usize,
            batch_by_batch: false,
            copy_seconds: 0.0,
            copying: None,
            upload_seconds: 0.0,
            open_seconds: of.open_seconds,
            not_before: Vec::new(),
        },
        nic_bytes: 0.0,
        nic_bytes_once: 0.0,
    }
}

/// Samples lie on shards at random. Missing shards come one after another, in the order in which they are first needed.
fn fallback(of: &Constants, nodes: u32, steps: usize, seed: u64) -> Feed {
    let node_bytes = of.samples as f64 / f64::from(nodes) * of.cached_bytes;
    let shards = (node_bytes / of.shard_bytes).ceil().max(1.0);
    let missing = (shards * of.missing).ceil();
    let rate = gb(of.nic_gb_s.min(of.store_gb_s / f64::from(nodes)));
    let one = of.shard_bytes.min(node_bytes) * of.compressed;
    let mut feed = stoker(of);
    let mut found = HashMap::new();
    let samples = of.node_batch() as usize * steps;
    feed.supply.not_before = (0..samples as u64)
        .map(|sample| {
            let shard = (uniform(!seed ^ (sample << 8)) * shards).ceil();
            if shard > missing {
                return 0.0;
            }
            let place = found.len() as f64 + 1.0;
            *found
                .entry(shard as u64)
                .or_insert(of.open_seconds + of.get_seconds + place * one / rate)
        })
        .collect();
    feed.nic_bytes_once = found.len() as f64 * one;
    feed
}
