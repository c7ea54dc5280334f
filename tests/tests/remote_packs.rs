//! Pack tables go with their cache: through a push, a sync of everything and of a share, and a repair.

use std::fs;
use std::path::Path;

use stoker_tests::cache::{assert_same, files, flip};
use stoker_tests::command::Run;
use stoker_tests::parts::small;
use stoker_tests::remote::{Scene, on_node, push, sync, through};

const SAMPLES: [u64; 3] = [40, 7, 12];

/// Makes a table in which some samples are left out, so that it has two files beside its entry.
fn pack(cache: &Path, name: &str, tokens: &str) {
    let run = Run::stoker(["pack", "--max-tokens", tokens, "--name", name]);
    let _ = run.args([cache]).end().expect_code(0);
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
