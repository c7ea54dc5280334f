//! What can go wrong with a driver, and what is said about it: never a panic, a hang or a leak.
#![cfg(feature = "cuda")]

#[expect(dead_code, reason = "shared by several test binaries")]
mod stub;

use std::path::Path;
use std::{fs, thread};

use stoker_reader::device::{self, Consumer, CudaDevice, Device, DeviceFault, Patches};
use stoker_reader::{Error, Pixels, Result};
use stub::{configure, on_stub, options, reported, with_library};

/// All functions that the product calls, as the driver names them.
fn calls() -> Vec<&'static str> {
    let source = include_str!("../src/device/cuda/driver.rs");
    let list = source.split_once("SYMBOLS: &[&str] = &[").unwrap().1;
    let list = list.split_once("];").unwrap().0;
    list.split('"').skip(1).step_by(2).collect()
}

/// Opens a device, moves some bytes through it in all ways there are, and closes it.
fn everything() -> Result<Vec<u8>> {
    let device = CudaDevice::open(0, &options(2, 2, 64))?;
    let mut consumer = Consumer::new(&device, 4096)?;
    consumer.write(&[0x5a; 4096])?;
    let mut got = vec![0; 4096];
    for round in 0..4 {
        let mut staging = device.stage(200)?;
        staging.fill(round);
        let mut upload = device.upload(staging)?;
        let target = consumer.target(0..100)?;
        upload.copy_out(100..200, target)?;
        for (at, pixels) in [(512, Pixels::F32), (1024, Pixels::BF16)] {
            let patches = Patches {
                offset: 0,
                count: 1,
                area: 16,
                temporal: 2,
                pixels,
            };
            let bytes = patches.target_bytes().unwrap_or_default();
            let target = consumer.target(at..at + bytes)?;
            upload.expand(&patches, target)?;
        }
        consumer.busy(1, 1)?;
        drop(upload);
        consumer.read(&mut got)?;
    }
    // Bigger than the buffers, so that they are replaced.
    drop(device.upload(device.stage(3 << 20)?)?);
    consumer.synchronize()?;
    device.time_copies(100, 2)?;
    Ok(got)
}

fn fault(error: &Error) -> &DeviceFault {
    match error {
        Error::Device { device, fault } => {
            assert_eq!(device, "cuda:0");
            fault
        }
        other => panic!("{other:?}"),
    }
}

/// Which calls give something back: what they fail to give back stays.
fn gives_back(call: &str) -> bool {
    let frees = [
        "Free",
        "Destroy",
        "Unload",
        "Release",
        "SetCurrent",
        "GetCurrent",
    ];
    frees.iter().any(|part| call.contains(part))
}

/// Lets each call fail, every time that it is made.
fn each_call_fails(code: u32, check: impl Fn(&str, &DeviceFault)) {
    let good = everything().unwrap();
    for call in calls() {
        let waits = call == "cuStreamSynchronize" || call == "cuEventSynchronize";
        // What cannot be given back stays, and so does memory of which it cannot be known whether it is in use.
        let may_leak = gives_back(call) || waits || code == 719;
        for nth in 1.. {
            configure(&format!("delay 20\nfail {call} {nth} {code}"));
            let before = reported().len();
            // A thread of its own, on which a context that cannot be put back does not matter to others.
            let result = thread::spawn(everything).join().unwrap();
            let lines = reported().split_off(before);
            if !lines.iter().any(|line| line.starts_with("failed ")) {
                assert!(nth > 1, "{call} is never called");
                assert!(result.is_ok_and(|got| got == good));
                break;
            }
            match result {
                // Failures that nobody can be told, at the end of things.
                Ok(got) => assert!(got == good && may_leak, "{call} {nth}"),
                Err(error) => check(call, fault(&error)),
            }
            let clean = "closed device=0 locked=0 streams=0 events=0 modules=0 ";
            let closed = lines.iter().any(|line| line.starts_with(clean));
            let before_all = call == "cuInit"
                || call == "cuDriverGetVersion"
                || call == "cuDevicePrimaryCtxRetain"
                || call.starts_with("cuDeviceGet");
            assert!(closed || before_all || may_leak, "{call} {nth}: {lines:?}");
            let violations: Vec<_> = lines
                .iter()
                .filter(|line| line.starts_with("violation"))
                .collect();
            let stuck = violations
                .iter()
                .all(|line| line.contains("a context that was left current"));
            let may_be_stuck = call == "cuCtxSetCurrent" || code == 719;
            assert!(
                violations.is_empty() || stuck && may_be_stuck,
                "{call} {nth}: {violations:?}"
            );
        }
    }
}

#[test]
fn every_call_may_fail_at_any_time() {
    let name = "every_call_may_fail_at_any_time";
    on_stub(name, "", || {
        each_call_fails(999, |call, fault| {
            let expected = DeviceFault::Failed {
                call: calls().into_iter().find(|known| *known == call).unwrap(),
                code: 999,
                name: "CUDA_ERROR_UNKNOWN".to_owned(),
            };
            assert_eq!(*fault, expected);
        });
    });
}

#[test]
fn a_lost_context_is_lost_for_good() {
    let name = "a_lost_context_is_lost_for_good";
    on_stub(name, "", || {
        each_call_fails(719, |call, fault| {
            let lost = matches!(fault, DeviceFault::Lost { call: said, code: 719, .. } if *said == call || gives_back(call));
            assert!(lost, "{call}: {fault:?}");
        });
        // Found out later: the launch is taken, and fails when its turn comes.
        configure("break cuLaunchKernel 1 700\ndelay 100");
        let device = CudaDevice::open(0, &options(1, 1, 64)).unwrap();
        let mut consumer = Consumer::new(&device, 4096).unwrap();
        consumer.busy(1, 1).unwrap();
        let error = consumer.synchronize().unwrap_err();
        // Whichever call hears of it first.
        let text = error.to_string();
        assert!(text.contains("the CUDA context is lost, cu"), "{text}");
        assert!(
            text.contains(" says 700 (CUDA_ERROR_ILLEGAL_ADDRESS)"),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("start the process again"));
        // Everybody is told the same, and nobody waits for what never comes.
        for _ in 0..3 {
            assert_eq!(fault(&device.stage(5).unwrap_err()), fault(&error));
        }
    });
}

#[test]
fn memory_that_runs_out_is_named() {
    let name = "memory_that_runs_out_is_named";
    let body = || {
        for (settings, kind) in [
            ("memory 5000000", "device"),
            ("locked 10000", "page-locked"),
        ] {
            configure(settings);
            let error = CudaDevice::open(0, &options(3, 3, 8192)).unwrap_err();
            let fault = fault(&error);
            let named = matches!(fault, DeviceFault::OutOfMemory { kind: k, bytes } if *k == kind && *bytes >= 8192);
            assert!(named, "{fault:?}");
            assert!(error.hint().unwrap().contains("budget"));
            // What is too big now does no harm to what fits.
            let device = CudaDevice::open(0, &options(1, 1, 4096)).unwrap();
            let grown = device.stage(8 << 20);
            let grown = grown.and_then(|staging| device.upload(staging).map(drop));
            let expected = format!("out of {kind} memory, asking for 8388608 bytes: `cuda:0`");
            assert!(grown.unwrap_err().to_string().ends_with(&expected));
            drop(device.upload(device.stage(4000).unwrap()).unwrap());
        }
        configure("memory 4300000");
        let device = CudaDevice::open(0, &options(1, 1, 4096)).unwrap();
        let grown = device.upload(device.stage(3 << 20).unwrap());
        assert!(
            grown
                .unwrap_err()
                .to_string()
                .contains("out of device memory, asking for 4194304")
        );
        drop(device.upload(device.stage(4000).unwrap()).unwrap());
    };
    if let Some(report) = on_stub(name, "", body) {
        report.is_clean();
    }
}

#[test]
fn machines_that_will_not_do() {
    let name = "machines_that_will_not_do";
    let body = || {
        let open = |ordinal, settings| {
            configure(settings);
            CudaDevice::open(ordinal, &options(1, 1, 64)).unwrap_err()
        };
        let old = open(0, "version 10020");
        let expected = "the CUDA driver is too old: 10.2, needed is 11.0";
        assert!(old.to_string().contains(expected), "{old}");
        let few = open(2, "devices 2").to_string();
        assert!(few.contains("the machine has 2: `cuda:2`"), "{few}");
        assert!(matches!(
            fault(&open(0, "fail cuInit 1 100")),
            DeviceFault::NoSuchDevice { devices: 0 }
        ));
        assert_eq!(*fault(&open(0, "fail cuInit 1 34")), DeviceFault::NoDriver);
        let ptx = open(0, "fail cuModuleLoadData 1 222").to_string();
        assert!(ptx.contains("cuModuleLoadData failed with 222"), "{ptx}");
    };
    if let Some(report) = on_stub(name, "", body) {
        report.has_no_violation();
    }
}

#[test]
fn no_driver_is_an_error() {
    let name = "no_driver_is_an_error";
    let body = || {
        for name in ["cuda", "cuda:0"] {
            let error = device::open(name, &options(1, 1, 64)).unwrap_err();
            assert_eq!(*fault(&error), DeviceFault::NoDriver);
            assert!(error.hint().unwrap().contains("`cpu`"));
        }
    };
    // Not a library: a machine's own driver is not looked for behind it.
    with_library(name, "", |to| fs::write(to, "none").unwrap(), body);
}

#[test]
fn a_missing_function_is_an_error_that_names_it() {
    let name = "a_missing_function_is_an_error_that_names_it";
    let library = fs::read(stub::library()).unwrap();
    // As text of the same length, because searching that is fast.
    let text: String = library.iter().map(|byte| char::from(byte & 0x7f)).collect();
    for call in calls() {
        let without = |to: &Path| {
            let mut library = library.clone();
            let names: Vec<_> = text.match_indices(&format!("\0{call}\0")).collect();
            assert!(!names.is_empty(), "the stub has no {call}");
            for (at, _) in names {
                library[at + 1] = b'x';
            }
            fs::write(to, library).unwrap();
        };
        let body = || {
            // The library is not even asked to start, so that its settings can name what it lacks.
            let missing = fs::read_to_string(std::env::var("CUSTUB_CONFIG").unwrap()).unwrap();
            let error = CudaDevice::open(0, &options(1, 1, 64)).unwrap_err();
            assert!(
                matches!(fault(&error), DeviceFault::MissingSymbol { symbol } if *symbol == missing)
            );
        };
        if with_library(name, call, without, body).is_none() {
            return;
        }
    }
}

#[test]
fn a_forked_child_is_told_and_does_no_harm() {
    let name = "a_forked_child_is_told_and_does_no_harm";
    let body = || {
        let device = CudaDevice::open(0, &options(2, 2, 64)).unwrap();
        let consumer = Consumer::new(&device, 4096).unwrap();
        let staging = device.stage(50).unwrap();
        let upload = device.upload(device.stage(50).unwrap()).unwrap();
        let forked = |result: Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Forked { .. }), "{error:?}");
            assert!(error.hint().unwrap().contains("spawn"));
        };
        let host = device::open("cpu", &options(1, 1, 64)).unwrap();
        let on_host = host.upload(host.stage(5).unwrap()).unwrap();
        let captured = (device, consumer, staging, upload);
        let ((device, mut consumer, staging, mut upload), unharmed) =
            custub::in_child(captured, |(device, mut child, staging, mut upload)| {
                forked(device.stage(5).map(drop));
                forked(child.write(&[1; 5]));
                forked(child.synchronize());
                forked(child.busy(1, 1));
                let target = child.target(0..10).unwrap();
                forked(upload.copy_out(0..10, target));
                forked(device.upload(staging).map(drop));
                forked(CudaDevice::time_copies(&device, 10, 1).map(drop));
                forked(host.stage(5).map(drop));
                host.close();
                drop(on_host);
                device.close();
                drop(upload);
                drop(child);
                drop(device);
            });
        assert!(unharmed);
        // The parent goes on.
        drop(staging);
        let target = consumer.target(0..50).unwrap();
        upload.copy_out(0..50, target).unwrap();
        consumer.synchronize().unwrap();
        drop(device.upload(device.stage(10).unwrap()).unwrap());
    };
    if let Some(report) = on_stub(name, "delay 100", body) {
        report.is_clean();
    }
}
