//! Disks that are full, too small, or limited: a clear error, and the build goes on later (A6, H4).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use stoker_tests::cache::{committed, files};
use stoker_tests::clean::{Clean, slowed, wait_for};
use stoker_tests::corpus::{Corpus, chat};
use stoker_tests::snapshot;
use stoker_tests::strace::{Point, failed_at};

/// A memory disk of its own; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf, mebibytes: u32) -> Self {
        fs::create_dir(&at).expect("a mount point");
        let size = format!("size={mebibytes}m");
        let ok = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&at)
            .status();
        assert!(
            ok.is_ok_and(|status| status.success()),
            "mounting a tmpfs needs root"
        );
        Self(at)
    }

    fn resize(&self, mebibytes: u32) {
        let size = format!("remount,size={mebibytes}m");
        let ok = Command::new("mount")
            .args(["-o", &size])
            .arg(&self.0)
            .status();
        assert!(ok.is_ok_and(|status| status.success()));
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("statvfs");
        stat.f_bavail * stat.f_frsize
    }

    /// Fills all but `left` bytes.
    fn fill(&self, left: u64) {
        let file = fs::File::create(self.0.join("ballast")).expect("ballast");
        let bytes = self.free().saturating_sub(left);
        if bytes > 0 {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
                .expect("ballast");
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_a_clear_error_and_more_space_mends_it() {
    let clean = Clean::new(30);
    let disk = Disk::new(clean.corpus.path().join("disk"), 100);
    let output = disk.0.join("cache");
    let mut full = 0;
    for left in [0, 4, 12, 28, 60, 124, 252, 400] {
        disk.resize(100);
        let run = slowed(&clean.corpus.build(&output), 30).start();
        wait_for("state", || {
            output.join("building.json").exists().then_some(())
        });
        disk.fill(left << 10);
        let ended = run.wait();
        if ended.code != Some(0) {
            full += 1;
            assert_eq!(ended.code, Some(2), "{left} KiB: {}", ended.stderr);
            let folder = output.display();
            assert!(
                ended
                    .stderr
                    .contains(&format!("not enough space for `{folder}`: "))
                    && ended.stderr.contains(" bytes needed, ")
                    && ended.stderr.contains(" free"),
                "{left} KiB: {}",
                ended.stderr
            );
            assert!(
                !ended.stderr.contains(": 0 bytes needed"),
                "{}",
                ended.stderr
            );
            let _ = committed(&output);
        }
        disk.resize(300);
        clean.finish(&output, "with more space");
        fs::remove_dir_all(&output).expect("the cache");
        fs::remove_file(disk.0.join("ballast")).expect("the ballast");
    }
    assert!(full >= 5, "{full}");
}

#[test]
fn what_will_not_fit_is_refused_before_it_starts() {
    let corpus = Corpus::good(6, 12);
    let disk = Disk::new(corpus.path().join("disk"), 8);
    let output = disk.0.join("cache");
    let ended = corpus.build(&output).end().expect_code(2);
    assert!(
        ended.stderr.contains("not enough space for `"),
        "{}",
        ended.stderr
    );
    let folder = corpus.path().display().to_string();
    let masks = [(folder.as_str(), "[FOLDER]")];
    snapshot::check("disk_too_small", &ended, &masks);
    let shards = files(&output)
        .into_keys()
        .filter(|name| name.ends_with(".arrow"))
        .count();
    assert_eq!(shards, 0);
    let dry = corpus.build(&output).args(["--dry-run"]);
    snapshot::check("dry_run_does_not_fit", &dry.end(), &masks);
    let plan = dry.args(["--json"]).end().expect_code(0).json();
    assert_eq!(plan["fits"], false);
}

/// The same where a build begins: at its lock, and where inputs are spooled.
#[test]
fn a_disk_that_is_full_at_the_lock_or_under_a_spool_is_a_clear_error() {
    let corpus = Corpus::empty();
    let lines = format!("{}\n", chat("why?", "because"));
    let packed = zstd::encode_all(lines.as_bytes(), 1).expect("zstd");
    corpus.write("a.jsonl.zst", &packed);
    let output = corpus.output("cache");
    let build = corpus.build(&output);
    let _ = build.clone().args(["--dry-run"]).end().expect_code(0);
    let spooled = files(&output).into_keys();
    let spooled: Vec<String> = spooled.filter(|name| name.starts_with("spool/")).collect();
    fs::remove_file(output.join(&spooled[0])).expect("the spooled text");
    let partial = spooled[0].replace(".jsonl", ".partial");
    for (call, path) in [
        ("write", "stoker.lock"),
        ("openat", partial.as_str()),
        ("fsync", &partial),
    ] {
        let point = Point {
            call: call.into(),
            path: path.into(),
            nth: 1,
        };
        let ended = failed_at(&build, &output, &point, "error=ENOSPC").end();
        assert_eq!(ended.code, Some(2), "{call} {path}: {}", ended.stderr);
        let said = format!("not enough space for `{}", output.display());
        assert!(
            ended.stderr.contains(&said),
            "{call} {path}: {}",
            ended.stderr
        );
    }
    let _ = build.end().expect_code(0);
}

/// The same where a table's rows are written before its end.
#[test]
fn a_disk_that_fills_up_under_a_table_is_a_clear_error() {
    let corpus = Corpus::empty();
    // More than a row group of rejects.
    corpus.write("bad.jsonl", "{\n".repeat(70_000).as_bytes());
    let output = corpus.output("cache");
    let build = corpus.build(&output).args(["--schema", "messages"]);
    let plan = build.clone().args(["--dry-run", "--json"]).end();
    let plan = plan.expect_code(0).json();
    let text = plan["text_plan_id"].as_str().expect("an id");
    let point = Point {
        call: "write".into(),
        path: format!("text-{text}/tables/.rejects.tmp").into(),
        nth: 1,
    };
    let ended = failed_at(&build, &output, &point, "error=ENOSPC").end();
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let said = format!("not enough space for `{}`: ", output.display());
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
}

/// A lost receipt costs what follows it, too, but that stands on the disk already.
#[test]
fn a_repair_needs_no_room_for_what_it_replaces() {
    let clean = Clean::new(60);
    let disk = Disk::new(clean.corpus.path().join("disk"), 100);
    let output = disk.0.join("cache");
    let _ = clean.corpus.build(&output).end().expect_code(0);
    let folder = clean.files.keys().find(|name| name.starts_with("images-"));
    let folder = output.join(folder.expect("a folder"));
    let shard = |ordinal: usize| folder.join(format!("shards/p0000-{ordinal:06}.arrow"));
    fs::remove_file(folder.join("receipts/p0000-000000.json")).expect("a receipt");
    let lengths = (0..).map_while(|ordinal| Some(fs::metadata(shard(ordinal)).ok()?.len()));
    let lengths: Vec<u64> = lengths.collect();
    let replaced = lengths.iter().sum::<u64>() - lengths.iter().max().expect("more shards");
    let plan = || {
        let run = clean.corpus.build(&output).args(["--dry-run", "--json"]);
        run.end().expect_code(0).json()
    };
    let bytes = plan()["bytes"].as_u64().expect("bytes");
    // What a build leaves free, what it adds, and some pages for the files of the run.
    let left = (64 << 20) + bytes.saturating_sub(replaced) + (32 << 10);
    assert!(left < (64 << 20) + bytes, "{bytes} {replaced}");
    disk.fill(left);
    assert_eq!(plan()["fits"], true);
    clean.finish(&output, "repaired");
}

#[test]
fn a_file_size_limit_is_an_error_and_no_signal() {
    let clean = Clean::new(12);
    let output = clean.corpus.output("limited");
    for limit in [500, 2_000, 8_000] {
        let limited = clean
            .corpus
            .build(&output)
            .under(&["prlimit".to_owned(), format!("--fsize={limit}")]);
        let ended = limited.end();
        assert_eq!(
            ended.code,
            Some(2),
            "{limit}: signal {:?} {}",
            ended.signal,
            ended.stderr
        );
        assert!(
            ended.stderr.contains("error: could not write `"),
            "{}",
            ended.stderr
        );
    }
    clean.finish(&output, "without the limit");
}
