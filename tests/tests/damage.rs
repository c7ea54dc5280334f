//! `stoker verify` finds every damaged file of a finished cache (H2): one flipped bit, one byte less,
//! one byte more, and the file gone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use stoker_tests::cache::files;
use stoker_tests::command::{Ended, Run};
use stoker_tests::corpus::Corpus;
use stoker_tests::dice::Dice;

fn verify(cache: &Path) -> Ended {
    Run::stoker(["verify", "--deep"]).args([cache]).end()
}

#[test]
fn every_damaged_file_is_found() {
    let corpus = Corpus::mixed(71, 9);
    let cache = corpus.output("cache");
    let _ = corpus.build(&cache).end().expect_code(0);
    let _ = verify(&cache).expect_code(0);
    let mut dice = Dice::new(71);
    let mut tried = 0;
    for name in files(&cache).into_keys() {
        let path = cache.join(&name);
        if path.is_dir() {
            continue;
        }
        let whole = fs::read(&path).expect("a file of the cache");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a writable file");
        let mut flipped = whole.clone();
        let at = dice.below(flipped.len());
        flipped[at] ^= 1 << dice.below(8);
        let shorter = whole[..whole.len() - 1].to_vec();
        let longer = [&whole[..], &[0]].concat();
        for (what, bytes) in [
            ("a flipped bit", flipped),
            ("a byte less", shorter),
            ("a byte more", longer),
        ] {
            fs::write(&path, bytes).expect("a damaged file");
            let ended = verify(&cache);
            assert_eq!(
                ended.code,
                Some(1),
                "{what} in {name}: {}{}",
                ended.stdout,
                ended.stderr
            );
            tried += 1;
        }
        fs::remove_file(&path).expect("a file less");
        let ended = verify(&cache);
        let code = if name == "manifest.json" { 2 } else { 1 };
        assert_eq!(
            ended.code,
            Some(code),
            "{name} gone: {}{}",
            ended.stdout,
            ended.stderr
        );
        fs::write(&path, &whole).expect("the whole file");
    }
    assert!(tried > 60, "{tried}");
    let _ = verify(&cache).expect_code(0);
}

#[test]
fn damage_is_told_even_where_the_cursor_cannot_be_saved() {
    let corpus = Corpus::mixed(72, 9);
    let cache = corpus.output("cache");
    let _ = corpus.build(&cache).end().expect_code(0);
    let damaged = files(&cache)
        .into_keys()
        .find(|name| name.starts_with("text-") && name.contains("/shards/"))
        .expect("a shard");
    let path = cache.join(damaged);
    let mut bytes = fs::read(&path).expect("a shard");
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x5a);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a writable file");
    fs::write(&path, bytes).expect("a damaged shard");
    let ended = Run::stoker(["read", "--batch-size", "1", "--cursor"])
        .args([&corpus.output("no-folder/cursor.json"), &cache])
        .end();
    // Not 2, the code of a cursor alone that cannot be saved.
    let ended = ended.expect_code(1);
    assert!(ended.stderr.contains("no-folder"), "{}", ended.stderr);
    assert!(ended.stderr.contains("shard"), "{}", ended.stderr);
    // A device that never ends is no cursor.
    let ended = Run::stoker(["read", "--batch-size", "1", "--cursor", "/dev/zero"])
        .args([&cache])
        .under(&["prlimit", "--as=4000000000"])
        .end()
        .expect_code(2);
    assert!(ended.stderr.contains("no cursor"), "{}", ended.stderr);
}
