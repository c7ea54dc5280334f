//! A small cache, and places that it is pushed to and synced from: folders, and buckets behind a server.
//!
//! Owns the names of their folders. Invariant: the cache itself is never changed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_formats::Manifest;
use tempfile::TempDir;

use crate::command::Run;
use crate::dice::Dice;
use crate::s3::Server;
use crate::s3::scene::with_credentials;
use crate::synthetic::{self, Content};

/// A cache of some partitions, and room for copies of it.
pub struct Scene {
    folder: TempDir,
    /// What its manifest says.
    pub manifest: Manifest,
}

impl Scene {
    /// A cache with so many samples in each of its partitions.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn new(samples: &[u64]) -> Self {
        Self::of(&synthetic::content_of(samples), synthetic::recipe(), 4)
    }

    /// A cache with an image shard of 18 MB that compression does not shrink: several ranges, and several parts of an upload.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn big() -> Self {
        let mut content = synthetic::content_of(&[4000, 4, 4]);
        let mut dice = Dice::new(9);
        for image in content.iter_mut().flat_map(|part| &mut part.images) {
            for piece in image.patches.chunks_exact_mut(8) {
                piece.copy_from_slice(&dice.next_u64().to_le_bytes());
            }
        }
        Self::of(&content, synthetic::recipe(), 100_000)
    }

    /// A cache of this content.
    ///
    /// # Panics
    /// If it cannot be written.
    #[must_use]
    pub fn of(content: &[Content], recipe: Value, shard_rows: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("cache");
        let tables = synthetic::opaque_tables();
        let manifest = synthetic::write_sized(&root, content, &tables, recipe, shard_rows);
        fs::create_dir_all(folder.path().join("s3/bucket")).expect("a folder");
        Self { folder, manifest }
    }

    /// The cache.
    #[must_use]
    pub fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    /// A place for something, beside the cache.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where the objects below `s3://bucket/prefix` lie.
    #[must_use]
    pub fn objects(&self, prefix: &str) -> PathBuf {
        self.path("s3/bucket").join(prefix)
    }

    /// Serves the buckets.
    ///
    /// # Panics
    /// If the server cannot be started.
    #[must_use]
    pub fn serve(&self) -> Server {
        Server::start(&self.path("s3")).expect("the S3 server")
    }
}

/// `stoker push`.
#[must_use]
pub fn push(cache: &Path, destination: &str) -> Run {
    Run::stoker(["push"]).args([cache]).args([destination])
}

/// `stoker sync`.
#[must_use]
pub fn sync(source: &str, destination: &Path) -> Run {
    Run::stoker(["sync", source]).args([destination])
}

/// `run` for node `node` of `nodes`.
#[must_use]
pub fn on_node(run: Run, node: usize, nodes: usize) -> Run {
    run.args([
        "--node".to_owned(),
        node.to_string(),
        "--nodes".to_owned(),
        nodes.to_string(),
    ])
}

/// `run` against the server at `endpoint`.
#[must_use]
pub fn through(run: Run, endpoint: &str) -> Run {
    with_credentials(run.with("--s3-endpoint", endpoint))
}

/// Copies the folder `from` and all below it.
///
/// # Panics
/// If it cannot be copied.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a file");
        }
    }
}
