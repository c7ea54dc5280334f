//! What all stages of one build share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use stoker_formats::ImageKey;
use tokio::runtime::Handle;

use super::budget::Budget;
use super::decoding::Decoding;
use super::early::Early;
use super::gate::Gate;
use super::in_flight::InFlight;
use super::mending::Mending;
use super::named::Named;
use super::partitions::Halt;
use super::progress::Progress;
use super::receipts::{Damaged, Layout};
use super::share::Share;
use super::stop::Stop;
use crate::error::{Error, Result};
use crate::image::{ImageRecipe, Preparer};
use crate::plan::Plan;
use crate::publish::Publisher;
use crate::source::Source;
use crate::text::TextPreparer;

/// The build's parts. Stages read it; whatever changes has its own lock.
pub(crate) struct Context {
    pub(crate) plan: Plan,
    pub(crate) share: Share,
    pub(crate) layout: Layout,
    pub(crate) named: Named,
    /// Metadata of every image shard.
    pub(crate) image_metadata: BTreeMap<String, String>,
    /// Metadata of every sample shard.
    pub(crate) sample_metadata: BTreeMap<String, String>,
    pub(crate) image_recipe: ImageRecipe,
    pub(crate) text: TextPreparer,
    pub(crate) source: Source,
    /// Of the runtime that fetches; the runtime itself outlives the context.
    pub(crate) handle: Handle,
    /// Threads that decode and tokenise.
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) preparers: Preparers,
    pub(crate) buffers: Buffers,
    pub(crate) gate: Gate,
    pub(crate) budget: Arc<Budget>,
    pub(crate) decoding: Arc<Decoding>,
    pub(crate) in_flight: InFlight,
    /// Files that count as lost.
    pub(crate) damaged: Damaged,
    pub(crate) mending: Mending,
    pub(crate) crashers: BTreeSet<ImageKey>,
    pub(crate) early: Early,
    pub(crate) publisher: Publisher,
    pub(crate) progress: Progress,
    pub(crate) stop: Stop,
    pub(crate) halt: Halt,
    pub(crate) shard_bytes: u64,
}

impl Context {
    /// # Errors
    /// [`Error::Interrupted`] once a signal has come, or another stage has failed: that one's fault is reported.
    pub(crate) fn check(&self) -> Result<()> {
        self.stop.check()?;
        if self.halt.asked() {
            return Err(Error::Interrupted { signal: 15 });
        }
        Ok(())
    }
}

/// Preparers with their scratch buffers, one for each thread that needs one.
pub(crate) struct Preparers {
    recipe: ImageRecipe,
    /// Scratch memory that each may keep between images.
    keep_bytes: u64,
    idle: Mutex<Vec<Preparer>>,
}

impl Preparers {
    pub(crate) fn new(recipe: ImageRecipe, keep_bytes: u64) -> Self {
        Self {
            recipe,
            keep_bytes,
            idle: Mutex::default(),
        }
    }

    /// Runs `work` with an idle preparer.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Preparer) -> T) -> T {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = idle().pop();
        let fresh = || Preparer::new(self.recipe.clone()).keeping(self.keep_bytes);
        let mut preparer = taken.unwrap_or_else(fresh);
        let result = work(&mut preparer);
        idle().push(preparer);
        result
    }
}

/// Most bytes of idle buffers: a few images wait for the writer at a time, the rest would only lie there.
const IDLE_BYTES_MAX: usize = 128 << 20;

/// Memory of patches on its way back from the writer. Fresh memory costs a fault a page, and that the
/// kernel clears it: a tenth of preparing a picture.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// A used buffer that is not much larger than `wanted` bytes, or an empty one: a small image must not hold the memory of a
    /// large one, which its permit does not count.
    pub(crate) fn take(&self, wanted: u64) -> Vec<u8> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |buffer: &Vec<u8>| buffer.capacity() as u64 <= wanted.saturating_mul(2);
        let Some(at) = idle.buffers.iter().rposition(fits) else {
            return Vec::new();
        };
        let buffer = idle.buffers.swap_remove(at);
        idle.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps `buffer` for later, unless enough are there.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() > 0 && idle.bytes + buffer.capacity() <= IDLE_BYTES_MAX {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }
}
