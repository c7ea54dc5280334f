//! The crash driver: one small build, killed or failed at chosen system calls, then run again.
//!
//! Owns what counts as right: a committed manifest is whole at once, and a second run gives the bytes
//! of a clean build. Invariant: every interrupted run has an output folder of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::cache::{assert_same, committed, files};
use crate::command::Run;
use crate::corpus::{Corpus, chat};
use crate::strace::{CHANGING, Call, Point, failed_at, points, trace};

/// In CI every so many points are tried; `STOKER_CRASH_EVERY=1` tries all.
const EVERY: usize = 8;

/// Calls that are traced and injected into.
const CALLS: [&str; 2] = ["openat", "close"];

/// A data set, its clean cache, and the calls that made it.
#[derive(Debug)]
pub struct Scene {
    /// The data set.
    pub corpus: Corpus,
    /// All files of the clean cache.
    pub clean: BTreeMap<String, String>,
    /// The calls of the clean build.
    pub calls: Vec<Call>,
    /// Where it was built.
    pub output: PathBuf,
}

impl Scene {
    /// A dozen records with some rejects and a compressed input, built once under strace.
    ///
    /// # Panics
    /// If the clean build fails.
    #[must_use]
    pub fn new(records: usize) -> Self {
        let corpus = Corpus::mixed(7, records);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let lines: String = (0..4)
            .map(|number| format!("{}\n", chat(&format!("packed {number}?"), "yes")))
            .collect();
        std::io::Write::write_all(&mut gzip, lines.as_bytes()).expect("gzip");
        corpus.write("packed.jsonl.gz", &gzip.finish().expect("gzip"));
        let output = corpus.output("clean");
        let (ended, calls) = trace(&corpus.build(&output), &traced(), corpus.path());
        let _ = ended.expect_code(0);
        assert!(committed(&output).is_some());
        Self {
            clean: files(&output),
            corpus,
            calls,
            output,
        }
    }

    /// The build of the data set into `output`.
    #[must_use]
    pub fn build(&self, output: &Path) -> Run {
        self.corpus.build(output)
    }

    /// The points of calls with these names that change the output.
    #[must_use]
    pub fn all_points(&self, names: &[&str]) -> BTreeSet<Point> {
        points(&self.calls, &self.output)
            .into_iter()
            .filter(|point| names.contains(&point.call.as_str()))
            .collect()
    }

    /// The same, thinned out for CI.
    #[must_use]
    pub fn points(&self, names: &[&str]) -> Vec<Point> {
        let every = every();
        self.all_points(names)
            .into_iter()
            .enumerate()
            .filter(|(at, _)| at % every == 0)
            .map(|(_, point)| point)
            .collect()
    }

    /// Runs the build with `fault` at `point` in a folder of its own.
    #[must_use]
    pub fn fail(&self, point: &Point, fault: &str) -> (PathBuf, crate::command::Ended) {
        let output = self.corpus.output("broken");
        let _ = fs::remove_dir_all(&output);
        let ended = failed_at(&self.build(&output), &output, point, fault).end();
        (output, ended)
    }

    /// Runs the build again and compares it with the clean one.
    ///
    /// # Panics
    /// If they differ.
    pub fn finish(&self, output: &Path, what: &str) {
        let ended = self.build(output).end();
        assert_eq!(ended.code, Some(0), "{what}: {}", ended.stderr);
        assert_same(&self.clean, &files(output), what);
        assert!(committed(output).is_some(), "{what}");
    }

    /// Kills the build at every point, checks what it left, and finishes it. Gives the kills.
    ///
    /// # Panics
    /// If a committed cache is not whole, or the finished one is not the clean one.
    #[must_use]
    pub fn kill_at_each(&self, names: &[&str]) -> usize {
        let mut kills = 0;
        for point in self.points(names) {
            let (output, ended) = self.fail(&point, "signal=SIGKILL");
            let what = format!("killed at {point}");
            if ended.signal != Some(9) {
                // Threads share the work differently from run to run: this one had fewer calls.
                let _ = ended.expect_code(0);
                continue;
            }
            kills += 1;
            if output.is_dir() {
                let _ = committed(&output);
            }
            self.finish(&output, &what);
        }
        kills
    }
}

/// All calls that a trace needs to hold.
#[must_use]
pub fn traced() -> Vec<&'static str> {
    CHANGING.into_iter().chain(CALLS).collect()
}

/// Every which point is tried.
#[must_use]
pub fn every() -> usize {
    std::env::var("STOKER_CRASH_EVERY")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(EVERY)
        .max(1)
}
