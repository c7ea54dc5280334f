//! The sources of `tests/fuzz`, compiled on the stable compiler with a stand-in for cargo-fuzz's macro, so that they
//! cannot rot unseen between two long runs (D6).

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;

use stoker_tests::command::repository;
use stoker_tests::fuzz::{Body, TARGETS};

// The sources name the macro by its crate.
extern crate self as libfuzzer_sys;

/// What cargo-fuzz's macro of this name makes of a body, without its loop.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        pub(crate) fn target($bytes: &[u8]) {
            $body;
        }
    };
}

#[path = "../fuzz/fuzz_targets/canary.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod canary;
#[path = "../fuzz/fuzz_targets/image.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod image;
#[path = "../fuzz/fuzz_targets/index.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod index;
#[path = "../fuzz/fuzz_targets/link.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod link;
#[path = "../fuzz/fuzz_targets/manifest.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod manifest;
#[path = "../fuzz/fuzz_targets/pack_entry.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod pack_entry;
#[path = "../fuzz/fuzz_targets/pack_table.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod pack_table;
#[path = "../fuzz/fuzz_targets/receipt.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod receipt;
#[path = "../fuzz/fuzz_targets/recipe.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod recipe;
#[path = "../fuzz/fuzz_targets/record.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod record;
#[path = "../fuzz/fuzz_targets/shard.rs"]
#[expect(unused_attributes, reason = "`no_main` is for a crate")]
mod shard;

/// Every source by its name.
const SOURCES: [(&str, Body); 11] = [
    ("canary", canary::target),
    ("image", image::target),
    ("index", index::target),
    ("link", link::target),
    ("manifest", manifest::target),
    ("pack_entry", pack_entry::target),
    ("pack_table", pack_table::target),
    ("receipt", receipt::target),
    ("recipe", recipe::target),
    ("record", record::target),
    ("shard", shard::target),
];

#[test]
fn every_target_has_a_source_and_a_program() {
    let folder = repository().join("tests/fuzz");
    let sources: BTreeSet<String> = SOURCES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let bodies = TARGETS.iter().map(|(name, _)| (*name).to_owned());
    let expected: BTreeSet<String> = bodies.chain(["canary".into()]).collect();
    assert_eq!(sources, expected);
    let files: BTreeSet<String> = fs::read_dir(folder.join("fuzz_targets"))
        .expect("the sources")
        .map(|entry| entry.expect("a source").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    assert_eq!(files, expected);
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("the manifest");
    for name in &expected {
        let program = format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&program), "no program `{name}`");
        let source = fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs")));
        let call = format!("stoker_tests::fuzz::{name}(bytes)");
        assert!(source.expect("a source").contains(&call), "{name}");
    }
}

#[test]
fn sources_call_bodies() {
    for (name, target) in SOURCES {
        target(b"neither a file nor a record");
        let found = catch_unwind(|| target(b"STOKER")).is_err();
        assert_eq!(found, name == "canary", "{name}");
    }
}
