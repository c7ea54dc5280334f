//! Every changed bit, every truncation and every extension of a small file: no panic, no wrong data, no large
//! allocation, and an error or a hash that differs.
#![expect(unsafe_code, reason = "a counting allocator")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{head, image_shard, manifest, sample_shard, some_images, some_samples};
use stoker_formats::{
    ContentHash, ImageIndex, ImageReceipt, Manifest, PlanId, Receipt, RejectEntry, SampleIndex,
    SampleReceipt, ShardHead, ShardKind, ShardRef, read_image, read_image_shard, read_sample,
    read_sample_shard, read_shard_head, write_image_index, write_sample_index,
};

/// Counts live bytes of each thread.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    LIVE.with(|live| {
        live.set(live.get() + change);
        PEAK.with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` on `bytes` and fails if it takes more memory at once than the file has bytes, and 1 MiB.
fn bounded<T>(bytes: &[u8], work: impl FnOnce(&[u8]) -> T) -> T {
    let before = LIVE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = work(bytes);
    let taken = PEAK.with(Cell::get) - before;
    assert!(
        taken <= bytes.len() as isize + (1 << 20),
        "{taken} bytes taken"
    );
    result
}

/// Calls `check` with every single-bit flip of `file`, and with words that claim a lot at every place.
fn flips(file: &[u8], mut check: impl FnMut(&[u8])) {
    let mut bytes = file.to_vec();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            bytes[place] ^= 1 << bit;
            check(&bytes);
            bytes[place] ^= 1 << bit;
        }
    }
    for place in (0..bytes.len() - 8).step_by(8) {
        for word in [
            u64::MAX,
            i64::MAX as u64,
            1 << 40,
            i32::MAX as u64,
            0x7fff_ffff_0000_0000,
        ] {
            bytes[place..place + 8].copy_from_slice(&word.to_le_bytes());
            if bytes != file {
                check(&bytes);
            }
            bytes[place..place + 8].copy_from_slice(&file[place..place + 8]);
        }
    }
}

/// Calls `check` with every truncation and some extensions of `file`.
fn cuts(file: &[u8], mut check: impl FnMut(&[u8])) {
    for length in 0..file.len() {
        check(&file[..length]);
    }
    for tail in [
        &[0][..],
        &[10],
        &[0; 64],
        &[0xff; 64],
        &file[file.len() - 10..],
        file,
    ] {
        check(&[file, tail].concat());
    }
}

/// A head without metadata keeps the files small.
fn small_head() -> ShardHead {
    ShardHead {
        metadata: Default::default(),
        ..head(3, 4, 5)
    }
}

#[test]
fn sample_shards() {
    let samples = some_samples();
    let shard = sample_shard(&small_head(), &samples);
    let (mut silent, mut all) = (0, 0);
    flips(&shard.out, |bytes| {
        all += 1;
        assert_ne!(ContentHash::of(bytes), shard.hash);
        if let Ok((found, entries)) = bounded(bytes, read_sample_shard)
            && entries == shard.entries
            && found == small_head()
        {
            silent += 1;
        }
        for (row, (entry, sample)) in shard.entries.iter().zip(&samples).enumerate() {
            match bounded(bytes, |bytes| read_sample(bytes, 3, 5 + row as u64, entry)) {
                Ok(found) => assert_eq!(&found, sample),
                Err(error) => assert!(error.to_string().contains("partition 3, shard `4`")),
            }
        }
    });
    // Bits that no reader looks at: slack inside the flatbuffers. The file's hash notices them.
    assert!(silent * 8 < all, "{silent} of {all}");
}

#[test]
fn cut_sample_shards() {
    let shard = sample_shard(&small_head(), &some_samples());
    cuts(&shard.out, |bytes| {
        assert!(bounded(bytes, read_sample_shard).is_err());
        assert!(bounded(bytes, |bytes| read_shard_head(bytes, ShardKind::Samples)).is_err());
    });
}

#[test]
fn image_shards() {
    let images = some_images();
    let shard = image_shard(&small_head(), &images);
    let (mut silent, mut all) = (0, 0);
    flips(&shard.out, |bytes| {
        all += 1;
        if let Ok((found, entries)) = bounded(bytes, read_image_shard)
            && entries == shard.entries
            && found == small_head()
        {
            silent += 1;
        }
        for (row, (entry, image)) in shard.entries.iter().zip(&images).enumerate() {
            if let Ok(found) = bounded(bytes, |bytes| read_image(bytes, 3, 5 + row as u64, entry)) {
                assert_eq!(&found, image);
            }
        }
    });
    assert!(silent * 8 < all, "{silent} of {all}");
    cuts(&shard.out, |bytes| {
        assert!(bounded(bytes, read_image_shard).is_err())
    });
}

#[test]
fn indexes() {
    let samples = sample_shard(&small_head(), &some_samples());
    let mut file = Vec::new();
    let written = write_sample_index(&mut file, 3, &samples.entries).unwrap();
    flips(&file, |bytes| {
        assert!(written.hash.check("index", bytes).is_err());
        if let Ok(index) = bounded(bytes, |bytes| SampleIndex::parse(bytes.to_vec())) {
            // What a damaged entry says is refused when its row is read.
            for (row, entry) in index.iter().enumerate() {
                let found = bounded(&samples.out, |shard| {
                    read_sample(shard, 3, 5 + row as u64, &entry)
                });
                if let Ok(found) = found {
                    assert_eq!(found, some_samples()[row]);
                }
            }
        }
    });
    cuts(&file, |bytes| {
        assert!(bounded(bytes, |bytes| SampleIndex::parse(bytes.to_vec())).is_err());
    });

    let images = image_shard(&small_head(), &some_images());
    let mut file = Vec::new();
    write_image_index(&mut file, 3, &images.entries).unwrap();
    flips(&file, |bytes| {
        if let Ok(index) = bounded(bytes, |bytes| ImageIndex::parse(bytes.to_vec())) {
            for (row, entry) in index.iter().enumerate() {
                let found = bounded(&images.out, |shard| {
                    read_image(shard, 3, 5 + row as u64, &entry)
                });
                if let Ok(found) = found {
                    assert_eq!(found, some_images()[row]);
                }
            }
        }
    });
    cuts(&file, |bytes| {
        assert!(bounded(bytes, |bytes| ImageIndex::parse(bytes.to_vec())).is_err());
    });
}

#[test]
fn receipts() {
    let shard = sample_shard(&small_head(), &some_samples());
    let receipt: SampleReceipt = Receipt {
        plan_id: PlanId([3; 16]),
        partition: 3,
        ordinal: 4,
        plan_range: [5, 9],
        first_row: 5,
        shard: Some(ShardRef {
            bytes: shard.bytes,
            hash: shard.hash,
            rows: 3,
        }),
        items: vec![5, 6, 8],
        entries: shard.entries,
        rejects: vec![RejectEntry {
            item: 7,
            reason: "bad_json".into(),
            message: "\u{e9}".into(),
            link: None,
            column: Some(3),
        }],
        sources: vec![],
    };
    let file = receipt.to_bytes().unwrap();
    let parse = |bytes: &[u8]| bounded(bytes, SampleReceipt::parse).is_err();
    flips(&file, |bytes| assert!(parse(bytes)));
    cuts(&file, |bytes| assert!(parse(bytes)));
    assert!(ImageReceipt::parse(&file).is_err());
}

#[test]
fn manifests() {
    let file = manifest().to_bytes().unwrap();
    let parse = |bytes: &[u8]| bounded(bytes, |bytes| Manifest::parse(bytes.to_vec())).is_err();
    assert!(!parse(&file));
    flips(&file, |bytes| assert!(parse(bytes)));
    cuts(&file, |bytes| assert!(parse(bytes)));
}
