//! What a reader looks at when it opens.
//!
//! Owns what is found missing, what is told of it, and whether what is read fits in memory. Invariant: nothing is brought here;
//! a file that nothing brings is named before the first batch.

use std::sync::Arc;

use stoker_formats::{MANIFEST_NAME, Manifest, SplitEntry};

use crate::assign::assign;
use crate::error::{Error, Result};
use crate::fallback::{Fallback, fault_of};
use crate::files::CacheFiles;
use crate::options::Modalities;
use crate::order_error::OrderError;
use crate::placement::{Held, Placement};
use crate::presence::{self, Absent};
use crate::reader_options::{CacheOptions, ReaderOptions};
use crate::remote_cache::Elsewhere;
use crate::schedule::Position;
use crate::unit::CacheUnits;
use crate::work::{Plan, check_local};
use crate::world::World;

/// Global batches whose reads are checked for being local when a reader opens; later ones are when they are planned.
const CHECKED_AHEAD: usize = 16;

/// The manifests of `caches`; that of the fallback where there is none here.
pub(crate) fn caches(caches: &[CacheOptions]) -> Result<Vec<Arc<CacheFiles>>> {
    if caches.is_empty() {
        return Err(Error::NoCaches);
    }
    let open = |cache: &CacheOptions| match (CacheFiles::open(&cache.path), &cache.fallback) {
        (Err(Error::NotACache { path }), Some(fallback)) => {
            Ok(CacheFiles::of_manifest(path, manifest(&**fallback)?))
        }
        (opened, _) => opened,
    };
    caches
        .iter()
        .map(|cache| open(cache).map(Arc::new))
        .collect()
}

/// The manifest of a copy.
fn manifest(fallback: &dyn Fallback) -> Result<Manifest> {
    fallback.manifest().map_err(|error| Error::Fallback {
        file: MANIFEST_NAME.to_owned(),
        uri: fallback.uri(),
        fault: fault_of(&*error),
    })
}

/// Fails if a file is missing that this node should hold; of a cache with a fallback, says what is.
pub(crate) fn check_presence(
    options: &ReaderOptions,
    world: &World,
    caches: &[Arc<CacheFiles>],
    units: &[CacheUnits],
) -> Result<Vec<Option<Elsewhere>>> {
    let each = (0u32..).zip(&options.caches).zip(caches.iter().zip(units));
    let check =
        |((cache, options_of), (files, units)): ((u32, &CacheOptions), (_, &CacheUnits))| {
            let files: &Arc<CacheFiles> = files;
            let partitions = units.partitions.iter().map(|part| part.partition);
            let Some(fallback) = &options_of.fallback else {
                let held = |partition| {
                    let held = Held { cache, partition };
                    options.placement.holds(world.node_rank(), held)
                };
                return presence::check(files, partitions, held).map(|()| None);
            };
            let absent = Absent::find(files, partitions)?;
            // A node that lacks nothing asks nobody.
            if !absent.is_empty()
                && manifest(&**fallback)?.fingerprint != files.manifest().fingerprint
            {
                return Err(Error::OtherFallback {
                    path: files.root().join(MANIFEST_NAME),
                    uri: fallback.uri(),
                });
            }
            Ok(Some(Elsewhere {
                absent,
                files: Arc::clone(files),
                fallback: Arc::clone(fallback),
            }))
        };
    each.map(check).collect()
}

/// Fails if units of the first global batches lie on other nodes only.
pub(crate) fn check_ahead(plan: &Plan) -> Result<()> {
    if plan.placement == Placement::everywhere() {
        return Ok(());
    }
    let mut at = Position::default();
    for _ in 0..CHECKED_AHEAD {
        // How many units are remote does not depend on what they cost, only which.
        let batch = plan.schedule.outline(at)?;
        let any = plan.dealing.modalities == Modalities::Any;
        if !any || assign(&batch, &plan.world, &plan.placement).remote() > 0 {
            match plan.deal(at) {
                Ok(dealt) => check_local(plan, &dealt.assignment)?,
                // A run that goes on elsewhere never comes here.
                Err(Error::Order(OrderError::Modalities { .. })) => {}
                Err(fault) => return Err(fault),
            }
        }
        at = batch.next;
    }
    Ok(())
}

/// The split called `split`.
pub(crate) fn split<'a>(files: &'a CacheFiles, split: &str) -> Result<&'a SplitEntry> {
    let splits = &files.manifest().splits;
    let found = splits.iter().find(|entry| entry.name == split);
    found.ok_or_else(|| Error::NoSplit {
        split: split.to_owned(),
        root: files.root().to_path_buf(),
        splits: splits
            .iter()
            .map(|entry| format!("`{}`", entry.name))
            .collect(),
    })
}

/// Bytes of the shards that this node reads in time: those of the partitions that have `units`, and that it `holds`.
pub(crate) fn shard_bytes(
    caches: &[Arc<CacheFiles>],
    units: &[CacheUnits],
    holds: impl Fn(Held) -> bool,
) -> u64 {
    let holds = &holds;
    let each = (0u32..).zip(caches.iter().zip(units));
    let read = each.flat_map(|(cache, (files, units))| {
        let numbers = units.partitions.iter().map(|part| part.partition);
        let held = numbers.filter(move |partition| {
            let partition = *partition;
            holds(Held { cache, partition })
        });
        held.filter_map(|partition| files.manifest().partitions.get(partition as usize))
    });
    let shards = read.flat_map(|entry| entry.images.shards.iter().chain(&entry.samples.shards));
    shards.flatten().map(|shard| shard.bytes).sum()
}

/// What becomes of the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// There is room: what will be wanted is brought before it is asked for.
    Filled,
    /// The system sees to it.
    Left,
    /// Nothing stays until it is read again: pages are given back once they were copied.
    Given,
}

/// What becomes of it if `shard_bytes` are read, where a process may have `limit` bytes of memory, of which so many are
/// `available` now; none where the system does not say.
pub(crate) fn pages(shard_bytes: u64, limit: Option<u64>, available: Option<u64>) -> Pages {
    if limit.is_some_and(|limit| shard_bytes > limit) {
        Pages::Given
    } else if available.is_some_and(|available| shard_bytes <= available) {
        Pages::Filled
    } else {
        Pages::Left
    }
}
