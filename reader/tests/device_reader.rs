//! Batches that are uploaded by the reader, through cudarc to the stub driver: what arrives is what the host would have.
#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "shared by several test binaries")]
mod stub;

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::path::Path;

use stoker_reader::device::{Consumer, DeviceFault};
use stoker_reader::{
    Cursor, DeviceBatch, DeviceReader, DeviceStep, Error, Last, Layout, Pixels, Reader,
    ReaderOptions, Step, Tail, Verify,
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

/// Writes a batch into memory of the GPU that held something else, and fetches it.
fn fetched(reader: &DeviceReader, batch: DeviceBatch) -> Result<Seen, Error> {
    let tensors = batch.tensors().to_vec();
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
    consumer.write(&vec![0xa5; end])?;
    let targets = consumer.targets(&ranges)?;
    batch.write(targets)?;
    let mut bytes = vec![0; end];
    consumer.read(&mut bytes)?;
    let seen = tensors.iter().zip(ranges).map(|(tensor, range)| {
        let name = format!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape);
        (name, bytes[range].to_vec())
    });
    Ok(seen.collect())
}

fn batch(reader: &mut DeviceReader) -> Option<DeviceBatch> {
    match reader.next_batch(None).unwrap() {
        DeviceStep::Batch(batch) => Some(*batch),
        DeviceStep::EpochEnd => None,
        DeviceStep::TimedOut => panic!("a wait without end has ended"),
    }
}

fn rest(reader: &mut DeviceReader) -> Vec<Seen> {
    let mut batches = Vec::new();
    while let Some(found) = batch(reader) {
        batches.push(fetched(reader, found).unwrap());
    }
    batches
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
                drop(batch(&mut reader).unwrap());
            }
        }
    };
    if let Some(report) = on_stub(name, "delay 500\nseed 3", body) {
        report.is_clean();
    }
}

#[test]
fn batches_that_are_kept_take_more_slots_and_stay_right() {
    let name = "batches_that_are_kept_take_more_slots_and_stay_right";
    let body = || {
        let folder = made();
        let options = options(folder.path(), Pixels::BF16, Layout::default());
        let expected = on_host(options.clone());
        let mut reader = DeviceReader::open(options, 0).unwrap();
        let kept: Vec<_> = std::iter::from_fn(|| batch(&mut reader)).collect();
        let seen = kept
            .into_iter()
            .map(|batch| fetched(&reader, batch).unwrap());
        assert!(seen.collect::<Vec<_>>() == expected);
    };
    if let Some(report) = on_stub(name, "delay 200\nseed 8", body) {
        report.is_clean();
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
            let found = batch(&mut other).unwrap();
            assert!(fetched(&other, found).unwrap() == *expected);
            drop(batch(&mut reader).unwrap());
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
                match reader.next_batch(None) {
                    Ok(DeviceStep::Batch(batch)) => seen.push(batch),
                    Ok(other) => panic!("{other:?}"),
                    Err(fault) => break fault,
                }
            };
            assert_eq!(seen.len(), nth - 3);
            assert!(
                matches!(
                    &fault,
                    Error::Device {
                        fault: DeviceFault::Failed { .. },
                        ..
                    }
                ),
                "{fault:?}"
            );
            let again = reader.next_batch(None).unwrap_err();
            assert!(matches!(&again, Error::Stopped { first } if *first == fault.to_string()));
            let mut seen: Vec<_> = seen
                .into_iter()
                .map(|batch| fetched(&reader, *batch).unwrap())
                .collect();
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
        let mut reader = DeviceReader::open(options, 0).unwrap();
        let found = batch(&mut reader).unwrap();
        let fault = found.write(Vec::new()).unwrap_err();
        assert!(fault.to_string().contains("one target for each tensor"));
        let found = batch(&mut reader).unwrap();
        let mut consumer = Consumer::new(reader.device(), 64).unwrap();
        let ranges: Vec<_> = (0..found.tensors().len()).map(|at| at..at + 1).collect();
        let targets = consumer.targets(&ranges).unwrap();
        let fault = found.write(targets).unwrap_err();
        assert!(fault.to_string().contains("another size"), "{fault}");
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
    }
}
