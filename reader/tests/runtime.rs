//! What happens to a reader while the world around it changes: damage, few descriptors, many readers, fewer ranks.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stoker_reader::{
    Backend, Batch, Cursor, Last, Pixels, Reader, ReaderOptions, Step, Tail, Verify, Views,
};

const PARTITIONS: [u64; 4] = [40, 31, 37, 3];

/// Names the cache for a child process that runs one test of this file by itself.
const CHILD: &str = "STOKER_TEST_READ_CACHE";

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&PARTITIONS);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    folder
}

fn options(path: &Path, global: u32, micro: u32) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, global);
    options.world.micro_batch_size = micro;
    options.order.tail = Tail::All;
    options.order.last = Last::Pad;
    options.pixels = Pixels::U8;
    options.sample_ids = true;
    options
}

fn shards(root: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for plan in fs::read_dir(root).unwrap() {
        if let Ok(entries) = fs::read_dir(plan.unwrap().path().join("shards")) {
            paths.extend(entries.map(|entry| entry.unwrap().path()));
        }
    }
    // The last partition is the other split.
    paths.retain(|path| !path.to_string_lossy().contains("/p0003-"));
    paths.sort();
    paths
}

fn content(batch: &Batch) -> Vec<Vec<u8>> {
    let tensors = batch.tensors().iter();
    tensors.map(|tensor| batch.bytes(tensor).to_vec()).collect()
}

/// All batches of one epoch of one rank.
fn epoch(mut reader: Reader) -> Vec<(Vec<String>, Vec<Vec<u8>>)> {
    let mut batches = Vec::new();
    while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
        batches.push((batch.sample_ids.clone().unwrap(), content(&batch)));
    }
    batches
}

/// Draws without a library: the low bits of a linear generator are poor, the high ones are not.
fn draw(state: &mut u64, below: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

#[test]
fn damage_while_reading_is_an_error_with_shard_and_row_and_never_a_wrong_byte() {
    let mut state = 5;
    let mut found = 0;
    let folder = made();
    let paths = shards(folder.path());
    let intact = epoch(Reader::open(options(folder.path(), 4, 4)).unwrap());
    for backend in [Backend::Pread, Backend::Direct] {
        for round in 0..100 {
            let mut options = options(folder.path(), 4, 4);
            (options.verify, options.backend) = (Verify::Always, backend);
            options.prefetch_batches = 2;
            let mut reader = Reader::open(options).unwrap();
            let moment = draw(&mut state, intact.len());
            for expected in &intact[..moment] {
                match reader.next_batch(None) {
                    Ok(Step::Batch(batch)) => assert_eq!(content(&batch), expected.1),
                    Ok(_) => panic!("an epoch of {} batches", intact.len()),
                    // Memory file systems may have no direct reads; then this backend is tried where it has them.
                    Err(error) if error.to_string().contains("no direct reads") => return,
                    Err(error) => panic!("{error}"),
                }
            }
            let path = &paths[draw(&mut state, paths.len())];
            let bytes = fs::read(path).unwrap();
            let length = bytes.len() as u64;
            match round % 4 {
                0 => {
                    let file = OpenOptions::new().write(true).open(path).unwrap();
                    file.set_len(length / 3).unwrap();
                }
                1 => {
                    let file = OpenOptions::new().write(true).open(path).unwrap();
                    file.write_all_at(&vec![0xa5; length as usize / 2], length / 4)
                        .unwrap();
                }
                2 => {
                    let other = &paths[draw(&mut state, paths.len())];
                    let other = fs::read(other).unwrap();
                    fs::remove_file(path).unwrap();
                    fs::write(path, other).unwrap();
                }
                _ => fs::remove_file(path).unwrap(),
            }
            for expected in &intact[moment..] {
                match reader.next_batch(None) {
                    Ok(Step::Batch(batch)) => assert_eq!(content(&batch), expected.1),
                    Ok(_) => panic!("an epoch of {} batches", intact.len()),
                    Err(error) => {
                        let text = error.to_string();
                        assert!(
                            text.contains(" row ") && text.contains("partition"),
                            "{text}"
                        );
                        assert!(text.contains("shard"), "{text}");
                        found += 1;
                        break;
                    }
                }
            }
            fs::write(path, bytes).unwrap();
        }
    }
    assert!(found > 40, "damage was met {found} times");
}

#[test]
fn every_flipped_bit_of_a_row_is_found() {
    let folder = made();
    let views = Views::open(folder.path()).unwrap();
    // Images that some sample shows.
    let samples = &synthetic::content_of(&PARTITIONS)[0].samples;
    let shown: BTreeSet<u32> = samples
        .iter()
        .flat_map(|sample| sample.images.clone())
        .collect();
    let rows: Vec<_> = (0..views.images(0).unwrap())
        .filter(|row| shown.contains(&(*row as u32)))
        .map(|row| views.range(0, row).unwrap())
        .filter(|(path, ..)| path.ends_with("p0000-000000.arrow"))
        .collect();
    let path = &rows[0].0;
    let intact = fs::read(path).unwrap();
    let open = || Reader::open(options(folder.path(), 108, 108));
    let before = epoch(open().unwrap());
    let mut inside = 0;
    // A prime step: every bit of a byte has its turn, in all parts of the file.
    for bit in (0..intact.len() * 8).step_by(2003) {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(path, &bytes).unwrap();
        let in_row = rows
            .iter()
            .any(|(_, offset, length)| (*offset..offset + length).contains(&(bit as u64 / 8)));
        inside += usize::from(in_row);
        match open().and_then(|mut reader| reader.next_batch(None)) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("p0000-000000.arrow"), "{text}");
                assert!(!in_row || text.contains("checksum differs"), "{text}");
            }
            Ok(Step::Batch(batch)) => {
                assert!(!in_row, "bit {bit} was not noticed");
                // Padding, or an image that no sample shows.
                assert_eq!(content(&batch), before[0].1);
            }
            Ok(step) => panic!("{step:?}"),
        }
    }
    assert!(inside > 40, "{inside}");
}

#[test]
fn other_worlds_resume_each_other_at_every_border() {
    let folder = made();
    let reader = |rank, world, micro| {
        let mut options = options(folder.path(), 24, micro);
        (options.world.rank, options.world.world_size) = (rank, world);
        Reader::open(options).unwrap()
    };
    // What one rank alone gets, global batch by global batch.
    let whole: Vec<BTreeSet<String>> = epoch(reader(0, 1, 24))
        .into_iter()
        .map(|(ids, _)| ids.into_iter().collect())
        .collect();
    let worlds = [1, 2, 3, 4, 6, 8];
    for (saved, resumed) in worlds
        .iter()
        .flat_map(|saved| worlds.map(|other| (*saved, other)))
    {
        for border in 1..whole.len() {
            let mut first = reader(0, saved, 24 / saved);
            for _ in 0..border {
                assert!(matches!(first.next_batch(None).unwrap(), Step::Batch(_)));
            }
            let cursor = first.cursor().unwrap().to_json();
            assert!(cursor.len() <= 1024);
            let mut rest: Vec<BTreeSet<String>> = vec![BTreeSet::new(); whole.len() - border];
            for rank in 0..resumed {
                let mut reader = reader(rank, resumed, 24 / resumed);
                reader
                    .restore(&Cursor::from_json(&cursor).unwrap())
                    .unwrap();
                for (into, (ids, _)) in rest.iter_mut().zip(epoch(reader)) {
                    into.extend(ids);
                }
            }
            assert_eq!(rest, whole[border..], "{saved} to {resumed} at {border}");
        }
    }
}

/// Runs test `name` of this file in a process of its own.
fn child(name: &str, cache: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, cache);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
#[ignore = "the body of the tests below, in a process of its own"]
fn read_in_a_child() {
    let path = std::env::var_os(CHILD).unwrap();
    let mut options = options(Path::new(&path), 4, 4);
    options.threads = 3;
    let batches = epoch(Reader::open(options).unwrap());
    assert_eq!(batches.len(), 27);
}

#[test]
fn many_processes_read_one_cache() {
    let folder = made();
    let children: Vec<_> = (0..64)
        .map(|_| child("read_in_a_child", folder.path()).spawn().unwrap())
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn few_descriptors_are_enough() {
    let folder = made();
    // More files than descriptors: 27 shards and 6 indexes of the split, and the process has some of its own.
    let shell = format!(
        "ulimit -n 32; exec '{}' read_in_a_child --exact --ignored --nocapture",
        std::env::current_exe().unwrap().display()
    );
    let output = Command::new("sh")
        .args(["-c", &shell])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_cache_that_nobody_may_write_is_read() {
    let folder = made();
    for entry in shards(folder.path()) {
        let mut permissions = fs::metadata(&entry).unwrap().permissions();
        permissions.set_readonly(true);
        fs::set_permissions(&entry, permissions).unwrap();
    }
    epoch(Reader::open(options(folder.path(), 4, 4)).unwrap());
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // Modes bind nobody who is root: a process of another user reads what only root owns.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = tempfile::tempdir().unwrap();
    fs::set_permissions(program.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = program.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let output = Command::new(&copy)
        .args(["read_in_a_child", "--exact", "--ignored"])
        .env(CHILD, folder.path())
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Waking a thread that makes batches does not take the processor from the trainer.
#[test]
fn threads_that_make_batches_are_batch_scheduled() {
    let folder = made();
    let mut reader = Reader::open(options(folder.path(), 2, 2)).unwrap();
    assert!(matches!(reader.next_batch(None), Ok(Step::Batch(_))));
    let mut policies = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
        // A thread may have ended meanwhile.
        let Ok(stat) = stat else { continue };
        let (name, fields) = stat.rsplit_once(')').unwrap();
        if name.ends_with("(stoker-0") || name.ends_with("(stoker-1") {
            // proc(5): the policy is field 41, and the third one follows the name.
            policies.push(fields.split_whitespace().nth(38).map(str::to_owned));
        }
    }
    // SCHED_BATCH. The other thread may have just begun.
    let scheduled = policies.iter().any(|policy| policy.as_deref() == Some("3"));
    assert!(scheduled, "{policies:?}");
}
