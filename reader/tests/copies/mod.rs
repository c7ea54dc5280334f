//! A fallback for tests: a folder with the whole cache, and what can go wrong on the way from there.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stoker_formats::Manifest;
use stoker_reader::{
    Batch, CacheFile, CacheFiles, CacheOptions, Fallback, Last, Pixels, Reader, ReaderOptions,
    RemoteOptions, Step, Tail,
};

use crate::synthetic;

/// What is wrong with a remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The files whose paths hold this text fail.
    Fails(&'static str),
    /// Of a file whose path holds this text half is written, and no more until somebody gives up.
    Hangs(&'static str),
    /// As that, but it does not notice that somebody gives up.
    HangsOn(&'static str),
    /// The files whose paths hold this text fail, once `others` hang; all others do, until somebody gives up.
    FailsBeside { text: &'static str, others: usize },
    /// Each file has another byte in its middle the first so many times.
    Damages(usize),
}

/// The copy.
#[derive(Debug)]
pub(crate) struct Copies {
    files: CacheFiles,
    pub(crate) trouble: Mutex<Option<Trouble>>,
    /// Where the files go, and how many bytes they may take.
    bound: Mutex<Option<(PathBuf, u64)>>,
    brought: Mutex<BTreeMap<String, usize>>,
    /// Each that is brought leaves a line here, for other processes.
    log: Option<PathBuf>,
    pub(crate) most: Mutex<u64>,
    pub(crate) hanging: AtomicUsize,
}

impl Copies {
    pub(crate) fn of(root: &Path) -> Arc<Self> {
        Self::logging(root, None)
    }

    pub(crate) fn logging(root: &Path, log: Option<PathBuf>) -> Arc<Self> {
        Arc::new(Self {
            files: CacheFiles::open(root).unwrap(),
            trouble: Mutex::default(),
            bound: Mutex::default(),
            brought: Mutex::default(),
            log,
            most: Mutex::default(),
            hanging: AtomicUsize::new(0),
        })
    }

    /// From now on each file that comes is counted with those that are there.
    pub(crate) fn watch(&self, folder: PathBuf, bound: u64) {
        *self.bound.lock().unwrap() = Some((folder, bound));
    }

    pub(crate) fn suffer(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = Some(trouble);
    }

    pub(crate) fn heal(&self) {
        *self.trouble.lock().unwrap() = None;
    }

    /// How often each file was brought.
    pub(crate) fn brought(&self) -> BTreeMap<String, usize> {
        self.brought.lock().unwrap().clone()
    }

    pub(crate) fn check_bound(&self) {
        if let Some((folder, bound)) = &*self.bound.lock().unwrap() {
            let held = held(folder);
            assert!(held <= *bound, "{held} of {bound}");
            let mut most = self.most.lock().unwrap();
            *most = held.max(*most);
        }
    }
}

/// Bytes of the brought files in a folder; unfinished ones count whole.
pub(crate) fn held(folder: &Path) -> u64 {
    let mut sum = 0;
    // While nobody gives one of them another name.
    let lock = File::open(folder.join("lock"));
    let _lock = lock.inspect(|lock| lock.lock().unwrap());
    for entry in fs::read_dir(folder.join("files")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = name.split('.').collect();
        // One that goes meanwhile takes nothing.
        let found = fs::metadata(&path).map_or(0, |found| found.len());
        sum += match parts[..] {
            [_, bytes, "part"] => {
                let whole: u64 = bytes.parse().unwrap();
                assert!(found <= whole);
                whole
            }
            _ => found,
        };
    }
    sum
}

impl Fallback for Copies {
    fn uri(&self) -> String {
        "s3://copies/cache".to_owned()
    }

    fn manifest(&self) -> Result<Manifest, Box<dyn Error + Send + Sync>> {
        if *self.trouble.lock().unwrap() == Some(Trouble::Fails("manifest")) {
            return Err("the bucket is on fire".into());
        }
        Ok(self.files.manifest().clone())
    }

    fn bring(
        &self,
        file: &CacheFile,
        mut to: &File,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert_eq!(to.metadata()?.len(), 0);
        let name = file.relative();
        self.check_bound();
        let times = {
            let mut brought = self.brought.lock().unwrap();
            let times = brought.entry(name.clone()).or_insert(0);
            *times += 1;
            *times
        };
        if let Some(log) = &self.log {
            let mut log = File::options().create(true).append(true).open(log)?;
            log.write_all(format!("{name}\n").as_bytes())?;
        }
        let trouble = self.trouble.lock().unwrap().clone();
        let mut bytes = fs::read(self.files.path(file.folder, file.name))?;
        match trouble {
            Some(Trouble::Fails(text)) if name.contains(text) => {
                return Err("the bucket is on fire".into());
            }
            Some(Trouble::Hangs(text) | Trouble::HangsOn(text)) if name.contains(text) => {
                to.write_all(&bytes[..bytes.len() / 2])?;
                self.hanging.fetch_add(1, Ordering::SeqCst);
                let notices = matches!(trouble, Some(Trouble::Hangs(_)));
                while !(notices && stop()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return Err("somebody gave up".into());
            }
            Some(Trouble::FailsBeside { text, others }) => {
                let fails = name.contains(text);
                self.hanging
                    .fetch_add(usize::from(!fails), Ordering::SeqCst);
                let hanging = || self.hanging.load(Ordering::SeqCst);
                while !(if fails { hanging() >= others } else { stop() }) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let said = if fails {
                    "the bucket is on fire"
                } else {
                    "somebody gave up"
                };
                return Err(said.into());
            }
            Some(Trouble::Damages(most)) if times <= most => {
                // All that is no zero, so that some row is hit.
                let middle = bytes.len() / 4..bytes.len() / 4 * 3;
                bytes[middle].iter_mut().for_each(|byte| *byte ^= 0x55);
            }
            _ => {}
        }
        let half = bytes.len() / 2;
        to.write_all(&bytes[..half])?;
        self.check_bound();
        to.write_all(&bytes[half..])?;
        self.check_bound();
        Ok(())
    }
}

pub(crate) const PARTITIONS: [u64; 4] = [40, 31, 37, 3];

/// A whole cache.
pub(crate) fn whole() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&PARTITIONS);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    folder
}

/// Copies of those files of a cache whose relative paths `keep` likes.
pub(crate) fn some(whole: &Path, keep: impl Fn(&str) -> bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let files = CacheFiles::open(whole).unwrap();
    let names = files.expected().map(|file| file.relative());
    for name in names
        .chain(["manifest.json".to_owned()])
        .filter(|name| keep(name))
    {
        let to = folder.path().join(&name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(whole.join(&name), to).unwrap();
    }
    folder
}

/// All small files, and the shards of these partitions.
pub(crate) fn holding(partitions: &[u32]) -> impl Fn(&str) -> bool {
    let held: Vec<String> = partitions
        .iter()
        .map(|part| format!("/p{part:04}-"))
        .collect();
    move |name| !is_shard(name) || held.iter().any(|held| name.contains(held))
}

pub(crate) fn is_shard(name: &str) -> bool {
    name.contains("/shards/")
}

/// Bytes of the files of a cache that lie here and `which` likes.
pub(crate) fn bytes_of(root: &Path, which: impl Fn(&str) -> bool) -> Vec<u64> {
    let files = CacheFiles::open(root).unwrap();
    let found = files.expected().filter(|file| which(&file.relative()));
    found.map(|file| file.entry.bytes).collect()
}

/// Options of one rank that reads all samples, with a fallback if there is one.
pub(crate) fn options(
    path: &Path,
    global: u32,
    micro: u32,
    fallback: Option<Arc<Copies>>,
) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, global);
    options.world.micro_batch_size = micro;
    options.order.tail = Tail::All;
    options.order.last = Last::Pad;
    options.pixels = Pixels::U8;
    options.sample_ids = true;
    options.remote = RemoteOptions {
        cache_disk: Some(1 << 30),
        ..RemoteOptions::default()
    };
    options.caches = vec![CacheOptions::new(path)];
    if let Some(fallback) = fallback {
        options.caches[0].fallback = Some(fallback);
    }
    options
}

/// A batch as it came: ids, and the bytes of each tensor.
pub(crate) type Seen = (Vec<String>, Vec<Vec<u8>>);

pub(crate) fn seen(batch: &Batch) -> Seen {
    let tensors = batch.tensors().iter();
    (
        batch.sample_ids.clone().unwrap(),
        tensors.map(|tensor| batch.bytes(tensor).to_vec()).collect(),
    )
}

/// The rest of the epoch.
pub(crate) fn epoch(reader: &mut Reader) -> Vec<Seen> {
    let mut batches = Vec::new();
    while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
        batches.push(seen(&batch));
    }
    batches
}
