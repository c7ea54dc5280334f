//! Who keeps which file when there is no room for all.

use std::fs::{self, File};
use std::path::Path;

use stoker_formats::ContentHash;

use super::folder::{Content, Folder, Need, Needs, Taken, lock};

const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;

fn content(number: u8, bytes: u64) -> Content {
    Content {
        hash: ContentHash([number; 32]),
        bytes,
    }
}

fn join(root: &Path, bound: u64, pins: &[ContentHash]) -> Folder {
    Folder::join(root.to_path_buf(), bound, pins, NEVER).unwrap()
}

/// Brings a file; whether there was room.
fn put(folder: &Folder, content: Content, need: Need, needs: &Needs) -> bool {
    match folder.take(content, need, needs, NEVER).unwrap() {
        Taken::Part(mut part) => {
            part.file().set_len(content.bytes).unwrap();
            part.finish(NEVER).unwrap();
            true
        }
        Taken::NoRoom => false,
        other => panic!("{other:?}"),
    }
}

fn has(folder: &Folder, number: u8) -> bool {
    let found = folder.pin(content(number, 10), |path| File::open(path));
    found.unwrap().is_some()
}

#[test]
fn what_all_readers_need_last_goes_first() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (join(root.path(), 40, &[]), join(root.path(), 40, &[]));
    for number in 1..=4 {
        assert!(put(&one, content(number, 10), Need::Now, &Needs::new()));
    }
    let soon = |needs: &[(u8, u32)]| -> Needs {
        let needs = needs.iter();
        needs
            .map(|(number, distance)| (content(*number, 10).hash, *distance))
            .collect()
    };
    // 1 is needed soon by one, 2 by the other, 3 late by both; nobody knows of 4.
    let (of_one, of_other) = (soon(&[(1, 2), (3, 90)]), soon(&[(2, 5), (3, 40)]));
    other.tell(&of_other, NEVER).unwrap();
    assert!(put(&one, content(5, 10), Need::In(3), &of_one));
    assert!(!has(&one, 4) && has(&one, 1) && has(&one, 2) && has(&one, 3));
    // What comes later than what is here stays away.
    let with = |needs: &Needs, more: (u8, u32)| [&needs[..], &soon(&[more])].concat();
    let of_one = with(&of_one, (5, 3));
    assert!(!put(&one, content(6, 10), Need::In(40), &of_one));
    assert!(put(&one, content(6, 10), Need::In(39), &of_one));
    assert!(!has(&one, 3) && has(&one, 5));
    let of_one = with(&of_one, (6, 39));
    // Who waits gets room whoever needs what; the latest goes.
    assert!(put(
        &other,
        content(7, 10),
        Need::Now,
        &with(&of_other, (7, 0))
    ));
    assert!(!has(&one, 6) && has(&one, 2));
    drop(of_one);
    assert_eq!(
        (one.held_bytes(), one.evicted_bytes(), other.evicted_bytes()),
        (40, 20, 10)
    );
    // Of a reader that is gone nothing is kept.
    drop(one);
    drop(other);
    let third = join(root.path(), 10, &[]);
    assert!(put(&third, content(8, 10), Need::In(9), &Needs::new()));
    assert_eq!(third.held_bytes(), 10);
}

#[test]
fn what_is_read_and_what_is_for_always_stays() {
    let root = tempfile::tempdir().unwrap();
    let folder = join(root.path(), 30, &[content(1, 10).hash]);
    for number in 1..=3 {
        assert!(put(&folder, content(number, 10), Need::Now, &Needs::new()));
    }
    let read = folder.pin(content(2, 10), |path| File::open(path)).unwrap();
    assert!(put(&folder, content(4, 10), Need::Now, &Needs::new()));
    assert!(has(&folder, 1) && has(&folder, 2) && !has(&folder, 3));
    assert!(!put(&folder, content(5, 20), Need::Now, &Needs::new()));
    drop(read);
    assert!(put(&folder, content(5, 20), Need::Now, &Needs::new()));
    assert!(has(&folder, 1) && !has(&folder, 2) && !has(&folder, 4));
    // Never, whatever goes.
    assert!(!put(&folder, content(6, 31), Need::Now, &Needs::new()));
}

#[test]
fn room_is_taken_before_the_first_byte_and_given_back() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (join(root.path(), 30, &[]), join(root.path(), 30, &[]));
    let take = |folder: &Folder, content| {
        let taken = folder
            .take(content, Need::Now, &Needs::new(), NEVER)
            .unwrap();
        match taken {
            Taken::Part(_) => "part",
            Taken::Busy => "busy",
            Taken::Here => "here",
            Taken::NoRoom => "no room",
        }
    };
    let Taken::Part(part) = one
        .take(content(1, 20), Need::Now, &Needs::new(), NEVER)
        .unwrap()
    else {
        panic!("an empty folder");
    };
    assert_eq!(
        (one.held_bytes(), part.file().metadata().unwrap().len()),
        (20, 0)
    );
    assert_eq!(take(&other, content(1, 20)), "busy");
    assert_eq!(take(&other, content(2, 20)), "no room");
    drop(part);
    assert_eq!(one.held_bytes(), 0);
    assert_eq!(take(&other, content(2, 20)), "part");
    // One that a killed process left has no lock: it is taken over, or goes.
    let left = |number: u8| {
        let name = format!("{}.20.part", content(number, 20).hash);
        let path = root.path().join("files").join(name);
        fs::write(&path, [number; 15]).unwrap();
        path
    };
    let path = left(3);
    let Taken::Part(mut part) = one
        .take(content(3, 20), Need::Now, &Needs::new(), NEVER)
        .unwrap()
    else {
        panic!("nobody has it");
    };
    assert_eq!(part.file().metadata().unwrap().len(), 0);
    assert!(part.finish(NEVER).is_err(), "20 bytes are missing");
    part.file().set_len(20).unwrap();
    part.finish(NEVER).unwrap();
    drop(part);
    assert!(!path.exists());
    assert_eq!(take(&other, content(3, 20)), "here");
    let path = left(4);
    assert_eq!(take(&other, content(5, 30)), "part");
    assert!(!path.exists() && other.held_bytes() == 0);
}

#[test]
fn a_file_that_is_removed_while_it_is_opened_is_not_taken_for_one_that_stays() {
    let root = tempfile::tempdir().unwrap();
    let folder = join(root.path(), 10, &[]);
    assert!(put(&folder, content(1, 10), Need::Now, &Needs::new()));
    let found = folder.pin(content(1, 10), |path| {
        let file = File::open(path)?;
        assert!(put(&folder, content(2, 10), Need::Now, &Needs::new()));
        Ok(file)
    });
    assert!(found.unwrap().is_none());
    // Nor one that somebody has cut.
    File::options()
        .write(true)
        .open(folder.path(content(2, 10).hash))
        .unwrap()
        .set_len(3)
        .unwrap();
    assert!(!has(&folder, 2));
    assert!(put(&folder, content(2, 10), Need::Now, &Needs::new()));
}

/// A duplicate has the lock of what it was made of, as the descriptors of a fork have.
#[test]
fn a_fork_that_lives_on_keeps_no_lock() {
    let root = tempfile::tempdir().unwrap();
    let (one, other) = (join(root.path(), 10, &[]), join(root.path(), 10, &[]));
    let folder_lock = lock(root.path(), NEVER).unwrap();
    let mut forked = vec![folder_lock.try_clone().unwrap()];
    assert!(other.tell(&Needs::new(), &|| true).is_err());
    drop(folder_lock);
    other.tell(&Needs::new(), &|| true).unwrap();
    // There is room for one file: each has to make room for the next one.
    let taken = one.take(content(1, 10), Need::Now, &Needs::new(), NEVER);
    let Taken::Part(mut part) = taken.unwrap() else {
        panic!("an empty folder");
    };
    forked.push(part.file().try_clone().unwrap());
    part.file().set_len(10).unwrap();
    part.finish(NEVER).unwrap();
    assert!(!put(&other, content(2, 10), Need::Now, &Needs::new()));
    drop(part);
    assert!(put(&other, content(2, 10), Need::Now, &Needs::new()));
    let read = one.pin(content(2, 10), |path| File::open(path));
    let read = read.unwrap().unwrap();
    forked.push(read.try_clone().unwrap());
    assert!(!put(&other, content(3, 10), Need::Now, &Needs::new()));
    drop(read);
    assert!(put(&other, content(3, 10), Need::Now, &Needs::new()));
    assert_eq!(forked.len(), 3);
}
