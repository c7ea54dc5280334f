//! Appends to a file in large writes, by a thread of its own.
//!
//! Owns the buffers and the way past the page cache. Shards are written once and seldom read soon, so keeping them in the page
//! cache costs a copy and other programs' pages, and on many disks most of the rate; and who makes rows should not wait for the
//! disk. Invariant: bytes reach the file in order; past the page cache only from aligned memory, at aligned offsets, in whole
//! blocks, and by the ordinary way where the file system has no other. An error is told by the write after it, or by
//! [`Append::finish`], and nothing is written any more.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use memmap2::{Advice, MmapMut};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Bytes of a write: enough for the full rate of a disk that answers one request at a time. Smaller files are written at once,
/// in the ordinary way. A multiple of every block size.
const WRITE_BYTES: usize = 4 << 20;

/// Alignment that direct writes need: that of the largest common block size.
const BLOCK: usize = 4096;

/// Buffers of a file that has a thread: one is filled, one is written, one waits.
const BUFFERS: usize = 3;

/// A file that grows at its end.
#[derive(Debug)]
pub(crate) struct Append {
    /// Memory at a page's border.
    buffer: MmapMut,
    filled: usize,
    out: Out,
}

#[derive(Debug)]
enum Out {
    /// Nothing was written yet.
    Here(End),
    Behind(Behind),
    /// A write failed, or the file is finished.
    Nowhere,
}

impl Append {
    /// Appends to `file`, which is empty.
    ///
    /// # Errors
    /// The system's, if there is no memory for the buffer.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            buffer: buffer()?,
            filled: 0,
            out: Out::Here(End {
                file,
                direct: false,
            }),
        })
    }

    /// The file with all bytes in it, not synced.
    ///
    /// # Errors
    /// The system's, of an earlier write or the last one. Nothing is written again then.
    pub(crate) fn finish(mut self) -> io::Result<File> {
        let mut end = match std::mem::replace(&mut self.out, Out::Nowhere) {
            Out::Here(end) => end,
            Out::Behind(behind) => behind.finish()?,
            Out::Nowhere => return Err(failed_before()),
        };
        // The last bytes are no whole blocks.
        end.set_direct(false)?;
        end.write(&self.buffer[..self.filled])?;
        Ok(end.file)
    }

    /// Hands the full buffer over, for an empty one.
    fn turn(&mut self) -> io::Result<()> {
        let mut behind = match std::mem::replace(&mut self.out, Out::Nowhere) {
            Out::Here(end) => Behind::start(end)?,
            Out::Behind(behind) => behind,
            Out::Nowhere => return Err(failed_before()),
        };
        let empty = behind.empty()?;
        behind.write(std::mem::replace(&mut self.buffer, empty))?;
        self.out = Out::Behind(behind);
        self.filled = 0;
        Ok(())
    }
}

impl Write for Append {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == WRITE_BYTES {
            self.turn()?;
        }
        let count = bytes.len().min(WRITE_BYTES - self.filled);
        self.buffer[self.filled..][..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        Ok(count)
    }

    /// Nothing: a part of the buffer cannot be written past the page cache.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pages that are never filled cost nothing.
fn buffer() -> io::Result<MmapMut> {
    MmapMut::map_anon(WRITE_BYTES)
}

fn failed_before() -> io::Error {
    io::Error::other("an earlier write failed")
}

/// The thread that writes full buffers. Dropped, it ends after those that it was given.
#[derive(Debug)]
struct Behind {
    full: Option<SyncSender<MmapMut>>,
    /// Buffers that were written.
    empty: Receiver<MmapMut>,
    /// Buffers that were made.
    buffers: usize,
    thread: Option<JoinHandle<io::Result<End>>>,
}

impl Behind {
    fn start(mut end: End) -> io::Result<Self> {
        // Where the file system refuses, the ordinary way it is.
        let _ = end.set_direct(true);
        let (full, filled) = sync_channel::<MmapMut>(BUFFERS);
        let (written, empty) = sync_channel(BUFFERS);
        let thread = thread::Builder::new()
            .name("stoker-append".into())
            .spawn(move || {
                for buffer in filled {
                    end.write(&buffer)?;
                    // Nobody takes it if the file is given up.
                    let _ = written.send(buffer);
                }
                Ok(end)
            })?;
        Ok(Self {
            full: Some(full),
            empty,
            buffers: 1,
            thread: Some(thread),
        })
    }

    /// A buffer that can be filled; waits for the disk if all are full.
    fn empty(&mut self) -> io::Result<MmapMut> {
        if let Ok(empty) = self.empty.try_recv() {
            return Ok(empty);
        }
        if self.buffers < BUFFERS {
            self.buffers += 1;
            let buffer = buffer()?;
            // Only advice: the file is large, and pinning few pages for each write takes less time.
            let _ = buffer.advise(Advice::HugePage);
            return Ok(buffer);
        }
        match self.empty.recv() {
            Ok(empty) => Ok(empty),
            Err(_) => Err(self.fault()),
        }
    }

    fn write(&mut self, buffer: MmapMut) -> io::Result<()> {
        match self.full.as_ref().map(|full| full.send(buffer)) {
            Some(Ok(())) => Ok(()),
            _ => Err(self.fault()),
        }
    }

    /// Why the thread has ended.
    fn fault(&mut self) -> io::Error {
        self.join().err().unwrap_or_else(failed_before)
    }

    fn finish(mut self) -> io::Result<End> {
        self.join()
    }

    /// Waits until all is written.
    fn join(&mut self) -> io::Result<End> {
        self.full = None;
        let ended = self.thread.take().map(JoinHandle::join);
        ended
            .unwrap_or_else(|| Ok(Err(failed_before())))
            .unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.join();
        }
    }
}

/// The file's end.
#[derive(Debug)]
struct End {
    file: File,
    direct: bool,
}

impl End {
    fn set_direct(&mut self, direct: bool) -> io::Result<()> {
        if self.direct != direct {
            let mut flags = fcntl_getfl(&self.file)?;
            flags.set(OFlags::DIRECT, direct);
            fcntl_setfl(&self.file, flags)?;
            self.direct = direct;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut from = 0;
        while from < bytes.len() {
            match self.file.write(&bytes[from..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    from += count;
                    if !count.is_multiple_of(BLOCK) {
                        self.set_direct(false)?;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Larger blocks than ours, or none after all.
                Err(error) if self.direct && is_invalid(&error) => self.set_direct(false)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 7 % 251) as u8).collect()
    }

    /// On disks, and in a memory file system.
    #[test]
    fn the_file_holds_what_was_appended() {
        for folder in [env!("CARGO_MANIFEST_DIR"), "/dev/shm"] {
            for count in [
                0,
                1,
                BLOCK,
                WRITE_BYTES - 1,
                WRITE_BYTES,
                WRITE_BYTES + 1,
                3 * WRITE_BYTES + 5000,
            ] {
                let folder = tempfile::tempdir_in(folder).unwrap();
                let path = folder.path().join("file");
                let content = bytes(count);
                let mut append = Append::new(File::create(&path).unwrap()).unwrap();
                for piece in content.chunks(1_000_003) {
                    append.write_all(piece).unwrap();
                    append.flush().unwrap();
                }
                let file = append.finish().unwrap();
                assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
                assert!(fs::read(&path).unwrap() == content, "{count}");
            }
        }
    }

    #[test]
    fn a_failed_write_is_told_and_what_is_abandoned_is_not_written() {
        let full = || fs::OpenOptions::new().write(true).open("/dev/full");
        let is_full = |error: io::Error| error.kind() == io::ErrorKind::StorageFull;
        let mut append = Append::new(full().unwrap()).unwrap();
        append.write_all(&bytes(5)).unwrap();
        assert!(is_full(append.finish().unwrap_err()));
        // By the end, however many buffers were on their way.
        for buffers in 1..=BUFFERS {
            let mut append = Append::new(full().unwrap()).unwrap();
            let error = append
                .write_all(&bytes(buffers * WRITE_BYTES + 1))
                .err()
                .unwrap_or_else(|| append.finish().unwrap_err());
            assert!(is_full(error), "{buffers}");
        }
        // And by a write, once all buffers are full.
        let mut append = Append::new(full().unwrap()).unwrap();
        let error = append.write_all(&bytes((BUFFERS + 1) * WRITE_BYTES + 1));
        assert!(is_full(error.unwrap_err()));
        assert!(append.write_all(&bytes(1)).is_err());
        assert!(append.finish().is_err());
    }
}
