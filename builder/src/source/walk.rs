//! From what a user names to the files behind it: paths, globs, folders, objects, prefixes.
//!
//! Owns finding; `input` owns names, roots and order. Invariant: the result depends on which files
//! there are, never on the order in which a file system or a server lists them (callers sort).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;

use super::link::{check_bucket, refuse_scheme};
use super::s3::S3;
use super::shown::redact;
use super::{FetchError, input};
use crate::error::Error;

/// Deepest folder that is searched: deeper trees are loops of bind mounts, or mistakes.
const DEPTH_MAX: usize = 64;

const HINT_NONE: &str = "files below a folder or prefix count if they end in `.jsonl`, `.jsonl.gz` \
    or `.jsonl.zst`; names that begin with a dot do not";

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) bytes: u64,
    pub(super) etag: Option<String>,
    /// Of a local file: what changes when it is written again.
    pub(super) stamp: String,
}

/// Where a file was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Local(PathBuf),
    S3 { bucket: String, key: String },
}

/// All files behind `uri`: at least one.
pub(super) async fn expand(uri: &str, s3: &S3) -> Result<Vec<Found>, Error> {
    let found = match uri.strip_prefix("s3://") {
        Some(rest) => expand_s3(uri, rest, s3).await?,
        None => {
            refuse_scheme(uri)?;
            expand_local(uri)?
        }
    };
    if found.is_empty() {
        return Err(Error::Input {
            what: "no input found".into(),
            uri: redact(uri).into_owned(),
            hint: HINT_NONE.into(),
        });
    }
    Ok(found)
}

async fn expand_s3(uri: &str, rest: &str, s3: &S3) -> Result<Vec<Found>, Error> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    check_bucket(bucket, uri)?;
    let mut found = Vec::new();
    let missing = |error| match error {
        FetchError::Stop(error) => error,
        FetchError::Reject(_) => Error::Input {
            what: "there is no such object".into(),
            uri: redact(uri).into_owned(),
            hint: "end a prefix with `/`; patterns work for local files only".into(),
        },
    };
    let shown = redact(uri);
    let objects = if key.is_empty() || key.ends_with('/') {
        let mut objects = s3.list(bucket, key, &shown).await.map_err(missing)?;
        objects.retain(|object| {
            let below = object.key.strip_prefix(key).unwrap_or_default();
            input::has_known_ending(below) && !below.split('/').any(|part| part.starts_with('.'))
        });
        objects
    } else {
        vec![s3.head(bucket, key, &shown).await.map_err(missing)?]
    };
    for mut object in objects {
        if object.etag.is_none() {
            // Some servers list no ETags; without one a change could go unnoticed.
            object = s3
                .head(bucket, &object.key, &shown)
                .await
                .map_err(missing)?;
        }
        found.push(Found {
            place: Place::S3 {
                bucket: bucket.to_owned(),
                key: object.key,
            },
            bytes: object.bytes,
            etag: object.etag,
            stamp: String::new(),
        });
    }
    Ok(found)
}

fn expand_local(uri: &str) -> Result<Vec<Found>, Error> {
    let path = Path::new(uri);
    let mut found = Vec::new();
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {
            walk(&canonical(path)?, 0, &mut |file| {
                if file.to_str().is_some_and(input::has_known_ending) {
                    found.push(local(file.to_path_buf())?);
                }
                Ok(())
            })?;
        }
        Ok(_) => found.push(local(real_parent(path)?)?),
        Err(_) if is_pattern(uri) => found = expand_glob(uri)?,
        Err(error) => return Err(Error::io("find", path)(error)),
    }
    Ok(found)
}

/// The files that match a glob: `*` and `?` stay inside a folder, `**` spans folders.
fn expand_glob(uri: &str) -> Result<Vec<Found>, Error> {
    // The folder above the first part with a pattern is where the search begins.
    let mut folder = PathBuf::new();
    let mut pattern = PathBuf::new();
    for part in Path::new(uri).components() {
        let plain = !part.as_os_str().to_str().is_some_and(is_pattern);
        if pattern.as_os_str().is_empty() && plain {
            folder.push(part);
        } else if part != Component::CurDir {
            pattern.push(part);
        }
    }
    if folder.as_os_str().is_empty() {
        folder.push(".");
    }
    let bad = |_| Error::Input {
        what: "not a valid pattern".into(),
        uri: uri.to_owned(),
        hint: "`*`, `?`, `[...]`, `{a,b}` and `**` are understood".into(),
    };
    let matcher = GlobBuilder::new(&pattern.to_string_lossy())
        .literal_separator(true)
        .build()
        .map_err(bad)?
        .compile_matcher();
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let folder = canonical(&folder)?;
    let mut found = Vec::new();
    walk(&folder, 0, &mut |file| {
        if file
            .strip_prefix(&folder)
            .is_ok_and(|below| matcher.is_match(below))
        {
            found.push(local(file.to_path_buf())?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `visit` for the files below `folder`. Links to files count, links to folders are not
/// followed: they could lead in circles.
fn walk(
    folder: &Path,
    depth: usize,
    visit: &mut dyn FnMut(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    if depth == DEPTH_MAX {
        return Err(Error::Input {
            what: format!("folders are nested more than {DEPTH_MAX} deep"),
            uri: folder.display().to_string(),
            hint: "name the files' own folder".into(),
        });
    }
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::io("stat", &path))?;
        if kind.is_dir() {
            walk(&path, depth + 1, visit)?;
        } else if kind.is_file() || kind.is_symlink() && path.is_file() {
            visit(&path)?;
        }
    }
    Ok(())
}

fn local(path: PathBuf) -> Result<Found, Error> {
    let meta = fs::metadata(&path).map_err(Error::io("stat", &path))?;
    if !meta.is_file() {
        return Err(Error::Input {
            what: "not a regular file".into(),
            uri: path.display().to_string(),
            hint: "write it to a file first".into(),
        });
    }
    Ok(Found {
        bytes: meta.len(),
        etag: None,
        stamp: stamp(&meta),
        place: Place::Local(path),
    })
}

/// What changes when a local file is written again or replaced.
pub(crate) fn stamp(meta: &fs::Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}-{:x}",
        meta.ino(),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    )
}

/// The file itself may be a link, as in a download cache: its name is the one the user gave.
fn real_parent(path: &Path) -> Result<PathBuf, Error> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match path.file_name() {
        Some(name) => Ok(canonical(parent)?.join(name)),
        None => canonical(path),
    }
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    fs::canonicalize(path).map_err(Error::io("find", path))
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}
