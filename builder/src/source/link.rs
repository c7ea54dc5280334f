//! The choke point for image links: text from a record goes in, a [`Link`] that may be fetched comes out.
//!
//! Owns which links are allowed, their one canonical text, and how links are shown in messages.
//! Does not open or fetch anything. Invariant: no [`Link`] exists that was not made by [`resolve`],
//! and none points outside the input root, the image root or an allowed bucket.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;

use super::local::LocalRoot;
use super::shown::{redact, shown};
use crate::error::Error;
use crate::reject::{Reason, Reject};

/// Largest image inside a `data:` link, in bytes: with its base64 form it still fits a JSONL line.
pub const DATA_BYTES_MAX: usize = 64 << 20;

/// Shortest and longest bucket name that any S3 has ever allowed.
const BUCKET_CHARS: std::ops::RangeInclusive<usize> = 3..=255;

/// Base64 as found in the wild: padded or not, nothing else.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The top of everything that links may reach.
#[derive(Debug, Clone)]
pub(super) enum Root {
    /// A local folder.
    Local(Arc<LocalRoot>),
    /// A bucket and a prefix in it (empty, or ending with `/`).
    S3 {
        bucket: Arc<str>,
        prefix: Arc<str>,
        /// What canonical texts begin with: empty, or `bucket/` where the inputs span buckets.
        label: Arc<str>,
    },
}

/// Where relative links start: a folder below an input root, local or in S3.
#[derive(Debug, Clone)]
pub struct Base {
    root: Root,
    /// The folder, from the root: empty, or ending with `/`.
    dir: Arc<str>,
}

impl Base {
    /// A base at folder `dir` (empty, or ending with `/`) of `root`.
    pub(super) fn new(root: Root, dir: &str) -> Self {
        Self {
            root,
            dir: dir.into(),
        }
    }

    /// The base that `--image-root` names: a local folder, or `s3://bucket[/prefix]`.
    ///
    /// # Errors
    /// [`Error::Input`] if it has another scheme or no valid bucket, [`Error::Io`] if the folder cannot be opened.
    pub fn parse(uri: &str) -> Result<Self, Error> {
        if let Some(rest) = uri.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            check_bucket(bucket, uri)?;
            let slash = if prefix.is_empty() || prefix.ends_with('/') {
                ""
            } else {
                "/"
            };
            let root = Root::S3 {
                bucket: bucket.into(),
                prefix: format!("{prefix}{slash}").into(),
                label: "".into(),
            };
            return Ok(Self::new(root, ""));
        }
        refuse_scheme(uri)?;
        let root = LocalRoot::open(Path::new(uri))?;
        Ok(Self::new(Root::Local(Arc::new(root)), ""))
    }

    /// The bucket, if this base lies in one.
    #[must_use]
    pub fn bucket(&self) -> Option<&str> {
        match &self.root {
            Root::Local(_) => None,
            Root::S3 { bucket, .. } => Some(bucket),
        }
    }
}

/// What links may point at.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    image_root: Option<Base>,
    buckets: BTreeSet<String>,
}

impl Policy {
    /// Allows the buckets of `bases` and of `image_root`, and those of `--allow-bucket`.
    ///
    /// With an `image_root`, all relative links start there instead of at their JSONL file.
    ///
    /// # Errors
    /// [`Error::Usage`] if a bucket name is not valid.
    pub fn new<'a>(
        bases: impl IntoIterator<Item = &'a Base>,
        image_root: Option<Base>,
        allow_buckets: &[String],
    ) -> Result<Self, Error> {
        let mut buckets: BTreeSet<String> = bases
            .into_iter()
            .filter_map(Base::bucket)
            .map(str::to_owned)
            .collect();
        buckets.extend(
            image_root
                .as_ref()
                .and_then(Base::bucket)
                .map(str::to_owned),
        );
        for bucket in allow_buckets {
            if !valid_bucket(bucket) {
                return Err(Error::Usage {
                    what: format!("not a bucket name: `{}`", redact(bucket)),
                    hint: "give --allow-bucket the bare name, without `s3://`".into(),
                });
            }
            buckets.insert(bucket.clone());
        }
        Ok(Self {
            image_root,
            buckets,
        })
    }
}

#[derive(Debug, Clone)]
pub(super) enum Target {
    Local { root: Arc<LocalRoot> },
    S3 { bucket: Arc<str>, key: String },
    Data(Bytes),
}

/// One allowed image link.
#[derive(Debug, Clone)]
pub struct Link {
    canonical: String,
    target: Target,
}

impl Link {
    /// The text that names the image wherever the data lies: its path from the input root (or the
    /// image root), an `s3://` link as written, or `data:` and the hash of the bytes.
    #[must_use]
    pub fn canonical(&self) -> &str {
        &self.canonical
    }

    /// BLAKE3 of [`canonical`](Self::canonical), cut to 16 bytes.
    #[must_use]
    pub fn key(&self) -> [u8; 16] {
        let mut key = [0; 16];
        key.copy_from_slice(&blake3::hash(self.canonical.as_bytes()).as_bytes()[..16]);
        key
    }

    /// Where the bytes are, for messages and provenance.
    #[must_use]
    pub fn uri(&self) -> String {
        match &self.target {
            Target::Local { root } => root.path().join(&self.canonical).display().to_string(),
            Target::S3 { bucket, key } => redact(&format!("s3://{bucket}/{key}")).into_owned(),
            Target::Data(_) => self.canonical.clone(),
        }
    }

    pub(super) fn target(&self) -> &Target {
        &self.target
    }
}

/// Turns the link `raw` of a record that stands in a file at `base` into something that may be fetched.
///
/// Nothing is ever percent-decoded: `%2e%2e` is a file name like any other.
///
/// # Errors
/// A reject: [`Reason::ForbiddenLink`], or [`Reason::TooManyBytes`] for a `data:` link above [`DATA_BYTES_MAX`].
pub fn resolve(raw: &str, base: &Base, policy: &Policy) -> Result<Link, Reject> {
    let forbid = |why: &str| {
        Reject::new(Reason::ForbiddenLink, format!("the link {why}")).with_link(&shown(raw))
    };
    // First, because it can be long, and because its own alphabet is the narrower check.
    if let Some(rest) = raw.strip_prefix("data:") {
        return resolve_data(rest).map_err(|reject| reject.with_link(&shown(raw)));
    }
    if raw.chars().any(char::is_control) {
        return Err(forbid("holds a control character"));
    }
    if raw.contains('\\') {
        return Err(forbid("holds a backslash"));
    }
    if let Some(rest) = raw.strip_prefix("s3://") {
        return resolve_s3(raw, rest, policy).map_err(forbid);
    }
    if scheme(raw).is_some() {
        return Err(forbid("has a scheme that is not allowed"));
    }
    if raw.starts_with('/') {
        return Err(forbid("is absolute"));
    }
    let path = normalise(raw).map_err(forbid)?;
    Ok(below(policy.image_root.as_ref().unwrap_or(base), &path))
}

fn below(base: &Base, path: &str) -> Link {
    let dir = &base.dir;
    match &base.root {
        Root::Local(root) => Link {
            canonical: format!("{dir}{path}"),
            target: Target::Local {
                root: Arc::clone(root),
            },
        },
        Root::S3 {
            bucket,
            prefix,
            label,
        } => Link {
            canonical: format!("{label}{dir}{path}"),
            target: Target::S3 {
                bucket: Arc::clone(bucket),
                key: format!("{prefix}{dir}{path}"),
            },
        },
    }
}

/// Drops `.` and empty segments.
fn normalise(path: &str) -> Result<String, &'static str> {
    let mut out = String::with_capacity(path.len());
    let mut names_file = false;
    for segment in path.split('/') {
        names_file = match segment {
            ".." => return Err("leaves its folder"),
            "" | "." => false,
            name => {
                if !out.is_empty() {
                    out.push('/');
                }
                out.push_str(name);
                true
            }
        };
    }
    names_file.then_some(out).ok_or("names no file")
}

/// Explicit `s3://` links keep their key as it is, because `a//b` and `a/b` are different objects there.
fn resolve_s3(raw: &str, rest: &str, policy: &Policy) -> Result<Link, &'static str> {
    let (bucket, key) = rest.split_once('/').ok_or("names no object")?;
    if !valid_bucket(bucket) {
        return Err("names no valid bucket");
    }
    if !policy.buckets.contains(bucket) {
        return Err("names a bucket that is not allowed (see --allow-bucket)");
    }
    if key.split('/').any(|segment| matches!(segment, "." | "..")) {
        return Err("leaves its folder");
    }
    if key.is_empty() || key.ends_with('/') {
        return Err("names no object");
    }
    Ok(Link {
        canonical: raw.to_owned(),
        target: Target::S3 {
            bucket: bucket.into(),
            key: key.to_owned(),
        },
    })
}

fn resolve_data(rest: &str) -> Result<Link, Reject> {
    let malformed = || {
        Reject::new(
            Reason::ForbiddenLink,
            "the link is no `data:image/...;base64,...`",
        )
    };
    let (media, text) = rest.split_once(',').ok_or_else(malformed)?;
    let kind = media
        .strip_prefix("image/")
        .and_then(|media| media.strip_suffix(";base64"))
        .ok_or_else(malformed)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'+' | b'-');
    if kind.is_empty() || !kind.bytes().all(token) {
        return Err(malformed());
    }
    if text.len() / 4 * 3 > DATA_BYTES_MAX {
        return Err(Reject::new(
            Reason::TooManyBytes,
            format!(
                "the image inside the link is larger than the allowed `{DATA_BYTES_MAX}` bytes"
            ),
        ));
    }
    let bytes = BASE64.decode(text).map_err(|_| malformed())?;
    Ok(Link {
        canonical: format!("data:{}", blake3::hash(&bytes).to_hex()),
        target: Target::Data(bytes.into()),
    })
}

/// The scheme of `text`, if it has one by RFC 3986 (a drive letter counts).
pub(super) fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once(':')?;
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    (scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(rest))
        .then_some(scheme)
}

/// Refuses inputs and roots that are neither local paths nor S3.
pub(crate) fn refuse_scheme(uri: &str) -> Result<(), Error> {
    match scheme(uri) {
        Some(_) if uri.contains("://") || uri.starts_with("file:") => Err(Error::Input {
            what: "not a local path and not in S3".into(),
            uri: redact(uri).into_owned(),
            hint: "give a path, or `s3://bucket/key`".into(),
        }),
        _ => Ok(()),
    }
}

/// Whether `bucket` can be a bucket's name.
pub(super) fn valid_bucket(bucket: &str) -> bool {
    BUCKET_CHARS.contains(&bucket.len())
        && bucket.starts_with(|first: char| first.is_ascii_alphanumeric())
        && bucket
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}

/// Refuses what cannot be a bucket's name.
pub(crate) fn check_bucket(bucket: &str, uri: &str) -> Result<(), Error> {
    if valid_bucket(bucket) {
        return Ok(());
    }
    Err(Error::Input {
        what: "no valid bucket name".into(),
        uri: redact(uri).into_owned(),
        hint: "write `s3://bucket/key` or `s3://bucket/prefix/`, without user or query".into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3_base(label: &str) -> Base {
        let root = Root::S3 {
            bucket: "train-set".into(),
            prefix: "sft/v1/".into(),
            label: label.into(),
        };
        Base::new(root, "part/")
    }

    #[test]
    fn same_text_from_disk_and_s3() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::Local(Arc::new(LocalRoot::open(folder.path()).unwrap()));
        let local = Base::new(root, "part/");
        let policy = Policy::default();
        for raw in ["img/1.jpg", "./img//1.jpg", ".///img/./1.jpg"] {
            let a = resolve(raw, &local, &policy).unwrap();
            let b = resolve(raw, &s3_base(""), &policy).unwrap();
            assert_eq!(a.canonical(), "part/img/1.jpg");
            assert_eq!(a.key(), b.key());
            assert_eq!(b.uri(), "s3://train-set/sft/v1/part/img/1.jpg");
        }
        let spanning = resolve("a.jpg", &s3_base("train-set/"), &policy).unwrap();
        assert_eq!(spanning.canonical(), "train-set/part/a.jpg");
        assert_eq!(spanning.uri(), "s3://train-set/sft/v1/part/a.jpg");
    }

    #[test]
    fn image_root_wins_over_the_file() {
        let root = Base::parse("s3://pictures/all").unwrap();
        let policy = Policy::new([&s3_base("")], Some(root), &[]).unwrap();
        let link = resolve("x/1.png", &s3_base(""), &policy).unwrap();
        assert_eq!(link.canonical(), "x/1.png");
        assert_eq!(link.uri(), "s3://pictures/all/x/1.png");
        assert!(resolve("s3://train-set/k", &s3_base(""), &policy).is_ok());
        assert!(resolve("s3://pictures/k", &s3_base(""), &policy).is_ok());
        assert!(resolve("s3://others/k", &s3_base(""), &policy).is_err());
    }

    #[test]
    fn explicit_keys_stay_as_they_are() {
        let policy = Policy::new([&s3_base("")], None, &["more".into()]).unwrap();
        for raw in ["s3://train-set/a//b.jpg", "s3://more/a/%2e%2e/b?c=d.jpg"] {
            let link = resolve(raw, &s3_base(""), &policy).unwrap();
            assert_eq!(link.canonical(), raw);
        }
    }

    #[test]
    fn data_links_are_named_by_their_bytes() {
        let policy = Policy::default();
        let padded = resolve("data:image/png;base64,aGVsbG8=", &s3_base(""), &policy).unwrap();
        let bare = resolve("data:image/jpeg;base64,aGVsbG8", &s3_base(""), &policy).unwrap();
        assert_eq!(padded.key(), bare.key());
        assert!(matches!(padded.target(), Target::Data(bytes) if bytes == "hello"));
        let big = format!("data:image/png;base64,{}", "A".repeat(DATA_BYTES_MAX * 2));
        let reject = resolve(&big, &s3_base(""), &policy).unwrap_err();
        assert_eq!(reject.reason, Reason::TooManyBytes);
        assert!(reject.link.unwrap().len() < 300);
    }

    #[test]
    fn rejects_hold_no_secrets() {
        let reject = resolve("https://h/x?sig=cafe", &s3_base(""), &Policy::default()).unwrap_err();
        assert!(!format!("{reject:?}").contains("cafe"));
    }

    proptest! {
        #[test]
        fn nothing_leaves_the_folder(raw in "[./%a-c\\\\:~@ \u{2024}-]{0,24}|\\PC{0,24}") {
            if let Ok(link) = resolve(&raw, &s3_base(""), &Policy::default()) {
                let rest = link.canonical().strip_prefix("part/").unwrap();
                prop_assert!(rest.split('/').all(|s| !matches!(s, "" | "." | "..")));
                prop_assert!(!rest.contains(['\\', '\0']));
                let again = resolve(rest, &s3_base(""), &Policy::default());
                // Dropping `./` can uncover a scheme (`./a:b`); everything else is a fixed point.
                prop_assert!(again.is_err() && scheme(rest).is_some() || again.unwrap().key() == link.key());
            }
        }
    }
}
