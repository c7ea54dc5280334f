//! Makes every input a plain local file, so that records can be read at their offsets.
//!
//! Owns decompression and the copies in the scratch folder. Invariant: a spooled file under its
//! final name is whole: it got that name after its last byte was on disk.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Source;
use super::input::{Compression, InputFile};
use super::ranges::{Object, Ranges};
use super::walk::{Place, stamp};
use crate::error::Error;
use crate::publish::free_bytes;
use crate::reject::Reject;

/// Bytes copied at once.
const COPY_BYTES: usize = 1 << 20;
/// A spool leaves one part in this many of the space that was free at first, so that a decompression bomb fills no disk.
const FREE_SHARE_LEFT: u64 = 20;

/// A readable, uncompressed input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalText {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// The scratch folder of one build. Several threads may fill it at once.
#[derive(Debug)]
pub struct Spool<'a> {
    folder: PathBuf,
    source: &'a Source,
    /// Bytes that were free at first.
    free: u64,
    /// Bytes that all copies together have written.
    written: AtomicU64,
}

impl<'a> Spool<'a> {
    /// A spool in the existing folder `folder`.
    ///
    /// # Errors
    /// [`Error::Io`] if the free space is not known.
    pub fn new(folder: PathBuf, source: &'a Source) -> Result<Self, Error> {
        Ok(Self {
            free: free_bytes(&folder)?,
            folder,
            source,
            written: AtomicU64::new(0),
        })
    }

    /// Makes `input` readable. A plain local file is used where it is; everything else is copied and
    /// decompressed into the folder, where a copy from an earlier run of the same version of it is used again.
    ///
    /// Waits for S3: not to be called from inside the runtime.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged, ends early or changed since it was listed,
    /// [`Error::DiskFull`] if it does not fit, [`Error::Io`] and [`Error::Fetch`] for failures.
    pub fn text(&self, input: &InputFile) -> Result<LocalText, Error> {
        if let (Place::Local(path), Compression::None) = (&input.place, input.compression) {
            check_unchanged(input, path)?;
            return Ok(LocalText {
                path: path.clone(),
                bytes: input.bytes,
            });
        }
        let identity = format!(
            "{}\n{}\n{}\n{}",
            input.uri,
            input.bytes,
            input.etag.as_deref().unwrap_or_default(),
            input.stamp
        );
        let name = &blake3::hash(identity.as_bytes()).to_hex()[..32];
        let path = self.folder.join(format!("{name}.jsonl"));
        // Without an ETag two versions of an object could not be told apart.
        let known = input.etag.is_some() || matches!(input.place, Place::Local(_));
        if let Ok(meta) = fs::metadata(&path)
            && known
        {
            return Ok(LocalText {
                path,
                bytes: meta.len(),
            });
        }
        let partial = self.folder.join(format!("{name}.partial"));
        let written = self.write_all(input, &partial);
        let done = written.and_then(|bytes| {
            fs::rename(&partial, &path).map_err(Error::io("rename", &partial))?;
            Ok(LocalText { path, bytes })
        });
        if done.is_err() {
            // Only to free the space; the first error is the one to report.
            let _ = fs::remove_file(&partial);
        }
        done
    }

    fn write_all(&self, input: &InputFile, partial: &Path) -> Result<u64, Error> {
        let raw: Box<dyn Read> = match &input.place {
            Place::Local(path) => {
                check_unchanged(input, path)?;
                Box::new(File::open(path).map_err(Error::io("open", path))?)
            }
            Place::S3 { bucket, key } => {
                let object = Object {
                    bucket: bucket.as_str().into(),
                    key: key.as_str().into(),
                    uri: input.uri.as_str().into(),
                    bytes: input.bytes,
                    etag: input.etag.clone(),
                };
                let (s3, handle) = (Arc::clone(&self.source.s3), self.source.handle.clone());
                Box::new(Ranges::new(object, s3, handle, vanished))
            }
        };
        let raw = BufReader::with_capacity(COPY_BYTES, raw);
        let mut text: Box<dyn Read> = match input.compression {
            Compression::None => Box::new(raw),
            _ if input.bytes == 0 => return Err(damaged(input)),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(raw)),
            Compression::Zstd => Box::new(
                zstd::stream::read::Decoder::with_buffer(raw)
                    .map_err(Error::io("read", &input.uri))?,
            ),
        };
        let mut file = File::create(partial)
            .map_err(|error| self.fault("create", partial, input.bytes, error))?;
        let bytes = self.copy(input, &mut text, &mut file, partial)?;
        file.sync_all()
            .map_err(|error| self.fault("sync", partial, bytes, error))?;
        if let Place::Local(path) = &input.place {
            check_unchanged(input, path)?;
        }
        Ok(bytes)
    }

    /// Copies all of `text` to `file`, which is `partial`.
    fn copy(
        &self,
        input: &InputFile,
        text: &mut dyn Read,
        file: &mut File,
        partial: &Path,
    ) -> Result<u64, Error> {
        let bytes_max = self.free - self.free / FREE_SHARE_LEFT;
        let mut buffer = vec![0; COPY_BYTES];
        let mut bytes = 0;
        loop {
            self.source.check_stop()?;
            let n = match text.read(&mut buffer) {
                Ok(0) => return Ok(bytes),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(read_error(input, error)),
            };
            bytes += n as u64;
            let all = self.written.fetch_add(n as u64, Ordering::Relaxed) + n as u64;
            if all > bytes_max {
                return Err(self.full(all));
            }
            file.write_all(&buffer[..n])
                .map_err(|error| self.fault("write", partial, bytes, error))?;
        }
    }

    /// The error of a failed operation on a copy of `needed` bytes.
    fn fault(&self, action: &'static str, path: &Path, needed: u64, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => self.full(needed),
            _ => Error::io(action, path)(error),
        }
    }

    fn full(&self, needed: u64) -> Error {
        Error::DiskFull {
            path: self.folder.clone(),
            needed,
            free: self.free,
        }
    }
}

/// An error on the way from the source to here: of the source, of the disk, or damaged data.
fn read_error(input: &InputFile, error: io::Error) -> Error {
    let error = match error.downcast::<Error>() {
        Ok(error) => return error,
        Err(error) => error,
    };
    if input.compression == Compression::None || error.raw_os_error().is_some() {
        return Error::io("read", &input.uri)(error);
    }
    damaged(input)
}

fn damaged(input: &InputFile) -> Error {
    Error::Input {
        what: "the compressed data is damaged or ends early".into(),
        uri: input.uri.clone(),
        hint: "compress or upload the file again (zstd: without `--long`)".into(),
    }
}

fn check_unchanged(input: &InputFile, path: &Path) -> Result<(), Error> {
    let meta = fs::metadata(path).map_err(Error::io("stat", path))?;
    if stamp(&meta) == input.stamp {
        return Ok(());
    }
    Err(Error::Input {
        what: "the file changed since it was listed".into(),
        uri: input.uri.clone(),
        hint: "run the command again when it is at rest".into(),
    })
}

fn vanished(uri: &str, reject: Reject) -> Error {
    Error::Input {
        what: reject.message,
        uri: uri.to_owned(),
        hint: "it was there when the inputs were listed: run the command again".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{SourceOptions, list};

    /// Lines that compress badly enough to span buffers.
    fn text(lines: u64) -> Vec<u8> {
        let line = |n: u64| format!("{{\"n\":\"{}\"}}\n", blake3::hash(&n.to_le_bytes()));
        (0..lines).map(line).collect::<String>().into_bytes()
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(data).unwrap();
        writer.finish().unwrap()
    }

    fn zst(data: &[u8]) -> Vec<u8> {
        zstd::encode_all(data, 1).unwrap()
    }

    struct Bench {
        folder: tempfile::TempDir,
        runtime: tokio::runtime::Runtime,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("spool")).unwrap();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            Self { folder, runtime }
        }

        fn source(&self) -> Source {
            Source::new(SourceOptions::default(), self.runtime.handle().clone())
        }

        fn input(&self, name: &str, data: &[u8]) -> InputFile {
            let path = self.folder.path().join(name);
            fs::write(&path, data).unwrap();
            let uri = path.display().to_string();
            list(&[uri], &self.source()).unwrap().remove(0)
        }

        fn spool(&self, input: &InputFile) -> Result<LocalText, Error> {
            let source = self.source();
            Spool::new(self.folder.path().join("spool"), &source)?.text(input)
        }

        fn left(&self) -> usize {
            fs::read_dir(self.folder.path().join("spool"))
                .unwrap()
                .count()
        }
    }

    #[test]
    fn a_plain_file_stays_where_it_is() {
        let bench = Bench::new();
        let input = bench.input("a.jsonl", b"{}\n");
        let spooled = bench.spool(&input).unwrap();
        assert_eq!(
            (spooled.path.display().to_string(), spooled.bytes),
            (input.uri.clone(), 3)
        );
        assert_eq!(bench.left(), 0);
        fs::write(&input.uri, b"{}\n{}\n").unwrap();
        assert!(
            bench
                .spool(&input)
                .unwrap_err()
                .to_string()
                .contains("changed")
        );
    }

    #[test]
    fn members_and_frames_are_joined() {
        let bench = Bench::new();
        let (a, b) = (text(50_000), text(3));
        let want = [a.clone(), b.clone()].concat();
        for (name, data) in [
            ("a.jsonl.gz", [gzip(&a), gzip(&b)].concat()),
            ("a.jsonl.zst", [zst(&a), zst(&b)].concat()),
        ] {
            let input = bench.input(name, &data);
            let spooled = bench.spool(&input).unwrap();
            assert_eq!(spooled.bytes, want.len() as u64);
            assert!(fs::read(&spooled.path).unwrap() == want);
            // A second run uses the copy, even one that we mark.
            fs::write(&spooled.path, "mark").unwrap();
            assert_eq!(bench.spool(&input).unwrap().bytes, 4);
            // Another version of the input gets another copy.
            let input = bench.input(name, &data);
            assert_eq!(bench.spool(&input).unwrap().bytes, want.len() as u64);
        }
    }

    #[test]
    fn every_early_end_is_an_error_and_leaves_nothing() {
        let bench = Bench::new();
        let data = text(8);
        for (name, whole) in [("t.jsonl.gz", gzip(&data)), ("t.jsonl.zst", zst(&data))] {
            for cut in 0..whole.len() {
                let input = bench.input(name, &whole[..cut]);
                let error = bench.spool(&input).unwrap_err();
                assert!(
                    matches!(&error, Error::Input { uri, .. } if uri.ends_with(name)),
                    "{error}"
                );
            }
            assert_eq!(bench.left(), 0);
            let input = bench.input(name, &whole);
            assert_eq!(bench.spool(&input).unwrap().bytes, data.len() as u64);
            fs::remove_dir_all(bench.folder.path().join("spool")).unwrap();
            fs::create_dir(bench.folder.path().join("spool")).unwrap();
        }
    }

    #[test]
    fn bombs_fill_no_disk_not_even_together() {
        const SMALL: u64 = 60 << 20;
        let bench = Bench::new();
        let input = bench.input("bomb.jsonl.zst", &zst(b"{}\n"));
        let source = bench.source();
        let spool = Spool {
            free: 100 << 20,
            ..Spool::new(bench.folder.path().into(), &source).unwrap()
        };
        let partial = bench.folder.path().join("partial");
        let copy = |bytes| {
            let mut file = File::create(&partial).unwrap();
            let text = &mut io::repeat(b'x').take(bytes);
            let copied = spool.copy(&input, text, &mut file, &partial);
            (copied, file.metadata().unwrap().len())
        };
        assert_eq!(copy(SMALL).0.unwrap(), SMALL);
        for bytes in [SMALL, u64::MAX] {
            let (copied, written) = copy(bytes);
            assert!(matches!(copied, Err(Error::DiskFull { .. })));
            assert!(SMALL + written <= spool.free - spool.free / FREE_SHARE_LEFT);
        }
    }

    #[test]
    fn a_disk_that_is_full_at_any_step_is_full() {
        let bench = Bench::new();
        let source = bench.source();
        let spool = Spool::new(bench.folder.path().into(), &source).unwrap();
        for action in ["create", "write", "sync"] {
            let full = io::ErrorKind::StorageFull.into();
            let fault = spool.fault(action, Path::new("x"), 7, full);
            assert!(
                matches!(fault, Error::DiskFull { needed: 7, .. }),
                "{fault}"
            );
        }
    }

    #[test]
    fn damage_is_an_error() {
        let bench = Bench::new();
        let mut data = gzip(&text(400));
        let middle = data.len() / 2;
        data[middle] ^= 0x10;
        let input = bench.input("d.jsonl.gz", &data);
        assert!(matches!(bench.spool(&input), Err(Error::Input { .. })));
        let input = bench.input("e.jsonl.zst", b"no zstd at all");
        assert!(matches!(bench.spool(&input), Err(Error::Input { .. })));
    }
}
