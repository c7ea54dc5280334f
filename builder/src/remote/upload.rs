//! Puts files into a remote: through the publisher into a folder, in one or several parts into S3.
//!
//! Owns what becomes of a file that does not come to its end: nothing of it stays. Invariant: a name appears in the remote only
//! when [`Upload::finish`] is called, and then with all that was written.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::store::{Bucket, Place, Store};
use crate::build::lock::Lock;
use crate::error::{Error, Result};
use crate::publish::{Pending, Publisher};
use crate::source::{FetchError, Part, stopped};

/// Bytes of a part of an object: enough that latency does not matter, few enough to repeat. S3 wants 5 MiB at least.
const PART_BYTES: u64 = 8 << 20;
/// Parts on their way ahead of the one that is filled: 40 MiB of memory with it.
const PARTS_AHEAD: usize = 4;
/// How long the end of an upload waits for parts on their way.
const DROP_WAIT: Duration = Duration::from_secs(10);
/// S3 allows 10,000 parts of an object: those of a larger one are larger.
const PARTS_MAX: u64 = 9_000;

/// Where files are put.
pub(crate) enum Target {
    Folder {
        publisher: Publisher,
        /// Nobody else writes there.
        _lock: Lock,
    },
    Bucket(Bucket),
}

impl Target {
    /// The place of `store`; a folder is made if it is missing.
    pub(crate) fn new(store: &Store) -> Result<Self> {
        Ok(match &store.place {
            Place::Folder(root) => {
                let publisher = Publisher::make(root.clone())?;
                Self::Folder {
                    publisher,
                    _lock: Lock::take(root)?,
                }
            }
            Place::Bucket(bucket) => Self::Bucket(bucket.clone()),
        })
    }

    /// Begins the file `name`, of at most `bytes_max`.
    pub(crate) fn begin(&self, name: &str, bytes_max: u64) -> Result<Upload> {
        Ok(match self {
            Self::Folder { publisher, .. } => {
                let (folder, base) = split(name);
                publisher.create_folder(folder)?;
                Upload::File(publisher.create(folder, base)?, base.to_owned())
            }
            Self::Bucket(bucket) => Upload::Object(Box::new(Object {
                key: bucket.key(name),
                uri: bucket.uri(name),
                bucket: bucket.clone(),
                part_bytes: usize::try_from(PART_BYTES.max(bytes_max.div_ceil(PARTS_MAX)))
                    .unwrap_or(usize::MAX),
                buffer: Vec::new(),
                id: None,
                next: 1,
                coming: VecDeque::new(),
                parts: Vec::new(),
            })),
        })
    }

    /// Puts a file that may be replaced, whole.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Folder { publisher, .. } => {
                let (folder, base) = split(name);
                publisher.create_folder(folder)?;
                publisher.replace_bytes(folder, base, bytes)
            }
            Self::Bucket(_) => {
                let mut upload = self.begin(name, bytes.len() as u64)?;
                upload.put(bytes)?;
                upload.finish()
            }
        }
    }
}

fn split(name: &str) -> (&Path, &str) {
    match name.rsplit_once('/') {
        Some((folder, base)) => (Path::new(folder), base),
        None => (Path::new(""), name),
    }
}

/// A file on its way. Dropped before its end, nothing of it stays.
pub(crate) enum Upload {
    File(Pending, String),
    Object(Box<Object>),
}

impl Upload {
    /// Goes on with `bytes`.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::File(pending, _) => pending.put(bytes),
            Self::Object(object) => object.put(bytes),
        }
    }

    /// Makes it appear.
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Self::File(pending, name) => pending.publish(&name),
            Self::Object(object) => object.finish(),
        }
    }
}

/// An object on its way: its last bytes are here, the others on the server or between.
pub(crate) struct Object {
    bucket: Bucket,
    key: String,
    uri: String,
    part_bytes: usize,
    buffer: Vec<u8>,
    /// Of an upload in parts, once there is more than one.
    id: Option<String>,
    next: i32,
    coming: VecDeque<JoinHandle<Result<Part, FetchError>>>,
    parts: Vec<Part>,
}

impl Object {
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.buffer.len() == self.part_bytes {
                self.send_part()?;
            }
            let room = self.part_bytes - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn send_part(&mut self) -> Result<()> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let s3 = &self.bucket.s3;
                let begin = s3.begin_upload(&self.bucket.bucket, &self.key, &self.uri);
                let id = accepted(&self.uri, self.bucket.handle.block_on(begin))?;
                self.id.insert(id).clone()
            }
        };
        while self.coming.len() >= PARTS_AHEAD {
            self.take_part()?;
        }
        let body = Bytes::from(std::mem::take(&mut self.buffer));
        let (bucket, key, uri) = (self.bucket.clone(), self.key.clone(), self.uri.clone());
        let number = self.next;
        self.next += 1;
        self.coming.push_back(self.bucket.handle.spawn(async move {
            let place = (&*bucket.bucket, key.as_str(), uri.as_str());
            bucket.s3.put_part(place, &id, number, body).await
        }));
        Ok(())
    }

    /// Waits for the oldest part on its way.
    fn take_part(&mut self) -> Result<()> {
        let Some(part) = self.coming.pop_front() else {
            return Ok(());
        };
        let part = self.bucket.handle.block_on(part);
        let part = part.map_err(|_| stopped(&self.uri))?;
        self.parts.push(accepted(&self.uri, part)?);
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        if self.id.is_some() {
            self.send_part()?;
            while !self.coming.is_empty() {
                self.take_part()?;
            }
        }
        let (s3, bucket) = (&self.bucket.s3, &*self.bucket.bucket);
        let outcome = match &self.id {
            Some(id) => {
                let place = (bucket, self.key.as_str(), self.uri.as_str());
                let complete = s3.complete_upload(place, id, &self.parts);
                self.bucket.handle.block_on(complete)
            }
            None => {
                let body = Bytes::from(std::mem::take(&mut self.buffer));
                let put = s3.put(bucket, &self.key, &self.uri, body);
                self.bucket.handle.block_on(put)
            }
        };
        accepted(&self.uri, outcome)?;
        self.id = None;
        Ok(())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let Some(id) = &self.id else {
            return;
        };
        let coming = std::mem::take(&mut self.coming);
        let (s3, bucket) = (&self.bucket.s3, &*self.bucket.bucket);
        self.bucket.handle.block_on(async {
            // A part that arrives after the upload was dropped would stay.
            let _ = tokio::time::timeout(DROP_WAIT, async {
                for part in coming {
                    let _ = part.await;
                }
            })
            .await;
            s3.abort_upload(bucket, &self.key, id).await;
        });
    }
}

/// What the server made of a request to put something.
fn accepted<T>(uri: &str, outcome: Result<T, FetchError>) -> Result<T> {
    outcome.map_err(|error| match error {
        FetchError::Stop(error) => error,
        FetchError::Reject(reject) => Error::Remote {
            what: format!("the server refused it: {}", reject.message),
            uri: uri.to_owned(),
            hint: "check the bucket's name and --s3-endpoint".into(),
        },
    })
}
