//! Brings one file of a remote: found, streamed, decompressed and checked.
//!
//! Owns the order of these steps, on the thread that asks; only the requests themselves run elsewhere. Invariant: the sink gets
//! at most the bytes that the entry names, and [`Remote::bring`] succeeds only if they have its hash.

use std::io::{self, BufReader, Read};
use std::time::{Duration, Instant};

use stoker_formats::ContentHasher;

use super::packed::{TRAILER_BYTES, WINDOW_LOG_MAX, trailer};
use super::store::{HINT_DAMAGED, Opened};
use super::{Remote, RemoteFile};
use crate::error::{Error, Result};

/// Bytes handed on at once.
const PIECE_BYTES: usize = 1 << 20;

/// Where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Waiting for bytes.
    pub download: Duration,
    /// Making the file's bytes of them and hashing them.
    pub decompress: Duration,
    /// In the sink.
    pub write: Duration,
}

/// A file that was brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Brought {
    /// Bytes that came, compressed if the file stands so.
    pub bytes: u64,
    /// Where the time went.
    pub stages: Stages,
}

impl Remote {
    /// Hands the bytes of `file` to `sink`, in order. If this fails, what the sink got is worth nothing.
    ///
    /// Needs 32 MiB for what is on its way, and 10 MiB to decompress a shard.
    ///
    /// # Errors
    /// [`Error::Remote`] if the file is missing or holds other bytes than the manifest names; [`Error::Fetch`] and [`Error::Io`]
    /// for failures, [`Error::Interrupted`] after a request to stop, and what the sink fails with.
    pub fn bring(
        &self,
        file: &RemoteFile,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Brought> {
        let start = Instant::now();
        let (name, opened, is_packed) = self.find(file)?;
        let bytes = opened.bytes;
        let mut timed = Timed {
            stream: opened.stream,
            spent: start.elapsed(),
        };
        let write = if is_packed {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(
                PIECE_BYTES,
                &mut timed,
            ))
            .map_err(Error::io("read", &name))?;
            decoder
                .window_log_max(WINDOW_LOG_MAX)
                .map_err(Error::io("read", &name))?;
            self.copy(file, &name, &mut decoder, sink)?
        } else {
            self.copy(file, &name, &mut timed, sink)?
        };
        let download = timed.spent;
        Ok(Brought {
            bytes,
            stages: Stages {
                download,
                decompress: start.elapsed().saturating_sub(download + write),
                write,
            },
        })
    }

    /// The bytes of `file` as they stand, compressed or not and not checked: what a plain download gives, to measure against.
    ///
    /// # Errors
    /// As [`bring`](Self::bring).
    pub fn plain(&self, file: &RemoteFile) -> Result<Box<dyn Read + Send>> {
        Ok(self.find(file)?.1.stream)
    }

    /// Whether the remote holds `file`: a compressed shard by the hash at its end, anything else by its content, which is read.
    ///
    /// # Errors
    /// As [`bring`](Self::bring), but for files that are missing or damaged.
    pub(crate) fn holds(&self, file: &RemoteFile) -> Result<bool> {
        if file.is_shard
            && let Some(tail) = self.store.tail(&file.packed(), TRAILER_BYTES)?
        {
            return Ok(tail == trailer(file.entry.hash));
        }
        match self.bring(file, &mut |_| Ok(())) {
            Ok(_) => Ok(true),
            Err(Error::Remote { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file as it stands: compressed, or as it is.
    fn find(&self, file: &RemoteFile) -> Result<(String, Opened, bool)> {
        let wanted = file.entry.bytes;
        if file.is_shard {
            let packed = file.packed();
            if let Some(opened) = self.store.find(&packed, None, file.packed_bytes_max())? {
                return Ok((packed, opened, true));
            }
        }
        match self.store.find(&file.path, Some(wanted), wanted)? {
            Some(opened) => Ok((file.path.clone(), opened, false)),
            None => Err(Error::Remote {
                what: "the remote lacks a file that its manifest names".into(),
                uri: self.store.uri(&file.path),
                hint: "push it from a node that holds it: `stoker push` there, to the same place"
                    .into(),
            }),
        }
    }

    /// Hands on what `stream` gives and checks it; gives the time spent in the sink.
    fn copy(
        &self,
        file: &RemoteFile,
        name: &str,
        stream: &mut dyn Read,
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Duration> {
        let damaged = |what: String| Error::Remote {
            what,
            uri: self.store.uri(name),
            hint: HINT_DAMAGED.into(),
        };
        let wanted = file.entry.bytes;
        let mut hasher = ContentHasher::new();
        let mut left = wanted;
        let mut write = Duration::ZERO;
        let size = PIECE_BYTES.min(usize::try_from(wanted).unwrap_or(PIECE_BYTES));
        let mut piece = vec![0; size.max(1)];
        loop {
            self.store.stop.check()?;
            let count = match stream.read(&mut piece) {
                Ok(0) if left == 0 => break,
                Ok(0) => {
                    let got = wanted - left;
                    return Err(damaged(format!("it ends after {got} of {wanted} bytes")));
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => match error.downcast::<Error>() {
                    Ok(error) => return Err(error),
                    Err(error) if error.raw_os_error().is_some() => {
                        return Err(Error::io("read", self.store.uri(name))(error));
                    }
                    Err(_) => return Err(damaged("it cannot be decompressed".into())),
                },
            };
            left = left
                .checked_sub(count as u64)
                .ok_or_else(|| damaged(format!("it holds more than {wanted} bytes")))?;
            let bytes = &piece[..count];
            hasher.update(bytes);
            let start = Instant::now();
            sink(bytes)?;
            write += start.elapsed();
        }
        if hasher.finish() != file.entry.hash {
            return Err(damaged("its content does not match its hash".into()));
        }
        Ok(write)
    }
}

/// A stream, and the time spent waiting for it.
struct Timed {
    stream: Box<dyn Read + Send>,
    spent: Duration,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = Instant::now();
        let outcome = self.stream.read(buffer);
        self.spent += start.elapsed();
        outcome
    }
}
