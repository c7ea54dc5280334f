//! Sends one file: read, hashed, compressed if it is a shard, and put there if its hash is right.
//!
//! Invariant: an upload is finished only after the last byte of the file was read and all have the manifest's hash.

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use stoker_formats::ContentHasher;

use crate::error::{Error, Result};
use crate::folder::open_regular;
use crate::remote::{Packed, Remote, RemoteFile, Target, Upload};
use crate::verify::progress::Progress;

/// Bytes read at once.
const PIECE_BYTES: usize = 1 << 20;

pub(super) struct Sender<'a> {
    pub(super) root: &'a Path,
    pub(super) target: &'a Target,
    pub(super) remote: &'a Remote,
    pub(super) level: i32,
    pub(super) progress: &'a Progress,
}

impl Sender<'_> {
    /// Puts `file` into the remote; gives the bytes that it takes there.
    pub(super) fn send(&self, file: &RemoteFile) -> Result<u64> {
        if !file.is_shard {
            let mut upload = self.target.begin(&file.path, file.entry.bytes)?;
            self.read(file, &mut |piece| upload.put(piece))?;
            ended(upload.finish(), || self.remote.holds(file))?;
            return Ok(file.entry.bytes);
        }
        let path = self.root.join(&file.path);
        let counted = Counted {
            upload: self.target.begin(&file.packed(), file.packed_bytes_max())?,
            bytes: 0,
        };
        let mut packed = Packed::new(counted, self.level, file.entry.bytes)
            .map_err(Error::io("compress", &path))?;
        let put_error = |error| put_error(error, &path);
        self.read(file, &mut |piece| packed.put(piece).map_err(put_error))?;
        let Counted { upload, bytes } = packed.finish(file.entry.hash).map_err(put_error)?;
        ended(upload.finish(), || self.remote.holds(file))?;
        Ok(bytes)
    }

    /// Hands the bytes of `file` to `put`. If this fails, they are not those that the manifest names, or could not be put.
    fn read(&self, file: &RemoteFile, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let path = self.root.join(&file.path);
        let (mut input, bytes) = open_regular(&path).map_err(Error::io("read", &path))?;
        let wanted = file.entry.bytes;
        if bytes != wanted {
            return Err(damaged(
                path,
                format!("it has {bytes} instead of {wanted} bytes"),
            ));
        }
        let mut hasher = ContentHasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            self.remote.store().stop.check()?;
            match input.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&piece[..count]);
                    put(&piece[..count])?;
                    self.progress.advance(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io("read", path)(error)),
            }
        }
        if hasher.finish() != file.entry.hash {
            return Err(damaged(path, "its content does not match its hash".into()));
        }
        Ok(())
    }
}

/// What became of an upload that ended with `outcome`. The server's answer can be lost although all is done; asked again it knows
/// of no such upload, so what counts is whether the file is there.
pub(super) fn ended(outcome: Result<()>, is_there: impl FnOnce() -> Result<bool>) -> Result<()> {
    match outcome {
        Err(error @ (Error::Fetch { .. } | Error::Remote { .. })) => match is_there() {
            Ok(true) => Ok(()),
            Err(stopped @ Error::Interrupted { .. }) => Err(stopped),
            _ => Err(error),
        },
        outcome => outcome,
    }
}

fn damaged(path: PathBuf, what: String) -> Error {
    stoker_reader::Error::Damaged { path, what }.into()
}

/// An error of the upload below, or of zstd.
fn put_error(error: io::Error, path: &Path) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io("compress", path)(error),
    }
}

/// Counts what is put.
struct Counted {
    upload: Upload,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.upload.put(bytes).map_err(io::Error::other)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_end_is_forgiven_only_where_the_file_is_found() {
        let lost = || {
            Err(Error::Fetch {
                uri: "s3://bucket/it".into(),
                tries: 2,
                what: "NoSuchUpload".into(),
                hint: String::new(),
            })
        };
        assert!(ended(lost(), || Ok(true)).is_ok());
        for there in [Ok(false), lost().map(|()| false)] {
            assert!(matches!(ended(lost(), || there), Err(Error::Fetch { .. })));
        }
        let stopped = || Err(Error::Interrupted { signal: 2 });
        let outcome = ended(lost(), || stopped().map(|()| true));
        assert!(matches!(outcome, Err(Error::Interrupted { .. })));
        let outcome = ended(stopped(), || Ok(true));
        assert!(matches!(outcome, Err(Error::Interrupted { .. })));
        // In a folder the file may be there, but not durable.
        let full = Err(Error::io("sync", "remote")(io::Error::other("no")));
        assert!(matches!(ended(full, || Ok(true)), Err(Error::Io { .. })));
    }
}
