//! Pack tables: what is written comes back, part by part, and no damage passes for packs.
#![cfg(feature = "tables")]

use proptest::prelude::*;
use stoker_formats::{
    ContentHash, Counts, Error, Key, Members, PackEntry, PackFile, PackName, PackOptions,
    PackOverlong, PackStrategy, PackTable, PackTableWriter, PackTotals, Permutation, VERSION,
};

const OPTIONS: PackOptions = PackOptions {
    max_tokens: 8192,
    max_patches: Some(1 << 16),
    max_samples: None,
    by_modality: false,
    strategy: PackStrategy::BestFit,
    seed: 7,
    window: 4096,
    overlong: PackOverlong::Reject,
};

/// The packs of each partition, as lists of rows.
type Packs = Vec<Vec<Vec<u32>>>;

/// What stands in the columns of a pack, made up from where it is.
fn counts_of(partition: usize, pack: usize) -> Counts {
    let tokens = 1 + ((partition * 131 + pack * 17) % 8192) as u32;
    Counts {
        tokens,
        loss_tokens: tokens / 3,
        images: pack as u32 % 5,
        patches: pack as u32 % 50_000,
    }
}

fn write(packs: &Packs) -> (Vec<u8>, PackEntry) {
    let mut writer = PackTableWriter::new(Vec::new()).unwrap();
    let mut samples = Vec::new();
    for (partition, list) in packs.iter().enumerate() {
        let mut members = Members::default();
        let mut counts = Vec::new();
        for (pack, rows) in list.iter().enumerate() {
            members.push(rows.iter().copied());
            counts.push(counts_of(partition, pack));
        }
        writer.write(partition as u32, &counts, &members).unwrap();
        samples.push(list.iter().map(Vec::len).sum::<usize>() as u64);
    }
    let (bytes, table) = writer.finish().unwrap();
    let entry = PackEntry {
        format_version: VERSION,
        created_by: "stoker test".into(),
        fingerprint: ContentHash::of(b"cache"),
        name: "8k".parse().unwrap(),
        options: OPTIONS,
        totals: PackTotals {
            samples: samples.iter().sum(),
            ..PackTotals::default()
        },
        table,
        overlong: None,
        packs: packs.iter().map(|list| list.len() as u64).collect(),
        samples,
    };
    (bytes, entry)
}

/// Partitions of the given numbers of packs of 1 to 4 rows.
fn make(sizes: &[usize]) -> Packs {
    sizes
        .iter()
        .map(|size| {
            let mut next = 0;
            (0..*size)
                .map(|pack| {
                    let from = next;
                    next += 1 + pack as u32 % 4;
                    (from..next).rev().collect()
                })
                .collect()
        })
        .collect()
}

fn check_same(packs: &Packs) {
    let (bytes, entry) = write(packs);
    let entry = PackEntry::parse(&entry.to_bytes().unwrap()).unwrap();
    let table = PackTable::open(bytes, &entry).unwrap();
    for (partition, list) in packs.iter().enumerate() {
        let counts = table.counts(partition as u32).unwrap();
        assert_eq!(counts.len(), list.len());
        for (pack, counts) in counts.iter().enumerate() {
            assert_eq!(*counts, counts_of(partition, pack));
        }
        let beside = table.beside(partition as u32).unwrap();
        let together = table.counts_of(beside.clone()).unwrap();
        assert_eq!(together.len(), beside.len());
        assert_eq!(together[partition - beside.start as usize], counts);
        let members = table.members(partition as u32).unwrap();
        assert_eq!(members.len(), list.len());
        for (pack, rows) in list.iter().enumerate() {
            assert_eq!(members.rows(pack as u64), rows);
        }
        assert!(members.rows(list.len() as u64).is_empty());
    }
    let beyond = packs.len() as u32;
    assert!(table.counts(beyond).is_err() && table.beside(beyond).is_err());
    assert!(table.counts_of(beyond..beyond).unwrap().is_empty());
}

/// Partitions are read together with those that begin in the same row group, each in one such run.
#[test]
fn partitions_are_read_in_runs() {
    let (bytes, entry) = write(&make(&[10, 140_000, 300, 0, 60_000, 7]));
    let table = PackTable::open(bytes, &entry).unwrap();
    let runs = (0..6).map(|partition| table.beside(partition).unwrap());
    assert_eq!(
        runs.collect::<Vec<_>>(),
        [0..2, 0..2, 2..5, 2..5, 2..5, 5..6]
    );
}

#[test]
fn packs_come_back_partition_by_partition() {
    check_same(&make(&[]));
    check_same(&make(&[0]));
    check_same(&make(&[3, 0, 1, 5000, 0, 9000, 2]));
}

/// One partition lies in three row groups, the next begins in the middle of one.
#[test]
fn a_partition_may_span_row_groups() {
    check_same(&make(&[10, 140_000, 300]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_sizes_come_back(sizes in prop::collection::vec(0usize..300, 0..40)) {
        check_same(&make(&sizes));
    }
}

#[test]
fn bytes_depend_on_the_packs_only() {
    let packs = make(&[500, 70]);
    assert_eq!(write(&packs), write(&packs));
}

/// Opens and reads everything; the first error.
fn read_all(bytes: Vec<u8>, entry: &PackEntry) -> Result<(), Error> {
    let table = PackTable::open(bytes, entry)?;
    for partition in 0..entry.packs.len() as u32 {
        table.counts(partition)?;
        table.members(partition)?;
    }
    Ok(())
}

#[test]
fn every_flipped_byte_of_a_table_is_an_error_where_it_is_read() {
    let (bytes, entry) = write(&make(&[40, 3, 700]));
    read_all(bytes.clone(), &entry).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        // Less than a block: whatever is read, the whole file is checked.
        let error = read_all(damaged, &entry).unwrap_err();
        assert!(matches!(error, Error::Pack { .. }), "{at}: {error}");
        assert!(error.hint().is_some());
    }
    for length in 0..bytes.len() {
        let error = read_all(bytes[..length].to_vec(), &entry).unwrap_err();
        assert!(matches!(error, Error::Pack { .. }), "{length}: {error}");
    }
}

#[test]
fn damage_elsewhere_does_not_cost_a_partition() {
    let shuffled = |partition| {
        let rows = Permutation::new(Key::derive(1, "test", &[partition]), 60_000);
        (0..60_000)
            .map(|pack| vec![rows.get(pack) as u32])
            .collect()
    };
    let (mut bytes, entry) = write(&(0..3).map(shuffled).collect());
    assert!(entry.table.blocks.len() > 3, "{}", bytes.len());
    bytes[10] ^= 1;
    let table = PackTable::open(bytes, &entry).unwrap();
    let error = table.counts(0).unwrap_err().to_string();
    assert_eq!(
        error,
        "pack table is damaged: a block does not match its checksum, at `byte 0`"
    );
    assert!(table.counts(2).is_ok() && table.members(2).is_ok());
}

#[test]
fn a_table_that_contradicts_its_entry_is_refused() {
    let message = |bytes: &[u8], entry: &PackEntry| {
        let error = read_all(bytes.to_vec(), entry).unwrap_err();
        error.to_string()
    };
    let (bytes, entry) = write(&make(&[2, 3]));
    let mut other = entry.clone();
    other.packs = vec![3, 2];
    assert!(
        message(&bytes, &other).contains("a pack of another partition, at `partition 0, pack 2`")
    );
    let mut other = entry.clone();
    other.samples[1] = 5;
    assert!(
        message(&bytes, &other)
            .contains("a row does not exist, or stands in two packs, at `partition 1, pack 2`")
    );
    let mut other = entry.clone();
    other.options.max_tokens = 100;
    assert!(
        message(&bytes, &other)
            .contains("a pack counts more than it can hold, at `partition 1, pack 0`")
    );
    other.options.overlong = PackOverlong::Alone;
    read_all(bytes, &other).unwrap();

    let mut twice = make(&[1, 2]);
    twice[1][1] = vec![1, 0];
    let (bytes, entry) = write(&twice);
    assert!(message(&bytes, &entry).contains("stands in two packs, at `partition 1, pack 1`"));
    let (bytes, entry) = write(&vec![vec![vec![0], vec![], vec![1]]]);
    assert!(message(&bytes, &entry).contains("packs are missing or empty"));
}

#[test]
fn every_flipped_bit_of_an_entry_is_noticed() {
    let (_, entry) = write(&make(&[4, 2]));
    let bytes = entry.to_bytes().unwrap();
    assert_eq!(PackEntry::parse(&bytes).unwrap(), entry);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(PackEntry::parse(&damaged).is_err(), "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert!(PackEntry::parse(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn an_entry_that_contradicts_itself_is_neither_written_nor_read() {
    type Change = fn(&mut PackEntry);
    let changes: [Change; 12] = [
        |entry| entry.format_version.major = 2,
        |entry| entry.options.max_tokens = 0,
        |entry| entry.options.max_patches = Some(0),
        |entry| entry.options.max_samples = Some(0),
        |entry| entry.options.window = 0,
        |entry| entry.samples.push(1),
        |entry| entry.packs[0] += 1,
        |entry| entry.packs[0] = entry.samples[0] + 1,
        |entry| entry.totals.samples += 1,
        |entry| entry.totals.overlong += 1,
        |entry| entry.table.blocks.push(0),
        |entry| entry.samples[0] = 1 << 32,
    ];
    for (number, change) in changes.iter().enumerate() {
        let (_, mut entry) = write(&make(&[4, 2]));
        change(&mut entry);
        assert!(entry.to_bytes().is_err(), "change {number}");
    }
}

#[test]
fn names_of_pack_files_have_one_form() {
    let hash = ContentHash::of(b"x");
    let table = PackFile::table(hash).to_string();
    assert_eq!(table, format!("{}.parquet", &hash.to_string()[..16]));
    for name in ["8k.json", "a.b-c_D.json", table.as_str()] {
        assert_eq!(PackFile::parse(name).unwrap().to_string(), name);
    }
    let long = format!("{}.json", "a".repeat(65));
    for name in [
        ".json",
        "..json",
        ".8k.json",
        "a/b.json",
        "a b.json",
        "8k",
        "8k.parquet",
        "-a.json",
        "_a.json",
        "0123456789ABCDEF.parquet",
        ".8k.json.tmp",
        long.as_str(),
    ] {
        assert!(PackFile::parse(name).is_err(), "{name}");
    }
    assert!("".parse::<PackName>().is_err());
}
