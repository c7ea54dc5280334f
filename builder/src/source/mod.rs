//! Where bytes come from: local folders and S3, inputs and images.
//!
//! Owns listing, spooling and fetching. Does not know records, shards or decoders. Invariant: what
//! the weather does (timeouts, 5xx, 403, I/O errors) is an [`Error`] that stops the build; a
//! [`Reject`] is a fact about one link. [`link`] is the choke point for hostile links.

mod answer;
mod connection;
pub mod input;
mod limiter;
pub mod link;
mod local;
pub(crate) mod ranges;
mod retry;
mod s3;
mod s3_put;
mod session;
mod shown;
pub mod spool;
mod walk;

use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

pub use input::{Compression, InputFile, list};
pub use link::{Base, Link, Policy, resolve};
pub use local::LocalRoot;
pub use retry::Deadlines;
pub(crate) use s3::S3;
pub(crate) use s3_put::Part;
pub use session::CredentialSource;
pub(crate) use session::SessionOptions;
pub(crate) use shown::{printable, redact, shown};
pub use spool::{LocalText, Spool};

pub(crate) use walk::stamp;

use crate::build::stop::Stop;
use crate::error::{Error, GO_ON};
use crate::reject::{Reason, Reject};
use link::Target;

/// Largest image file, in bytes: far above any photograph, far below the memory budget.
pub const IMAGE_BYTES_MAX: u64 = 256 << 20;

/// Longest key of an object, in bytes of UTF-8, as S3 documents it.
const KEY_BYTES_MAX: usize = 1024;

/// How to reach the sources.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// `--s3-endpoint`: base URL of an S3-compatible server, addressed path-style. Otherwise what
    /// the AWS settings say.
    pub endpoint: Option<String>,
    /// Where credentials come from.
    pub credentials: CredentialSource,
    /// Largest image file.
    pub image_bytes_max: u64,
    /// Timeouts and number of tries.
    pub deadlines: Deadlines,
    /// A request to stop ends every wait for S3.
    pub stop: Stop,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            credentials: CredentialSource::default(),
            image_bytes_max: IMAGE_BYTES_MAX,
            deadlines: Deadlines::default(),
            stop: Stop::default(),
        }
    }
}

/// All sources of one build. Cheap to clone; S3 is not contacted before it is needed.
#[derive(Debug, Clone)]
pub struct Source {
    handle: Handle,
    s3: Arc<S3>,
    image_bytes_max: u64,
}

/// An image file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The file's bytes, whole.
    pub bytes: Bytes,
    /// Where they came from.
    pub uri: String,
    /// The object's ETag, if S3 gave one.
    pub etag: Option<String>,
}

/// Why there are no bytes.
#[derive(Debug)]
pub enum FetchError {
    /// A fact about the link: the image cannot be used.
    Reject(Reject),
    /// Weather: the build stops, a later run goes on.
    Stop(Error),
}

impl From<Reject> for FetchError {
    fn from(reject: Reject) -> Self {
        Self::Reject(reject)
    }
}

impl From<Error> for FetchError {
    fn from(error: Error) -> Self {
        Self::Stop(error)
    }
}

impl Source {
    /// Sources that do their waiting on the runtime behind `handle`, which needs its timer and I/O.
    #[must_use]
    pub fn new(options: SourceOptions, handle: Handle) -> Self {
        Self {
            handle,
            image_bytes_max: options.image_bytes_max,
            s3: Arc::new(S3::new(
                SessionOptions {
                    endpoint: options.endpoint,
                    credentials: options.credentials,
                    deadlines: options.deadlines,
                },
                options.stop,
            )),
        }
    }

    /// The bytes behind `link`. Retries are over when this returns.
    ///
    /// # Errors
    /// [`FetchError::Reject`] for facts about the link, [`FetchError::Stop`] for all else.
    pub async fn fetch(&self, link: &Link) -> Result<Fetched, FetchError> {
        let uri = link.uri();
        match link.target() {
            Target::Data(bytes) => Ok(Fetched {
                bytes: bytes.clone(),
                uri,
                etag: None,
            }),
            Target::S3 { key, .. } if key.len() > KEY_BYTES_MAX => {
                let message = "no object can have so long a name";
                Err(Reject::new(Reason::MissingImage, message).into())
            }
            Target::S3 { bucket, key } => self.s3.get(bucket, key, uri, self.image_bytes_max).await,
            Target::Local { root } => {
                let (root, name) = (Arc::clone(root), link.canonical().to_owned());
                let bytes_max = self.image_bytes_max;
                let read = self
                    .handle
                    .spawn_blocking(move || root.read(&name, bytes_max))
                    .await;
                let bytes = read.map_err(|_| stopped(&uri))??;
                Ok(Fetched {
                    bytes,
                    uri,
                    etag: None,
                })
            }
        }
    }

    /// # Errors
    /// [`Error::Interrupted`] once the build is asked to stop.
    fn check_stop(&self) -> Result<(), Error> {
        self.s3.check_stop()
    }
}

/// The runtime was shut down under a request.
pub(crate) fn stopped(uri: &str) -> Error {
    Error::Fetch {
        uri: uri.to_owned(),
        tries: 1,
        what: "the command is ending".into(),
        hint: GO_ON.into(),
    }
}
