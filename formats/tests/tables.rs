//! Parquet tables: what is pushed comes back, and the bytes depend on the rows only.
#![cfg(feature = "tables")]

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use stoker_formats::ContentHash;
use stoker_formats::tables::{ProvenanceKind, ProvenanceRow, RejectTableRow, TableWriter};

fn reject(line: u64) -> RejectTableRow {
    RejectTableRow {
        sample_id: format!("a.jsonl:{line}"),
        file: "a.jsonl".into(),
        line,
        byte_offset: line * 100,
        column: line.is_multiple_of(2).then_some(line),
        reason: "bad_json".into(),
        link: line.is_multiple_of(3).then(|| "x.png".to_owned()),
        message: "no object".into(),
    }
}

fn table(rows: u64) -> (Vec<u8>, stoker_formats::FileEntry) {
    let mut writer = TableWriter::new(Vec::new()).unwrap();
    for line in 0..rows {
        writer.push(reject(line)).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn rejects_come_back() {
    let (bytes, entry) = table(70_000);
    assert_eq!(entry.rows, 70_000);
    assert_eq!(entry.bytes, bytes.len() as u64);
    assert_eq!(entry.hash, ContentHash::of(&bytes));
    assert_eq!(table(70_000).1, entry);
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let metadata = reader.metadata();
    assert_eq!(metadata.num_row_groups(), 2);
    assert_eq!(metadata.file_metadata().created_by(), Some("stoker"));
    let mut rows = 0;
    for (line, row) in reader.get_row_iter(None).unwrap().enumerate() {
        let (row, wanted) = (row.unwrap(), reject(line as u64));
        assert_eq!(row.get_string(0).unwrap(), &wanted.sample_id);
        assert_eq!(row.get_ulong(2).unwrap(), wanted.line);
        assert_eq!(row.get_ulong(4).ok(), wanted.column);
        assert_eq!(row.get_string(6).ok().cloned(), wanted.link);
        rows += 1;
    }
    assert_eq!(rows, 70_000);
}

#[test]
fn a_table_may_be_empty() {
    let (bytes, entry) = table(0);
    assert_eq!(entry.rows, 0);
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
}

#[test]
fn provenance_has_both_kinds() {
    let mut writer = TableWriter::new(Vec::new()).unwrap();
    for (kind, partition) in [
        (ProvenanceKind::Input, None),
        (ProvenanceKind::Image, Some(3)),
    ] {
        writer
            .push(ProvenanceRow {
                kind,
                uri: "s3://b/k".into(),
                bytes: 3,
                etag: None,
                partition,
                key: None,
            })
            .unwrap();
    }
    let (bytes, _) = writer.finish().unwrap();
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let kinds: Vec<String> = reader
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().get_string(0).unwrap().clone())
        .collect();
    assert_eq!(kinds, ["input", "image"]);
}
