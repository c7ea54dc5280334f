//! Objects put into S3: whole, or in parts.
//!
//! Owns the requests. Invariant: every body goes out with a checksum that the server compares, and an object appears under its
//! key whole or not at all; a put that is repeated after a lost answer puts the same bytes.

use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;

use super::FetchError;
use super::answer::classify;
use super::retry::Fault;
use super::s3::S3;

/// A part that the server holds.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    number: i32,
    etag: Option<String>,
    crc32: Option<String>,
}

impl S3 {
    /// Puts `body` under `key`, in place of what stands there.
    pub(crate) async fn put(
        &self,
        bucket: &str,
        key: &str,
        uri: &str,
        body: Bytes,
    ) -> Result<(), FetchError> {
        let body = &body;
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session
                .client
                .put_object()
                .bucket(bucket)
                .key(key)
                .checksum_algorithm(ChecksumAlgorithm::Crc32)
                .body(ByteStream::from(body.clone()));
            self.in_time(request.send())
                .await?
                .map(drop)
                .map_err(|error| classify(&error, &session))
        })
        .await
    }

    /// Begins an upload in parts, and gives its id.
    pub(crate) async fn begin_upload(
        &self,
        bucket: &str,
        key: &str,
        uri: &str,
    ) -> Result<String, FetchError> {
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session
                .client
                .create_multipart_upload()
                .bucket(bucket)
                .key(key)
                .checksum_algorithm(ChecksumAlgorithm::Crc32);
            let answer = self
                .in_time(request.send())
                .await?
                .map_err(|error| classify(&error, &session))?;
            answer
                .upload_id
                .ok_or_else(|| Fault::retry("an upload without an id"))
        })
        .await
    }

    /// Puts part `number`, from 1, of the upload `id`.
    pub(crate) async fn put_part(
        &self,
        (bucket, key, uri): (&str, &str, &str),
        id: &str,
        number: i32,
        body: Bytes,
    ) -> Result<Part, FetchError> {
        let body = &body;
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session
                .client
                .upload_part()
                .bucket(bucket)
                .key(key)
                .upload_id(id)
                .part_number(number)
                .checksum_algorithm(ChecksumAlgorithm::Crc32)
                .body(ByteStream::from(body.clone()));
            let answer = self
                .in_time(request.send())
                .await?
                .map_err(|error| classify(&error, &session))?;
            Ok(Part {
                number,
                etag: answer.e_tag,
                crc32: answer.checksum_crc32,
            })
        })
        .await
    }

    /// Makes the parts of the upload `id`, all in order, the object.
    pub(crate) async fn complete_upload(
        &self,
        (bucket, key, uri): (&str, &str, &str),
        id: &str,
        parts: &[Part],
    ) -> Result<(), FetchError> {
        let parts = parts.iter().map(|part| {
            CompletedPart::builder()
                .part_number(part.number)
                .set_e_tag(part.etag.clone())
                .set_checksum_crc32(part.crc32.clone())
                .build()
        });
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(parts.collect()))
            .build();
        let parts = &parts;
        self.run(uri, |stale| async move {
            let session = self.sessions.get(stale).await?;
            let request = session
                .client
                .complete_multipart_upload()
                .bucket(bucket)
                .key(key)
                .upload_id(id)
                .multipart_upload(parts.clone());
            self.in_time(request.send())
                .await?
                .map(drop)
                .map_err(|error| classify(&error, &session))
        })
        .await
    }

    /// Drops the upload `id` and its parts, once and also after a request to stop: what is left of it otherwise costs money.
    pub(crate) async fn abort_upload(&self, bucket: &str, key: &str, id: &str) {
        let Ok(session) = self.sessions.get(None).await else {
            return;
        };
        let request = session
            .client
            .abort_multipart_upload()
            .bucket(bucket)
            .key(key)
            .upload_id(id);
        let _ = self.in_time(request.send()).await;
    }
}
