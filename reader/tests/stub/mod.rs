//! Runs a test in a process of its own, whose CUDA driver is the stub.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use stoker_reader::device::{CudaDevice, DeviceOptions};

#[path = "../../examples/gpu_check/transfers.rs"]
pub(crate) mod transfers;

/// What the stub reported, a line each.
pub(crate) struct Report(Vec<String>);

impl Report {
    /// Everything was freed each time, and nothing forbidden was done.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        let clean = "closed device=0 locked=0 streams=0 events=0 modules=0 lost=0 ";
        let bad: Vec<_> = self
            .0
            .iter()
            .filter(|line| !line.starts_with(clean))
            .collect();
        assert!(bad.is_empty() && !self.0.is_empty(), "{bad:#?}");
    }

    /// Nothing forbidden was done, whatever is left.
    #[track_caller]
    pub(crate) fn has_no_violation(&self) {
        let bad: Vec<_> = self
            .0
            .iter()
            .filter(|line| line.starts_with("violation"))
            .collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    #[track_caller]
    pub(crate) fn last(&self) -> &str {
        self.0.last().expect("a line in the report")
    }
}

/// Where cargo puts the stub: it is built with the tests, being a dependency of theirs.
pub(crate) fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libcustub.so");
    assert!(library.is_file(), "no {}", library.display());
    library
}

/// Tells the stub what to do from the next time on that a device is opened while none is.
pub(crate) fn configure(settings: &str) {
    fs::write(env::var("CUSTUB_CONFIG").unwrap(), settings).unwrap();
}

/// What the stub has reported so far in this process.
pub(crate) fn reported() -> Vec<String> {
    let text = fs::read_to_string(env::var("CUSTUB_REPORT").unwrap()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Runs `body` in a child process, which is this test again, with the stub as its driver.
#[track_caller]
pub(crate) fn on_stub(test: &str, settings: &str, body: impl FnOnce()) -> Option<Report> {
    with_library(
        test,
        settings,
        |to| assert!(fs::copy(library(), to).is_ok()),
        body,
    )
}

/// As `on_stub`, with what `install` writes to the place of the driver's library.
#[track_caller]
pub(crate) fn with_library(
    test: &str,
    settings: &str,
    install: impl FnOnce(&Path),
    body: impl FnOnce(),
) -> Option<Report> {
    if env::var("CUSTUB_TEST").is_ok_and(|name| name == test) {
        body();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    install(&path("libcuda.so.1"));
    // Found first, where a machine has a driver of its own.
    fs::copy(path("libcuda.so.1"), path("libcuda.so")).unwrap();
    fs::write(path("config"), settings).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("CUSTUB_TEST", test)
        .env("CUSTUB_CONFIG", path("config"))
        .env("CUSTUB_REPORT", path("report"))
        .env("LD_LIBRARY_PATH", folder.path())
        .stdin(Stdio::null())
        .stdout(fs::File::create(path("output")).unwrap())
        .stderr(fs::File::create(path("errors")).unwrap())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if started.elapsed() > Duration::from_secs(300) => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let read = |name: &str| fs::read_to_string(path(name)).unwrap_or_default();
    let (output, errors, report) = (read("output"), read("errors"), read("report"));
    match status {
        Some(status) => assert!(status.success(), "{status}\n{output}\n{errors}\n{report}"),
        None => panic!("it hangs\n{output}\n{errors}\n{report}"),
    }
    assert!(
        output.contains("1 passed"),
        "the test did not run: {output}"
    );
    Some(Report(report.lines().map(str::to_owned).collect()))
}

pub(crate) fn options(staging: usize, slots: usize, bytes: usize) -> DeviceOptions {
    DeviceOptions {
        staging,
        slots,
        bytes,
        table: Some(transfers::table()),
    }
}

pub(crate) fn open(options: &DeviceOptions) -> CudaDevice {
    CudaDevice::open(0, options).unwrap()
}
