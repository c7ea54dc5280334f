//! The S3 server: s3s over a folder (buckets are its folders), with request counters.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

use super::Worker;

/// The access key's id that the server knows.
pub const ACCESS_KEY: &str = "STOKERTESTKEY0000001";
/// Its secret.
pub const SECRET_KEY: &str = "stoker-test-secret-key-not-used-elsewhere";

/// Requests by operation and path.
type Counts = Arc<Mutex<BTreeMap<(&'static str, String), u64>>>;

/// A running S3 server.
pub struct Server {
    address: SocketAddr,
    counts: Counts,
    _worker: Worker,
}

impl Server {
    /// Serves the folder `root`, and checks signatures made with [`ACCESS_KEY`] and [`SECRET_KEY`].
    ///
    /// # Errors
    /// If the folder or a port cannot be used.
    pub fn start(root: &Path) -> io::Result<Self> {
        Self::run(root, true)
    }

    /// Serves the folder `root` to unsigned requests.
    ///
    /// # Errors
    /// If the folder or a port cannot be used.
    pub fn start_public(root: &Path) -> io::Result<Self> {
        Self::run(root, false)
    }

    fn run(root: &Path, signed: bool) -> io::Result<Self> {
        let files =
            FileSystem::new(root).map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut builder = S3ServiceBuilder::new(files);
        if signed {
            builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        }
        let service = builder.build();
        let counts = Counts::default();
        let counted = Arc::clone(&counts);
        let (worker, address) = Worker::start(move |runtime| {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
            let address = listener.local_addr()?;
            runtime.spawn(accept(listener, service, counted));
            Ok(address)
        })?;
        Ok(Self {
            address,
            counts,
            _worker: worker,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its base URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests so far of `operation` (`GetObject`, `HeadObject`, `ListObjectsV2`, `Other`) whose
    /// `/bucket/key` satisfies `path`.
    #[must_use]
    pub fn count(&self, operation: &str, path: impl Fn(&str) -> bool) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts
            .iter()
            .filter(|((name, at), _)| *name == operation && path(at))
            .map(|(_, count)| count)
            .sum()
    }

    /// GETs so far of objects that are no JSONL: of images.
    #[must_use]
    pub fn image_gets(&self) -> u64 {
        self.count("GetObject", |path| !path.contains(".jsonl"))
    }
}

async fn accept(listener: TcpListener, service: S3Service, counts: Counts) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let (service, counts) = (service.clone(), Arc::clone(&counts));
        tokio::spawn(async move {
            let counting = service_fn(|request: Request<Incoming>| {
                let key = (operation(&request), request.uri().path().to_owned());
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                *counts.entry(key).or_default() += 1;
                drop(counts);
                hyper::service::Service::call(&service, request)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), counting);
            let _ = connection.await;
        });
    }
}

fn operation(request: &Request<Incoming>) -> &'static str {
    let path = request.uri().path().trim_start_matches('/');
    let names_object = path.split_once('/').is_some_and(|(_, key)| !key.is_empty());
    match (request.method(), names_object) {
        (&Method::GET, true) => "GetObject",
        (&Method::HEAD, true) => "HeadObject",
        (&Method::GET, false) if request.uri().query().unwrap_or("").contains("list-type=2") => {
            "ListObjectsV2"
        }
        _ => "Other",
    }
}
