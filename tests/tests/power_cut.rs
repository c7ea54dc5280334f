//! A power cut at any instant of a build leaves the earlier manifest or the new one, with all that it names, and the next run
//! ends with the bytes of an undisturbed build (promise A2). The disk is a model that forgets what is not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use stoker_builder::verify::verify;
use stoker_tests::cache::{assert_same, files};
use stoker_tests::command::Run;
use stoker_tests::crash::{Scene, traced};
use stoker_tests::dice::Dice;
use stoker_tests::power::{Disk, Entry, Image, Kind};
use stoker_tests::strace::{Call, trace_with_bytes};

/// Records of the small build.
const RECORDS: usize = 36;

/// Images of each cut, beside the two that keep nothing and everything.
const SUBSETS: usize = 20;

/// Images that promise A2 asks for.
const IMAGES_MIN: usize = 2_000;

/// Of the different images so many are built on.
const RESUMED: usize = 40;

/// Where the cache is, below the model's root: neither folder is there before.
const CACHE: &str = "new/cache";

/// Files that are written in place: nothing depends on what is in them.
const IN_PLACE: [&str; 2] = ["in-flight", "stoker.lock"];

/// A data set, and a disk that is watched while its cache is made.
struct Bench {
    scene: Scene,
    disk: Disk,
}

/// What the images of one run must be, and how many there were.
struct Judge {
    folder: PathBuf,
    before: Option<Vec<u8>>,
    after: Vec<u8>,
    dice: Dice,
    images: usize,
    seen: BTreeSet<[u8; 32]>,
    /// Different images, to be built on.
    different: Vec<Image>,
    faults: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let scene = Scene::new(RECORDS);
        let root = scene.corpus.output("disk");
        fs::create_dir(&root).expect("the root");
        Self {
            disk: Disk::new(&root),
            scene,
        }
    }

    fn root(&self) -> PathBuf {
        self.scene.corpus.output("disk")
    }

    fn cache(&self) -> PathBuf {
        self.root().join(CACHE)
    }

    fn build(&self) -> Run {
        self.scene.build(&self.cache())
    }

    /// The calls of a run that ends well.
    fn calls(&self, run: &Run) -> Vec<Call> {
        let (ended, calls) = trace_with_bytes(run, &traced(), self.scene.corpus.path());
        let _ = ended.expect_code(0);
        calls
    }

    /// Replays `calls`, cuts the power before every sync and after the last call, and judges what the disk may hold then.
    fn replay(&self, disk: &mut Disk, calls: &[Call]) -> Judge {
        let mut judge = Judge {
            folder: self.scene.corpus.output("image"),
            before: manifest(&disk.seen()).map(<[u8]>::to_vec),
            after: fs::read(self.cache().join("manifest.json")).expect("the new manifest"),
            dice: Dice::new(7),
            images: 0,
            seen: BTreeSet::new(),
            different: Vec::new(),
            faults: Vec::new(),
        };
        disk.end_trace();
        for call in calls {
            if disk.is_sync(call) {
                judge.cut(disk, |_| true);
            }
            disk.apply(call);
        }
        // Whoever was told that the build is done finds its cache.
        judge.cut(disk, |after| after);
        judge
    }

    /// Replays `calls` on the disk, which then holds what the folder does.
    fn watch(&mut self, calls: &[Call]) -> Judge {
        let mut disk = self.disk.clone();
        let judge = self.replay(&mut disk, calls);
        assert_eq!(judge.faults, Vec::<String>::new());
        assert_same(&files(&self.cache()), &held(&disk.seen()), "the model");
        self.disk = disk;
        judge
    }

    /// Builds on a sample of the images with `run`, which makes the folder's files.
    fn resume(&self, judge: &Judge, run: &Run) {
        let clean = files(&self.cache());
        let step = judge.different.len().div_ceil(RESUMED);
        let root = self.scene.corpus.output("resumed");
        let cache = root.join(CACHE);
        for (at, image) in judge.different.iter().enumerate().step_by(step) {
            image.write(&root);
            let run = run.clone().with("--output", &cache.display().to_string());
            let ended = run.end();
            assert_eq!(ended.code, Some(0), "image {at}: {}", ended.stderr);
            assert_same(&clean, &files(&cache), &format!("image {at}"));
        }
    }
}

impl Judge {
    /// Judges what may be there now; `allowed` says of a manifest whether it may be, by whether it is the new one.
    fn cut(&mut self, disk: &Disk, allowed: impl Fn(bool) -> bool) {
        for number in 0..SUBSETS + 2 {
            let percent = match number {
                0 => 0,
                1 => 100,
                _ => *self.dice.pick(&[10, 50, 90]),
            };
            let image = disk.cut(&mut self.dice, percent);
            self.images += 1;
            let found = manifest(&image);
            let is_new = found == Some(&*self.after);
            if !allowed(is_new) {
                self.faults.push("what was committed is gone".into());
            } else if !is_new && found != self.before.as_deref() {
                self.faults
                    .push("neither the earlier manifest nor the new one".into());
            }
            if self.seen.insert(*image.hash().as_bytes()) {
                self.faults.extend(self.look_into(&image));
                self.different.push(image);
            }
        }
    }

    /// What is wrong with an image.
    fn look_into(&self, image: &Image) -> Vec<String> {
        let mut faults = Vec::new();
        for (path, entry) in &image.0 {
            let name = path.rsplit('/').next().unwrap_or_default();
            let published = !name.ends_with(".tmp") && !name.ends_with(".partial");
            let torn = matches!(entry, Entry::File { whole: false, .. });
            if torn && published && !IN_PLACE.contains(&name) {
                faults.push(format!("`{path}` has its name, but not all its bytes"));
            }
        }
        if manifest(image).is_some() {
            image.write(&self.folder);
            match verify(&self.folder.join(CACHE), false, false) {
                Ok(report) if report.sound => {}
                Ok(report) => faults.push(format!("damaged: {:?}", report.damages)),
                Err(error) => faults.push(format!("not verified: {error}")),
            }
        }
        faults
    }
}

fn manifest(image: &Image) -> Option<&[u8]> {
    image.bytes(&format!("{CACHE}/manifest.json"))
}

/// The cache in the image, as [`files`] gives one in a folder.
fn held(image: &Image) -> BTreeMap<String, String> {
    let mut held = BTreeMap::new();
    for (path, entry) in &image.0 {
        let Some(name) = path.strip_prefix(&format!("{CACHE}/")) else {
            continue;
        };
        let hash = match entry {
            Entry::Folder => String::new(),
            Entry::File { bytes, .. } => blake3::hash(bytes).to_string(),
        };
        held.insert(name.to_owned(), hash);
    }
    held.remove("stoker.lock");
    held
}

#[test]
#[expect(clippy::print_stdout, reason = "the count is what promise A2 names")]
fn a_first_build_is_there_or_not() {
    let mut bench = Bench::new();
    let run = bench.build();
    let calls = bench.calls(&run);
    let judge = bench.watch(&calls);
    let different = judge.different.len();
    println!("{} images, {different} of them different", judge.images);
    assert!(judge.images >= IMAGES_MIN, "{}", judge.images);
    let committed = judge
        .different
        .iter()
        .filter(|image| manifest(image).is_some());
    assert!(committed.count() >= 10);
    bench.resume(&judge, &run);
}

/// Another text, then another deal of everything, each with what it replaces removed after it.
#[test]
fn a_cache_that_is_replaced_is_the_old_one_or_the_new_one() {
    let mut bench = Bench::new();
    let calls = bench.calls(&bench.build());
    let _ = bench.watch(&calls);
    let text = ["--label-rule", "qwen_finetune", "--prune"];
    for options in [&text[..], &["--seed", "9", "--prune"]] {
        let run = bench.build().args(options);
        let calls = bench.calls(&run);
        let judge = bench.watch(&calls);
        let both = [judge.before.as_deref(), Some(&judge.after)];
        for one in both {
            let there = judge
                .different
                .iter()
                .filter(|image| manifest(image) == one);
            assert!(there.count() >= 10, "{options:?}");
        }
        bench.resume(&judge, &run);
    }
}

/// What a killed build has left unsynced is relied on by nobody: not by the build that goes on, not by one that begins anew.
#[test]
fn a_build_that_goes_on_syncs_what_it_finds() {
    let bench = Bench::new();
    let calls = bench.calls(&bench.build());
    let anew = bench.build().args(["--seed", "9", "--restart"]);
    let mut images = 0;
    let is_made = |call: &Call| call.name.starts_with("mkdir") && call.args.contains(CACHE);
    let made = 1 + calls.iter().position(is_made).expect("the cache's folder");
    for count in (1..8).map(|eighth| calls.len() * eighth / 8).chain([made]) {
        let mut disk = bench.disk.clone();
        for call in &calls[..count] {
            disk.apply(call);
        }
        for run in [bench.build(), anew.clone()] {
            disk.seen().write(&bench.root());
            let calls = bench.calls(&run);
            let judge = bench.replay(&mut disk.clone(), &calls);
            assert_eq!(
                judge.faults,
                Vec::<String>::new(),
                "killed after {count} calls"
            );
            images += judge.images;
        }
    }
    assert!(images >= IMAGES_MIN, "{images}");
}

/// The model has teeth: on a disk that ignores the syncs of files, or of folders, it finds what they are for.
#[test]
fn syncs_that_do_nothing_are_found() {
    let bench = Bench::new();
    let calls = bench.calls(&bench.build());
    for (kind, faults) in [
        (
            Kind::File,
            ["has its name, but not all its bytes", "damaged: "],
        ),
        (Kind::Folder, ["what was committed is gone", "damaged: "]),
    ] {
        let mut disk = bench.disk.clone().deaf_to(kind);
        let found = bench.replay(&mut disk, &calls).faults;
        for fault in faults {
            let is_said = |found: &String| found.contains(fault);
            assert!(found.iter().any(is_said), "{kind:?}: no `{fault}`");
        }
    }
}
