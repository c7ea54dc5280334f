//! What an answer of S3 means: a fact, weather, expired credentials, or a refusal.
//!
//! `connection` says what it means if there is none. Owns the classification and the checked reading of bodies; sends nothing. Invariant: of what a
//! server or the SDK says, messages repeat only the error code, the status and the request id.

use std::error::Error as StdError;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_s3::operation::RequestId as _;
use aws_sdk_s3::primitives::ByteStream;
use bytes::Bytes;

use super::connection;
use super::retry::Fault;
use super::session::Session;
use crate::reject::{Reason, Reject};

/// Longest error code or request id that a message repeats: real ones are shorter.
const WORD_CHARS_MAX: usize = 96;

/// What is reserved for a body before its first byte: a server's word about the length is not enough for more.
const BODY_RESERVE_BYTES_MAX: u64 = 8 << 20;

/// How far into a body an error document is searched for its code.
const ERROR_BODY_BYTES: usize = 1024;

const HINT_DENIED: &str = "check the credentials and that they may read this object (without \
    permission to list the bucket, S3 answers so for missing objects too), then run the same command again to go on";
const HINT_BUCKET: &str = "check the bucket's name, its region (AWS_REGION) and --s3-endpoint";
const HINT_CREDENTIALS: &str =
    "check AWS_PROFILE and the other AWS_* settings, then run the same command again to go on";
const HINT_ARCHIVED: &str =
    "the object is archived: restore it, then run the same command again to go on";
const HINT_CLOCK: &str = "set this host's clock, then run the same command again to go on";
const HINT_REQUEST: &str =
    "check --s3-endpoint; what is done stays, run the same command again to go on";

/// The fault behind a failed request of `session`.
pub(super) fn classify<E>(error: &SdkError<E, HttpResponse>, session: &Session) -> Fault
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::ServiceError(service) => {
            let status = service.raw().status().as_u16();
            let code = service.err().meta().code().map(word);
            let mut what = match &code {
                Some(code) => format!("{code} (status {status})"),
                None => format!("status {status}"),
            };
            if let Some(id) = error.request_id().map(word).filter(|id| !id.is_empty()) {
                what.push_str(&format!(", request {id}"));
            }
            classify_code(status, code.as_deref(), what, session.generation)
        }
        SdkError::ResponseError(_) => Fault::retry("an answer that is not S3's"),
        SdkError::TimeoutError(_) => Fault::retry("timeout"),
        other if in_chain::<CredentialsError>(other) => {
            Fault::retry("the credentials could not be loaded")
        }
        SdkError::ConstructionFailure(_) => Fault::Stop {
            what: "the request could not be made".into(),
            hint: HINT_CREDENTIALS,
        },
        SdkError::DispatchFailure(failure) if failure.is_timeout() => {
            connection::timeout(&session.endpoint)
        }
        other => connection::classify(other, &session.endpoint),
    }
}

fn classify_code(status: u16, code: Option<&str>, what: String, generation: u64) -> Fault {
    let stop = |what, hint| Fault::Stop { what, hint };
    match (status, code) {
        (_, Some("SlowDown" | "ServiceUnavailable" | "Throttling" | "RequestLimitExceeded"))
        | (429 | 503, _) => Fault::Retry {
            what,
            throttled: true,
        },
        (_, Some("InternalError" | "RequestTimeout")) | (408 | 500.., _) => Fault::retry(what),
        // A key or token that is not known was perhaps replaced since: the profile's file may hold the new one.
        (
            _,
            Some(
                "ExpiredToken"
                | "ExpiredTokenException"
                | "TokenRefreshRequired"
                | "InvalidToken"
                | "InvalidAccessKeyId",
            ),
        ) => Fault::Expired { what, generation },
        // An answer to HEAD has no body and so no code: expired or denied, one renewal tells.
        (400 | 401 | 403, None) => Fault::Expired { what, generation },
        (404, Some("NoSuchKey" | "NotFound")) | (400, Some("KeyTooLongError")) => {
            Fault::Reject(Reject::new(Reason::MissingImage, "there is no such object"))
        }
        (
            _,
            Some("NoSuchBucket" | "PermanentRedirect" | "TemporaryRedirect" | "InvalidBucketName"),
        )
        | (300..=399, _) => stop(what, HINT_BUCKET),
        (_, Some("InvalidObjectState")) => stop(what, HINT_ARCHIVED),
        (_, Some("RequestTimeTooSkewed")) => stop(what, HINT_CLOCK),
        // Not the version, or not the size, that was listed.
        (412 | 416, _) => Fault::Changed {
            what: format!("the object changed since it was listed: {what}"),
        },
        (401 | 403, _) => stop(what, HINT_DENIED),
        // A spoilt answer: only a code is a fact.
        (404, None) => Fault::retry(what),
        _ => stop(what, HINT_REQUEST),
    }
}

/// Reads a body of exactly `bytes` bytes; checksums are compared by the SDK at its end.
pub(super) async fn read_body(
    mut body: ByteStream,
    bytes: u64,
    stall: Duration,
) -> Result<Bytes, Fault> {
    let reserve = bytes.min(BODY_RESERVE_BYTES_MAX);
    let mut out = Vec::with_capacity(usize::try_from(reserve).unwrap_or(0));
    loop {
        match tokio::time::timeout(stall, body.next()).await {
            Err(_) => return Err(Fault::retry(format!("no byte of the body for {stall:?}"))),
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(Fault::retry(body_reason(&error))),
            Ok(Some(Ok(piece))) => {
                if (out.len() + piece.len()) as u64 > bytes {
                    return Err(Fault::retry("the body is longer than announced"));
                }
                out.extend_from_slice(&piece);
            }
        }
    }
    if out.len() as u64 != bytes {
        return Err(Fault::retry(format!(
            "the body ended after {} of {bytes} bytes",
            out.len()
        )));
    }
    Ok(out.into())
}

/// Whether `body`, which came with status 200, is an error document instead of an object.
///
/// Only without an ETag: an object that holds such a text is an object (and no image).
pub(super) fn error_document(body: &[u8], etag: Option<&str>) -> Option<Fault> {
    if etag.is_some() {
        return None;
    }
    let head = String::from_utf8_lossy(&body[..body.len().min(ERROR_BODY_BYTES)]);
    let (_, rest) = head.trim_start().split_once("<Error>")?;
    let (_, rest) = rest.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    Some(Fault::Retry {
        what: format!("{} (status 200)", word(code)),
        throttled: code == "SlowDown",
    })
}

fn body_reason(error: &(dyn StdError + 'static)) -> String {
    // The SDK does not export the type of its checksum error; its text is only looked at.
    if format!("{}", DisplayErrorContext(error)).contains("checksum") {
        return "the body's checksum differs".into();
    }
    io_reason(error).map_or_else(|| "the body ended early".into(), |kind| kind.to_string())
}

pub(super) fn io_reason(error: &(dyn StdError + 'static)) -> Option<std::io::ErrorKind> {
    chain(error)
        .find_map(|error| error.downcast_ref::<std::io::Error>())
        .map(std::io::Error::kind)
}

pub(super) fn in_chain<T: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| error.is::<T>())
}

pub(super) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// A server's word, cut to what cannot carry anything else.
fn word(text: &str) -> String {
    text.chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+' | '='))
        .take(WORD_CHARS_MAX)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(status: u16, code: Option<&str>) -> &'static str {
        match classify_code(status, code, String::new(), 0) {
            Fault::Reject(reject) => reject.reason.code(),
            Fault::Retry {
                throttled: true, ..
            } => "slow",
            Fault::Retry { .. } => "retry",
            Fault::Expired { .. } => "expired",
            Fault::Changed { .. } => "changed",
            Fault::Unreachable { .. } => "unreachable",
            Fault::Stop { .. } => "stop",
        }
    }

    #[test]
    fn every_answer_has_its_verdict() {
        for (status, code, want) in [
            (503, Some("SlowDown"), "slow"),
            (503, None, "slow"),
            (429, None, "slow"),
            (500, Some("InternalError"), "retry"),
            (502, None, "retry"),
            (504, None, "retry"),
            (408, None, "retry"),
            (400, Some("RequestTimeout"), "retry"),
            (404, Some("NoSuchKey"), "missing_image"),
            (404, Some("NoSuchBucket"), "stop"),
            (404, None, "retry"),
            (400, Some("InvalidArgument"), "stop"),
            (400, Some("ExpiredToken"), "expired"),
            (403, Some("ExpiredToken"), "expired"),
            (400, Some("InvalidToken"), "expired"),
            (403, Some("InvalidAccessKeyId"), "expired"),
            (403, Some("AccessDenied"), "stop"),
            (403, Some("RequestTimeTooSkewed"), "stop"),
            (401, Some("Unauthorized"), "stop"),
            (301, Some("PermanentRedirect"), "stop"),
            (307, None, "stop"),
            (412, Some("PreconditionFailed"), "changed"),
            (416, Some("InvalidRange"), "changed"),
        ] {
            assert_eq!(verdict(status, code), want, "{status} {code:?}");
        }
    }

    #[test]
    fn only_an_answer_without_etag_is_an_error_document() {
        let body = b"<?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>";
        assert!(error_document(body, None).is_some());
        assert!(error_document(body, Some("\"e\"")).is_none());
        assert!(error_document(b"\xff\xd8\xff<Error>", None).is_none());
    }

    #[test]
    fn words_carry_no_text() {
        assert_eq!(word("Slow Down\r\n\u{1b}[31m"), "SlowDown31m");
        assert_eq!(word(&"x".repeat(500)).len(), WORD_CHARS_MAX);
    }
}
