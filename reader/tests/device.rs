//! Uploads through cudarc to the stub driver: every byte, whatever is slow.
#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "shared by several test binaries")]
mod stub;

#[path = "../examples/gpu_check/checks.rs"]
#[expect(dead_code, reason = "scripts/gpu_check runs it on a GPU")]
mod checks;
#[path = "../examples/bench_read/corpus.rs"]
#[expect(dead_code, reason = "shared with bench_read")]
mod corpus;
#[path = "../examples/gpu_check/fed.rs"]
mod fed;
#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;
use std::thread;

use stoker_reader::device::{
    self, Consumer, CudaDevice, Device, DeviceFault, DeviceOptions, HostDevice, Patches, Target,
    Upload,
};
use stoker_reader::{Error, Pixels, expand_bytes};
use stub::transfers::{self, Random, table};
use stub::{on_stub, open, options};

fn staged(device: &dyn Device, bytes: &[u8]) -> Box<dyn Upload> {
    let mut staging = device.stage(bytes.len()).unwrap();
    staging.copy_from_slice(bytes);
    device.upload(staging).unwrap()
}

#[track_caller]
fn refused<T>(result: Result<T, Error>) -> &'static str {
    match result.err() {
        Some(Error::Device {
            fault: DeviceFault::Refused { what },
            ..
        }) => what,
        other => panic!("{other:?}"),
    }
}

fn none_wrong(count: usize, seed: u64) {
    assert_eq!(
        transfers::transfers(0, count, seed, 400).unwrap(),
        0,
        "wrong bytes"
    );
}

#[test]
fn a_hundred_thousand_transfers_without_a_wrong_byte() {
    let name = "a_hundred_thousand_transfers_without_a_wrong_byte";
    if let Some(report) = on_stub(name, "delay 60\nseed 5", || none_wrong(100_000, 3)) {
        report.is_clean();
    }
}

#[test]
fn long_delays_expose_no_early_reuse() {
    let name = "long_delays_expose_no_early_reuse";
    if let Some(report) = on_stub(name, "delay 3000\nseed 9", || none_wrong(1_500, 11)) {
        report.is_clean();
    }
}

#[test]
fn the_text_of_the_kernels_does_what_the_host_does() {
    let name = "the_text_of_the_kernels_does_what_the_host_does";
    let body = || {
        let device = open(&options(1, 1, 1 << 16));
        assert_eq!(checks::expansions(&device, 1).unwrap(), 0, "wrong bytes");
    };
    if let Some(report) = on_stub(name, "kernels interpret", body) {
        report.is_clean();
        assert!(report.last().ends_with("launches=14"), "{}", report.last());
    }
}

#[test]
fn gpu_check_passes_on_the_stub() {
    let name = "gpu_check_passes_on_the_stub";
    let body = || {
        let mut lines = Vec::new();
        let sizes = checks::Sizes::small();
        let folder = tempfile::tempdir().unwrap();
        fed::make(folder.path(), sizes.batches, sizes.batch_bytes);
        // What floors the stub reaches says nothing.
        checks::run(0, folder.path(), &sizes, &mut |line| lines.push(line)).unwrap();
        let text = lines.join("\n");
        let equal = lines.iter().filter(|line| line.contains(" 0 wrong bytes"));
        assert_eq!(equal.count(), 3, "{text}");
        for part in ["H2D", "float32", "bfloat16", "waited"] {
            assert!(text.contains(part), "{text}");
        }
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
    }
}

#[test]
fn many_blocks_go_on_in_steps_of_the_grid() {
    let name = "many_blocks_go_on_in_steps_of_the_grid";
    let body = || {
        // More steps than 1024 blocks of 256 threads take at once.
        let patches = Patches {
            offset: 0,
            count: 5500,
            area: 256,
            temporal: 2,
            pixels: Pixels::BF16,
        };
        let bytes: Vec<_> = (0..patches.count * 768).map(|i| (i / 3) as u8).collect();
        let device = open(&options(1, 1, 0));
        let mut upload = staged(&device, &bytes);
        let mut consumer = Consumer::new(&device, patches.target_bytes().unwrap()).unwrap();
        let target = consumer.target(0..patches.target_bytes().unwrap()).unwrap();
        upload.expand(&patches, target).unwrap();
        let mut got = vec![0; patches.target_bytes().unwrap()];
        consumer.read(&mut got).unwrap();
        let mut expected = vec![0; got.len()];
        expand_bytes(&table(), Pixels::BF16, &bytes, 256, 2, &mut expected);
        assert!(got == expected);
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
    }
}

#[test]
fn uploads_bigger_than_everything_so_far_pass() {
    let name = "uploads_bigger_than_everything_so_far_pass";
    let body = || {
        let device = open(&options(2, 1, 10));
        let mut random = Random(5);
        let mut sent = Vec::new();
        for bytes in [0, 1, 5_000, 3_000_000, 7, 6_000_000, 5_999_999] {
            let mut expected = vec![0; bytes];
            random.fill(&mut expected);
            let mut upload = staged(&device, &expected);
            assert_eq!(upload.bytes(), bytes);
            let mut consumer = Consumer::new(&device, bytes).unwrap();
            // The slot must not go while this keeps the consumer from reading it.
            consumer.busy(1, 300_000_000).unwrap();
            let target = consumer.target(0..bytes).unwrap();
            upload.copy_out(0..bytes, target).unwrap();
            sent.push((expected, consumer));
        }
        for (expected, mut consumer) in sent {
            let mut got = vec![0; expected.len()];
            consumer.read(&mut got).unwrap();
            assert!(got == expected);
        }
    };
    if let Some(report) = on_stub(name, "delay 300", body) {
        report.is_clean();
    }
}

/// Both devices refuse the same, before anything is started.
fn refusals(device: &dyn Device, mut target: impl FnMut(usize, &mut dyn FnMut(Target<'_>))) {
    let mut upload = staged(device, &[1; 100]);
    let patches = Patches {
        offset: 4,
        count: 2,
        area: 16,
        temporal: 2,
        pixels: Pixels::F32,
    };
    let mut expand = |patches: Patches, bytes: usize| {
        let mut what = "";
        target(bytes, &mut |target| {
            what = refused(upload.expand(&patches, target))
        });
        what
    };
    let outside = "the patches lie outside of the upload";
    assert_eq!(
        expand(
            Patches {
                offset: 5,
                ..patches
            },
            768
        ),
        outside
    );
    assert_eq!(
        expand(
            Patches {
                count: usize::MAX / 2,
                ..patches
            },
            768
        ),
        outside
    );
    assert_eq!(
        expand(
            Patches {
                offset: usize::MAX,
                ..patches
            },
            768
        ),
        outside
    );
    for bytes in [767, 769, 0] {
        assert!(expand(patches, bytes).starts_with("the target has another size"));
    }
    for (range, bytes) in [(0..101, 101), (100..101, 1), (0..10, 9)] {
        let copied = &mut |target: Target<'_>| {
            let what = refused(upload.copy_out(range.clone(), target));
            assert!(what.starts_with("the bytes lie outside"), "{what}");
        };
        target(bytes, copied);
    }
    // Nothing to do needs neither a table nor an address.
    let none = Patches {
        count: 0,
        ..patches
    };
    target(0, &mut |target| upload.expand(&none, target).unwrap());
    target(0, &mut |target| upload.copy_out(7..7, target).unwrap());
}

#[test]
fn the_host_refuses_what_makes_no_sense() {
    let device = HostDevice::open(&options(1, 1, 10)).unwrap();
    refusals(&device, |bytes, with| {
        with(Target::host(&mut vec![0; bytes]))
    });
    let bare = DeviceOptions::default();
    let device = device::open("cpu", &bare).unwrap();
    let mut upload = staged(&*device, &[1; 12]);
    let patches = Patches {
        offset: 0,
        count: 1,
        area: 4,
        temporal: 1,
        pixels: Pixels::F32,
    };
    let mut out = [0; 48];
    let what = upload.expand(&patches, Target::host(&mut out));
    assert!(refused(what).contains("float table"));
}

#[test]
fn a_gpu_refuses_what_makes_no_sense() {
    let name = "a_gpu_refuses_what_makes_no_sense";
    let body = || {
        let device = open(&options(2, 2, 10));
        let mut consumer = Consumer::new(&device, 2000).unwrap();
        refusals(&device, |bytes, with| {
            with(consumer.target(0..bytes).unwrap())
        });
        assert!(consumer.target(0..2001).is_err());
        let mut upload = staged(&device, &[1; 100]);
        let patches = Patches {
            offset: 0,
            count: 2,
            area: 16,
            temporal: 1,
            pixels: Pixels::F32,
        };
        let mut out = [0; 384];
        let to_host = upload.expand(&patches, Target::host(&mut out));
        assert!(refused(to_host).contains("its own memory"));
        for (offset, area, at) in [(1, 16, 0), (0, 15, 0), (0, 16, 4)] {
            let patches = Patches {
                offset,
                area,
                ..patches
            };
            let bytes = patches.target_bytes().unwrap();
            let target = consumer.target(at..at + bytes).unwrap();
            let what = refused(upload.expand(&patches, target));
            assert!(what.contains("borders of four"), "{what}");
        }
        drop(upload);
        // Bytes as they are need no table.
        let bare = CudaDevice::open(0, &DeviceOptions::default()).unwrap();
        let mut upload = staged(&bare, &[1; 100]);
        let target = consumer.target(0..384).unwrap();
        assert!(refused(upload.expand(&patches, target)).contains("float table"));
        let bytes = Patches {
            pixels: Pixels::U8,
            ..patches
        };
        let target = consumer.target(0..96).unwrap();
        upload.expand(&bytes, target).unwrap();
        drop(upload);
        // Buffers of another device cannot be uploaded, and find their own way home.
        let host = HostDevice::open(&options(1, 1, 10)).unwrap();
        for _ in 0..3 {
            assert!(refused(device.upload(host.stage(5).unwrap())).contains("another device"));
        }
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
        assert!(report.last().ends_with("launches=0"));
    }
}

#[test]
fn the_host_is_a_device_too() {
    let device = device::open("cpu", &options(1, 2, 64)).unwrap();
    assert_eq!(device.name(), "cpu");
    let mut random = Random(8);
    let mut held: Vec<Box<dyn Upload>> = Vec::new();
    for _ in 0..100 {
        if held.len() == 2 {
            held.remove(0);
        }
        let mut bytes = vec![0; 1 + random.below(300)];
        random.fill(&mut bytes);
        let mut upload = staged(&*device, &bytes);
        let mut out = vec![0; bytes.len()];
        let target = Target::host(&mut out);
        upload.copy_out(0..bytes.len(), target).unwrap();
        assert_eq!(out, bytes);
        let patches = Patches {
            offset: 0,
            count: bytes.len() / 12,
            area: 4,
            temporal: 2,
            pixels: Pixels::BF16,
        };
        let mut out = vec![0; patches.target_bytes().unwrap()];
        let mut expected = out.clone();
        let target = Target::host(&mut out);
        upload.expand(&patches, target).unwrap();
        expand_bytes(
            &table(),
            Pixels::BF16,
            &bytes[..patches.count * 12],
            4,
            2,
            &mut expected,
        );
        assert_eq!(out, expected);
        held.push(upload);
    }
}

/// A waiting thread is woken by the end of the device.
fn closing(device: &dyn Device) {
    let mut held = Vec::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            // Ends when all buffers or slots are in hand and the device is closed.
            loop {
                match device.stage(8).and_then(|staging| device.upload(staging)) {
                    Ok(upload) => held.push(upload),
                    Err(error) => return error,
                }
            }
        });
        device.close();
        let error = waiter.join().unwrap();
        let closed = matches!(
            &error,
            Error::Device {
                fault: DeviceFault::Closed,
                ..
            }
        );
        assert!(closed, "{error:?}");
    });
}

#[test]
fn closing_ends_all_waiting() {
    closing(&HostDevice::open(&options(1, 1, 64)).unwrap());
    if let Some(report) = on_stub("closing_ends_all_waiting", "delay 500", || {
        for _ in 0..20 {
            closing(&open(&options(2, 2, 64)));
        }
    }) {
        report.is_clean();
    }
}

#[test]
fn names_of_devices() {
    for name in [
        "",
        "gpu",
        "cuda:",
        "cuda:x",
        "cuda:-1",
        "cuda:+1",
        "cuda0",
        "cuda:99999999999",
        "CPU",
    ] {
        let error = device::open(name, &DeviceOptions::default()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with(&format!("`{name}`")) && text.contains("cpu, cuda or cuda:N"),
            "{text}"
        );
    }
}

#[test]
fn devices_opened_over_and_over_leave_nothing() {
    let name = "devices_opened_over_and_over_leave_nothing";
    let body = || {
        for _ in 0..300 {
            let device = device::open("cuda", &options(2, 2, 64)).unwrap();
            let mut upload = staged(&*device, &[3; 50]);
            // The device goes first, the upload and its use later.
            drop(device);
            let mut out = [0; 50];
            let target = Target::host(&mut out);
            assert!(upload.copy_out(0..50, target).is_err());
        }
        assert_eq!(stub::reported().len(), 300);
    };
    if let Some(report) = on_stub(name, "delay 200", body) {
        report.is_clean();
    }
}
