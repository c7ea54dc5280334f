//! Whole builds from S3: a data set behind a server, builds of it, and what they left.
//!
//! Owns no fault: tests put a proxy between. Invariant: credentials reach a build through its
//! environment alone.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{ACCESS_KEY, SECRET_KEY, Server};
use crate::cache;
use crate::command::{Ended, Run};
use crate::corpus::Corpus;

/// A data set in `s3://data/set/`.
pub struct Scene {
    /// The data set, and the other buckets as folders beside it.
    pub corpus: Corpus,
    /// The server in front of it.
    pub server: Server,
}

impl Scene {
    /// Serves `corpus`.
    ///
    /// # Panics
    /// If the server cannot be started.
    #[must_use]
    pub fn new(corpus: Corpus) -> Self {
        let server = Server::start(corpus.path()).expect("the S3 server");
        Self { corpus, server }
    }

    /// The build of the whole data set from S3, through `endpoint`.
    #[must_use]
    pub fn build(&self, endpoint: &str, output: &Path) -> Run {
        self.build_of(&["s3://data/set/"], endpoint, output)
    }

    /// The same of these inputs.
    #[must_use]
    pub fn build_of(&self, inputs: &[&str], endpoint: &str, output: &Path) -> Run {
        let inputs: Vec<PathBuf> = inputs.iter().map(PathBuf::from).collect();
        let run = self.corpus.build_of(&inputs, output);
        with_credentials(run.with("--s3-endpoint", endpoint))
    }

    /// How often the server was asked for the object at `uri`.
    #[must_use]
    pub fn gets(&self, uri: &str) -> u64 {
        let path = uri.strip_prefix("s3:/").unwrap_or(uri);
        self.server.count("GetObject", |at| at == path)
    }
}

/// `run` with the server's credentials in its environment.
#[must_use]
pub fn with_credentials(run: Run) -> Run {
    run.env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .env("AWS_EC2_METADATA_DISABLED", "true")
}

/// Shards and indexes only: receipts and tables say where the data came from.
#[must_use]
pub fn rows(root: &Path) -> BTreeMap<String, String> {
    let files = cache::files(root).into_iter();
    files.filter(|(name, _)| name.ends_with(".arrow")).collect()
}

/// The images that the receipts below `root` say were read, and how often.
///
/// # Panics
/// If a receipt cannot be read.
#[must_use]
pub fn receipted(root: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for name in cache::files(root).into_keys() {
        if !name.starts_with("images-") || !name.ends_with(".json") {
            continue;
        }
        let text = fs::read(root.join(name)).expect("a receipt");
        let receipt: serde_json::Value = serde_json::from_slice(&text).expect("a receipt");
        for source in receipt["sources"].as_array().into_iter().flatten() {
            let uri = source["uri"].as_str().expect("a URI").to_owned();
            *found.entry(uri).or_default() += 1;
        }
    }
    found
}

/// Fails the test if a credential stands in what a command wrote, on its streams or below `root`.
///
/// # Panics
/// With the place, but not the secret.
pub fn assert_secretless(ended: &Ended, root: &Path, secrets: &[&str]) {
    let holds = |bytes: &[u8]| {
        secrets.iter().any(|secret| {
            bytes
                .windows(secret.len())
                .any(|at| at == secret.as_bytes())
        })
    };
    assert!(!holds(ended.stdout.as_bytes()), "a secret on stdout");
    assert!(!holds(ended.stderr.as_bytes()), "a secret on stderr");
    for (name, hash) in cache::files(root) {
        if !hash.is_empty() {
            assert!(
                !holds(&fs::read(root.join(&name)).expect("a file")),
                "a secret in {name}"
            );
        }
    }
    if root.join("manifest.json").is_file() {
        for kind in ["samples", "rejects", "provenance"] {
            let rows = format!("{:?}", cache::table(root, kind));
            assert!(!holds(rows.as_bytes()), "a secret in the table {kind}");
        }
    }
}
