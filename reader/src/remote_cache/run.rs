//! What the threads of one run of a reader are to bring, and who waits for what.
//!
//! Owns the order: files that a reading thread waits for, then those of the batches to come, the next batch first. Knows nothing
//! of folders and remotes. Invariant: it knows of every batch that is planned, and no longer of one that is made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use stoker_formats::{ContentHash, SampleEntry};

use super::folder::Needs;
use crate::fallback::RemoteFault;
use crate::open_files::{FileId, OpenFile};
use crate::sync::unpoisoned;
use crate::units::Sample;

/// Between two tries of what cannot be brought now, if nothing changes before.
const LATER: Duration = Duration::from_millis(250);

/// Something to have here before a batch needs it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Want {
    /// A sample's shard, and what it says of its images.
    Sample(Sample, SampleEntry),
    /// An image shard.
    Shard(FileId),
}

/// What a thread does next.
#[derive(Debug)]
pub(super) enum Task {
    /// Somebody waits for this shard.
    Now(FileId),
    /// A batch will need it.
    Ahead(Key, Want),
    /// The other readers should know of this.
    Tell(Needs),
}

/// The batch that wants something, and a number beside.
pub(super) type Key = (u64, u64);

/// What is wanted, by whom.
#[derive(Debug, Default)]
pub(crate) struct Run {
    over: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that have not ended.
    running: usize,
    /// The batches that are planned and not made, with the shards that they are known to need.
    batches: BTreeMap<u64, Vec<FileId>>,
    /// Which batches need a shard.
    uses: HashMap<FileId, (ContentHash, BTreeSet<u64>)>,
    queue: BTreeMap<Key, (Want, Option<Instant>)>,
    /// Wants so far.
    wants: u64,
    /// Nothing is brought ahead before, unless a batch is made.
    paused: Option<Instant>,
    waits: Vec<Wait>,
    failed: HashMap<FileId, RemoteFault>,
    /// Whether the other readers do not know of all uses.
    untold: bool,
}

/// A shard that reading threads wait for.
#[derive(Debug)]
struct Wait {
    id: FileId,
    /// How many do.
    threads: usize,
    taken: bool,
    ready: Option<Result<Arc<OpenFile>, RemoteFault>>,
}

impl Run {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What is changed under the lock is right after every statement.
        unpoisoned(self.state.lock())
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.changed.notify_all();
    }

    pub(super) fn begin_thread(&self) {
        self.lock().running += 1;
    }

    pub(super) fn end_thread(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }

    pub(super) fn wait_for_threads(&self, until: Instant) {
        let mut state = self.lock();
        while state.running > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = unpoisoned(waited).0;
        }
    }

    /// Batch `batch` was planned; it needs `samples` of which something is away, and those of `shards` that are known.
    pub(super) fn add_batch(
        &self,
        batch: u64,
        samples: impl Iterator<Item = (Sample, SampleEntry)>,
        shards: impl Iterator<Item = (FileId, ContentHash)>,
    ) {
        let mut state = self.lock();
        state.batches.entry(batch).or_default();
        for (sample, entry) in samples {
            state.want(batch, Want::Sample(sample, entry));
        }
        for (id, hash) in shards {
            state.note_use(batch, id, hash);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A batch needs these shards, too; nothing is done for one that is made already.
    pub(super) fn add_shards(
        &self,
        batch: u64,
        shards: impl Iterator<Item = (FileId, ContentHash)>,
    ) {
        let mut state = self.lock();
        if !state.batches.contains_key(&batch) {
            return;
        }
        for (id, hash) in shards {
            if state.note_use(batch, id, hash) {
                state.want(batch, Want::Shard(id));
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A batch was made, or has failed.
    pub(crate) fn made(&self, batch: u64) {
        let mut state = self.lock();
        for id in state.batches.remove(&batch).unwrap_or_default() {
            if let Some((_, batches)) = state.uses.get_mut(&id) {
                batches.remove(&batch);
                if batches.is_empty() {
                    state.uses.remove(&id);
                }
            }
        }
        let wants = state.queue.range((batch, 0)..=(batch, u64::MAX));
        for key in wants.map(|(key, _)| *key).collect::<Vec<_>>() {
            state.queue.remove(&key);
        }
        state.paused = None;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until a shard is here, at most `timeout`; then that is `late`.
    pub(super) fn wait_for(
        &self,
        id: FileId,
        timeout: Duration,
        late: RemoteFault,
    ) -> Result<Arc<OpenFile>, RemoteFault> {
        let until = Instant::now() + timeout;
        let mut state = self.lock();
        if let Some(fault) = state.failed.get(&id) {
            return Err(fault.clone());
        }
        state.wait(id).threads += 1;
        self.changed.notify_all();
        let result = loop {
            if let Some(ready) = state.wait(id).ready.clone() {
                break ready;
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.is_over() {
                break Err(RemoteFault::Stopped);
            }
            if left.is_zero() {
                break Err(late);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = unpoisoned(waited).0;
        };
        let wait = state.wait(id);
        wait.threads -= 1;
        if wait.threads == 0 {
            state.waits.retain(|wait| wait.id != id);
        }
        result
    }

    /// Whether a thread waits for a shard, and no other has failed to bring it.
    pub(super) fn is_awaited(&self, id: FileId) -> Result<bool, RemoteFault> {
        let state = self.lock();
        match state.failed.get(&id) {
            Some(fault) => Err(fault.clone()),
            None => Ok(!self.is_over() && state.waits.iter().any(|wait| wait.id == id)),
        }
    }

    /// Hands a shard to those who wait for it.
    pub(super) fn deliver(&self, id: FileId, ready: Result<Arc<OpenFile>, RemoteFault>) {
        let mut state = self.lock();
        if let Some(wait) = state.waits.iter_mut().find(|wait| wait.id == id) {
            wait.ready = Some(ready);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A shard that is not awaited yet cannot be brought.
    pub(super) fn fail(&self, id: FileId, fault: RemoteFault) {
        if fault != RemoteFault::Stopped {
            self.lock().failed.insert(id, fault);
            self.changed.notify_all();
        }
    }

    /// Waits for a change, or a little while.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        if !self.is_over() {
            drop(self.changed.wait_timeout(state, time));
        }
    }

    /// Something is brought by others now: later, and then first.
    pub(super) fn again(&self, key: Key, want: Want, after: Duration) {
        let mut state = self.lock();
        if state.batches.contains_key(&key.0) {
            state
                .queue
                .insert(key, (want, Some(Instant::now() + after)));
        }
    }

    /// There is no room for something, and so for nothing that is needed later.
    pub(super) fn no_room(&self, key: Key, want: Want) {
        let mut state = self.lock();
        if state.batches.contains_key(&key.0) {
            state.queue.insert(key, (want, None));
            state.paused = Some(Instant::now() + LATER);
        }
    }

    /// What to do next; none when it is over.
    pub(super) fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if self.is_over() {
                return None;
            }
            let now = Instant::now();
            if let Some(task) = state.next(now) {
                return Some(task);
            }
            let retries = state.queue.values().filter_map(|(_, after)| *after);
            let wake = retries.chain(state.paused).filter(|at| *at > now).min();
            state = match wake {
                Some(at) => {
                    let waited = self.changed.wait_timeout(state, at - now);
                    unpoisoned(waited).0
                }
                None => {
                    let waited = self.changed.wait(state);
                    unpoisoned(waited)
                }
            };
        }
    }

    /// How many batches from now a batch is.
    pub(super) fn distance(&self, batch: u64) -> u32 {
        self.lock().distance(batch)
    }

    /// Everything that is known to be needed, the soonest first.
    pub(super) fn needs(&self) -> Needs {
        let mut state = self.lock();
        state.untold = false;
        state.needs()
    }
}

impl State {
    fn want(&mut self, batch: u64, want: Want) {
        self.wants += 1;
        self.queue.insert((batch, self.wants), (want, None));
    }

    /// Whether that was not known.
    fn note_use(&mut self, batch: u64, id: FileId, hash: ContentHash) -> bool {
        let (_, batches) = self
            .uses
            .entry(id)
            .or_insert_with(|| (hash, BTreeSet::new()));
        let is_new = batches.insert(batch);
        if is_new {
            self.batches.entry(batch).or_default().push(id);
            self.untold = true;
        }
        is_new
    }

    /// The wait for a shard, which is new if nobody waited.
    fn wait(&mut self, id: FileId) -> &mut Wait {
        let at = self.waits.iter().position(|wait| wait.id == id);
        let at = at.unwrap_or_else(|| {
            self.waits.push(Wait {
                id,
                threads: 0,
                taken: false,
                ready: None,
            });
            self.waits.len() - 1
        });
        &mut self.waits[at]
    }

    fn next(&mut self, now: Instant) -> Option<Task> {
        if let Some(wait) = self.waits.iter_mut().find(|wait| !wait.taken) {
            wait.taken = true;
            return Some(Task::Now(wait.id));
        }
        if self.paused.is_none_or(|until| until <= now) {
            self.paused = None;
            let mut queue = self.queue.iter();
            let due = queue.find(|(_, (_, after))| after.is_none_or(|after| after <= now));
            if let Some(key) = due.map(|(key, _)| *key)
                && let Some((want, _)) = self.queue.remove(&key)
            {
                return Some(Task::Ahead(key, want));
            }
        }
        if std::mem::take(&mut self.untold) {
            return Some(Task::Tell(self.needs()));
        }
        None
    }

    fn distance(&self, batch: u64) -> u32 {
        let first = self.batches.keys().next().copied().unwrap_or(batch);
        // One less than what stands for always.
        u32::try_from(batch.saturating_sub(first)).unwrap_or(u32::MAX - 1)
    }

    fn needs(&self) -> Needs {
        let uses = self.uses.values().filter_map(|(hash, batches)| {
            let soonest = batches.first()?;
            Some((*hash, self.distance(*soonest)))
        });
        let mut needs: Needs = uses.collect();
        needs.sort_unstable_by_key(|(hash, distance)| (*distance, *hash));
        needs
    }
}
