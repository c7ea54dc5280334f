//! An object as a stream: ranges of it come in order, some are fetched ahead.
//!
//! Owns how much is asked for at once. Invariant: bytes come in order and whole, all of one version of the object; memory is
//! [`RANGES_AHEAD`] ranges, however large the object is.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::s3::S3;
use super::{FetchError, stopped};
use crate::error::Error;
use crate::reject::Reject;

/// Bytes of an object asked for at once: large enough that latency does not matter, small enough to repeat.
pub(crate) const RANGE_BYTES: u64 = 8 << 20;
/// Ranges asked for ahead: enough to fill a fast network, 32 MiB of memory.
const RANGES_AHEAD: usize = 4;

/// An object of known size.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) bucket: Arc<str>,
    pub(crate) key: Arc<str>,
    /// For messages.
    pub(crate) uri: Arc<str>,
    pub(crate) bytes: u64,
    pub(crate) etag: Option<String>,
}

/// The object's bytes. Waits for S3: not to be read from inside the runtime.
pub(crate) struct Ranges {
    object: Object,
    s3: Arc<S3>,
    handle: Handle,
    /// What it means that the object is gone.
    vanished: fn(&str, Reject) -> Error,
    asked: u64,
    coming: VecDeque<JoinHandle<Result<Bytes, FetchError>>>,
    here: Bytes,
}

impl Ranges {
    pub(crate) fn new(
        object: Object,
        s3: Arc<S3>,
        handle: Handle,
        vanished: fn(&str, Reject) -> Error,
    ) -> Self {
        Self {
            object,
            s3,
            handle,
            vanished,
            asked: 0,
            coming: VecDeque::new(),
            here: Bytes::new(),
        }
    }

    fn ask(&mut self) {
        let total = self.object.bytes;
        while self.coming.len() < RANGES_AHEAD && self.asked < total {
            let range = self.asked..total.min(self.asked + RANGE_BYTES);
            self.asked = range.end;
            let (object, s3) = (self.object.clone(), Arc::clone(&self.s3));
            self.coming.push_back(self.handle.spawn(async move {
                let Object {
                    bucket, key, uri, ..
                } = &object;
                s3.get_range(bucket, key, uri, range, total, object.etag.as_deref())
                    .await
            }));
        }
    }

    fn next(&mut self) -> Result<Bytes, Error> {
        self.ask();
        let Some(range) = self.coming.pop_front() else {
            return Ok(Bytes::new());
        };
        match self.handle.block_on(range) {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(FetchError::Stop(error))) => Err(error),
            Ok(Err(FetchError::Reject(reject))) => Err((self.vanished)(&self.object.uri, reject)),
            Err(_) => Err(stopped(&self.object.uri)),
        }
    }
}

impl Read for Ranges {
    /// Errors are [`Error`]s.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.here.has_remaining() {
            self.here = self.next().map_err(io::Error::other)?;
        }
        let n = buffer.len().min(self.here.remaining());
        self.here.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}

impl Drop for Ranges {
    fn drop(&mut self) {
        for range in &self.coming {
            range.abort();
        }
    }
}
