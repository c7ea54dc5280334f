//! The ways to spoil an answer.

/// One way to spoil an answer. Those that need a body leave answers to HEAD alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// 503 SlowDown.
    SlowDown,
    /// 500 InternalError.
    InternalError,
    /// 502 without a body that S3 would send.
    BadGateway,
    /// 429 without a body.
    TooManyRequests,
    /// 408 without a body.
    RequestTimeout,
    /// 403 AccessDenied.
    Forbidden,
    /// 400 ExpiredToken.
    ExpiredToken,
    /// 404 NoSuchBucket.
    NoSuchBucket,
    /// 200 with an error document and no ETag.
    ErrorDocument,
    /// Half the body, then the end of the connection.
    TruncatedBody,
    /// Half the body, then silence.
    StalledBody,
    /// Silence before the head.
    StalledHead,
    /// The body and more.
    LongBody,
    /// Content-Length 7 too large.
    LengthTooLarge,
    /// Content-Length 7 too small.
    LengthTooSmall,
    /// No Content-Length, the connection's end ends the body, half of it.
    NoLength,
    /// The connection is reset before the head.
    Reset,
    /// The connection is reset inside the body.
    ResetInBody,
    /// One bit of the body differs.
    FlippedBit,
    /// Another ETag.
    OtherEtag,
    /// Another Content-Range.
    OtherRange,
    /// The head comes late, but comes.
    SlowStart,
    /// An upload in parts is ended, and the connection reset before the answer.
    LostEnd,
}

impl Fault {
    /// Whether it can spoil the answer to the request that begins with this line.
    pub(super) fn fits(self, line: &str) -> bool {
        match self {
            Self::LostEnd => line.starts_with("POST ") && line.contains("uploadId="),
            _ => !self.needs_body() || !line.starts_with("HEAD "),
        }
    }

    fn needs_body(self) -> bool {
        !matches!(
            self,
            Self::SlowDown
                | Self::InternalError
                | Self::BadGateway
                | Self::TooManyRequests
                | Self::RequestTimeout
                | Self::StalledHead
                | Self::Reset
                | Self::SlowStart
        )
    }
}

/// An answer that needs no upstream.
pub(super) fn canned(fault: Fault, to_head: bool) -> Option<String> {
    let (status, code) = match fault {
        Fault::SlowDown => ("503 Slow Down", "SlowDown"),
        Fault::InternalError => ("500 Internal Server Error", "InternalError"),
        Fault::BadGateway => ("502 Bad Gateway", ""),
        Fault::TooManyRequests => ("429 Too Many Requests", ""),
        Fault::RequestTimeout => ("408 Request Timeout", ""),
        Fault::Forbidden => ("403 Forbidden", "AccessDenied"),
        Fault::ExpiredToken => ("400 Bad Request", "ExpiredToken"),
        Fault::NoSuchBucket => ("404 Not Found", "NoSuchBucket"),
        Fault::ErrorDocument => ("200 OK", "InternalError"),
        _ => return None,
    };
    let body = match code {
        _ if to_head => String::new(),
        "" => "<html>proxy error</html>".to_owned(),
        code => format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>key {} is known</Message><RequestId>REQ123</RequestId></Error>",
            super::SECRET_KEY
        ),
    };
    Some(format!(
        "HTTP/1.1 {status}\r\nx-amz-request-id: REQ123\r\ncontent-type: application/xml\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ))
}
