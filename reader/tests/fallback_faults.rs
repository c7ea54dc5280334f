//! A remote that fails, hangs or lies, processes that are killed, and damage to what was brought.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

mod copies;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use copies::{Copies, Trouble, epoch, is_shard, options, seen, some, whole};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stoker_reader::{Cursor, Error, Reader, RemoteFault, Step, Verify};

/// Names the folders for a child process that runs one test of this file by itself.
const CHILD: &str = "STOKER_TEST_FALLBACK";

/// The stack of every thread of a child that lacks threads: more than it takes for anything else.
const STACK_BYTES: u64 = 256 << 20;

/// Reads until there is an error; that, and the batches before it.
fn until_fault(reader: &mut Reader) -> (Vec<copies::Seen>, Error) {
    let mut batches = Vec::new();
    loop {
        match reader.next_batch(None) {
            Ok(Step::Batch(batch)) => batches.push(seen(&batch)),
            Ok(step) => panic!("{step:?}"),
            Err(fault) => return (batches, fault),
        }
    }
}

/// The fault of a file that did not come, with the row that it was for around it.
fn remote_fault(fault: &Error) -> (&str, &RemoteFault) {
    match fault {
        Error::Fallback { file, fault, .. } => (file, fault),
        Error::Row { error, .. } => remote_fault(error),
        other => panic!("{other}"),
    }
}

#[test]
fn a_remote_that_fails_ends_the_run_and_a_restored_cursor_goes_on() {
    let whole = whole();
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    for text in ["images-", "text-", "p0001-000003"] {
        let part = some(whole.path(), |name| !is_shard(name));
        let copies = Copies::of(whole.path());
        copies.suffer(Trouble::Fails(text));
        let mut reader =
            Reader::open(options(part.path(), 4, 4, Some(Arc::clone(&copies)))).unwrap();
        let start = reader.cursor().unwrap().to_json();
        let (before, fault) = until_fault(&mut reader);
        assert_eq!(before, expected[..before.len()]);
        let (file, reason) = remote_fault(&fault);
        assert!(file.contains(text) && is_shard(file), "{file}");
        assert_eq!(*reason, RemoteFault::Failed("the bucket is on fire".into()));
        let words = fault.to_string();
        assert!(
            words.contains("`s3://copies/cache`") && words.contains("partition"),
            "{words}"
        );
        assert!(fault.hint().unwrap().contains("cursor"));
        assert!(matches!(
            reader.next_batch(None),
            Err(Error::Stopped { .. })
        ));
        copies.heal();
        reader.restore(&reader.cursor().unwrap()).unwrap();
        assert_eq!(epoch(&mut reader), expected[before.len()..]);
        reader.restore(&Cursor::from_json(&start).unwrap()).unwrap();
        assert_eq!(epoch(&mut reader), expected);
    }
    let part = some(whole.path(), |_| false);
    let copies = Copies::of(whole.path());
    copies.suffer(Trouble::Fails("index/p0002"));
    let fault = Reader::open(options(part.path(), 4, 4, Some(copies))).unwrap_err();
    assert!(remote_fault(&fault).0.contains("index/p0002"));
}

#[test]
fn a_fetch_that_hangs_is_an_error_that_names_shard_and_remote() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    let copies = Copies::of(whole.path());
    copies.suffer(Trouble::Hangs("text-"));
    let mut options = options(part.path(), 4, 4, Some(Arc::clone(&copies)));
    options.remote.timeout = Duration::from_secs(1);
    let mut reader = Reader::open(options).unwrap();
    let (before, fault) = until_fault(&mut reader);
    assert_eq!(before.len(), 0);
    let (file, reason) = remote_fault(&fault);
    assert_eq!(*reason, RemoteFault::TimedOut { seconds: 1 });
    assert!(
        file.contains("text-") && file.contains("shards/p00"),
        "{file}"
    );
    let words = fault.to_string();
    assert!(words.contains("within 1 s: `s3://copies/cache`"), "{words}");
    copies.heal();
    reader.restore(&reader.cursor().unwrap()).unwrap();
    assert_eq!(epoch(&mut reader), expected);
}

#[test]
fn an_index_that_hangs_is_an_error_that_says_how_long() {
    let whole = whole();
    let part = some(whole.path(), |_| false);
    let copies = Copies::of(whole.path());
    copies.suffer(Trouble::Hangs("index/p0001"));
    let mut options = options(part.path(), 4, 4, Some(copies));
    options.remote.timeout = Duration::from_secs(1);
    let fault = Reader::open(options).unwrap_err();
    let (file, reason) = remote_fault(&fault);
    assert!(file.contains("index/p0001"), "{file}");
    assert_eq!(*reason, RemoteFault::TimedOut { seconds: 1 });
}

#[test]
fn an_index_that_fails_ends_the_bringing_of_all() {
    let whole = whole();
    // Six indexes, of which four are brought at a time; what hangs has minutes.
    let part = some(whole.path(), |_| false);
    let copies = Copies::of(whole.path());
    copies.suffer(Trouble::FailsBeside {
        text: "text-22222222222222222222222222222222/index/p0001",
        others: 3,
    });
    let options = options(part.path(), 4, 4, Some(Arc::clone(&copies)));
    let fault = Reader::open(options).unwrap_err();
    let (file, reason) = remote_fault(&fault);
    assert!(file.contains("text-") && file.contains("index/p0001"));
    assert_eq!(*reason, RemoteFault::Failed("the bucket is on fire".into()));
    assert_eq!(copies.brought().len(), 4);
}

#[test]
fn a_reader_is_dropped_while_fetches_hang() {
    let whole = whole();
    for trouble in [Trouble::Hangs("text-"), Trouble::HangsOn("text-")] {
        let part = some(whole.path(), |name| !is_shard(name));
        let copies = Copies::of(whole.path());
        copies.suffer(trouble.clone());
        let mut reader =
            Reader::open(options(part.path(), 4, 4, Some(Arc::clone(&copies)))).unwrap();
        let step = reader.next_batch(Some(Duration::ZERO)).unwrap();
        assert!(matches!(step, Step::TimedOut));
        while copies.hanging.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let started = Instant::now();
        drop(reader);
        // The threads have a second; nothing waits for the timeout, which is minutes.
        assert!(started.elapsed() < Duration::from_secs(60), "{trouble:?}");
        if trouble == Trouble::Hangs("text-") {
            // They have ended, and taken what they had begun with them.
            assert_eq!(Arc::strong_count(&copies), 1);
            assert_eq!(copies::held(&part.path().join("fallback")), 0);
        }
    }
}

/// What is done to a file.
type Damage = fn(&Path);

/// The brought files of a cache, and those of them that hold what this name says.
fn brought_file(part: &Path, whole: &Path, text: &str) -> PathBuf {
    let files = stoker_reader::CacheFiles::open(whole).unwrap();
    let file = files
        .expected()
        .find(|file| file.relative().contains(text))
        .unwrap();
    part.join("fallback/files")
        .join(file.entry.hash.to_string())
}

#[test]
fn damage_to_what_was_brought_is_mended_once() {
    let whole = whole();
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    let part = some(whole.path(), |_| false);
    let open =
        |copies: &Arc<Copies>| Reader::open(options(part.path(), 4, 4, Some(Arc::clone(copies))));
    let copies = Copies::of(whole.path());
    assert_eq!(epoch(&mut open(&copies).unwrap()), expected);
    let damage: [(&str, Damage); 4] = [
        (
            "text-22222222222222222222222222222222/shards/p0000-000001",
            |path| {
                let length = fs::metadata(path).unwrap().len();
                let file = fs::File::options().write(true).open(path).unwrap();
                let zeros = vec![0; length as usize * 9 / 10];
                file.write_all_at(&zeros, length / 20).unwrap();
            },
        ),
        (
            "images-11111111111111111111111111111111/shards/p0001-000002",
            |path| {
                let length = fs::metadata(path).unwrap().len();
                let file = fs::File::options().write(true).open(path).unwrap();
                file.write_all_at(&vec![7; length as usize / 2], length / 4)
                    .unwrap();
            },
        ),
        (
            "images-11111111111111111111111111111111/shards/p0001-000001",
            |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.set_len(100).unwrap();
            },
        ),
        (
            "text-22222222222222222222222222222222/index/p0001",
            |path| {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.write_all_at(&[9; 64], 500).unwrap();
            },
        ),
    ];
    for (name, damage) in damage {
        damage(&brought_file(part.path(), whole.path(), name));
        let again = Copies::of(whole.path());
        assert_eq!(epoch(&mut open(&again).unwrap()), expected, "{name}");
        let brought = again.brought();
        let (found, times) = brought.iter().next().unwrap();
        assert!(
            found.contains(name) && *times == 1 && brought.len() == 1,
            "{brought:?}"
        );
    }
}

/// Without checksums of rows, what was brought before is held against its size and its head at least.
#[test]
fn what_is_no_shard_any_more_is_brought_again_even_if_rows_are_not_checked() {
    let whole = whole();
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    let part = some(whole.path(), |name| !is_shard(name));
    let open = |copies: &Arc<Copies>| {
        let mut options = options(part.path(), 4, 4, Some(Arc::clone(copies)));
        options.verify = Verify::Off;
        Reader::open(options).unwrap()
    };
    let copies = Copies::of(whole.path());
    assert_eq!(epoch(&mut open(&copies)), expected);
    let names = [
        "text-22222222222222222222222222222222/shards/p0000-000001",
        "images-11111111111111111111111111111111/shards/p0001-000002",
        "images-11111111111111111111111111111111/shards/p0002-000000",
    ];
    let [zeroed, cut, other] = names.map(|name| brought_file(part.path(), whole.path(), name));
    fs::write(
        &zeroed,
        vec![0; fs::metadata(&zeroed).unwrap().len() as usize],
    )
    .unwrap();
    fs::write(&cut, &fs::read(&cut).unwrap()[..900]).unwrap();
    // A shard, but another one: its size alone is right.
    let mut bytes = fs::read(brought_file(
        part.path(),
        whole.path(),
        &names[2].replace("-000000", "-000001"),
    ))
    .unwrap();
    bytes.resize(fs::metadata(&other).unwrap().len() as usize, 0);
    fs::write(&other, bytes).unwrap();
    let again = Copies::of(whole.path());
    assert_eq!(epoch(&mut open(&again)), expected);
    let brought: Vec<String> = again.brought().into_keys().collect();
    assert_eq!(brought.len(), 3, "{brought:?}");
    for name in names {
        assert!(
            brought.iter().any(|found| found.contains(name)),
            "{brought:?}"
        );
    }
}

#[test]
fn a_remote_that_gives_damage_twice_is_an_error() {
    let whole = whole();
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    for times in [1, 2] {
        let part = some(whole.path(), |name| !is_shard(name));
        let copies = Copies::of(whole.path());
        copies.suffer(Trouble::Damages(times));
        let mut reader =
            Reader::open(options(part.path(), 4, 4, Some(Arc::clone(&copies)))).unwrap();
        if times == 1 {
            assert_eq!(epoch(&mut reader), expected);
            assert!(copies.brought().values().any(|times| *times == 2));
            continue;
        }
        let (before, fault) = until_fault(&mut reader);
        assert_eq!(before, expected[..before.len()]);
        let words = fault.to_string();
        assert!(
            words.contains("fallback/files/") && words.contains(" row "),
            "{words}"
        );
    }
}

#[test]
#[ignore = "the body of the test below, in a process of its own"]
fn hang_in_a_child() {
    let folders = std::env::var_os(CHILD).unwrap();
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    let [whole, part, log] = folders.as_slice() else {
        panic!("{folders:?}");
    };
    let copies = Copies::logging(whole, Some(log.clone()));
    copies.suffer(Trouble::HangsOn("text-"));
    let mut reader = Reader::open(options(part, 4, 4, Some(copies))).unwrap();
    let _ = reader.next_batch(None);
}

#[test]
fn what_a_killed_process_was_bringing_is_brought_by_another() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    let log = part.path().join("log");
    let folders = std::env::join_paths([whole.path(), part.path(), &log]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["hang_in_a_child", "--exact", "--ignored", "--nocapture"])
        .env(CHILD, folders)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !fs::read_to_string(&log).is_ok_and(|log| log.lines().count() >= 2) {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    let fallback = part.path().join("fallback");
    let parts = || {
        let names = fs::read_dir(fallback.join("files")).unwrap();
        let names = names.map(|name| name.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".part")).count()
    };
    let copies = Copies::of(whole.path());
    let sizes = copies::bytes_of(whole.path(), is_shard);
    let mut options = options(part.path(), 4, 4, Some(Arc::clone(&copies)));
    // So little that what is left behind must go or be taken over.
    options.remote.cache_disk = Some(*sizes.iter().max().unwrap());
    let mut reader = Reader::open(options).unwrap();
    // Somebody else is bringing it, and waits for ever.
    assert!(parts() > 0);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(epoch(&mut reader), expected);
    drop(reader);
    assert_eq!(parts(), 0);
    assert_eq!(fs::read_dir(fallback.join("readers")).unwrap().count(), 0);
}

/// Bounds the address space of this process to `more` than it has now, or not at all.
fn limit(more: Option<u64>) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kibibytes: u64 = line.unwrap().trim_end_matches("kB").trim().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    let current = more.map_or(maximum, |more| Some(kibibytes * 1024 + more));
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// Threads of this process that bring files.
fn fetchers() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")));
    // One that has just ended has no name.
    let names = names.filter_map(Result::ok);
    names
        .filter(|name| name.starts_with("stoker-fetch"))
        .count()
}

#[test]
#[ignore = "the body of the test below, in a process of its own"]
fn lack_threads_in_a_child() {
    let folders = std::env::var_os(CHILD).unwrap();
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    let [whole, part] = folders.as_slice() else {
        panic!("{folders:?}");
    };
    let expected = epoch(&mut Reader::open(options(whole, 4, 4, None)).unwrap());
    let mut reader = Reader::open(options(part, 4, 4, Some(Copies::of(whole)))).unwrap();
    // Enough for the four that bring files, too little for one that reads.
    limit(Some(4 * STACK_BYTES + STACK_BYTES / 2));
    let fault = reader.next_batch(None).unwrap_err();
    assert!(matches!(fault, Error::Thread { .. }), "{fault}");
    let mut looks = (0..10_000).map(|_| std::thread::sleep(Duration::from_millis(1)));
    assert!(looks.any(|()| fetchers() == 0));
    limit(None);
    assert_eq!(epoch(&mut reader), expected);
    assert!(fetchers() > 0);
}

#[test]
fn where_a_thread_cannot_be_had_the_others_end() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let folders = std::env::join_paths([whole.path(), part.path()]).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "lack_threads_in_a_child",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD, folders)
        .env("RUST_MIN_STACK", STACK_BYTES.to_string())
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}
