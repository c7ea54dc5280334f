//! An HTTP proxy that spoils answers, as seeded.
//!
//! It forwards heads and bodies byte by byte, so that signatures stay valid and every malformed
//! answer can be made. What happens to the n-th request of a path is a function of the seed, the
//! request and n: never of timing. Bounded: one stall ends after [`STALL_MAX`].

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Worker;
use super::fault::{Fault, canned};
use super::head::{header, read_head, with_header, without_header};

/// Longest silence of a stalled answer.
const STALL_MAX: Duration = Duration::from_secs(20);

/// What to spoil, and how often.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Decides which requests are spoilt.
    pub seed: u64,
    /// Share of requests, between 0 and 1, for each fault.
    pub rates: Vec<(Fault, f64)>,
    /// How often one path may be spoilt; later requests for it go through.
    pub per_path_max: u32,
    /// Only requests whose path ends with this are spoilt.
    pub path_end: String,
    /// Added to every answer.
    pub latency: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            seed: 1,
            rates: Vec::new(),
            per_path_max: u32::MAX,
            path_end: String::new(),
            latency: Duration::ZERO,
        }
    }
}

impl Faults {
    /// The same rate of each of `faults`.
    #[must_use]
    pub fn each(faults: &[Fault], rate: f64) -> Self {
        Self {
            rates: faults.iter().map(|fault| (*fault, rate)).collect(),
            ..Self::default()
        }
    }
}

#[derive(Default)]
struct Seen {
    /// Requests and spoilt requests by path.
    paths: BTreeMap<String, (u32, u32)>,
    spoilt: BTreeMap<Fault, u64>,
    requests: u64,
    /// Requests whose answer is held back, now and at most.
    held: u64,
    held_max: u64,
}

struct Shared {
    upstream: SocketAddr,
    faults: Mutex<Faults>,
    seen: Mutex<Seen>,
}

/// A running proxy.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _worker: Worker,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn start(upstream: SocketAddr, faults: Faults) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream,
            faults: Mutex::new(faults),
            seen: Mutex::default(),
        });
        let serving = Arc::clone(&shared);
        let (worker, address) = Worker::start(move |runtime| {
            let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
            let address = listener.local_addr()?;
            runtime.spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    let shared = Arc::clone(&serving);
                    tokio::spawn(async move {
                        let _ = serve(client, &shared).await;
                    });
                }
            });
            Ok(address)
        })?;
        Ok(Self {
            address,
            shared,
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

    /// Spoils as `faults` says from now on.
    pub fn set(&self, faults: Faults) {
        *lock(&self.shared.faults) = faults;
    }

    /// How many answers were spoilt with `fault`.
    #[must_use]
    pub fn spoilt(&self, fault: Fault) -> u64 {
        lock(&self.shared.seen)
            .spoilt
            .get(&fault)
            .copied()
            .unwrap_or(0)
    }

    /// How many requests came.
    #[must_use]
    pub fn requests(&self) -> u64 {
        lock(&self.shared.seen).requests
    }

    /// Most requests that were held back by the latency at one time.
    #[must_use]
    pub fn held_max(&self) -> u64 {
        lock(&self.shared.seen).held_max
    }

    /// Most requests that came for one path.
    #[must_use]
    pub fn requests_of_one_path_max(&self) -> u32 {
        let seen = lock(&self.shared.seen);
        seen.paths
            .values()
            .map(|(requests, _)| *requests)
            .max()
            .unwrap_or(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    async fn hold(&self, latency: Duration) {
        {
            let mut seen = lock(&self.seen);
            seen.held += 1;
            seen.held_max = seen.held_max.max(seen.held);
        }
        tokio::time::sleep(latency).await;
        lock(&self.seen).held -= 1;
    }

    /// Which fault, if any, hits this request.
    fn choose(&self, head: &str) -> Option<Fault> {
        let faults = lock(&self.faults);
        let mut seen = lock(&self.seen);
        seen.requests += 1;
        let line = head.lines().next().unwrap_or("");
        let path = line.split(['?', ' ']).nth(1).unwrap_or("").to_owned();
        let chosen = path.ends_with(&faults.path_end);
        let (requests, spoilt) = seen.paths.entry(path).or_default();
        *requests += 1;
        if !chosen || *spoilt >= faults.per_path_max {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        let range = header(head, "range").unwrap_or("");
        (faults.seed, line, range, *requests).hash(&mut hasher);
        let mut draw = (hasher.finish() >> 11) as f64 / (1_u64 << 53) as f64;
        for (fault, rate) in &faults.rates {
            if draw < *rate {
                if !fault.fits(line) {
                    return None;
                }
                *spoilt += 1;
                *seen.spoilt.entry(*fault).or_default() += 1;
                return Some(*fault);
            }
            draw -= rate;
        }
        None
    }
}

/// Serves requests of one connection until it ends or a fault ends it.
async fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut upstream: Option<TcpStream> = None;
    let mut rest = Vec::new();
    while let Some(head) = read_head(&mut client, &mut rest).await? {
        let fault = shared.choose(&head);
        let sent = read_request_body(&mut client, &head, &mut rest).await?;
        let latency = lock(&shared.faults).latency;
        shared.hold(latency).await;
        match fault {
            Some(Fault::Reset) => return reset(&client),
            Some(Fault::StalledHead) => return stall(&mut client).await,
            Some(Fault::SlowStart) => tokio::time::sleep(Duration::from_millis(150)).await,
            Some(fault) => {
                if let Some(answer) = canned(fault, head.starts_with("HEAD ")) {
                    client.write_all(answer.as_bytes()).await?;
                    continue;
                }
            }
            None => {}
        }
        let server = match &mut upstream {
            Some(server) => server,
            none => none.insert(TcpStream::connect(shared.upstream).await?),
        };
        server
            .write_all(without_header(&head, "expect").as_bytes())
            .await?;
        server.write_all(&sent).await?;
        let mut left = Vec::new();
        let Some(answer) = read_head(server, &mut left).await? else {
            return Ok(());
        };
        if header(&answer, "transfer-encoding").is_some() {
            let body = read_chunks(server, left).await?;
            if fault == Some(Fault::LostEnd) {
                return reset(&client);
            }
            client.write_all(answer.as_bytes()).await?;
            client.write_all(&body).await?;
            continue;
        }
        let length = match header(&answer, "content-length") {
            _ if head.starts_with("HEAD ") => 0,
            Some(length) => length.parse().map_err(io::Error::other)?,
            None => 0,
        };
        let mut body = left;
        let have = body.len();
        body.resize(length, 0);
        server.read_exact(&mut body[have..]).await?;
        let object = answer.contains(" 200 ") && head.starts_with("GET ");
        if !forward(&mut client, &answer, body, fault, object).await? {
            return Ok(());
        }
    }
    Ok(())
}

/// The body of an answer in chunks, as it is: only the end of an upload in parts is answered so.
async fn read_chunks(server: &mut TcpStream, mut body: Vec<u8>) -> io::Result<Vec<u8>> {
    while !body.ends_with(b"0\r\n\r\n") {
        if server.read_buf(&mut body).await? == 0 {
            break;
        }
    }
    Ok(body)
}

/// The body of a request, which may begin in `rest`.
async fn read_request_body(
    client: &mut TcpStream,
    head: &str,
    rest: &mut Vec<u8>,
) -> io::Result<Vec<u8>> {
    if header(head, "expect").is_some() {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let length = match header(head, "content-length") {
        Some(length) => length.parse().map_err(io::Error::other)?,
        None => 0,
    };
    let tail = rest.split_off(rest.len().min(length));
    let mut body = std::mem::replace(rest, tail);
    let have = body.len();
    body.resize(length, 0);
    client.read_exact(&mut body[have..]).await?;
    Ok(body)
}

/// Sends one answer, spoilt by `fault`; returns whether the connection can go on.
async fn forward(
    client: &mut TcpStream,
    answer: &str,
    mut body: Vec<u8>,
    fault: Option<Fault>,
    whole: bool,
) -> io::Result<bool> {
    let mut head = answer.to_owned();
    if whole {
        let sum = crc32(&body).to_be_bytes();
        head = with_header(&head, "x-amz-checksum-crc32", &base64(&sum));
    }
    let length = body.len();
    let half = length / 2;
    let mut go_on = fault.is_none();
    match fault {
        Some(Fault::TruncatedBody | Fault::StalledBody | Fault::ResetInBody) => body.truncate(half),
        Some(Fault::LongBody) => body.extend_from_slice(&[b'x'; 1000]),
        Some(Fault::LengthTooLarge) => {
            head = with_header(&head, "content-length", &(length + 7).to_string());
        }
        Some(Fault::LengthTooSmall) => {
            let short = length.saturating_sub(7);
            head = with_header(&head, "content-length", &short.to_string());
        }
        Some(Fault::NoLength) => {
            head = without_header(&head, "content-length");
            body.truncate(half);
        }
        Some(Fault::FlippedBit) => {
            if let Some(byte) = body.get_mut(half) {
                *byte ^= 4;
            }
            go_on = true;
        }
        Some(Fault::OtherEtag) => {
            head = with_header(&head, "etag", "\"00000000000000000000000000000000\"");
            go_on = true;
        }
        Some(Fault::OtherRange) => {
            if let Some(range) = header(&head, "content-range") {
                let total = range.rsplit('/').next().unwrap_or("").to_owned();
                head = with_header(&head, "content-range", &format!("bytes 1-2/{total}"));
            }
            go_on = true;
        }
        _ => go_on = true,
    }
    client.write_all(head.as_bytes()).await?;
    client.write_all(&body).await?;
    match fault {
        Some(Fault::StalledBody) => stall(client).await?,
        Some(Fault::ResetInBody) => reset(client)?,
        _ => {}
    }
    Ok(go_on)
}

/// Closes with a reset instead of an end.
fn reset(client: &TcpStream) -> io::Result<()> {
    client.set_zero_linger()
}

/// Says nothing until the client goes away, or [`STALL_MAX`].
async fn stall(client: &mut TcpStream) -> io::Result<()> {
    let mut byte = [0];
    let _ = tokio::time::timeout(STALL_MAX, client.read(&mut byte)).await;
    Ok(())
}

/// CRC-32 as S3's `x-amz-checksum-crc32` has it.
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

fn base64(bytes: &[u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(*bytes)) << 4;
    let digits = (0..6)
        .rev()
        .map(|at| DIGITS[(bits >> (6 * at)) as usize & 63]);
    digits.map(char::from).chain("==".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_the_standard_check_string() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(base64(&0xcbf4_3926_u32.to_be_bytes()), "y/Q5Jg==");
    }
}
