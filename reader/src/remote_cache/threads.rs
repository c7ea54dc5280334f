//! The threads that bring files.
//!
//! Owns what is done for each thing that is wanted. Invariant: a thread waits for nothing on behalf of a batch to come: what
//! cannot be brought now is put back, so that somebody who waits is served.

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use stoker_formats::{ContentHash, SampleEntry};

use super::folder::Need;
use super::run::{Key, Run, Task, Want};
use super::{Found, LockedFile, RemoteCache, TRY_AGAIN};
use crate::error::{Error, Result};
use crate::fallback::RemoteFault;
use crate::open_files::{FileId, OpenFile};
use crate::rows::Rows;
use crate::sync::computes;
use crate::units::Sample;
use crate::work::Plan;

/// Starts `count` threads that work for `run` until it is over.
pub(super) fn start(plan: &Arc<Plan>, run: &Arc<Run>, count: usize) -> Result<()> {
    for number in 0..count {
        let (plan, run) = (Arc::clone(plan), Arc::clone(run));
        run.begin_thread();
        let ending = Arc::clone(&run);
        let work = move || {
            computes();
            if let Some(remote) = plan.rows.remote() {
                let fetcher = Fetcher {
                    rows: &plan.rows,
                    remote,
                    run: &run,
                };
                fetcher.work();
            }
            // Whoever waits for the end of the threads may count on what they held.
            drop(plan);
            run.end_thread();
        };
        let builder = thread::Builder::new().name(format!("stoker-fetch-{number}"));
        if let Err(source) = builder.spawn(work) {
            ending.end_thread();
            ending.end();
            return Err(Error::Thread { source });
        }
    }
    Ok(())
}

struct Fetcher<'a> {
    rows: &'a Rows,
    remote: &'a RemoteCache,
    run: &'a Run,
}

impl Fetcher<'_> {
    fn work(&self) {
        while let Some(task) = self.run.next() {
            match task {
                Task::Now(id) => self.run.deliver(id, self.now(id)),
                Task::Ahead(key, Want::Shard(id)) => self.ahead(key, Want::Shard(id), id, |_| ()),
                Task::Ahead(key, Want::Sample(sample, entry)) => self.sample(key, sample, &entry),
                Task::Tell(needs) => {
                    // What others do not know costs them a second fetch, nothing else.
                    let _ = self.remote.folder.tell(&needs, &|| self.run.is_over());
                }
            }
        }
    }

    fn find(&self, id: FileId, need: Need) -> Result<Found, RemoteFault> {
        let Some((cache, file)) = self.remote.file(id) else {
            return Err(RemoteFault::Failed("the manifest does not name it".into()));
        };
        let open = |path: &std::path::Path| self.rows.open_shard_at(id, path);
        let (needs, stop) = (|| self.run.needs(), || self.run.is_over());
        self.remote.ensure(cache, &file, need, &needs, &open, &stop)
    }

    /// Has a shard here for those who wait for it.
    fn now(&self, id: FileId) -> Result<Arc<OpenFile>, RemoteFault> {
        let started = Instant::now();
        loop {
            if let Found::Here(file) = self.find(id, Need::Now)? {
                let bytes = self.remote.file(id).map_or(0, |(_, file)| file.entry.bytes);
                return Ok(Arc::new(OpenFile::brought(file, bytes)));
            }
            if !self.run.is_awaited(id)? {
                return Err(RemoteFault::Stopped);
            }
            if started.elapsed() >= self.remote.timeout {
                return Err(self.remote.timed_out());
            }
            self.run.pause(TRY_AGAIN);
        }
    }

    /// Has a shard here for a batch to come, if that is possible now, and does `then` with it.
    fn ahead(&self, key: Key, want: Want, id: FileId, then: impl FnOnce(LockedFile)) {
        // What has failed is told to the batch that needs it, and not tried again for each sample.
        if self.run.is_awaited(id).is_err() {
            return;
        }
        match self.find(id, Need::In(self.run.distance(key.0))) {
            Ok(Found::Here(file)) => then(file),
            Ok(Found::Busy) => self.run.again(key, want, 2 * TRY_AGAIN),
            Ok(Found::NoRoom) => self.run.no_room(key, want),
            Err(fault) => self.run.fail(id, fault),
        }
    }

    /// Has a sample's shard here, and then wants the shards of its images.
    fn sample(&self, key: Key, sample: Sample, entry: &SampleEntry) {
        let id = Rows::sample_shard(sample, entry);
        let images = |file: Option<LockedFile>| {
            // What is wrong with the sample is told by the thread that reads it.
            let found = self.image_shards(sample, entry, file.as_deref());
            self.run
                .add_shards(key.0, found.unwrap_or_default().into_iter());
        };
        if self.remote.is_away(id) {
            let want = Want::Sample(sample, *entry);
            self.ahead(key, want, id, |file| images(Some(file)));
        } else {
            images(None);
        }
    }

    /// The shards of a sample's images that are away.
    fn image_shards(
        &self,
        sample: Sample,
        entry: &SampleEntry,
        file: Option<&File>,
    ) -> Result<Vec<(FileId, ContentHash)>> {
        if entry.n_images == 0 || !self.remote.lacks_images(sample.cache, sample.partition) {
            return Ok(Vec::new());
        }
        let mut shards = Vec::new();
        for image in self.rows.images_of(sample, entry, file)? {
            let id = Rows::image_shard(sample, &self.rows.image_entry(sample, image)?);
            if let Some((_, file)) = self.remote.file(id).filter(|_| self.remote.is_away(id)) {
                shards.push((id, file.entry.hash));
            }
        }
        Ok(shards)
    }
}

impl RemoteCache {
    /// Has the files of `samples`, which batch `batch` is made of, brought before it is made.
    pub(crate) fn plan_batch(&self, run: &Run, batch: u64, samples: &[(Sample, SampleEntry)]) {
        let wanted = samples.iter().filter(|(sample, entry)| {
            self.is_away(Rows::sample_shard(*sample, entry))
                || entry.n_images > 0 && self.lacks_images(sample.cache, sample.partition)
        });
        let shards = samples.iter().filter_map(|(sample, entry)| {
            let id = Rows::sample_shard(*sample, entry);
            let (_, file) = self.file(id).filter(|_| self.is_away(id))?;
            Some((id, file.entry.hash))
        });
        run.add_batch(batch, wanted.copied(), shards);
    }
}
