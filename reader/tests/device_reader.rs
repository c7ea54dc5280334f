//! Batches that are uploaded by the reader, through cudarc to the stub driver: what arrives is what the host would have.
#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "shared by several test binaries")]
mod stub;

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::path::Path;

use stoker_reader::device::{Consumer, Device, DeviceFault};
use stoker_reader::{
    Cursor, DeviceReader, DeviceStep, Error, Last, Layout, Pixels, Reader, ReaderOptions, Step,
    Tail, Verify,
};
use stub::{configure, on_stub};

const PARTITIONS: [u64; 3] = [23, 17, 4];

/// A batch: names with types and shapes, and bytes.
type Seen = Vec<(String, Vec<u8>)>;

fn made() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&PARTITIONS);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    folder
}

fn options(path: &Path, pixels: Pixels, layout: Layout) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, 6);
    options.world.micro_batch_size = 3;
    options.order.tail = Tail::All;
    options.order.last = Last::Pad;
    options.verify = Verify::Always;
    options.sample_ids = true;
    (options.pixels, options.layout) = (pixels, Some(layout));
    options
}

/// What the host reader gives for an epoch.
fn on_host(options: ReaderOptions) -> Vec<Seen> {
    let mut reader = Reader::open(options).unwrap();
    let mut batches = Vec::new();
    while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
        let tensors = batch.tensors().iter();
        let seen = tensors.map(|tensor| {
            let name = format!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape);
            (name, batch.bytes(tensor).to_vec())
        });
        batches.push(seen.collect());
    }
    batches
}

/// Lets the next batch be written into memory of the GPU, which held something else if `dirty`, and fetches it. None where
/// the epoch ends.
fn fetched(reader: &mut DeviceReader, dirty: bool) -> Result<Option<Seen>, Error> {
    let tensors = match reader.next_batch(None)? {
        DeviceStep::Batch(batch) => batch.tensors().to_vec(),
        DeviceStep::EpochEnd => return Ok(None),
        DeviceStep::TimedOut => panic!("a wait without end has ended"),
    };
    let sizes = tensors.iter().map(|tensor| tensor.bytes());
    // Each tensor begins where a GPU's allocator would put it, or beside another.
    let mut end = 0usize;
    let ranges: Vec<_> = sizes
        .map(|bytes| {
            let from = end.next_multiple_of(256);
            end = from + bytes;
            from..end
        })
        .collect();
    let mut consumer = Consumer::new(reader.device(), end)?;
    if dirty {
        consumer.write(&vec![0xa5; end])?;
    }
    reader.deliver(consumer.targets(&ranges)?)?;
    let mut bytes = vec![0; end];
    consumer.read(&mut bytes)?;
    let seen = tensors.iter().zip(ranges).map(|(tensor, range)| {
        let name = format!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape);
        (name, bytes[range].to_vec())
    });
    Ok(Some(seen.collect()))
}

fn next(reader: &mut DeviceReader) -> Option<Seen> {
    fetched(reader, true).unwrap()
}

fn rest(reader: &mut DeviceReader) -> Vec<Seen> {
    std::iter::from_fn(|| next(reader)).collect()
}

/// The number of the batch that is next.
fn number(reader: &mut DeviceReader) -> u64 {
    match reader.next_batch(None).unwrap() {
        DeviceStep::Batch(batch) => batch.number(),
        other => panic!("{other:?}"),
    }
}

fn is_failure(fault: &Error) -> bool {
    let failed = |fault: &DeviceFault| matches!(fault, DeviceFault::Failed { .. });
    matches!(fault, Error::Device { fault, .. } if failed(fault))
}

#[test]
fn every_type_and_layout_arrives_as_the_host_has_it() {
    let name = "every_type_and_layout_arrives_as_the_host_has_it";
    let body = || {
        let folder = made();
        for pixels in [Pixels::U8, Pixels::F32, Pixels::BF16] {
            for layout in [Layout::Padded { multiple_of: 8 }, Layout::Packed] {
                let options = options(folder.path(), pixels, layout);
                let expected = on_host(options.clone());
                let mut reader = DeviceReader::open(options, 0).unwrap();
                assert_eq!(reader.epoch_batches() as usize, expected.len());
                assert!(rest(&mut reader) == expected, "{pixels:?} {layout:?}");
                // The next epoch, left in the middle with uploads ahead.
                assert!(next(&mut reader).is_some());
            }
        }
    };
    if let Some(report) = on_stub(name, "delay 500\nseed 3", body) {
        report.is_clean();
    }
}

#[test]
fn a_batch_stays_the_next_one_until_it_is_written() {
    let name = "a_batch_stays_the_next_one_until_it_is_written";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::BF16, Layout::Packed);
        let expected = on_host(options.clone());
        let mut reader = DeviceReader::open(options, 0).unwrap();
        for expected in &expected {
            let cursor = reader.cursor().unwrap();
            let first = number(&mut reader);
            // As where a consumer has no memory for it.
            for _ in 0..3 {
                assert_eq!(number(&mut reader), first);
                assert_eq!(reader.pending().unwrap().number(), first);
                assert_eq!(reader.cursor().unwrap(), cursor);
            }
            let borders = reader.pending().unwrap().borders().unwrap();
            let (_, bytes) = expected
                .iter()
                .find(|(name, _)| name.starts_with("cu_seqlens"))
                .unwrap();
            assert_eq!(
                borders
                    .iter()
                    .flat_map(|end| end.to_le_bytes())
                    .collect::<Vec<_>>(),
                *bytes
            );
            assert!(next(&mut reader).as_ref() == Some(expected));
            assert_ne!(reader.cursor().unwrap(), cursor);
        }
        // Elsewhere another batch is the next one, even at the same place.
        reader.seek(0).unwrap();
        let first = number(&mut reader);
        reader.seek(0).unwrap();
        assert!(reader.pending().is_none());
        assert_ne!(number(&mut reader), first);
        assert!(rest(&mut reader) == expected);
    };
    if let Some(report) = on_stub(name, "delay 200\nseed 8", body) {
        report.is_clean();
    }
}

#[test]
fn a_reader_holds_no_page_locked_memory_but_its_batches() {
    let name = "a_reader_holds_no_page_locked_memory_but_its_batches";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::U8, Layout::Packed);
        let mut reader = DeviceReader::open(options, 0).unwrap();
        let fault = reader.device().stage(1).unwrap_err();
        assert!(
            fault.to_string().contains("without staging buffers"),
            "{fault}"
        );
        let fault = fetched(&mut reader, false).unwrap_err();
        assert!(fault.to_string().contains("page-locked"), "{fault}");
    };
    // None of it can be had.
    if let Some(report) = on_stub(name, "locked 0", body) {
        report.is_clean();
    }
}

#[test]
fn a_batch_that_cannot_be_written_stops_the_reader() {
    let name = "a_batch_that_cannot_be_written_stops_the_reader";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::F32, Layout::default());
        let expected = on_host(options.clone());
        // Both ways of writing: tensors are copied, patches are expanded.
        for (call, nth) in [
            ("cuMemcpyDtoDAsync_v2", 1),
            ("cuMemcpyDtoDAsync_v2", 8),
            ("cuLaunchKernel", 2),
        ] {
            configure(&format!("delay 50\nfail {call} {nth} 1"));
            let mut reader = DeviceReader::open(options.clone(), 0).unwrap();
            let mut seen = Vec::new();
            let (cursor, fault) = loop {
                let before = reader.cursor().unwrap();
                match fetched(&mut reader, true) {
                    Ok(batch) => seen.push(batch.unwrap()),
                    Err(fault) => break (before, fault),
                }
            };
            assert!(is_failure(&fault), "{fault:?}");
            assert_eq!(reader.cursor().unwrap(), cursor);
            assert!(reader.pending().is_none());
            for again in [
                reader.next_batch(None).map(|_| ()).unwrap_err(),
                reader.next_batch(None).map(|_| ()).unwrap_err(),
            ] {
                assert!(matches!(&again, Error::Stopped { first } if *first == fault.to_string()));
            }
            reader.restore(&cursor).unwrap();
            seen.extend(rest(&mut reader));
            assert!(seen == expected, "{call} {nth}");
        }
    };
    if let Some(report) = on_stub(name, "", body) {
        report.has_no_violation();
    }
}

#[test]
fn the_cursor_counts_what_was_delivered_at_every_place() {
    let name = "the_cursor_counts_what_was_delivered_at_every_place";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::U8, Layout::Packed);
        let expected = on_host(options.clone());
        let mut reader = DeviceReader::open(options.clone(), 0).unwrap();
        let mut other = DeviceReader::open(options.clone(), 0).unwrap();
        let mut host = Reader::open(options).unwrap();
        for (place, expected) in expected.iter().enumerate() {
            let cursor = reader.cursor().unwrap();
            assert_eq!(cursor, host.cursor().unwrap(), "{place}");
            other
                .restore(&Cursor::from_json(&cursor.to_json()).unwrap())
                .unwrap();
            assert!(next(&mut other).as_ref() == Some(expected));
            assert!(next(&mut reader).is_some());
            assert!(matches!(host.next_batch(None).unwrap(), Step::Batch(_)));
        }
        other.seek(6).unwrap();
        assert!(rest(&mut other) == expected[2..]);
    };
    if let Some(report) = on_stub(name, "delay 50\nseed 2", body) {
        report.is_clean();
    }
}

#[test]
fn a_fault_comes_after_the_batches_before_it_and_a_restore_goes_on() {
    let name = "a_fault_comes_after_the_batches_before_it_and_a_restore_goes_on";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::F32, Layout::default());
        let expected = on_host(options.clone());
        // The tables take two copies.
        for nth in [3, 4, 7] {
            configure(&format!("delay 50\nfail cuMemcpyHtoDAsync_v2 {nth} 1"));
            let mut reader = DeviceReader::open(options.clone(), 0).unwrap();
            let mut seen = Vec::new();
            let fault = loop {
                match fetched(&mut reader, false) {
                    Ok(batch) => seen.push(batch.unwrap()),
                    Err(fault) => break fault,
                }
            };
            assert_eq!(seen.len(), nth - 3);
            assert!(is_failure(&fault), "{fault:?}");
            let again = reader.next_batch(None).unwrap_err();
            assert!(matches!(&again, Error::Stopped { first } if *first == fault.to_string()));
            let cursor = reader.cursor().unwrap();
            reader.restore(&cursor).unwrap();
            seen.extend(rest(&mut reader));
            assert!(seen == expected, "{nth}");
        }
    };
    if let Some(report) = on_stub(name, "", body) {
        report.has_no_violation();
    }
}

#[test]
fn targets_that_do_not_fit_are_refused() {
    let name = "targets_that_do_not_fit_are_refused";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::U8, Layout::Packed);
        let expected = on_host(options.clone());
        let mut reader = DeviceReader::open(options, 0).unwrap();
        let refused = |reader: &mut DeviceReader, targets| {
            let fault = reader.deliver(targets).unwrap_err();
            assert!(reader.next_batch(None).is_err());
            reader.seek(0).unwrap();
            fault.to_string()
        };
        // Too early, which changes nothing.
        let fault = reader.deliver(Vec::new()).unwrap_err().to_string();
        assert!(fault.contains("no batch to write"), "{fault}");
        number(&mut reader);
        let fault = refused(&mut reader, Vec::new());
        assert!(fault.contains("one target for each tensor"), "{fault}");
        number(&mut reader);
        let mut consumer = Consumer::new(reader.device(), 64).unwrap();
        let count = reader.pending().unwrap().tensors().len();
        let ranges: Vec<_> = (0..count).map(|at| at..at + 1).collect();
        let targets = consumer.targets(&ranges).unwrap();
        let fault = refused(&mut reader, targets);
        assert!(fault.contains("another size"), "{fault}");
        assert!(rest(&mut reader) == expected);
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
    }
}
