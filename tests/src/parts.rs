//! A data set that one machine has built, and workers build in parts.
//!
//! Owns the names of their folders. Invariant: every part has a folder of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::files;
use crate::command::{Ended, Run};
use crate::corpus::Corpus;
use crate::snapshot;

/// A data set, and its cache as one machine builds it.
#[derive(Debug)]
pub struct Scene {
    /// The data set.
    pub corpus: Corpus,
    /// Where one machine built it.
    pub clean: PathBuf,
    /// Pairs of options beside the usual ones.
    pub options: Vec<String>,
}

impl Scene {
    /// A data set with some rejects, built by one machine.
    ///
    /// # Panics
    /// If it cannot be built.
    #[must_use]
    pub fn new(records: usize, options: &[&str]) -> Self {
        Self::of(Corpus::mixed(13, records), options)
    }

    /// The same of this data set.
    #[must_use]
    pub fn of(corpus: Corpus, options: &[&str]) -> Self {
        let clean = corpus.output("clean");
        let scene = Self {
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            corpus,
            clean,
        };
        let _ = scene.build(&scene.clean).end().expect_code(0);
        scene
    }

    /// The build of everything into `output`.
    #[must_use]
    pub fn build(&self, output: &Path) -> Run {
        let pairs = self.options.chunks(2);
        pairs.fold(self.corpus.build(output), |run, pair| {
            run.with(&pair[0], &pair[1])
        })
    }

    /// The folder of a worker.
    #[must_use]
    pub fn folder(&self, worker: u32, workers: u32) -> PathBuf {
        self.corpus.output(&format!("node-{worker}-of-{workers}"))
    }

    /// The folders of all workers.
    #[must_use]
    pub fn folders(&self, workers: u32) -> Vec<PathBuf> {
        let all = 0..workers;
        all.map(|worker| self.folder(worker, workers)).collect()
    }

    /// The build of a worker's part.
    #[must_use]
    pub fn part(&self, worker: u32, workers: u32) -> Run {
        self.build(&self.folder(worker, workers)).args([
            "--worker".to_owned(),
            worker.to_string(),
            "--workers".to_owned(),
            workers.to_string(),
        ])
    }

    /// Builds all parts.
    ///
    /// # Panics
    /// If one cannot be built.
    #[must_use]
    pub fn parts(&self, workers: u32) -> Vec<PathBuf> {
        for worker in 0..workers {
            let _ = self.part(worker, workers).end().expect_code(0);
        }
        self.folders(workers)
    }

    /// The commit of `parts`.
    #[must_use]
    pub fn commit(&self, parts: &[PathBuf], output: &Path) -> Run {
        Run::stoker(["commit"])
            .args(parts)
            .args(["--output"])
            .args([output])
    }

    /// The clean cache's files without shards, and its shards.
    #[must_use]
    pub fn clean_files(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        files(&self.clean)
            .into_iter()
            .partition(|(name, _)| !is_shard(name))
    }

    /// Compares what a command said with a snapshot.
    pub fn check(&self, name: &str, ended: &Ended) {
        let folder = self.corpus.path().display().to_string();
        snapshot::check(name, ended, &[(&folder, "[FOLDER]")]);
    }
}

/// Whether a path relative to a cache is a shard's.
#[must_use]
pub fn is_shard(name: &str) -> bool {
    name.contains("/shards/")
}

/// Everything of a committed folder but shards and the parts' own files.
#[must_use]
pub fn small(root: &Path) -> BTreeMap<String, String> {
    let mut found = files(root);
    found.retain(|name, _| !is_shard(name) && !name.starts_with("parts"));
    found
}

/// The shards of a folder.
#[must_use]
pub fn shards(root: &Path) -> BTreeMap<String, String> {
    let mut found = files(root);
    found.retain(|name, _| is_shard(name));
    found
}

/// Copies everything below `from` but shards, as for bringing parts to where the commit runs.
///
/// # Panics
/// If it cannot be copied.
pub fn copy_small(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_file() {
            fs::copy(entry.path(), to).expect("a file");
        } else if entry.file_name() != "shards" {
            copy_small(&entry.path(), &to);
        }
    }
}
