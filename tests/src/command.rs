//! Runs the real `stoker` binary: clean environment, own process group, time limit, captured output.
//!
//! Owns finding the binary and ending what it started. Invariant: no child outlives its [`Running`].

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// No command of the tests takes longer, even unoptimised on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks at a child.
const POLL: Duration = Duration::from_millis(2);
/// The program in which a planted image aborts the process (feature `fault-injection`): `STOKER_BIN_FAULTS`,
/// else [`binary`].
#[must_use]
pub fn faulty_binary() -> PathBuf {
    std::env::var_os("STOKER_BIN_FAULTS").map_or_else(binary, Into::into)
}

/// Variables that a child needs to find programs and the test's temp folder.
const KEPT: [&str; 2] = ["PATH", "TMPDIR"];

/// The `stoker` binary: `STOKER_BIN`, or the one beside the test executable.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("STOKER_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("the test executable has a path");
    // target/<profile>/deps/<test> or target/<profile>/<program>.
    let found = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("stoker"))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "no stoker binary beside {}: run `cargo build -p stoker-builder`, or set STOKER_BIN",
            test.display()
        )
    })
}

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A command that will be run.
#[derive(Debug, Clone)]
pub struct Run {
    program: OsString,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    folder: Option<PathBuf>,
    limit: Duration,
}

/// What a command did.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// How long it ran.
    pub time: Duration,
}

impl Ended {
    /// Fails the test unless the exit code is `code`.
    ///
    /// # Panics
    /// With both streams, if it is another.
    pub fn expect_code(self, code: i32) -> Self {
        assert!(
            self.code == Some(code),
            "expected exit code {code}, not {:?} (signal {:?})\n--- stdout\n{}\n--- stderr\n{}",
            self.code,
            self.signal,
            self.stdout,
            self.stderr
        );
        self
    }

    /// The JSON object on stdout.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: `{}`\n{}", self.stdout, self.stderr))
    }
}

impl Run {
    /// `stoker` with these arguments.
    pub fn stoker<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::program(binary(), args)
    }

    /// Any program.
    pub fn program<A: AsRef<OsStr>>(
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(|arg| arg.as_ref().into()).collect(),
            envs: Vec::new(),
            folder: None,
            limit: LIMIT,
        }
    }

    /// The same arguments for another program.
    #[must_use]
    pub fn by(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// The same, started by the program and arguments in `wrapper`, as in `strace -f ...`.
    #[must_use]
    pub fn under<A: AsRef<OsStr>>(mut self, wrapper: &[A]) -> Self {
        let mut words: Vec<OsString> = wrapper.iter().map(|word| word.as_ref().into()).collect();
        if words.is_empty() {
            return self;
        }
        words.push(self.program);
        words.append(&mut self.args);
        self.program = words.remove(0);
        self.args = words;
        self
    }

    /// The same with more arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// The same with the option `name` set to `value`, in place of an earlier value.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        if let Some(at) = self.args.iter().position(|arg| arg == name)
            && at + 1 < self.args.len()
        {
            self.args[at + 1] = value.into();
            return self;
        }
        self.args([name, value])
    }

    /// The same without the option `name` and its value.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        if let Some(at) = self.args.iter().position(|arg| arg == name) {
            self.args.drain(at..self.args.len().min(at + 2));
        }
        self
    }

    /// The same with an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// The same in another working directory.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// The same with a shorter or longer time limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(&self) -> Running {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .env_clear()
            .envs(
                KEPT.iter()
                    .filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .env("HOME", "/nonexistent")
            .env("RUST_BACKTRACE", "0")
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program.display()));
        let readers = (reader(child.stdout.take()), reader(child.stderr.take()));
        Running {
            child,
            readers: Some(readers),
            started: Instant::now(),
            limit: self.limit,
        }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started, or does not end in time.
    #[must_use]
    pub fn end(&self) -> Ended {
        self.start().wait()
    }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Collects one of the streams.
type Reader = JoinHandle<Vec<u8>>;

/// A command that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    readers: Option<(Reader, Reader)>,
    started: Instant,
    limit: Duration,
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Since its start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sends it a signal; one that has ended gets none.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If the limit passes first.
    #[must_use]
    pub fn wait(mut self) -> Ended {
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if self.elapsed() < self.limit => std::thread::sleep(POLL),
                Ok(None) => {
                    let (_, stderr) = self.stop();
                    panic!("no end after {:?}\n{stderr}", self.limit);
                }
                Err(error) => panic!("wait: {error}"),
            }
        };
        let time = self.elapsed();
        let (stdout, stderr) = self.streams();
        Ended {
            code: status.code(),
            signal: status.signal(),
            stdout,
            stderr,
            time,
        }
    }

    fn stop(&mut self) -> (String, String) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
        self.streams()
    }

    fn streams(&mut self) -> (String, String) {
        let text = |thread: JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&thread.join().unwrap_or_default()).into_owned()
        };
        self.readers
            .take()
            .map(|(stdout, stderr)| (text(stdout), text(stderr)))
            .unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.readers.is_some() {
            let _ = self.stop();
        }
    }
}

/// Sends `signal` to the process `pid`.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
