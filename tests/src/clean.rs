//! A data set with its clean cache, and waiting for what a running build does.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cache::{assert_same, files};
use crate::command::Run;
use crate::corpus::Corpus;
use crate::strace::injected;

/// The lock's text appears soon after the start, even on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

/// A data set and its clean cache.
pub struct Clean {
    /// The data set.
    pub corpus: Corpus,
    /// Files and hashes of its clean cache.
    pub files: BTreeMap<String, String>,
}

impl Clean {
    /// A data set of `records`, built once without a fault.
    #[must_use]
    pub fn new(records: usize) -> Self {
        let corpus = Corpus::mixed(11, records);
        let output = corpus.output("clean");
        let _ = corpus.build(&output).end().expect_code(0);
        Self {
            files: files(&output),
            corpus,
        }
    }

    /// The first file below a folder that begins with `folder` whose name holds `part`.
    #[must_use]
    pub fn name(&self, folder: &str, part: &str) -> String {
        let is_it = |name: &&String| name.starts_with(folder) && name.contains(part);
        self.files.keys().find(is_it).expect("a file").clone()
    }

    /// Builds into `output` to the end and compares with the clean cache.
    pub fn finish(&self, output: &Path, what: &str) {
        let _ = self.corpus.build(output).end().expect_code(0);
        assert_same(&self.files, &files(output), what);
    }
}

/// What `look` finds at last.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < START_MAX, "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The build, with every sync taking `millis` longer.
pub fn slowed(run: &Run, millis: u32) -> Run {
    injected(
        run,
        "fsync",
        &format!("inject=fsync:delay_enter={millis}ms"),
    )
}
