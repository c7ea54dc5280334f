//! System calls of a build: traced, counted, failed or answered with SIGKILL, by strace.
//!
//! Owns the reading of strace's output. Invariant: a [`Point`] counts the calls on one path as strace's `-P` and `when=` do,
//! thread by thread, so the n-th call of a trace is the n-th call of an injection, whatever other threads do meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::command::{Ended, Run};

/// Calls that change what is on disk, by the names of all architectures.
pub const CHANGING: [&str; 14] = [
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
    "ftruncate",
    "mkdir",
    "mkdirat",
    "fchmod",
];

/// The builder writes no more at once.
const WRITE_BYTES_MAX: &str = "4194304";

/// One finished call.
#[derive(Debug, Clone)]
pub struct Call {
    /// The thread.
    pub thread: u32,
    /// The call's name.
    pub name: String,
    /// Its arguments, as strace prints them.
    pub args: String,
    /// What it wrote, in a trace [with bytes](trace_with_bytes).
    pub bytes: Vec<u8>,
    /// Whether it succeeded.
    pub good: bool,
    /// Place in the trace of its begin.
    pub begin: usize,
    /// Place in the trace of its end.
    pub end: usize,
}

impl Call {
    /// The paths among the arguments: quoted ones and those of descriptors.
    #[must_use]
    pub fn paths(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for (open, close) in [('"', '"'), ('<', '>')] {
            let mut rest = self.args.as_str();
            while let Some(start) = rest.find(open) {
                rest = &rest[start + 1..];
                let Some(end) = rest.find(close) else { break };
                if rest.starts_with('/') {
                    found.push(&rest[..end]);
                }
                rest = &rest[end + 1..];
            }
        }
        found
    }

    /// The number that stands `from_end` places before the last argument.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn number(&self, from_end: usize) -> usize {
        let (args, _) = self.args.rsplit_once(')').expect("arguments");
        let number = args.rsplit(", ").nth(from_end);
        let number = number.and_then(|text| text.trim_end().parse().ok());
        number.unwrap_or_else(|| panic!("no number in `{}`", self.args))
    }

    /// Moves what a write wrote out of its arguments, and makes text of the others.
    fn take_bytes(&mut self) {
        if matches!(self.name.as_str(), "write" | "pwrite64")
            && let Some((head, rest)) = self.args.split_once(", \"")
            && let Some((bytes, tail)) = rest.split_once('"')
        {
            self.bytes = unescaped(bytes);
            self.args = format!("{head}, \"\"{tail}");
        }
        self.args = String::from_utf8_lossy(&unescaped(&self.args)).into_owned();
    }

    /// Whether it changes something, or opens something to change it, below `folder`.
    #[must_use]
    pub fn changes(&self, folder: &Path) -> bool {
        let changing = CHANGING.contains(&self.name.as_str())
            || (self.name.starts_with("open") && self.args.contains("O_CREAT"))
            || (self.name == "close" && self.args.contains(".tmp>"));
        changing
            && self
                .paths()
                .iter()
                .any(|path| Path::new(path).starts_with(folder))
    }
}

/// The n-th call of this name on this path in some thread, from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The call's name.
    pub call: String,
    /// What it is done to, below the output folder.
    pub path: PathBuf,
    /// Which one of its thread.
    pub nth: usize,
}

impl Point {
    /// The injection of `fault` at this point, as in `signal=SIGKILL` or `error=EIO`.
    #[must_use]
    pub fn inject(&self, fault: &str) -> String {
        format!("inject={}:{fault}:when={}", self.call, self.nth)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of `{}`", self.call, self.nth, self.path.display())
    }
}

/// Runs `run` under strace and gives all calls of these names, in order of their ends.
///
/// # Panics
/// If the trace cannot be read.
#[must_use]
pub fn trace(run: &Run, calls: &[&str], scratch: &Path) -> (Ended, Vec<Call>) {
    traced(run, calls, scratch, &[])
}

/// The same, with the bytes of every write.
///
/// # Panics
/// If the trace cannot be read.
#[must_use]
pub fn trace_with_bytes(run: &Run, calls: &[&str], scratch: &Path) -> (Ended, Vec<Call>) {
    traced(run, calls, scratch, &["-xx", "-s", WRITE_BYTES_MAX])
}

fn traced(run: &Run, calls: &[&str], scratch: &Path, strings: &[&str]) -> (Ended, Vec<Call>) {
    let file = scratch.join("strace.out");
    let mut words = wrapper(calls, &file);
    words.push("--seccomp-bpf".into());
    words.extend(strings.iter().map(|word| (*word).to_owned()));
    let ended = run.clone().under(&words).end();
    let text = std::fs::read_to_string(&file).expect("strace's output: is strace installed?");
    (ended, parse(&text))
}

/// `run` under strace with an injection into calls of this name.
///
/// Without `--seccomp-bpf`: strace 6.1 injects no signal with it.
#[must_use]
pub fn injected(run: &Run, call: &str, injection: &str) -> Run {
    let mut words = wrapper(&[call], Path::new("/dev/null"));
    words.extend(["-e".into(), injection.into()]);
    run.clone().under(&words)
}

/// `run`, which writes to `output`, under strace with `fault` at `point`.
#[must_use]
pub fn failed_at(run: &Run, output: &Path, point: &Point, fault: &str) -> Run {
    let mut words = wrapper(&[&point.call], Path::new("/dev/null"));
    // Joining an empty path would add a slash.
    let path = if point.path.as_os_str().is_empty() {
        output.to_path_buf()
    } else {
        output.join(&point.path)
    };
    words.extend(["-P".into(), path.display().to_string()]);
    words.extend(["-e".into(), point.inject(fault)]);
    run.clone().under(&words)
}

fn wrapper(calls: &[&str], file: &Path) -> Vec<String> {
    // The question mark skips names that this architecture does not have.
    let calls: Vec<String> = calls.iter().map(|name| format!("?{name}")).collect();
    let fixed = ["strace", "-f", "-q", "-q", "-y", "-s", "0", "-o"];
    let mut words: Vec<String> = fixed.iter().map(|word| (*word).to_owned()).collect();
    words.push(file.display().to_string());
    words.extend(["-e".into(), "signal=none".into()]);
    words.extend(["-e".into(), format!("trace={}", calls.join(","))]);
    words
}

/// The points at which `calls` change something below `folder`.
#[must_use]
pub fn points(calls: &[Call], folder: &Path) -> BTreeSet<Point> {
    let mut counts: BTreeMap<(u32, &str, &str), usize> = BTreeMap::new();
    let mut begun: Vec<&Call> = calls.iter().collect();
    begun.sort_by_key(|call| call.begin);
    let mut found = BTreeSet::new();
    for call in begun {
        let paths: BTreeSet<&str> = call.paths().into_iter().collect();
        for path in &paths {
            *counts.entry((call.thread, &call.name, path)).or_default() += 1;
        }
        let inside = call
            .paths()
            .into_iter()
            .find_map(|path| Some((path, Path::new(path).strip_prefix(folder).ok()?)));
        if let Some((path, below)) = inside.filter(|_| call.changes(folder)) {
            found.insert(Point {
                call: call.name.clone(),
                path: below.to_path_buf(),
                nth: counts[&(call.thread, call.name.as_str(), path)],
            });
        }
    }
    found
}

/// The bytes of a text in which strace has put some as `\x00`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let byte = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.expect("two digits"));
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// Reads strace's output.
#[must_use]
pub fn parse(text: &str) -> Vec<Call> {
    let mut waiting: BTreeMap<u32, Call> = BTreeMap::new();
    let mut calls = Vec::new();
    for (line_number, line) in text.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else {
            continue;
        };
        let (Ok(thread), rest) = (thread.parse(), rest.trim_start()) else {
            continue;
        };
        let mut call = if rest.starts_with("<...") {
            let Some(mut call) = waiting.remove(&thread) else {
                continue;
            };
            let after = rest.split_once("resumed>").map_or("", |(_, after)| after);
            call.args.push_str(after);
            call
        } else if let Some((name, args)) = rest.split_once('(') {
            Call {
                thread,
                name: name.to_owned(),
                args: args.to_owned(),
                bytes: Vec::new(),
                good: false,
                begin: line_number,
                end: line_number,
            }
        } else {
            continue;
        };
        call.end = line_number;
        if let Some(args) = call.args.strip_suffix("<unfinished ...>") {
            call.args = args.to_owned();
            waiting.insert(thread, call);
            continue;
        }
        let result = call
            .args
            .rsplit_once(" = ")
            .map_or("-1", |(_, result)| result);
        call.good = !result.starts_with('-') && !result.starts_with('?');
        call.take_bytes();
        calls.push(call);
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
7 openat(AT_FDCWD</x>, \"/out/.a.tmp\", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0644) = 5</out/.a.tmp>
7 write(5</out/.a.tmp>, \"\"..., 3 <unfinished ...>
8 fsync(6</else>) = 0
7 <... write resumed>) = 3
7 fsync(5</out/.a.tmp>) = -1 EIO (Input/output error) (INJECTED)
7 write(1<pipe:[3]>, \"\"..., 9) = 9
7 write(5</out/.a.tmp>, \"\"..., 9) = 9
7 +++ exited with 0 +++
";

    #[test]
    fn calls_have_names_paths_results_and_places() {
        let calls = parse(TEXT);
        let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(
            names,
            ["openat", "fsync", "write", "fsync", "write", "write"]
        );
        assert_eq!((calls[2].begin, calls[2].end), (1, 3));
        assert_eq!(calls[0].paths(), ["/out/.a.tmp", "/x", "/out/.a.tmp"]);
        assert!(calls[2].good && !calls[3].good);
    }

    #[test]
    fn bytes_are_taken_out_of_the_arguments() {
        let hex = r#"7 pwrite64(5<\x2f\x61>, "\x00\x22\x29\x0a", 4, 16 <unfinished ...>
7 <... pwrite64 resumed>) = 4"#;
        let call = &parse(hex)[0];
        assert_eq!(call.bytes, [0, 0x22, 0x29, 0x0a]);
        assert_eq!(call.paths(), ["/a"]);
        assert_eq!((call.number(1), call.number(0)), (4, 16));
    }

    #[test]
    fn points_count_by_thread_and_path_and_skip_what_lies_elsewhere() {
        let points = points(&parse(TEXT), Path::new("/out"));
        let text: Vec<String> = points.iter().map(|point| point.inject("f")).collect();
        assert_eq!(
            text,
            [
                "inject=fsync:f:when=1",
                "inject=openat:f:when=1",
                "inject=write:f:when=1",
                "inject=write:f:when=2"
            ]
        );
    }
}
