//! Objects in S3: whole, in ranges, their heads, and lists of them.
//!
//! Owns the requests and the comparison of what was asked for with what came; `retry` decides what
//! happens when they differ. Invariant: bytes leave this module only whole, of the announced
//! length, with the expected ETag, and with a matching checksum if the server sent one.

use std::ops::Range;
use std::sync::Arc;

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use aws_sdk_s3::types::ChecksumMode;
use bytes::Bytes;

use super::answer::{classify, error_document, read_body};
use super::limiter::Limiter;
use super::local::too_many_bytes;
use super::retry::{Deadlines, Fault, run};
use super::session::{SessionOptions, Sessions};
use super::{FetchError, Fetched};
use crate::build::stop::Stop;

/// Requests for pages of one listing that bring nothing new before the server is called broken.
const EMPTY_PAGES_MAX: u32 = 100;

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) key: String,
    pub(crate) bytes: u64,
    pub(crate) etag: Option<String>,
}

/// S3, with bounded retries and a budget of requests.
#[derive(Debug)]
pub(crate) struct S3 {
    pub(super) sessions: Sessions,
    limiter: Arc<Limiter>,
    deadlines: Deadlines,
    stop: Stop,
}

impl S3 {
    pub(crate) fn new(options: SessionOptions, stop: Stop) -> Self {
        Self {
            deadlines: options.deadlines,
            sessions: Sessions::new(options),
            limiter: Limiter::new(),
            stop,
        }
    }

    pub(crate) fn check_stop(&self) -> Result<(), crate::Error> {
        self.stop.check()
    }

    /// One request with its retries, given up when the build is asked to stop.
    pub(super) async fn run<T, A, F>(&self, uri: &str, attempt: A) -> Result<T, FetchError>
    where
        A: Fn(Option<u64>) -> F,
        F: Future<Output = Result<T, Fault>>,
    {
        tokio::select! {
            biased;
            outcome = run(&self.deadlines, &self.limiter, uri, attempt) => outcome,
            error = self.stop.wait() => Err(FetchError::Stop(error)),
        }
    }

    /// The whole object, if it has at most `bytes_max` bytes.
    pub(crate) async fn get(
        &self,
        bucket: &str,
        key: &str,
        uri: String,
        bytes_max: u64,
    ) -> Result<Fetched, FetchError> {
        let (bytes, etag) = self
            .run(&uri, |stale| async move {
                let answer = self.send_get(bucket, key, None, stale).await?;
                let bytes = announced(&answer)?;
                if bytes > bytes_max {
                    return Err(Fault::Reject(too_many_bytes(bytes, bytes_max)));
                }
                let etag = answer.e_tag;
                let body = read_body(answer.body, bytes, self.deadlines.stall).await?;
                match error_document(&body, etag.as_deref()) {
                    Some(fault) => Err(fault),
                    None => Ok((body, etag)),
                }
            })
            .await?;
        Ok(Fetched { bytes, uri, etag })
    }

    /// Bytes `range` (not empty) of an object of `total` bytes, which must have the given ETag.
    pub(crate) async fn get_range(
        &self,
        bucket: &str,
        key: &str,
        uri: &str,
        range: Range<u64>,
        total: u64,
        etag: Option<&str>,
    ) -> Result<Bytes, FetchError> {
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let want = format!("bytes {}-{}/{total}", range.start, range.end - 1);
        let (header, want) = (&header, &want);
        let bytes = range.end - range.start;
        self.run(uri, |stale| async move {
            let answer = self
                .send_get(bucket, key, Some((header, etag)), stale)
                .await?;
            if let (Some(want), Some(got)) = (etag, answer.e_tag())
                && want != got
            {
                return Err(Fault::Changed {
                    what: "the object changed since it was listed".into(),
                });
            }
            match answer.content_range() {
                Some(got) if got == want => {}
                Some(got) if !got.ends_with(&format!("/{total}")) => {
                    return Err(Fault::Changed {
                        what: "the object's size changed since it was listed".into(),
                    });
                }
                _ => return Err(Fault::retry("the server sent another range")),
            }
            if announced(&answer)? != bytes {
                return Err(Fault::retry("the server announced another length"));
            }
            read_body(answer.body, bytes, self.deadlines.stall).await
        })
        .await
    }

    /// Size and ETag of an object.
    pub(crate) async fn head(
        &self,
        bucket: &str,
        key: &str,
        uri: &str,
    ) -> Result<Object, FetchError> {
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session.client.head_object().bucket(bucket).key(key);
            let answer = self
                .in_time(request.send())
                .await?
                .map_err(|error| classify(&error, &session))?;
            let bytes = answer
                .content_length()
                .and_then(|bytes| u64::try_from(bytes).ok());
            Ok(Object {
                key: key.to_owned(),
                bytes: bytes.ok_or_else(|| Fault::retry("an answer without a length"))?,
                etag: answer.e_tag,
            })
        })
        .await
    }

    /// All objects whose key begins with `prefix`, in the server's order.
    pub(crate) async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        uri: &str,
    ) -> Result<Vec<Object>, FetchError> {
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        let mut empty = 0;
        loop {
            let (page, next) = self
                .list_page(bucket, prefix, uri, token.as_deref())
                .await?;
            empty = if page.is_empty() { empty + 1 } else { 0 };
            objects.extend(page);
            match next {
                Some(next) if Some(&next) != token.as_ref() && empty < EMPTY_PAGES_MAX => {
                    token = Some(next);
                }
                Some(_) => {
                    return Err(FetchError::Stop(crate::Error::Input {
                        what: "the server's listing does not end".into(),
                        uri: uri.to_owned(),
                        hint: "check --s3-endpoint".into(),
                    }));
                }
                None => return Ok(objects),
            }
        }
    }

    async fn list_page(
        &self,
        bucket: &str,
        prefix: &str,
        uri: &str,
        token: Option<&str>,
    ) -> Result<(Vec<Object>, Option<String>), FetchError> {
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session
                .client
                .list_objects_v2()
                .bucket(bucket)
                .prefix(prefix)
                .set_continuation_token(token.map(str::to_owned));
            let answer = self
                .in_time(request.send())
                .await?
                .map_err(|error| classify(&error, &session))?;
            let more = answer.is_truncated() == Some(true);
            let next = answer.next_continuation_token;
            if more && next.is_none() {
                return Err(Fault::retry("a listing without its continuation"));
            }
            let mut page = Vec::new();
            for object in answer.contents.unwrap_or_default() {
                let bytes = object.size.and_then(|bytes| u64::try_from(bytes).ok());
                let (Some(key), Some(bytes)) = (object.key, bytes) else {
                    return Err(Fault::retry("a listing without keys or sizes"));
                };
                page.push(Object {
                    key,
                    bytes,
                    etag: object.e_tag,
                });
            }
            Ok((page, next.filter(|_| more)))
        })
        .await
    }

    async fn send_get(
        &self,
        bucket: &str,
        key: &str,
        range: Option<(&str, Option<&str>)>,
        stale: Option<u64>,
    ) -> Result<GetObjectOutput, Fault> {
        let session = self.sessions.get(stale).await?;
        let mut request = session
            .client
            .get_object()
            .bucket(bucket)
            .key(key)
            .checksum_mode(ChecksumMode::Enabled);
        if let Some((range, etag)) = range {
            request = request.range(range).set_if_match(etag.map(str::to_owned));
        }
        self.in_time(request.send())
            .await?
            .map_err(|error| classify(&error, &session))
    }

    /// The head of an answer, in time.
    pub(super) async fn in_time<F: Future>(&self, send: F) -> Result<F::Output, Fault> {
        let limit = self.deadlines.first_byte;
        tokio::time::timeout(limit, send)
            .await
            .map_err(|_| Fault::retry(format!("no answer within {limit:?}")))
    }
}

/// The length that an answer announces. Without one, a body that ends early could not be told from
/// a whole one.
fn announced(answer: &GetObjectOutput) -> Result<u64, Fault> {
    answer
        .content_length()
        .and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(|| Fault::retry("an answer without a length"))
}
