//! Why a request never reached S3: the server's name, its certificate, or the way to it.
//!
//! Owns what is said of it, and which of it another try may mend. Invariant: nothing that a server has sent is repeated, and an
//! endpoint is named only after `session` has seen that it holds no credentials.

use std::error::Error as StdError;
use std::io;

use rustls::{CertificateError, InvalidMessage};

use super::answer::{chain, io_reason};
use super::retry::Fault;

/// What hyper's connector calls a name that does not resolve. It exports no type for it.
const NO_ADDRESS: &str = "dns error";

const HINT_NAME: &str = "check the name in --s3-endpoint (or AWS_ENDPOINT_URL) and this host's resolver, then run the same command again to go on";
const HINT_SERVER: &str = "check --s3-endpoint (or AWS_ENDPOINT_URL) and that the server runs, then run the same command again to go on";
const HINT_NO_TLS: &str = "give --s3-endpoint as http:// if the server does not encrypt, then run the same command again to go on";
const HINT_ISSUER: &str = "name the issuer's certificate, a PEM file, in SSL_CERT_FILE if it is one of your own, then run the same command again to go on";
const HINT_OTHER_NAME: &str = "give --s3-endpoint with a name that is in the certificate, then run the same command again to go on";
const HINT_DATES: &str = "renew the server's certificate, or set this host's clock, then run the same command again to go on";
const HINT_CERTIFICATE: &str =
    "check --s3-endpoint and the server's certificate, then run the same command again to go on";

/// The fault behind a request that could not be sent to `endpoint`.
pub(super) fn classify(error: &(dyn StdError + 'static), endpoint: &str) -> Fault {
    let unreachable = |what: &str, hint| Fault::Unreachable {
        what: format!("{what}: `{endpoint}`"),
        hint,
    };
    if let Some(error) = tls_error(error) {
        return match error {
            rustls::Error::InvalidCertificate(error) => {
                let (what, hint) = certificate(error);
                Fault::Stop {
                    what: format!("{what}: `{endpoint}`"),
                    hint,
                }
            }
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                unreachable("the server does not speak TLS", HINT_NO_TLS)
            }
            _ => unreachable("no TLS connection came about", HINT_SERVER),
        };
    }
    if chain(error).any(|error| error.to_string() == NO_ADDRESS) {
        return unreachable("the server's name does not resolve", HINT_NAME);
    }
    match io_reason(error) {
        Some(io::ErrorKind::ConnectionRefused) => {
            unreachable("the server refuses connections", HINT_SERVER)
        }
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
            unreachable("there is no way to the server", HINT_SERVER)
        }
        Some(kind) => Fault::retry(kind.to_string()),
        None => Fault::retry("the connection failed"),
    }
}

/// The fault behind a connection that did not come about in time.
pub(super) fn timeout(endpoint: &str) -> Fault {
    Fault::Unreachable {
        what: format!("no connection in time: `{endpoint}`"),
        hint: HINT_SERVER,
    }
}

/// TLS errors travel inside I/O errors, which do not count them among their sources.
fn tls_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    chain(error)
        .filter_map(|error| error.downcast_ref())
        .find_map(inside)
}

fn inside(error: &io::Error) -> Option<&rustls::Error> {
    let inner = error.get_ref()?;
    inner
        .downcast_ref()
        .or_else(|| inside(inner.downcast_ref()?))
}

fn certificate(error: &CertificateError) -> (&'static str, &'static str) {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
    };
    match error {
        UnknownIssuer => (
            "the server's certificate is from an issuer that this host does not trust",
            HINT_ISSUER,
        ),
        NotValidForName | NotValidForNameContext { .. } => (
            "the server's certificate is for another name",
            HINT_OTHER_NAME,
        ),
        Expired | ExpiredContext { .. } => ("the server's certificate has expired", HINT_DATES),
        NotValidYet | NotValidYetContext { .. } => {
            ("the server's certificate is not valid yet", HINT_DATES)
        }
        _ => ("the server's certificate is not valid", HINT_CERTIFICATE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(error: impl StdError + 'static) -> String {
        match classify(&error, "https://host") {
            Fault::Stop { what, .. } => format!("stop: {what}"),
            Fault::Unreachable { what, .. } => format!("unreachable: {what}"),
            Fault::Retry { what, .. } => format!("retry: {what}"),
            other => panic!("{other:?}"),
        }
    }

    /// As the HTTP stack wraps it.
    fn tls(error: rustls::Error) -> io::Error {
        io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn only_certificates_are_never_weather() {
        for (error, want) in [
            (CertificateError::UnknownIssuer, "does not trust"),
            (CertificateError::Expired, "has expired"),
            (CertificateError::NotValidYet, "not valid yet"),
            (CertificateError::NotValidForName, "another name"),
            (CertificateError::BadSignature, "is not valid:"),
        ] {
            let said = said(tls(rustls::Error::InvalidCertificate(error)));
            assert!(said.starts_with("stop: ") && said.contains(want), "{said}");
            assert!(said.ends_with(": `https://host`"), "{said}");
        }
        for (error, want) in [
            (
                rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "unreachable: the server does not speak TLS: `https://host`",
            ),
            (
                rustls::Error::DecryptError,
                "unreachable: no TLS connection came about: `https://host`",
            ),
        ] {
            assert_eq!(said(tls(error)), want);
        }
    }

    #[test]
    fn nobody_there_is_told_from_a_broken_connection() {
        let of = |kind: io::ErrorKind| said(io::Error::from(kind));
        let refused = of(io::ErrorKind::ConnectionRefused);
        assert!(
            refused.starts_with("unreachable: the server refuses"),
            "{refused}"
        );
        let away = of(io::ErrorKind::NetworkUnreachable);
        assert!(away.starts_with("unreachable: there is no way"), "{away}");
        assert_eq!(
            of(io::ErrorKind::ConnectionReset),
            "retry: connection reset"
        );
        assert_eq!(said(std::fmt::Error), "retry: the connection failed");
    }
}
