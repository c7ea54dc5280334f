//! What a reader is opened with.
//!
//! Owns the defaults and their limits.

use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::Layout;
use crate::error::{Error, Result};
use crate::expand::Pixels;
use crate::fallback::{Fallback, RemoteOptions};
use crate::io::Backend;
use crate::options::{Dealing, OrderOptions};
use crate::placement::Placement;

use crate::verify::Verify;
use crate::world::WorldSizes;

/// The most bytes that are prepared ahead by default.
const DEFAULT_PREFETCH: u64 = 2 << 30;

/// The default leaves most of the memory to the trainer.
const MEMORY_SHARE: u64 = 8;

/// Batches ahead beyond which nothing is won: a limit against typing errors.
const MAX_DEPTH: u64 = 1 << 16;

/// Threads beyond which nothing is won.
const MAX_THREADS: usize = 256;

/// One cache of a mixture.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Its folder.
    pub path: PathBuf,
    /// Its weight; all or none have one. Without weights each cache counts by its size.
    pub weight: Option<f64>,
    /// What brings the files that this node lacks.
    pub fallback: Option<Arc<dyn Fallback>>,
    /// Partitions that are left out, as if the cache had none of them: so a share is measured. Order and cursor are then those of
    /// another data set.
    pub without: Vec<u32>,
}

impl CacheOptions {
    /// The cache at `path`, without a weight or a fallback.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            weight: None,
            fallback: None,
            without: Vec::new(),
        }
    }
}

/// What a [`Reader`](crate::Reader) is opened with.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// The caches, in order.
    pub caches: Vec<CacheOptions>,
    /// The split to read, in every cache.
    pub split: String,
    /// Ranks, nodes and batch sizes.
    pub world: WorldSizes,
    /// Seed, shuffle, tail and last.
    pub order: OrderOptions,
    /// Which node holds which partition.
    pub placement: Placement,
    /// The pack table whose packs are the units, in every cache; by default units are samples.
    pub pack: Option<String>,
    /// How global batches are dealt to ranks.
    pub dealing: Dealing,
    /// Padded or packed rows; by default padded, with packs packed.
    pub layout: Option<Layout>,
    /// The type of `pixel_values`.
    pub pixels: Pixels,
    /// What stands in `position_ids` where a row is padding: 1 as in transformers 4, 0 as in transformers 5.
    pub position_pad: i64,
    /// Whether batches say their sample ids.
    pub sample_ids: bool,
    /// Bytes of batches that may be prepared ahead; by default 2 GiB, or an eighth of the memory if that is less.
    pub prefetch_bytes: Option<u64>,
    /// Batches that are prepared ahead; 0 makes each one when it is asked for.
    pub prefetch_batches: u64,
    /// Threads that read and put together.
    pub threads: usize,
    /// How shards are read.
    pub backend: Backend,
    /// When rows are held against their checksums.
    pub verify: Verify,
    /// Where the files of fallbacks are kept, how much of them, and how long they are waited for.
    pub remote: RemoteOptions,
}

impl ReaderOptions {
    /// Reads the split `train` of the cache at `path`, alone, in batches of `global_batch_size` and micro-batches of the same.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, global_batch_size: u32) -> Self {
        Self {
            caches: vec![CacheOptions::new(path)],
            split: "train".to_owned(),
            world: WorldSizes {
                rank: 0,
                world_size: 1,
                node_rank: 0,
                num_nodes: 1,
                micro_batch_size: global_batch_size,
                global_batch_size,
            },
            order: OrderOptions::default(),
            placement: Placement::everywhere(),
            pack: None,
            layout: None,
            dealing: Dealing::default(),
            pixels: Pixels::default(),
            position_pad: 0,
            sample_ids: false,
            prefetch_bytes: None,
            prefetch_batches: 8,
            threads: 2,
            backend: Backend::default(),
            verify: Verify::default(),
            remote: RemoteOptions::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let fault = |what, given: String| Err(Error::Option { what, given });
        if self.threads == 0 || self.threads > MAX_THREADS {
            return fault("threads are 1 to 256", self.threads.to_string());
        }
        if self.prefetch_batches > MAX_DEPTH {
            return fault(
                "at most 65536 batches can be prepared ahead",
                self.prefetch_batches.to_string(),
            );
        }
        if self.pack.is_some() && self.layout() != Layout::Packed {
            return fault("packs come in packed rows only", self.layout().to_string());
        }
        if let Layout::Padded { multiple_of } = self.layout()
            && !(1..=1 << 20).contains(&multiple_of)
        {
            return fault(
                "rows are padded to a multiple of 1 to 1048576",
                multiple_of.to_string(),
            );
        }
        let weights = self.caches.iter().filter(|cache| cache.weight.is_some());
        let weights = weights.count();
        if weights != 0 && weights != self.caches.len() {
            return fault(
                "all caches have a weight or none has, not some",
                weights.to_string(),
            );
        }
        Ok(())
    }

    /// Padded or packed rows.
    pub(crate) fn layout(&self) -> Layout {
        self.layout.unwrap_or(match self.pack {
            Some(_) => Layout::Packed,
            None => Layout::default(),
        })
    }

    /// Bytes of batches that may be prepared ahead, given the memory that there is.
    pub(crate) fn budget(&self, memory: Option<u64>) -> u64 {
        self.prefetch_bytes.unwrap_or_else(|| {
            memory.map_or(DEFAULT_PREFETCH, |memory| {
                (memory / MEMORY_SHARE).min(DEFAULT_PREFETCH)
            })
        })
    }
}
