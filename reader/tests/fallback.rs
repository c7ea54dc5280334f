//! Files that a node lacks come from elsewhere: what is read is the same, within the bound, each file once.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

mod copies;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use copies::{
    Copies, Trouble, bytes_of, epoch, held, holding, is_shard, options, seen, some, whole,
};
use stoker_reader::{
    Cursor, Error, Held, Limit, NodePlan, Placement, Reader, ReaderOptions, RemoteFault, Step,
};

/// Names the folders for a child process that runs one test of this file by itself.
const CHILD: &str = "STOKER_TEST_FALLBACK";

/// A shard with one image that no sample shows.
const UNSHOWN: &str = "images-11111111111111111111111111111111/shards/p0000-000005.arrow";

/// Whether a file is of the other split, or nobody needs it.
fn is_other(name: &str) -> bool {
    name.contains("p0003") || name.ends_with(UNSHOWN)
}

/// Node n holds these partitions.
fn placed(nodes: &[&[u32]]) -> Placement {
    let held = |partition: &u32| Held {
        cache: 0,
        partition: *partition,
    };
    let nodes: Vec<Vec<Held>> = nodes
        .iter()
        .map(|node| node.iter().map(held).collect())
        .collect();
    Placement::new(&nodes).unwrap()
}

/// What each node will have to bring.
fn plan_of(reader: &Reader) -> Vec<NodePlan> {
    let planner = reader.planner().unwrap();
    planner.plan(&|| false).unwrap().unwrap()
}

fn of_node(mut options: ReaderOptions, node: u32, nodes: &[&[u32]]) -> ReaderOptions {
    let count = nodes.len() as u32;
    (options.world.rank, options.world.world_size) = (node, count);
    (options.world.node_rank, options.world.num_nodes) = (node, count);
    options.placement = placed(nodes);
    options
}

#[test]
fn nodes_that_hold_unequal_shares_read_the_same_with_a_fallback() {
    let whole = whole();
    // Three partitions on two nodes.
    let nodes: [&[u32]; 2] = [&[0, 2], &[1]];
    let expected: Vec<_> = (0..2)
        .map(|node| {
            let mut options = of_node(options(whole.path(), 8, 2, None), node, &nodes);
            options.placement = placed(&nodes);
            epoch(&mut Reader::open(options).unwrap())
        })
        .collect();
    let copies = Copies::of(whole.path());
    let (mut lacking, mut brought, mut remote_units) = (0, 0, 0);
    for node in 0..2u32 {
        let part = some(whole.path(), holding(nodes[node as usize]));
        let alone = of_node(options(part.path(), 8, 2, None), node, &nodes);
        let refused = Reader::open(alone).map(|mut reader| {
            while let Step::Batch(_) = reader.next_batch(None)? {}
            Ok::<_, Error>(())
        });
        lacking += usize::from(matches!(refused, Err(Error::Remote { .. })));
        let with = of_node(
            options(part.path(), 8, 2, Some(Arc::clone(&copies))),
            node,
            &nodes,
        );
        let mut reader = Reader::open(with).unwrap();
        let plan = plan_of(&reader);
        assert_eq!(epoch(&mut reader), expected[node as usize]);
        let (stats, plan) = (reader.stats().unwrap(), &plan[node as usize]);
        // What is brought may be for the next epoch already.
        let lacked = bytes_of(whole.path(), |name| {
            let held = holding(nodes[node as usize]);
            is_shard(name) && !held(name) && !name.contains("p0003")
        });
        let lacked: u64 = lacked.iter().sum();
        assert!(stats.fetched_bytes <= stats.held_bytes && stats.held_bytes <= lacked);
        assert!(plan.bytes == plan.bytes_at_most && plan.bytes <= lacked);
        assert_eq!(plan.units == 0, plan.bytes == 0);
        assert!(plan.bytes * 2 > lacked || plan.units == 0, "{plan:?}");
        remote_units += plan.units;
        brought += stats.fetched_files;
        // Nothing of its own was brought.
        let own = nodes[node as usize]
            .iter()
            .map(|part| format!("/p{part:04}-"));
        let mut own = own.flat_map(|own| {
            let names = copies.brought().into_keys();
            names
                .filter(move |name| name.contains(&own))
                .collect::<Vec<_>>()
        });
        assert_eq!(own.next(), None);
    }
    assert!(lacking > 0 && brought > 0 && remote_units > 0);
}

#[test]
fn a_replaced_node_with_an_empty_disk_reads_everything_from_elsewhere() {
    let whole = whole();
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    for keep in ["nothing", "manifest.json", "index"] {
        let part = some(whole.path(), |name| {
            name.contains(keep) || keep == "index" && name == "manifest.json"
        });
        let copies = Copies::of(whole.path());
        let alone = Reader::open(options(part.path(), 4, 4, None)).unwrap_err();
        assert!(matches!(
            alone,
            Error::NotACache { .. } | Error::Missing { .. }
        ));
        let mut reader =
            Reader::open(options(part.path(), 4, 4, Some(Arc::clone(&copies)))).unwrap();
        let plan = plan_of(&reader).remove(0);
        assert_eq!(epoch(&mut reader), expected, "{keep}");
        let brought = copies.brought();
        assert!(brought.values().all(|times| *times == 1), "{brought:?}");
        let stats = reader.stats().unwrap();
        assert_eq!(stats.fetched_files as usize, brought.len());
        let wanted = bytes_of(whole.path(), |name| {
            !is_other(name) && (is_shard(name) || keep != "index" && name.contains("/index/"))
        });
        assert_eq!(stats.fetched_bytes, wanted.iter().sum::<u64>());
        let shards = bytes_of(whole.path(), |name| is_shard(name) && !is_other(name));
        let unshown = bytes_of(whole.path(), |name| name.ends_with(UNSHOWN));
        // The plan does not know of those that no sample shows.
        let shards = [shards, unshown].concat();
        assert_eq!(
            (plan.bytes, plan.shards as usize),
            (shards.iter().sum(), shards.len())
        );
        // What is there is found by the next one.
        drop(reader);
        let again = Copies::of(whole.path());
        let mut reader =
            Reader::open(options(part.path(), 4, 4, Some(Arc::clone(&again)))).unwrap();
        assert_eq!(epoch(&mut reader), expected);
        assert_eq!(again.brought(), BTreeMap::new());
        assert_eq!(reader.stats().unwrap().fetched_bytes, 0);
    }
}

/// The largest shard of a split, and the sum of its shards.
fn shard_sizes(root: &Path) -> (u64, u64) {
    let sizes = bytes_of(root, |name| is_shard(name) && !name.contains("p0003"));
    (*sizes.iter().max().unwrap(), sizes.iter().sum())
}

#[test]
fn a_bound_below_what_is_remote_holds_at_every_moment() {
    let whole = whole();
    let (largest, sum) = shard_sizes(whole.path());
    let expected = epoch(&mut Reader::open(options(whole.path(), 8, 4, None)).unwrap());
    let mut fetched = Vec::new();
    for bound in [largest, 3 * largest, sum / 2] {
        let part = some(whole.path(), |name| !is_shard(name));
        let copies = Copies::of(whole.path());
        copies.watch(part.path().join("fallback"), bound);
        let mut options = options(part.path(), 8, 4, Some(Arc::clone(&copies)));
        options.remote.cache_disk = Some(bound);
        options.threads = 3;
        let mut reader = Reader::open(options).unwrap();
        let plan = plan_of(&reader).remove(0);
        assert!(plan.bytes <= plan.bytes_at_most && plan.bytes == sum);
        let mut batches = Vec::new();
        while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
            copies.check_bound();
            batches.push(seen(&batch));
        }
        assert_eq!(batches, expected, "{bound}");
        let stats = reader.stats().unwrap();
        assert!(stats.evicted_bytes > 0 && stats.held_bytes <= bound);
        assert!(*copies.most.lock().unwrap() * 2 > bound);
        fetched.push(stats.fetched_bytes);
    }
    // More room, less to bring twice.
    assert!(fetched[2] < fetched[0] && fetched[2] >= sum, "{fetched:?}");
}

#[test]
fn a_shard_larger_than_the_bound_is_refused_at_once() {
    let whole = whole();
    let (largest, _) = shard_sizes(whole.path());
    let part = some(whole.path(), |name| !is_shard(name));
    let copies = Copies::of(whole.path());
    let mut options = options(part.path(), 4, 4, Some(Arc::clone(&copies)));
    options.remote.cache_disk = Some(largest - 1);
    let fault = Reader::open(options.clone()).unwrap_err();
    let Error::Fallback {
        fault: RemoteFault::NoRoom { bytes, .. },
        ..
    } = &fault
    else {
        panic!("{fault}");
    };
    assert_eq!(*bytes, largest);
    let text = fault.to_string();
    assert!(
        text.contains("shards/p000") && text.contains("`s3://copies/cache`"),
        "{text}"
    );
    assert!(fault.hint().unwrap().contains("cache_disk"));
    options.remote.cache_disk = None;
    let fault = Reader::open(options).unwrap_err();
    assert!(fault.to_string().contains("cache_disk"), "{fault}");
    assert_eq!(copies.brought(), BTreeMap::new());
}

#[test]
fn a_fallback_of_another_cache_is_refused() {
    let (whole, other) = (whole(), tempfile::tempdir().unwrap());
    let content = synthetic::content_of(&[5, 5, 3]);
    synthetic::write(other.path(), &content, &synthetic::opaque_tables());
    let copies = Copies::of(other.path());
    let part = some(whole.path(), |name| !is_shard(name));
    let open = |path: &Path| Reader::open(options(path, 4, 4, Some(Arc::clone(&copies))));
    let fault = open(part.path()).unwrap_err();
    assert!(matches!(fault, Error::OtherFallback { .. }), "{fault}");
    copies.suffer(Trouble::Fails("manifest"));
    for path in [part.path(), tempfile::tempdir().unwrap().path()] {
        let fault = open(path).unwrap_err().to_string();
        assert!(
            fault.contains("`manifest.json`: the bucket is on fire"),
            "{fault}"
        );
    }
    // A node that lacks nothing does not ask.
    let expected = epoch(&mut Reader::open(options(whole.path(), 4, 4, None)).unwrap());
    assert_eq!(epoch(&mut open(whole.path()).unwrap()), expected);
    assert!(!whole.path().join("fallback").exists());
}

#[test]
fn a_run_resumes_with_a_fallback_as_without() {
    let whole = whole();
    let part = some(whole.path(), holding(&[1]));
    let expected = epoch(&mut Reader::open(options(whole.path(), 8, 4, None)).unwrap());
    let copies = Copies::of(whole.path());
    let (largest, _) = shard_sizes(whole.path());
    let open = || {
        let mut options = options(part.path(), 8, 4, Some(Arc::clone(&copies)));
        options.remote.cache_disk = Some(4 * largest);
        Reader::open(options).unwrap()
    };
    let mut saved = Vec::new();
    let mut reader = open();
    for batch in &expected {
        saved.push(reader.cursor().unwrap().to_json());
        let Step::Batch(found) = reader.next_batch(None).unwrap() else {
            panic!("an epoch of {} batches", expected.len());
        };
        assert_eq!(seen(&found), *batch);
    }
    for at in (0..saved.len()).rev().step_by(5) {
        let cursor = Cursor::from_json(&saved[at]).unwrap();
        // One that goes on elsewhere, and one that begins there.
        reader.restore(&cursor).unwrap();
        assert_eq!(epoch(&mut reader), expected[at..]);
        let mut other = open();
        other.restore(&cursor).unwrap();
        assert_eq!(epoch(&mut other), expected[at..]);
        let mut without = Reader::open(options(whole.path(), 8, 4, None)).unwrap();
        without.restore(&cursor).unwrap();
        assert_eq!(epoch(&mut without), expected[at..]);
    }
}

#[test]
fn time_for_files_that_are_elsewhere_is_remote() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let copies = Copies::of(whole.path());
    let (largest, _) = shard_sizes(whole.path());
    let mut options = options(part.path(), 4, 4, Some(copies));
    // All but nothing can be brought ahead: each row waits.
    options.remote.cache_disk = Some(largest);
    let mut reader = Reader::open(options).unwrap();
    assert_eq!(reader.stats().unwrap().remote_seconds, 0.0);
    let count = epoch(&mut reader).len();
    assert_eq!(count, 27);
    let stats = reader.stats().unwrap();
    assert!(stats.remote_seconds > stats.read_seconds, "{stats:?}");
    assert_eq!(stats.limit, Limit::Remote);
    assert_eq!(stats.limit.name(), "remote");
}

/// Runs test `name` of this file in a process of its own.
fn child(name: &str, folders: &[&Path]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let folders = std::env::join_paths(folders).unwrap();
    command
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(CHILD, folders);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn folders() -> Vec<std::path::PathBuf> {
    let folders = std::env::var_os(CHILD).unwrap();
    std::env::split_paths(&folders).collect()
}

#[test]
#[ignore = "the body of the test below, in a process of its own"]
fn read_in_a_child() {
    let folders = folders();
    let [whole, part, log, bound] = folders.as_slice() else {
        panic!("{folders:?}");
    };
    let bound: u64 = bound.to_str().unwrap().parse().unwrap();
    let expected = epoch(&mut Reader::open(options(whole, 4, 4, None)).unwrap());
    let copies = Copies::logging(whole, Some(log.clone()));
    copies.watch(part.join("fallback"), bound);
    let mut options = options(part, 4, 4, Some(copies));
    options.remote.cache_disk = Some(bound);
    let mut reader = Reader::open(options).unwrap();
    assert_eq!(epoch(&mut reader), expected);
}

/// Four processes read a cache from elsewhere into one folder; what they bring.
fn four_processes(whole: &Path, part: &Path, bound: u64) -> Vec<String> {
    let log = part.join("log");
    let bound = bound.to_string();
    let children: Vec<_> = (0..4)
        .map(|_| {
            let folders = [whole, part, &log, Path::new(&bound)];
            child("read_in_a_child", &folders).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
    }
    // Nobody is left.
    let readers = fs::read_dir(part.join("fallback/readers")).unwrap();
    assert_eq!(readers.count(), 0);
    let log = fs::read_to_string(&log).unwrap();
    log.lines().map(str::to_owned).collect()
}

#[test]
fn four_processes_with_room_for_one_shard_end_and_keep_the_bound() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let (largest, sum) = shard_sizes(whole.path());
    let lines = four_processes(whole.path(), part.path(), largest);
    let held = held(&part.path().join("fallback"));
    assert!(held <= largest && held > 0 && sum > largest);
    assert!(lines.len() > 100, "{}", lines.len());
}

#[test]
fn four_processes_bring_each_file_once() {
    let whole = whole();
    let part = some(whole.path(), |_| false);
    let mut lines = four_processes(whole.path(), part.path(), 1 << 30);
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), count);
    let wanted = bytes_of(whole.path(), |name| {
        (is_shard(name) || name.contains("/index/")) && !is_other(name)
    });
    assert_eq!(count, wanted.len());
}

#[test]
fn files_of_batches_to_come_are_brought_before_anybody_asks() {
    let whole = whole();
    let part = some(whole.path(), |name| !is_shard(name));
    let copies = Copies::of(whole.path());
    let mut options = options(part.path(), 4, 4, Some(Arc::clone(&copies)));
    options.prefetch_batches = 0;
    let mut reader = Reader::open(options).unwrap();
    // Twelve global batches, of which each deals some more.
    for _ in 0..12 {
        assert!(matches!(reader.next_batch(None).unwrap(), Step::Batch(_)));
    }
    let wanted = bytes_of(whole.path(), |name| is_shard(name) && !is_other(name));
    while copies.brought().len() < wanted.len() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let waited = reader.stats().unwrap().remote_seconds;
    assert_eq!(epoch(&mut reader).len(), 27 - 12);
    // All that is left was here: nobody waited again, and nothing came twice.
    assert_eq!(reader.stats().unwrap().remote_seconds, waited);
    assert!(copies.brought().values().all(|times| *times == 1));
}

#[test]
fn a_plan_goes_on_without_its_reader_until_it_is_stopped() {
    let whole = whole();
    let part = some(whole.path(), holding(&[1]));
    let copies = Copies::of(whole.path());
    let reader = Reader::open(options(part.path(), 8, 4, Some(copies))).unwrap();
    let planned = plan_of(&reader);
    assert!(planned[0].bytes > 0);
    let planner = reader.planner().unwrap();
    let batches = reader.epoch_batches() as usize / 2;
    let reader = RefCell::new(reader);
    // Asked before each global batch: the reader goes on, and then goes.
    let asked = Cell::new(0);
    let ask = || {
        asked.set(asked.get() + 1);
        let step = reader.borrow_mut().next_batch(None);
        assert!(matches!(step.unwrap(), Step::Batch(_)));
        false
    };
    assert_eq!(planner.plan(&ask).unwrap().unwrap(), planned);
    assert_eq!(asked.get(), batches);
    let later = plan_of(&reader.borrow());
    assert!(later[0].units < planned[0].units, "{later:?}");
    drop(reader);
    assert_eq!(planner.plan(&|| false).unwrap().unwrap(), planned);
    asked.set(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() == 3
    };
    assert_eq!(planner.plan(&stop).unwrap(), None);
    assert_eq!(asked.get(), 3);
}
