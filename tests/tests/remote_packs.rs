//! Pack tables go with their cache: through a push, a sync of everything and of a share, and a repair.

use std::fs;
use std::path::Path;

use stoker_tests::cache::{assert_same, files, flip};
use stoker_tests::clean::slowed;
use stoker_tests::command::Run;
use stoker_tests::parts::small;
use stoker_tests::remote::{Scene, on_node, push, sync, through};

const SAMPLES: [u64; 3] = [40, 7, 12];

/// Makes a table in which some samples are left out, so that it has two files beside its entry.
fn pack(cache: &Path, name: &str, tokens: &str) {
    let run = Run::stoker(["pack", "--max-tokens", tokens, "--name", name]);
    let _ = run.args([cache]).end().expect_code(0);
}

/// The same, and a second one that leaves out the same samples: both name the same list of these.
fn pack_twins(cache: &Path) {
    pack(cache, "first", "8");
    let run = Run::stoker(["pack", "--max-tokens", "8", "--name", "second"]);
    let run = run.args(["--seed", "5", "--by-modality"]);
    let _ = run.args([cache]).end().expect_code(0);
    let tables = packs(cache, ".parquet");
    assert!(tables.len() < 4, "{tables:?}");
}

/// The names below `packs/` that end so.
fn packs(root: &Path, end: &str) -> Vec<String> {
    let is_it = |name: &String| name.starts_with("packs/") && name.ends_with(end);
    files(root).into_keys().filter(is_it).collect()
}

#[test]
fn tables_come_with_everything_and_with_a_share() {
    let scene = Scene::new(&SAMPLES);
    let server = scene.serve();
    pack(&scene.cache(), "first", "8");
    let table = packs(&scene.cache(), ".parquet");
    assert_eq!(table.len(), 2, "a table, and one of what is left out");
    let folder = scene.path("remote").display().to_string();
    for (number, place) in [folder.as_str(), "s3://bucket/packed"].iter().enumerate() {
        let here = |run: Run| through(run, &server.endpoint()).args(["--json"]);
        let put = here(push(&scene.cache(), place)).end().expect_code(0);
        assert!(put.json()["files"].as_u64() > Some(20));
        let (whole, share) = (
            scene.path(&format!("whole-{number}")),
            scene.path(&format!("share-{number}")),
        );
        let of_share = || on_node(sync(place, &share), 1, 3);
        let _ = here(sync(place, &whole)).end().expect_code(0);
        let _ = here(of_share()).end().expect_code(0);
        assert_same(&files(&scene.cache()), &files(&whole), place);
        assert_same(&small(&scene.cache()), &small(&share), "small files");
        // A table that is made later goes alone: its files and its entry.
        pack(&scene.cache(), "second", "24");
        let second = here(push(&scene.cache(), place)).end().expect_code(0);
        let all = packs(&scene.cache(), "").len();
        assert_eq!(
            second.json()["files"],
            (all - 3) as u64,
            "{}",
            second.stdout
        );
        let _ = here(of_share()).end().expect_code(0);
        assert_same(&small(&scene.cache()), &small(&share), "the second table");
        let read = |root: &Path| {
            let run = Run::stoker(["read", "--json", "--ids", "--pack", "second"]);
            let run = run.args(["--batch-size", "4"]).args([root]);
            run.end().expect_code(0).stdout
        };
        let _ = here(sync(place, &whole)).end().expect_code(0);
        assert_eq!(read(&scene.cache()), read(&whole));
        for name in packs(&scene.cache(), "") {
            if name.contains("second") || !table.contains(&name) && name.ends_with(".parquet") {
                fs::remove_file(scene.cache().join(name)).expect("ours");
            }
        }
    }
}

#[test]
fn a_damaged_entry_stops_a_push() {
    let scene = Scene::new(&SAMPLES);
    pack(&scene.cache(), "first", "8");
    flip(&scene.cache().join("packs/first.json"));
    let remote = scene.path("remote");
    let ended = push(&scene.cache(), &remote.display().to_string()).end();
    let ended = ended.expect_code(1);
    assert!(
        ended.stderr.contains("packs/first.json"),
        "{}",
        ended.stderr
    );
    assert!(!remote.join("manifest.json").exists());
}

#[test]
fn damaged_tables_and_entries_are_mended_and_damage_does_not_spread() {
    let scene = Scene::new(&SAMPLES);
    pack(&scene.cache(), "first", "8");
    let remote = scene.path("remote");
    let place = remote.display().to_string();
    let _ = push(&scene.cache(), &place).end().expect_code(0);
    let share = scene.path("share");
    let from = || on_node(sync(&place, &share), 0, 3);
    let _ = from().end().expect_code(0);
    let good = files(&share);
    let tables = packs(&share, ".parquet");
    flip(&share.join(&tables[0]));
    fs::remove_file(share.join(&tables[1])).unwrap();
    let repair = Run::stoker(["repair", "--from", &place]).args([&share]);
    let _ = repair.end().expect_code(0);
    assert_same(&good, &files(&share), "tables");
    flip(&share.join("packs/first.json"));
    fs::remove_file(share.join(&tables[0])).unwrap();
    let _ = repair.end().expect_code(0);
    assert_same(
        &good,
        &files(&share),
        "an entry, and a table that nothing named",
    );
    // The remote holds a damaged one: what is here stays, what is not does not come, and no entry names it.
    flip(&remote.join(&tables[0]));
    let _ = repair.end().expect_code(0);
    assert_same(&good, &files(&share), "not asked for");
    fs::remove_dir_all(&share).unwrap();
    let ended = from().end().expect_code(2);
    assert!(ended.stderr.contains(&tables[0]), "{}", ended.stderr);
    assert!(!share.join("packs/first.json").exists());
    let ended = push(&share, &place).end();
    assert_eq!(ended.code, Some(2), "a share that is not whole is no cache");
}

#[test]
fn a_file_that_two_tables_name_is_put_brought_and_mended_once() {
    let scene = Scene::new(&SAMPLES);
    pack_twins(&scene.cache());
    let all = files(&scene.cache());
    let count = all.values().filter(|hash| !hash.is_empty()).count() as u64;
    // What neither the manifest nor an entry names: these three.
    let named = count - 3;
    let place = scene.path("remote").display().to_string();
    let report = |run: Run| run.args(["--json"]).end().expect_code(0).json();
    assert_eq!(report(push(&scene.cache(), &place))["files"], count);
    assert_eq!(report(push(&scene.cache(), &place))["files_there"], count);
    let copy = scene.path("copy");
    assert_eq!(report(sync(&place, &copy))["files"], named);
    assert_eq!(report(sync(&place, &copy))["files_kept"], named);
    assert_same(&all, &files(&copy), "brought");
    let repair = Run::stoker(["repair", "--from", &place]).args([&copy]);
    for table in packs(&copy, ".parquet") {
        flip(&copy.join(&table));
        let repaired = report(repair.clone());
        assert_eq!(repaired["files"], named);
        assert_eq!(repaired["damages"].as_array().map(Vec::len), Some(1));
    }
    // Slow syncs: if both entries were mended at once, both would write what they share.
    for name in ["packs/first.json", "packs/second.json"] {
        flip(&copy.join(name));
    }
    for table in packs(&copy, ".parquet") {
        fs::remove_file(copy.join(table)).unwrap();
    }
    let _ = slowed(&repair, 100).end().expect_code(0);
    assert_same(&all, &files(&copy), "mended");
}

/// What the remote holds damaged stays damaged here, and nothing else does.
#[test]
fn a_damaged_entry_of_the_remote_costs_no_other_file_its_repair() {
    let scene = Scene::new(&SAMPLES);
    pack_twins(&scene.cache());
    let remote = scene.path("remote");
    let place = remote.display().to_string();
    let _ = push(&scene.cache(), &place).end().expect_code(0);
    let copy = scene.path("copy");
    let _ = sync(&place, &copy).end().expect_code(0);
    let good = files(&copy);
    let shard = good.keys().find(|name| name.contains("/shards/p0001-"));
    let shard = shard.expect("a shard").clone();
    let (first, second) = ("packs/first.json", "packs/second.json");
    let entry = fs::read(remote.join(first)).unwrap();
    flip(&remote.join(first));
    for name in [first, second, &shard] {
        flip(&copy.join(name));
    }
    let repair = Run::stoker(["repair", "--from", &place]).args([&copy]);
    let text = repair.end().expect_code(1).stdout;
    for line in [
        format!("mended       {shard}"),
        format!("mended       {second}"),
        format!("DAMAGED      {first}"),
        format!("{place}/{first}"),
    ] {
        assert!(text.contains(&line), "{line} in\n{text}");
    }
    fs::write(remote.join(first), entry).unwrap();
    let _ = repair.end().expect_code(0);
    assert_same(&good, &files(&copy), "mended");
}
