//! Where a remote lies: a folder, or a prefix of a bucket.
//!
//! Owns reading by name, and what is there under which size. Does not know what a file should hold. Invariant: a name is joined
//! to the place as it is, so it must come from the format's types; what is read is a regular file, or an object of one version.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Cursor, ErrorKind, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::runtime::Handle;

use super::RemoteOptions;
use crate::build::Stop;
use crate::error::{Error, Result};
use crate::folder::{self, open_regular};
use crate::reject::{Reason, Reject};
use crate::source::link::{check_bucket, refuse_scheme};
use crate::source::ranges::{Object, RANGE_BYTES, Ranges};
use crate::source::{FetchError, S3, SessionOptions, redact};

/// A place in S3.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) s3: Arc<S3>,
    pub(crate) handle: Handle,
    pub(crate) bucket: Arc<str>,
    /// Empty, or ending with `/`.
    prefix: Arc<str>,
}

/// The kinds of places.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Folder(PathBuf),
    Bucket(Bucket),
}

/// A place, and the request to stop.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) place: Place,
    pub(crate) stop: Stop,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.prefix)
    }
}

impl Bucket {
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        redact(&format!("s3://{}/{}{name}", self.bucket, self.prefix)).into_owned()
    }

    /// Waits for a request about `uri`.
    pub(crate) fn wait<T>(
        &self,
        uri: &str,
        request: impl Future<Output = Result<T, FetchError>>,
    ) -> Found<T> {
        match self.handle.block_on(request) {
            Ok(found) => Ok(Some(found)),
            Err(FetchError::Stop(error)) => Err(error),
            Err(FetchError::Reject(reject)) if reject.reason == Reason::MissingImage => Ok(None),
            Err(FetchError::Reject(reject)) => Err(Error::Remote {
                what: reject.message,
                uri: uri.to_owned(),
                hint: HINT_DAMAGED.into(),
            }),
        }
    }

    /// A whole object of at most `bytes_max`.
    fn get(&self, name: &str, bytes_max: u64) -> Found<Bytes> {
        let (key, uri) = (self.key(name), self.uri(name));
        let request = self.s3.get(&self.bucket, &key, uri.clone(), bytes_max);
        Ok(self.wait(&uri, request)?.map(|fetched| fetched.bytes))
    }

    fn head(&self, name: &str) -> Found<Object> {
        let (key, uri) = (self.key(name), self.uri(name));
        let head = self.wait(&uri, self.s3.head(&self.bucket, &key, &uri))?;
        Ok(head.map(|head| Object {
            bucket: Arc::clone(&self.bucket),
            key: key.into(),
            uri: uri.into(),
            bytes: head.bytes,
            etag: head.etag,
        }))
    }
}

/// What to do about a file that is not what it should be.
pub(super) const HINT_DAMAGED: &str =
    "push the cache again from an intact copy (remove this file first), or name another remote";

/// Something that may not be there.
pub(crate) type Found<T> = Result<Option<T>>;

/// What is there: all objects with their sizes. In a folder every name is looked up when it is asked for.
pub(crate) struct Listing(Option<BTreeMap<String, u64>>);

impl Listing {
    /// Size of a file of `store`, if it is there.
    pub(crate) fn size(&self, store: &Store, name: &str) -> Found<u64> {
        match &self.0 {
            Some(objects) => Ok(objects.get(name).copied()),
            None => store.size(name),
        }
    }
}

/// A file that was found, its bytes not read yet.
pub(crate) struct Opened {
    pub(crate) bytes: u64,
    pub(crate) stream: Box<dyn Read + Send>,
}

impl Store {
    /// The place that `uri` names. S3 is not contacted before it is needed.
    pub(crate) fn open(uri: &str, options: &RemoteOptions, handle: Handle) -> Result<Self> {
        let stop = options.stop.clone();
        let Some(rest) = uri.strip_prefix("s3://") else {
            refuse_scheme(uri)?;
            return Ok(Self {
                place: Place::Folder(PathBuf::from(uri)),
                stop,
            });
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        check_bucket(bucket, uri)?;
        let slash = if prefix.is_empty() || prefix.ends_with('/') {
            ""
        } else {
            "/"
        };
        let session = SessionOptions {
            endpoint: options.endpoint.clone(),
            credentials: options.credentials.clone(),
            deadlines: options.deadlines,
        };
        Ok(Self {
            place: Place::Bucket(Bucket {
                s3: Arc::new(S3::new(session, stop.clone())),
                handle,
                bucket: bucket.into(),
                prefix: format!("{prefix}{slash}").into(),
            }),
            stop,
        })
    }

    /// A file's place as messages show it.
    pub(crate) fn uri(&self, name: &str) -> String {
        match &self.place {
            Place::Folder(root) if name.is_empty() => root.display().to_string(),
            Place::Folder(root) => root.join(name).display().to_string(),
            Place::Bucket(bucket) => bucket.uri(name),
        }
    }

    /// The bytes of a file of at most `bytes_max`.
    pub(crate) fn read(&self, name: &str, bytes_max: u64) -> Found<Vec<u8>> {
        match &self.place {
            Place::Folder(root) => {
                let path = root.join(name);
                let Some((file, bytes)) = present(open_regular(&path), &path)? else {
                    return Ok(None);
                };
                if bytes > bytes_max {
                    return Err(self.too_long(name, bytes, bytes_max));
                }
                let mut whole = Vec::new();
                file.take(bytes_max)
                    .read_to_end(&mut whole)
                    .map_err(Error::io("read", &path))?;
                Ok(Some(whole))
            }
            Place::Bucket(bucket) => {
                let got = bucket.get(name, bytes_max)?;
                Ok(got.map(|bytes| bytes.to_vec()))
            }
        }
    }

    /// A file that should have `bytes` (unless its size is not known) and has at most `bytes_max`.
    pub(crate) fn find(&self, name: &str, bytes: Option<u64>, bytes_max: u64) -> Found<Opened> {
        let found = match &self.place {
            Place::Folder(root) => {
                let path = root.join(name);
                present(open_regular(&path), &path)?.map(|(file, bytes)| Opened {
                    bytes,
                    stream: Box::new(file),
                })
            }
            // One request instead of two. An answer may announce a wrong length in passing: only what cannot be is refused.
            Place::Bucket(bucket) if bytes.is_some_and(|bytes| bytes <= RANGE_BYTES) => {
                bucket.get(name, 2 * RANGE_BYTES)?.map(|body| Opened {
                    bytes: body.len() as u64,
                    stream: Box::new(Cursor::new(body)),
                })
            }
            Place::Bucket(bucket) => bucket.head(name)?.map(|object| Opened {
                bytes: object.bytes,
                stream: Box::new(Ranges::new(
                    object,
                    Arc::clone(&bucket.s3),
                    bucket.handle.clone(),
                    vanished,
                )),
            }),
        };
        match found {
            Some(found) if found.bytes > bytes_max => {
                Err(self.too_long(name, found.bytes, bytes_max))
            }
            found => Ok(found),
        }
    }

    /// Size of a file, if it is there.
    pub(crate) fn size(&self, name: &str) -> Found<u64> {
        match &self.place {
            Place::Folder(root) => {
                let path = root.join(name);
                Ok(present(open_regular(&path), &path)?.map(|(_, bytes)| bytes))
            }
            Place::Bucket(bucket) => Ok(bucket.head(name)?.map(|object| object.bytes)),
        }
    }

    /// The last `count` bytes of a file; none if it is not there or shorter.
    pub(crate) fn tail(&self, name: &str, count: u64) -> Found<Vec<u8>> {
        match &self.place {
            Place::Folder(root) => {
                let path = root.join(name);
                let Some((mut file, bytes)) = present(open_regular(&path), &path)? else {
                    return Ok(None);
                };
                let Some(from) = bytes.checked_sub(count) else {
                    return Ok(None);
                };
                let mut tail = Vec::new();
                file.seek(SeekFrom::Start(from))
                    .and_then(|_| file.take(count).read_to_end(&mut tail))
                    .map_err(Error::io("read", &path))?;
                Ok(Some(tail))
            }
            Place::Bucket(bucket) => {
                let Some(object) = bucket.head(name)?.filter(|object| object.bytes >= count) else {
                    return Ok(None);
                };
                let range = object.bytes - count..object.bytes;
                let etag = object.etag.as_deref();
                let (key, uri) = (&object.key, &object.uri);
                let request =
                    bucket
                        .s3
                        .get_range(&bucket.bucket, key, uri, range, object.bytes, etag);
                Ok(bucket.wait(uri, request)?.map(|bytes| bytes.to_vec()))
            }
        }
    }

    /// Everything that is there.
    pub(crate) fn list(&self) -> Result<Listing> {
        let Place::Bucket(bucket) = &self.place else {
            return Ok(Listing(None));
        };
        let (prefix, uri) = (&*bucket.prefix, bucket.uri(""));
        let listed = bucket.wait(&uri, bucket.s3.list(&bucket.bucket, prefix, &uri))?;
        let objects = listed.unwrap_or_default().into_iter();
        let named = objects.filter_map(|object| {
            let name = object.key.strip_prefix(prefix)?;
            Some((name.to_owned(), object.bytes))
        });
        Ok(Listing(Some(named.collect())))
    }

    /// Names of the files in a folder, sorted. What is no text is left out, as no name of ours is.
    pub(crate) fn names(&self, folder: &str) -> Result<Vec<String>> {
        let mut names: Vec<String> = match &self.place {
            Place::Folder(root) => folder::entries(&root.join(folder))?
                .into_iter()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect(),
            Place::Bucket(bucket) => {
                let prefix = bucket.key(&format!("{folder}/"));
                let uri = bucket.uri(folder);
                let listed = bucket.wait(&uri, bucket.s3.list(&bucket.bucket, &prefix, &uri))?;
                listed
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(|object| Some(object.key.strip_prefix(&prefix)?.to_owned()))
                    .collect()
            }
        };
        names.sort();
        Ok(names)
    }

    fn too_long(&self, name: &str, bytes: u64, bytes_max: u64) -> Error {
        Error::Remote {
            what: format!("it has {bytes} bytes, more than the {bytes_max} that it may have"),
            uri: self.uri(name),
            hint: HINT_DAMAGED.into(),
        }
    }
}

/// An object that was there when its size was asked for.
fn vanished(uri: &str, reject: Reject) -> Error {
    Error::Remote {
        what: reject.message,
        uri: uri.to_owned(),
        hint: "it was there a moment ago: let nobody change the remote, and run the command again"
            .into(),
    }
}

/// What is not there is no failure.
fn present<T>(outcome: io::Result<T>, path: &Path) -> Found<T> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Error::io("read", path)(error)),
    }
}
