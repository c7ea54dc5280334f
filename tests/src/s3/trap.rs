//! A server that nobody may call: it counts who does.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpListener;

use super::Worker;

/// A listening socket that counts connections.
pub struct Trap {
    address: SocketAddr,
    caught: Arc<AtomicU64>,
    _worker: Worker,
}

impl Trap {
    /// Opens the trap.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start() -> io::Result<Self> {
        let caught = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&caught);
        let (worker, address) = Worker::start(move |runtime| {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
            let address = listener.local_addr()?;
            runtime.spawn(async move {
                while listener.accept().await.is_ok() {
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            });
            Ok(address)
        })?;
        Ok(Self {
            address,
            caught,
            _worker: worker,
        })
    }

    /// Where it waits.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections so far.
    #[must_use]
    pub fn caught(&self) -> u64 {
        self.caught.load(Ordering::SeqCst)
    }
}
