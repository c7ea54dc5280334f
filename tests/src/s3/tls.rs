//! TLS in front of a server on loopback.
//!
//! Certificates stand in `tests/tls`, of an issuer whose key is gone: one for 127.0.0.1 that is good until 2120, and one that
//! expired in 2021. Their key is for tests alone. Invariant: bytes pass unchanged, so signatures stay valid.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Worker;
use crate::command::repository;

/// A server that speaks TLS.
pub struct Tls {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    _worker: Worker,
}

impl Tls {
    /// Starts it in front of `upstream`, with `server.pem` or `expired.pem` as its certificate.
    ///
    /// # Errors
    /// If the certificate or a port cannot be used.
    pub fn start(upstream: SocketAddr, certificate: &str) -> io::Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(config(certificate)?));
        let connections = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&connections);
        let (worker, address) = Worker::start(move |runtime| {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
            let address = listener.local_addr()?;
            runtime.spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    counter.fetch_add(1, Ordering::SeqCst);
                    let acceptor = acceptor.clone();
                    tokio::spawn(async move {
                        let mut client = acceptor.accept(client).await?;
                        let mut server = TcpStream::connect(upstream).await?;
                        tokio::io::copy_bidirectional(&mut client, &mut server).await
                    });
                }
            });
            Ok(address)
        })?;
        Ok(Self {
            address,
            connections,
            _worker: worker,
        })
    }

    /// Its base URL, with `host` for 127.0.0.1.
    #[must_use]
    pub fn endpoint(&self, host: &str) -> String {
        format!("https://{host}:{}", self.address.port())
    }

    /// Connections so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }
}

/// The issuer's certificate, for `SSL_CERT_FILE`.
#[must_use]
pub fn issuer() -> PathBuf {
    folder().join("issuer.pem")
}

fn folder() -> PathBuf {
    repository().join("tests/tls")
}

fn config(certificate: &str) -> io::Result<ServerConfig> {
    let chain = CertificateDer::from_pem_file(folder().join(certificate));
    let key = PrivateKeyDer::from_pem_file(folder().join("server.key"));
    let chain = vec![chain.map_err(io::Error::other)?];
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key.map_err(io::Error::other)?)
        .map_err(io::Error::other)
}
