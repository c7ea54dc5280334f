//! Receipts, manifest and names: what is written comes back, and nothing else is accepted.

mod common;

use common::{file, head, image_shard, manifest, sample_shard, some_images, some_samples};
use serde_json::json;
use stoker_formats::{
    ContentHash, Error, FileName, Folder, ImageReceipt, Manifest, PlanId, Receipt, RejectEntry,
    SampleReceipt, ShardRef, SourceEntry, TableKind, canonical_json, fingerprint,
};

fn reject(item: u64) -> RejectEntry {
    RejectEntry {
        item,
        reason: "missing_image".into(),
        message: "nothing stands at the link".into(),
        link: Some("a/b.jpg".into()),
        column: None,
    }
}

fn image_receipt() -> ImageReceipt {
    let shard = image_shard(&head(7, 42, 100), &some_images());
    Receipt {
        plan_id: PlanId([3; 16]),
        partition: 7,
        ordinal: 42,
        plan_range: [10, 15],
        first_row: 100,
        shard: Some(ShardRef {
            bytes: shard.bytes,
            hash: shard.hash,
            rows: 3,
        }),
        items: vec![10, 12, 14],
        entries: shard.entries,
        rejects: vec![reject(11), reject(13)],
        sources: vec![SourceEntry {
            item: 10,
            uri: "s3://bucket/a.jpg".into(),
            bytes: 5,
            etag: Some("\"e\"".into()),
        }],
    }
}

fn sample_receipt() -> SampleReceipt {
    let shard = sample_shard(&head(7, 42, 100), &some_samples());
    let receipt = image_receipt();
    Receipt {
        plan_id: receipt.plan_id,
        partition: 7,
        ordinal: 42,
        plan_range: [10, 15],
        first_row: 100,
        shard: Some(ShardRef {
            bytes: shard.bytes,
            hash: shard.hash,
            rows: 3,
        }),
        items: receipt.items,
        entries: shard.entries,
        rejects: receipt.rejects,
        sources: receipt.sources,
    }
}

#[test]
fn receipts_come_back() {
    let receipt = image_receipt();
    let bytes = receipt.to_bytes().unwrap();
    assert_eq!(ImageReceipt::parse(&bytes).unwrap(), receipt);
    assert!(SampleReceipt::parse(&bytes).is_err());
    let receipt = sample_receipt();
    assert_eq!(
        SampleReceipt::parse(&receipt.to_bytes().unwrap()).unwrap(),
        receipt
    );
}

#[test]
fn a_receipt_without_a_shard_is_legal() {
    let mut receipt = image_receipt();
    receipt.shard = None;
    receipt.items.clear();
    receipt.entries.clear();
    receipt.rejects = (10..15).map(reject).collect();
    assert_eq!(
        ImageReceipt::parse(&receipt.to_bytes().unwrap()).unwrap(),
        receipt
    );
}

#[test]
fn a_receipt_that_contradicts_itself_is_refused() {
    type Change = fn(&mut ImageReceipt);
    let changes: [Change; 12] = [
        |receipt| receipt.plan_range = [15, 10],
        |receipt| receipt.plan_range = [10, 16],
        |receipt| receipt.plan_range = [9, 15],
        |receipt| receipt.items[1] = 11,
        |receipt| receipt.items.swap(0, 1),
        |receipt| drop(receipt.rejects.pop()),
        |receipt| receipt.rejects.push(reject(15)),
        |receipt| receipt.entries.truncate(2),
        |receipt| receipt.shard = None,
        |receipt| receipt.first_row = u64::MAX,
        |receipt| receipt.entries[1].shard = 41,
        |receipt| receipt.sources[0].item = 15,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut receipt = image_receipt();
        change(&mut receipt);
        assert!(
            matches!(receipt.to_bytes(), Err(Error::Document { .. })),
            "change {number}"
        );
    }
}

#[test]
fn a_manifest_comes_back() {
    let manifest = manifest();
    let bytes = manifest.to_bytes().unwrap();
    assert_eq!(bytes, manifest.to_bytes().unwrap());
    let found = Manifest::parse(bytes.clone()).unwrap();
    assert_eq!(found.to_bytes().unwrap(), bytes);
    assert_eq!(found, manifest);
    // Anyone's JSON tools can read it, the seal included.
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        value["partitions"][2]["images"]["shards"]["rows"],
        json!([5, 0, 6])
    );
    let text = bytes.strip_suffix(b"\"}\n").unwrap();
    let (text, seal) = text.split_at(text.len() - 64);
    let covered = text.strip_suffix(b",\"seal\":\"").unwrap();
    assert_eq!(ContentHash::of(covered).to_string().as_bytes(), seal);
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    type Change = fn(&mut Manifest);
    let changes: [Change; 13] = [
        |manifest| manifest.fingerprint = ContentHash::of(b"other"),
        |manifest| manifest.recipe["a"] = json!(-4),
        |manifest| manifest.partitions[1].samples.shards[0] = Some(file(999, 5)),
        |manifest| manifest.partitions[1].samples.index.rows = 12,
        |manifest| manifest.partitions[1].samples.receipts[1].rows = 1,
        |manifest| manifest.partitions[1].images.receipts.truncate(2),
        |manifest| drop(manifest.partitions.pop()),
        |manifest| manifest.splits[0].samples += 1,
        |manifest| manifest.splits[1].first_partition = 1,
        |manifest| manifest.splits[1].name = "train".into(),
        |manifest| manifest.splits[1].name = "../x".into(),
        |manifest| manifest.splits[1].partitions = u32::MAX,
        |manifest| drop(manifest.splits.pop()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut manifest = manifest();
        change(&mut manifest);
        assert!(
            matches!(manifest.to_bytes(), Err(Error::Document { .. })),
            "change {number}"
        );
    }
}

/// `bytes` with `from` replaced by `to`, sealed again: what a hostile writer can do.
fn forged(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    let (body, _) = text.rsplit_once(",\"seal\"").unwrap();
    assert!(body.contains(from), "{from}");
    let body = body.replacen(from, to, 1);
    let seal = ContentHash::of(body.as_bytes());
    format!("{body},\"seal\":\"{seal}\"}}\n").into_bytes()
}

#[test]
fn a_newer_major_version_is_refused_by_name() {
    let bytes = manifest().to_bytes().unwrap();
    let newer = forged(&bytes, "\"major\":1,\"minor\":0", "\"major\":2,\"minor\":7");
    for newer in [newer.clone(), forged(&newer, "\"inputs\"", "\"sources\"")] {
        let error = Manifest::parse(newer).unwrap_err();
        assert_eq!(
            error.to_string(),
            "manifest has format version 2.7, this program reads up to version `1.0`"
        );
        assert!(error.hint().is_some());
    }
    let minor = forged(&bytes, "\"minor\":0", "\"minor\":3");
    assert!(Manifest::parse(minor).is_ok());
    let receipt = image_receipt().to_bytes().unwrap();
    let newer = forged(&receipt, "\"major\":1", "\"major\":2");
    assert!(matches!(
        ImageReceipt::parse(&newer),
        Err(Error::NewerVersion { .. })
    ));
}

#[test]
fn forged_documents_are_refused() {
    let bytes = manifest().to_bytes().unwrap();
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    let many = format!("[0{}]", ",0".repeat(20_000));
    for (from, to) in [
        ("\"created_by\"", "\"extra\":1,\"created_by\""),
        ("\"created_by\":\"stoker 0.1.0\",", ""),
        ("\"rows\":[5,0,6]", "\"rows\":[5,0,6,7]"),
        ("\"rows\":[5,0,6]", "\"rows\":[5,0,-6]"),
        ("\"rows\":[5,0,6]", "\"rows\":[5,0,1e400]"),
        ("\"a\":-3", "\"a\":-3,\"a\":-3"),
        ("\"a\":-3", &format!("\"a\":{deep}")),
        ("\"a\":-3", &format!("\"a\":{many}")),
        ("\"splits\":[", "\"splits\":[null,"),
        ("\"image_plan_id\":\"01", "\"image_plan_id\":\"/1"),
        ("{", "{ "),
    ] {
        let forged = forged(&bytes, from, to);
        let refused = matches!(Manifest::parse(forged), Err(Error::Document { .. }));
        // White space alone changes no meaning.
        assert!(refused || to == "{ ", "{to}");
    }
    assert!(Manifest::parse(Vec::new()).is_err());
    assert!(Manifest::parse(b"{}".to_vec()).is_err());
}

#[test]
fn canonical_json_has_one_text_for_one_value() {
    let one = json!({"b": 1, "a": {"d": [], "c": 0.1}, "\u{e9}": "\n", "B": 1e300});
    let two = json!({"\u{e9}": "\n", "B": 1e300, "a": {"c": 0.1, "d": []}, "b": 1});
    assert_eq!(canonical_json(&one), canonical_json(&two));
    assert_eq!(
        canonical_json(&one),
        "{\"B\":1e+300,\"a\":{\"c\":0.1,\"d\":[]},\"b\":1,\"\u{e9}\":\"\\n\"}".as_bytes()
    );
}

#[test]
fn the_fingerprint_sees_recipe_shards_and_their_order() {
    let manifest = manifest();
    let first = fingerprint(&manifest.recipe, &manifest.partitions);
    let mut other = manifest.clone();
    other.partitions.swap(0, 1);
    assert_ne!(fingerprint(&other.recipe, &other.partitions), first);
    let mut other = manifest.clone();
    other.partitions[0].images.receipts[0] = file(1234, 5);
    other.partitions[0].images.index.bytes = 77;
    assert_eq!(fingerprint(&other.recipe, &other.partitions), first);
    other.recipe["a"] = json!(0);
    assert_ne!(fingerprint(&other.recipe, &other.partitions), first);
    // Frozen: the identity of a cache must not change.
    assert_eq!(
        first.to_string(),
        "14e2a19c7d765eb808d89d8a42e7311c38ebd0e3e7b453b370472755b9383b0f"
    );
}

#[test]
fn names_are_written_and_recognised() {
    let hash = ContentHash([0xab; 32]);
    for (name, text) in [
        (
            FileName::Shard {
                partition: 7,
                ordinal: 42,
            },
            "shards/p0007-000042.arrow".to_owned(),
        ),
        (
            FileName::Shard {
                partition: 123_456,
                ordinal: 12_345_678,
            },
            "shards/p123456-12345678.arrow".to_owned(),
        ),
        (
            FileName::Receipt {
                partition: 0,
                ordinal: 0,
            },
            "receipts/p0000-000000.json".to_owned(),
        ),
        (
            FileName::Index { partition: 10_000 },
            "index/p10000.arrow".to_owned(),
        ),
        (
            FileName::Table {
                kind: TableKind::Rejects,
                hash,
            },
            format!("tables/rejects-{}.parquet", "ab".repeat(32)),
        ),
    ] {
        assert_eq!(name.to_string(), text);
        assert_eq!(FileName::parse(&text).unwrap(), name);
    }
    let folder = Folder::Images(PlanId([1; 16]));
    assert_eq!(folder.to_string(), format!("images-{}", "01".repeat(16)));
    assert_eq!(folder.to_string().parse::<Folder>().unwrap(), folder);
    for bad in [
        "",
        "shards/p7-42.arrow",
        "shards/p00007-000042.arrow",
        "shards/p0007-000042.arrow.tmp",
        "shards/p+007-000042.arrow",
        "shards/p0007-000042.json",
        "shards/../p0007-000042.arrow",
        "/shards/p0007-000042.arrow",
        "shards//p0007-000042.arrow",
        "index/p99999999999.arrow",
        "index/p0007.arrow\0",
        "tables/samples-AB.parquet",
        "tables/other-abababababababababababababababababababababababababababababababab.parquet",
        "manifest.json",
    ] {
        assert!(FileName::parse(bad).is_err(), "{bad}");
    }
    for bad in [
        "images-",
        "images-01",
        "text-../../x",
        "other-01010101010101010101010101010101",
    ] {
        assert!(bad.parse::<Folder>().is_err(), "{bad}");
    }
    let long = FileName::parse(&"\u{1b}".repeat(1000))
        .unwrap_err()
        .to_string();
    assert!(long.len() < 700 && !long.contains('\u{1b}'), "{long}");
}

#[test]
fn a_manifest_of_many_shards_is_compact() {
    let mut manifest = manifest();
    let count = 20_000;
    let files = &mut manifest.partitions[2].images;
    files.shards = (0..count)
        .map(|number| Some(file(536_870_912 + number, 2000)))
        .collect();
    files.receipts = (0..count)
        .map(|number| file(200_000 + number, 2000))
        .collect();
    files.index.rows = count * 2000;
    manifest.splits[1].images = count * 2000;
    manifest.fingerprint = fingerprint(&manifest.recipe, &manifest.partitions);
    let bytes = manifest.to_bytes().unwrap();
    assert!(bytes.len() < 180 * count as usize, "{}", bytes.len());
    assert_eq!(Manifest::parse(bytes.clone()).unwrap(), manifest);
}
