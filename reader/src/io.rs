//! How bytes of a shard get into a batch.
//!
//! Owns the copying backends behind one trait. Invariant: `read` fills the whole buffer or fails, and shows each piece
//! to the caller while it is still in the CPU's caches, so that a checksum costs no second trip to memory.

use std::cell::RefCell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;

use crate::mmap::Mapping;
use crate::open_files::OpenFile;

/// Bytes of a piece: fits the second-level cache of every server CPU beside what is done with it.
const PIECE: usize = 256 << 10;

/// Alignment of direct reads, in file and memory: that of the largest common block size.
const BLOCK: usize = 4096;

/// Bytes of one direct read: large enough for the full rate of a disk that answers one request at a time.
const DIRECT_READ: usize = 4 << 20;

/// How shards are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// `pread` through the page cache.
    #[default]
    Pread,
    /// O_DIRECT past the page cache, for caches larger than memory.
    Direct,
    /// Copies out of a mapping. A file that shrinks meanwhile ends the process with SIGBUS: only for files that nobody
    /// else can change.
    Mmap,
}

impl Backend {
    const NAMES: [(Self, &'static str); 3] = [
        (Self::Pread, "pread"),
        (Self::Direct, "direct"),
        (Self::Mmap, "mmap"),
    ];

    /// The trait object that does it.
    pub(crate) fn make(self) -> Box<dyn ReadShard> {
        match self {
            Self::Pread => Box::new(Pread),
            Self::Direct => Box::new(Direct),
            Self::Mmap => Box::new(Mmap),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(backend, _)| backend == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::NAMES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(backend, _)| *backend)
            .ok_or_else(|| format!("backend is pread, direct or mmap, not `{text}`"))
    }
}

/// What is shown each piece of a read; none where nobody looks.
pub(crate) type Seen<'a> = Option<&'a mut dyn FnMut(&[u8])>;

/// A way to read image shards.
pub(crate) trait ReadShard: Send + Sync + fmt::Debug {
    /// Opens a shard for this way of reading.
    fn open(&self, path: &Path) -> io::Result<File> {
        File::open(path)
    }

    /// Fills `into` from `offset` of the file; `seen` gets every piece in order.
    fn read(&self, file: &OpenFile, offset: u64, into: &mut [u8], seen: Seen<'_>)
    -> io::Result<()>;
}

/// Has `into` filled in order: at once, or in pieces if somebody looks.
fn in_pieces(
    into: &mut [u8],
    seen: Seen<'_>,
    mut fill: impl FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let Some(seen) = seen else {
        return fill(into);
    };
    for piece in into.chunks_mut(PIECE) {
        fill(piece)?;
        seen(piece);
    }
    Ok(())
}

#[derive(Debug)]
struct Pread;

impl ReadShard for Pread {
    fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        into: &mut [u8],
        seen: Seen<'_>,
    ) -> io::Result<()> {
        let mut at = offset;
        in_pieces(into, seen, |piece| {
            file.file().read_exact_at(piece, at)?;
            at += piece.len() as u64;
            Ok(())
        })
    }
}

#[derive(Debug)]
struct Direct;

thread_local! {
    /// Aligned memory for direct reads, one for each thread that reads.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ReadShard for Direct {
    fn open(&self, path: &Path) -> io::Result<File> {
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| match error.raw_os_error() {
                Some(code) if code == rustix::io::Errno::INVAL.raw_os_error() => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the file system has no direct reads; use the backend `pread`",
                ),
                _ => error,
            })
    }

    fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        into: &mut [u8],
        mut seen: Seen<'_>,
    ) -> io::Result<()> {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.resize(DIRECT_READ + BLOCK, 0);
            let start = scratch.as_ptr().align_offset(BLOCK).min(BLOCK);
            let scratch = &mut scratch[start..][..DIRECT_READ];
            let mut at = offset;
            let mut rest = into;
            while !rest.is_empty() {
                let skip = usize::try_from(at % BLOCK as u64).unwrap_or(0);
                let take = rest.len().min(DIRECT_READ - skip);
                // The last block may reach beyond the file's end, where the system gives fewer bytes.
                let whole = (skip + take).next_multiple_of(BLOCK);
                read_at_least(
                    file.file(),
                    &mut scratch[..whole],
                    at - skip as u64,
                    skip + take,
                )?;
                let (now, later) = rest.split_at_mut(take);
                for (piece, from) in now.chunks_mut(PIECE).zip(scratch[skip..].chunks(PIECE)) {
                    piece.copy_from_slice(&from[..piece.len()]);
                    if let Some(seen) = &mut seen {
                        seen(piece);
                    }
                }
                at += take as u64;
                rest = later;
            }
            Ok(())
        })
    }
}

/// Reads until at least `wanted` bytes of `into` are there. Short reads end at a block's border, or at the file's end.
fn read_at_least(file: &File, into: &mut [u8], offset: u64, wanted: usize) -> io::Result<()> {
    let mut filled = 0;
    while filled < wanted {
        match file.read_at(&mut into[filled..], offset + filled as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled < wanted && !filled.is_multiple_of(BLOCK) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Mmap;

impl ReadShard for Mmap {
    fn read(
        &self,
        file: &OpenFile,
        offset: u64,
        into: &mut [u8],
        seen: Seen<'_>,
    ) -> io::Result<()> {
        let mapping: &Mapping = file.mapping()?;
        let from = mapping.bytes(offset, into.len() as u64)?;
        if into.len() > PIECE {
            // One request for all of it, instead of a fault and a small read ahead at a time.
            mapping.will_need(offset, into.len() as u64);
        }
        let mut rest = from;
        in_pieces(into, seen, |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn every_backend_gives_the_bytes_and_shows_them() {
        let content: Vec<u8> = (0..6_000_001u32).map(|at| (at * 7 % 251) as u8).collect();
        // Not in a memory file system, which may have no direct reads.
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&content).unwrap();
        let backends = [Backend::Pread, Backend::Direct, Backend::Mmap];
        for backend in backends {
            assert_eq!(backend.to_string().parse(), Ok(backend));
            let reader = backend.make();
            let open = OpenFile::new(reader.open(file.path()).unwrap(), content.len() as u64);
            for (offset, length) in [
                (0, 1),
                (1, 5_999_999),
                (4095, 2),
                (4096, 4096),
                (64, 4 << 20),
                (5_999_999, 2),
                (6_000_001, 0),
            ] {
                let mut into = vec![0; length];
                let mut shown = Vec::new();
                let mut show = |piece: &[u8]| shown.extend_from_slice(piece);
                reader
                    .read(&open, offset as u64, &mut into, Some(&mut show))
                    .unwrap();
                assert_eq!(into, &content[offset..][..length], "{backend} {offset}");
                assert_eq!(shown, into);
                into.fill(0);
                reader.read(&open, offset as u64, &mut into, None).unwrap();
                assert_eq!(into, shown, "{backend} {offset}");
            }
            let mut into = [0; 3];
            assert!(reader.read(&open, 5_999_999, &mut into, None).is_err());
        }
    }
}
