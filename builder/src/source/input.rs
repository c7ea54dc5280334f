//! The inputs of a build: which JSONL files, under which names, in which order.
//!
//! Owns the input root, names and order; `walk` finds the files, `spool` makes them readable.
//! Invariant: names and order are the same for the same files, from disk or S3, however named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Source;
use super::link::{Base, Root};
use super::local::LocalRoot;
use super::walk::{Found, Place, expand};
use crate::error::Error;

/// How a file is compressed, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, one or more members.
    Gzip,
    /// Zstandard, one or more frames.
    Zstd,
}

impl Compression {
    fn of(name: &str) -> Self {
        if name.ends_with(".gz") {
            Self::Gzip
        } else if name.ends_with(".zst") {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// One JSONL file.
#[derive(Debug, Clone)]
pub struct InputFile {
    /// Where it is: an absolute path, or `s3://bucket/key`.
    pub uri: String,
    /// Its path from the input root, the same from disk and from S3.
    pub name: String,
    /// Where its relative links start: its own folder.
    pub base: Base,
    /// Its size as it lies there.
    pub bytes: u64,
    /// Its ETag, in S3.
    pub etag: Option<String>,
    /// How it is compressed.
    pub compression: Compression,
    pub(super) place: Place,
    pub(super) stamp: String,
}

/// Whether a file below a folder or prefix is an input.
pub(super) fn has_known_ending(name: &str) -> bool {
    [".jsonl", ".jsonl.gz", ".jsonl.zst"]
        .iter()
        .any(|ending| name.ends_with(ending))
}

/// Finds the inputs behind `uris` (files, globs, folders, `s3://bucket/key`, `s3://bucket/prefix/`),
/// each once, in order of their names. The input root is the deepest folder that holds them all.
///
/// Waits for S3: not to be called from inside the runtime.
///
/// # Errors
/// [`Error::Input`] for what names no input or cannot be named, [`Error::Usage`] for local and S3
/// inputs together, [`Error::Io`] and [`Error::Fetch`] for failures.
pub fn list(uris: &[String], source: &Source) -> Result<Vec<InputFile>, Error> {
    let remote = |uri: &String| uri.starts_with("s3://");
    if uris.iter().any(remote) && !uris.iter().all(remote) {
        return Err(mixed());
    }
    let mut found = Vec::new();
    for uri in uris {
        found.extend(source.handle.block_on(expand(uri, &source.s3))?);
    }
    name(found)
}

fn mixed() -> Error {
    Error::Usage {
        what: "local inputs and S3 inputs do not go together".into(),
        hint: "copy one to where the other is; images may lie elsewhere (--image-root)".into(),
    }
}

/// Names what was found: all of it local, or all of it in S3.
fn name(found: Vec<Found>) -> Result<Vec<InputFile>, Error> {
    let local = |file: &Found| matches!(file.place, Place::Local(_));
    let mut files = Vec::with_capacity(found.len());
    for file in found {
        files.push((parts(&file.place)?, file));
    }
    files.sort_by_cached_key(|(parts, _)| parts.join("/"));
    files.dedup_by(|(a, _), (b, _)| a == b);
    let Some((first, _)) = files.first() else {
        return Err(Error::Usage {
            what: "no input given".into(),
            hint: "give at least one --input".into(),
        });
    };
    let mut depth = first.len() - 1;
    for (parts, _) in &files {
        let parents = &parts[..parts.len() - 1];
        depth = std::iter::zip(&first[..depth], parents)
            .take_while(|(a, b)| a == b)
            .count();
    }
    let root_parts = first[..depth].to_vec();
    let local_root = match files.first() {
        Some((_, file)) if local(file) => {
            let path: PathBuf = std::iter::once("/")
                .chain(root_parts.iter().map(String::as_str))
                .collect();
            Some(Arc::new(LocalRoot::open(&path)?))
        }
        _ => None,
    };
    Ok(files
        .into_iter()
        .map(|(parts, file)| input(&parts, depth, local_root.as_ref(), file))
        .collect())
}

fn input(
    parts: &[String],
    depth: usize,
    local_root: Option<&Arc<LocalRoot>>,
    file: Found,
) -> InputFile {
    let name = parts[depth..].join("/");
    let folder = |parts: &[String]| {
        parts
            .iter()
            .fold(String::new(), |dir, part| dir + part + "/")
    };
    let dir = folder(&parts[depth..parts.len() - 1]);
    let (uri, base) = match (&file.place, local_root) {
        (Place::Local(path), Some(root)) => (
            path.display().to_string(),
            Base::new(Root::Local(Arc::clone(root)), &dir),
        ),
        (place, _) => {
            // Without a common bucket the names begin with it, and so do the links' texts.
            let bucket = &parts[0];
            let spanning = depth == 0;
            let root = Root::S3 {
                bucket: bucket.as_str().into(),
                prefix: folder(&parts[1..depth.max(1)]).into(),
                label: if spanning {
                    format!("{bucket}/")
                } else {
                    String::new()
                }
                .into(),
            };
            let dir = if spanning {
                &dir[bucket.len() + 1..]
            } else {
                &dir
            };
            (uri_of(place), Base::new(root, dir))
        }
    };
    InputFile {
        compression: Compression::of(&name),
        uri,
        name,
        base,
        bytes: file.bytes,
        etag: file.etag,
        place: file.place,
        stamp: file.stamp,
    }
}

fn uri_of(place: &Place) -> String {
    match place {
        Place::Local(path) => path.display().to_string(),
        Place::S3 { bucket, key } => format!("s3://{bucket}/{key}"),
    }
}

/// The parts of a file's full name: folders, or bucket and prefixes; the file's own name last.
fn parts(place: &Place) -> Result<Vec<String>, Error> {
    let refuse = || Error::Input {
        what: "a name that is not UTF-8 or holds control characters".into(),
        uri: uri_of(place).replace(char::is_control, "\u{fffd}"),
        hint: "rename the file".into(),
    };
    let parts: Vec<String> = match place {
        Place::Local(path) => path
            .strip_prefix("/")
            .unwrap_or(Path::new(path))
            .components()
            .map(|part| part.as_os_str().to_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(refuse)?,
        Place::S3 { bucket, key } => std::iter::once(bucket.as_str())
            .chain(key.split('/'))
            .map(str::to_owned)
            .collect(),
    };
    if parts.is_empty() || parts.iter().any(|part| part.contains(char::is_control)) {
        return Err(refuse());
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::link::{Policy, resolve};
    use super::*;
    use crate::source::SourceOptions;

    fn s3(bucket: &str, key: &str) -> Found {
        Found {
            place: Place::S3 {
                bucket: bucket.into(),
                key: key.into(),
            },
            bytes: 1,
            etag: None,
            stamp: String::new(),
        }
    }

    fn names(files: &[InputFile]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_str()).collect()
    }

    fn with_source<T>(f: impl FnOnce(&Source) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        f(&Source::new(
            SourceOptions::default(),
            runtime.handle().clone(),
        ))
    }

    #[test]
    fn s3_names_start_at_the_deepest_common_prefix() {
        let files = name(vec![s3("bkt", "x/b/2.jsonl"), s3("bkt", "x/a/1.jsonl.gz")]).unwrap();
        assert_eq!(names(&files), ["a/1.jsonl.gz", "b/2.jsonl"]);
        assert_eq!(files[0].compression, Compression::Gzip);
        let link = resolve("i.jpg", &files[1].base, &Policy::default()).unwrap();
        assert_eq!(
            (link.canonical(), &*link.uri()),
            ("b/i.jpg", "s3://bkt/x/b/i.jpg")
        );

        let files = name(vec![s3("bkt", "1.jsonl")]).unwrap();
        let link = resolve("i.jpg", &files[0].base, &Policy::default()).unwrap();
        assert_eq!(
            (link.canonical(), &*link.uri()),
            ("i.jpg", "s3://bkt/i.jpg")
        );

        let files = name(vec![s3("two", "x/1.jsonl"), s3("one", "1.jsonl")]).unwrap();
        assert_eq!(names(&files), ["one/1.jsonl", "two/x/1.jsonl"]);
        let link = resolve("i.jpg", &files[1].base, &Policy::default()).unwrap();
        assert_eq!(
            (link.canonical(), &*link.uri()),
            ("two/x/i.jpg", "s3://two/x/i.jpg")
        );
    }

    #[test]
    fn one_result_however_the_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        for file in [
            "b/2.jsonl",
            "a/1.jsonl",
            "a/sub/3.jsonl.zst",
            "a/no.json",
            ".x/4.jsonl",
            "a/.5.jsonl",
        ] {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}\n").unwrap();
        }
        std::os::unix::fs::symlink("../a/1.jsonl", root.join("b/linked.jsonl")).unwrap();
        std::os::unix::fs::symlink("..", root.join("b/loop")).unwrap();
        let want = [
            "a/1.jsonl",
            "a/sub/3.jsonl.zst",
            "b/2.jsonl",
            "b/linked.jsonl",
        ];
        let at = |rest: &str| format!("{}{rest}", root.display());
        with_source(|source| {
            for uris in [
                vec![at("")],
                vec![at("/b"), at("/a/"), at("/a/1.jsonl")],
                vec![at("/**/*.jsonl"), at("/a/sub/*.zst")],
                vec![at("/{a,b}/*.jsonl"), at("/a/./../a/sub/3.jsonl.zst")],
            ] {
                let files = list(&uris, source).unwrap();
                assert_eq!(names(&files), want, "{uris:?}");
                let link = resolve("i.jpg", &files[1].base, &Policy::default()).unwrap();
                assert_eq!(link.canonical(), "a/sub/i.jpg");
            }
            // One file alone, of any name: its folder is the root.
            let files = list(&[at("/a/no.json")], source).unwrap();
            assert_eq!(names(&files), ["no.json"]);
        });
    }

    #[test]
    fn what_is_no_input_is_an_error_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let at = |rest: &str| format!("{}{rest}", folder.path().display());
        fs::create_dir(at("/empty")).unwrap();
        fs::write(at("/bad\nname.jsonl"), "").unwrap();
        with_source(|source| {
            for uri in [
                &at("/empty"),
                &at("/*.none"),
                &at("/nowhere/*.jsonl"),
                &at("/bad\nname.jsonl"),
                "https://u:canary@h/x.jsonl?sig=canary",
                "s3://u:canary@bucket/x.jsonl",
                "/dev/null",
            ] {
                let error = list(&[(*uri).to_owned()], source).unwrap_err();
                assert!(error.hint().is_some(), "{error}");
                assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
            }
            assert!(list(&[at("/nowhere.jsonl")], source).is_err());
            assert!(list(&[], source).is_err());
            let both = ["s3://bucket/1.jsonl".to_owned(), at("/empty")];
            assert!(matches!(list(&both, source), Err(Error::Usage { .. })));
        });
    }
}
