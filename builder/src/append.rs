//! Appends to a file in large writes.
//!
//! Owns the buffer and the way past the page cache. Shards are written once and seldom read soon, so keeping them in the page
//! cache costs a copy and other programs' pages, and on many disks most of the rate. Invariant: bytes reach the file in order;
//! past the page cache only from aligned memory, at aligned offsets, in whole blocks, and by the ordinary way where the file
//! system has no other.

use std::fs::File;
use std::io::{self, Write};

use memmap2::MmapMut;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Bytes of a write: enough for the full rate of a disk that answers one request at a time. Smaller files are written at once,
/// in the ordinary way. A multiple of every block size.
const WRITE_BYTES: usize = 4 << 20;

/// Alignment that direct writes need: that of the largest common block size.
const BLOCK: usize = 4096;

/// A file that grows at its end.
#[derive(Debug)]
pub(crate) struct Append {
    file: File,
    /// Memory at a page's border; pages that are never filled cost nothing.
    buffer: MmapMut,
    filled: usize,
    /// Bytes that were written.
    written: u64,
    direct: bool,
}

impl Append {
    /// Appends to `file`, which is empty.
    ///
    /// # Errors
    /// The system's, if there is no memory for the buffer.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        Ok(Self {
            file,
            buffer: MmapMut::map_anon(WRITE_BYTES)?,
            filled: 0,
            written: 0,
            direct: false,
        })
    }

    /// The file with all bytes in it, not synced.
    ///
    /// # Errors
    /// The system's, of the last write. Nothing is written again then.
    pub(crate) fn finish(mut self) -> io::Result<File> {
        // The last bytes are no whole blocks.
        self.set_direct(false)?;
        self.write_out()?;
        Ok(self.file)
    }

    fn set_direct(&mut self, direct: bool) -> io::Result<()> {
        if self.direct != direct {
            let mut flags = fcntl_getfl(&self.file)?;
            flags.set(OFlags::DIRECT, direct);
            fcntl_setfl(&self.file, flags)?;
            self.direct = direct;
        }
        Ok(())
    }

    /// Writes what the buffer holds.
    fn write_out(&mut self) -> io::Result<()> {
        let mut from = 0;
        while from < self.filled {
            match self.file.write(&self.buffer[from..self.filled]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    from += count;
                    self.written += count as u64;
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
        self.filled = 0;
        Ok(())
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

impl Write for Append {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.filled == WRITE_BYTES {
            if self.written == 0 {
                // Where the file system refuses, the ordinary way it is.
                let _ = self.set_direct(true);
            }
            self.write_out()?;
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
    fn a_failed_write_is_told_once_and_what_is_abandoned_is_not_written() {
        let full = || fs::OpenOptions::new().write(true).open("/dev/full");
        let mut append = Append::new(full().unwrap()).unwrap();
        append.write_all(&bytes(5)).unwrap();
        let error = append.finish().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let mut append = Append::new(full().unwrap()).unwrap();
        let error = append.write_all(&bytes(WRITE_BYTES + 1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        drop(append);
    }
}
