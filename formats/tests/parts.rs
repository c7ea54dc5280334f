//! Records of parts and shares, and the names of their files: what is written comes back, and nothing else is accepted.

mod common;

use common::{file, manifest};
use stoker_formats::limits::{MAX_PARTITIONS, MAX_SHARE_BYTES};
use stoker_formats::{
    ContentHash, Error, PartEntry, PartFile, PartName, PartRecord, ShareRecord, TableKind, Tables,
};

/// The record of a worker that built partitions 0 and 2 of the manifest's three.
fn record() -> PartRecord {
    let manifest = manifest();
    let entry = |partition: u32| PartEntry {
        partition,
        tokens: 100,
        loss_tokens: 10,
        rejects: 2,
        rejected_images: 1,
        sources: 3,
        files: manifest.partitions[partition as usize].clone(),
    };
    let partitions = vec![entry(0), entry(2)];
    let rows = |of: fn(&PartEntry) -> u64| partitions.iter().map(of).sum::<u64>();
    PartRecord {
        format_version: manifest.format_version,
        created_by: manifest.created_by.clone(),
        name: PartName {
            worker: 0,
            workers: 2,
        },
        image_plan_id: manifest.image_plan_id,
        text_plan_id: manifest.text_plan_id,
        recipe: manifest.recipe.clone(),
        splits: manifest.splits.clone(),
        tables: Tables {
            samples: file(70, rows(|entry| entry.files.samples.index.rows)),
            rejects: file(71, rows(|entry| entry.rejects)),
            provenance: file(
                72,
                rows(|entry| entry.sources) + manifest.inputs.len() as u64,
            ),
        },
        inputs: manifest.inputs.clone(),
        tokenizer: manifest.tokenizer,
        partitions,
    }
}

#[test]
fn a_record_comes_back_and_every_changed_byte_is_noticed() {
    let record = record();
    let bytes = record.to_bytes().unwrap();
    assert_eq!(PartRecord::parse(&bytes).unwrap(), record);
    assert_eq!(record.all_partitions(), 3);
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(PartRecord::parse(&changed).is_err(), "byte {at}");
    }
    assert!(PartRecord::parse(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    type Change = fn(&mut PartRecord);
    let changes: [Change; 13] = [
        |record| record.name.worker = 2,
        |record| record.name.worker = 1,
        |record| record.name.workers = 1_000_002,
        |record| record.partitions.swap(0, 1),
        |record| record.partitions[1].partition = 0,
        |record| record.partitions[1].partition = 3,
        |record| record.partitions[1].rejects += 1,
        |record| record.partitions[1].sources = u64::MAX,
        |record| record.tables.samples.rows += 1,
        |record| record.partitions[0].files.images.index.rows += 1,
        |record| drop(record.inputs.pop()),
        |record| record.splits[1].first_partition += 1,
        |record| record.splits[1].partitions = u32::MAX,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut record = record();
        change(&mut record);
        assert!(
            matches!(record.to_bytes(), Err(Error::Document { .. })),
            "change {number}"
        );
    }
}

#[test]
fn absurd_numbers_of_workers_are_refused() {
    let empty = |workers| {
        let mut record = record();
        record.name.workers = workers;
        record.partitions.clear();
        record.tables.samples.rows = 0;
        record.tables.rejects.rows = 0;
        record.tables.provenance.rows = record.inputs.len() as u64;
        record.to_bytes()
    };
    assert!(empty(1_000_000).is_ok());
    assert!(matches!(empty(1_000_001), Err(Error::Document { .. })));
}

fn share(partitions: &[u32]) -> ShareRecord {
    let manifest = manifest();
    ShareRecord {
        format_version: manifest.format_version,
        created_by: manifest.created_by,
        fingerprint: manifest.fingerprint,
        partitions: partitions.to_vec(),
    }
}

#[test]
fn a_share_comes_back_and_every_changed_bit_and_length_is_noticed() {
    let record = share(&[0, 2, 70_000]);
    let bytes = record.to_bytes().unwrap();
    assert_eq!(ShareRecord::parse(&bytes).unwrap(), record);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(ShareRecord::parse(&changed).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(ShareRecord::parse(&bytes[..length]).is_err(), "{length}");
    }
    let longer = [&bytes[..], b" "].concat();
    assert!(ShareRecord::parse(&longer).is_err());
    assert!(ShareRecord::parse(&vec![b' '; MAX_SHARE_BYTES + 1]).is_err());
    // The largest that there can be.
    let all: Vec<u32> = (0..MAX_PARTITIONS).collect();
    let bytes = share(&all).to_bytes().unwrap();
    assert_eq!(ShareRecord::parse(&bytes).unwrap().partitions, all);
    for bad in [&[2, 1][..], &[1, 1], &[MAX_PARTITIONS]] {
        assert!(matches!(share(bad).to_bytes(), Err(Error::Document { .. })));
    }
    let mut newer = share(&[]);
    newer.format_version.major += 1;
    assert!(matches!(newer.to_bytes(), Err(Error::NewerVersion { .. })));
}

#[test]
fn names_are_written_and_recognised() {
    let name = PartName {
        worker: 3,
        workers: 12_345,
    };
    let hash = format!("share-{}.json", "0a".repeat(32));
    for (file, text) in [
        (PartFile::Record(name), "0003-of-12345.json"),
        (PartFile::Share(ContentHash([10; 32])), &hash),
        (
            PartFile::Table(name, TableKind::Rejects),
            "0003-of-12345-rejects.parquet",
        ),
    ] {
        assert_eq!(file.to_string(), text);
        assert_eq!(PartFile::parse(text).unwrap(), file);
    }
    for bad in [
        "",
        "3-of-4.json",
        "0003-of-0004.json.tmp",
        ".0003-of-0004.json",
        "0003-of-0004.parquet",
        "0003-of-0004-samples.json",
        "0003-of-0004-other.parquet",
        "../0003-of-0004.json",
        "0003-of-99999999999.json",
        "share-0a.json",
        &hash.replace("json", "parquet"),
        &hash.replace('a', "A"),
    ] {
        assert!(PartFile::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn each_partition_has_one_worker() {
    for (partitions, workers) in [(0, 1), (1, 3), (12, 4), (12, 7), (961, 8)] {
        let mut owners = vec![Vec::new(); partitions as usize];
        for worker in 0..workers {
            for partition in (PartName { worker, workers }).partitions(partitions) {
                owners[partition as usize].push(worker);
            }
        }
        assert!(owners.iter().all(|owners| owners.len() == 1));
    }
}
