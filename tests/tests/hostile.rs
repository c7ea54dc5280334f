//! Input made to break things: every bad record gets the right reason at the right place, costs nothing
//! else, and no memory (G1, G6, G7, G8, G12).

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use flate2::Crc;
use serde_json::json;
use stoker_tests::cache::{committed, table};
use stoker_tests::command::{Ended, Run};
use stoker_tests::corpus::{Corpus, chat, image_name, vqa};

/// Peak memory of a build over hostile input, unoptimised: far below what the input asks for.
const MEMORY_MAX_KIB: u64 = 600 << 10;

/// Reason and column of every reject, by line of `file`.
fn rejects(output: &Path, file: &str) -> BTreeMap<u64, (String, String)> {
    table(output, "rejects")
        .into_iter()
        .filter(|row| row["file"] == file)
        .map(|row| {
            let line = row["line"].parse().expect("a line");
            (line, (row["reason"].clone(), row["column"].clone()))
        })
        .collect()
}

/// A question with `image` as its image value, as JSON text.
fn ask(image: &str) -> Vec<u8> {
    format!("{{\"question\":\"q\",\"answer\":\"a\",\"image\":{image}}}").into_bytes()
}

/// Line, reason (empty: a good record), column if it is to be checked.
type Line = (Vec<u8>, &'static str, Option<&'static str>);

fn lines() -> Vec<Line> {
    let text = |text: &str| text.as_bytes().to_vec();
    let deep = "[".repeat(200_000);
    let many = vec!["\"images/000.png\""; 70_000].join(",");
    let long_name = "n".repeat(5_000);
    vec![
        (
            text("\u{feff}{\"question\":\"with a mark\",\"answer\":\"a\"}"),
            "",
            None,
        ),
        (
            text("{\"question\":\"carriage return\",\"answer\":\"a\"}\r"),
            "",
            None,
        ),
        (
            b"{\"question\":\"\xff\",\"answer\":\"a\"}".to_vec(),
            "bad_utf8",
            Some("13"),
        ),
        (
            b"{\"question\":\"\xed\xa0\x80\",\"answer\":\"a\"}".to_vec(),
            "bad_utf8",
            Some("13"),
        ),
        (
            text("{\"question\":\"q\",\"answer\":\"a\",\"answer\":\"b\"}"),
            "bad_json",
            None,
        ),
        (text(&format!("{{\"question\":{deep}")), "bad_json", None),
        (
            text("{\"question\":\"q\",\"answer\":\"a\",\"x\":NaN}"),
            "bad_json",
            None,
        ),
        (
            text("{\"question\":\"q\",\"answer\":\"a\",\"x\":1e999}"),
            "bad_json",
            None,
        ),
        (
            text("{\"question\":\"q\",\"answer\":\"a\",\"x\":123456789012345678901234567890}"),
            "",
            None,
        ),
        (text("{\"question\":\"q\",\"answer\":"), "bad_json", None),
        (
            text("{\"question\":\"q\",\"answer\":\"a\"} {}"),
            "bad_json",
            None,
        ),
        (
            text("{\"question\":\"a \\ud800 b\",\"answer\":\"a\"}"),
            "bad_json",
            None,
        ),
        (
            text("{\"question\":\"raw\ttab\",\"answer\":\"a\"}"),
            "bad_json",
            None,
        ),
        (text("[1, 2]"), "bad_json", Some("0")),
        (text("\"text\""), "bad_json", Some("0")),
        (text("{}"), "unknown_shape", None),
        (
            text("{\"question\":7,\"answer\":\"a\"}"),
            "wrong_type",
            None,
        ),
        (text("{\"question\":\"q\"}"), "wrong_type", None),
        (
            text("{\"question\":\"q\",\"answer\":\"a\",\"video\":\"v.mp4\"}"),
            "wrong_type",
            None,
        ),
        (ask("7"), "wrong_type", None),
        (ask("[[]]"), "wrong_type", None),
        (ask("\"images/gone.png\""), "missing_image", None),
        (ask("\"images/000.png/deeper\""), "missing_image", None),
        (
            ask(&format!("\"images/{long_name}.png\"")),
            "missing_image",
            None,
        ),
        (ask("\"images\""), "forbidden_link", None),
        (ask("\"images/fifo.png\""), "forbidden_link", None),
        (ask("\"images/zero.png\""), "forbidden_link", None),
        (ask("\"images/loop.png\""), "forbidden_link", None),
        (ask("\"images/out.png\""), "forbidden_link", None),
        (ask("\"images/nul\\u0000.png\""), "forbidden_link", None),
        (ask("\"/etc/passwd\""), "forbidden_link", None),
        (ask("\"../../secret.png\""), "forbidden_link", None),
        (ask("\"http://127.0.0.1:9/a.png\""), "forbidden_link", None),
        (ask("\"file:///etc/passwd\""), "forbidden_link", None),
        (ask("\"images/bomb.png\""), "too_many_pixels", None),
        (ask("\"images/wide.jpg\""), "extreme_aspect", None),
        (ask("\"images/square.jpg\""), "too_many_pixels", None),
        (ask("\"images/empty.png\""), "not_an_image", None),
        (ask(&format!("[{many}]")), "image_count_mismatch", None),
        (
            text(&json!({"id": "i".repeat(100_000), "question": "q", "answer": "a"}).to_string()),
            "wrong_type",
            None,
        ),
        (
            text("{\"id\":{\"a\":1},\"question\":\"q\",\"answer\":\"a\"}"),
            "",
            None,
        ),
        (
            text("  {\"question\":\"spaces around\",\"answer\":\"a\"}  "),
            "",
            None,
        ),
    ]
}

fn special_files(corpus: &Corpus) {
    let images = corpus.data().join("images");
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(to, images.join(name)).expect("a link");
    };
    link("loop.png", "loop.png");
    link("/etc/passwd", "out.png");
    for (name, kind) in [("fifo.png", &["p"][..]), ("zero.png", &["c", "1", "5"])] {
        let made = Command::new("mknod")
            .arg(images.join(name))
            .args(kind)
            .status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "mknod needs root"
        );
    }
    corpus.write("images/bomb.png", &png_bomb(50_000, 50_000));
    corpus.write("images/wide.jpg", &jpeg_head(65_500, 16));
    corpus.write("images/square.jpg", &jpeg_head(65_500, 65_500));
    corpus.write("images/empty.png", b"");
}

/// A PNG that claims a size; its pixels never come.
fn png_bomb(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 2, 0, 0, 0]);
    // A zlib stream of zeros, cut short.
    for (kind, data) in [
        (b"IHDR", &header[..]),
        (b"IDAT", &[0x78, 0x9c, 0xed, 0xc1, 0x01]),
        (b"IEND", &[]),
    ] {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(data);
        bytes.extend(u32::try_from(data.len()).expect("small").to_be_bytes());
        bytes.extend(kind);
        bytes.extend(data);
        bytes.extend(crc.sum().to_be_bytes());
    }
    bytes
}

/// A JPEG's headers: frame and scan, then nothing.
fn jpeg_head(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = vec![0xff, 0xd8, 0xff, 0xdb, 0, 67, 0];
    bytes.extend([1; 64]);
    bytes.extend([0xff, 0xc0, 0, 11, 8]);
    bytes.extend(height.to_be_bytes());
    bytes.extend(width.to_be_bytes());
    bytes.extend([1, 1, 0x11, 0]);
    bytes.extend([0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0]);
    bytes
}

/// Runs to the end, watching the peak of resident memory.
fn watched(run: &Run) -> (Ended, u64) {
    let mut running = run.start();
    let status = format!("/proc/{}/status", running.pid());
    let mut peak = 0;
    while !running.is_over() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        peak = kib.unwrap_or(peak).max(peak);
        std::thread::sleep(Duration::from_millis(5));
    }
    (running.wait(), peak)
}

#[test]
fn every_bad_record_has_its_reason_and_place() {
    let corpus = Corpus::good(31, 6);
    special_files(&corpus);
    let lines = lines();
    let mut file = Vec::new();
    for (text, _, _) in &lines {
        file.extend_from_slice(text);
        // An empty line after each: not a record, but a line.
        file.extend_from_slice(b"\n\n");
    }
    // The last record has no line break.
    file.extend_from_slice(vqa(&image_name(0), "last?", "yes").to_string().as_bytes());
    corpus.write("hostile.jsonl", &file);
    let output = corpus.output("cache");
    let run = corpus
        .build(&output)
        .with("--schema", "auto")
        .args(["--json"]);
    let (ended, peak) = watched(&run);
    let report = ended.expect_code(0).json();
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
    let found = rejects(&output, "hostile.jsonl");
    let mut wrong = Vec::new();
    for (at, (text, reason, column)) in lines.iter().enumerate() {
        let line = 2 * at as u64 + 1;
        let shown = String::from_utf8_lossy(&text[..text.len().min(60)]).into_owned();
        let (got, got_column) = found.get(&line).cloned().unwrap_or_default();
        if got != *reason || column.is_some_and(|column| column != got_column) {
            wrong.push(format!(
                "line {line} `{shown}`: {reason} {column:?}, not {got} {got_column}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let bad = lines
        .iter()
        .filter(|(_, reason, _)| !reason.is_empty())
        .count();
    assert_eq!(report["rejected"], bad);
    assert_eq!(report["records"], lines.len() + 1 + 6);
    let offsets: Vec<u64> = table(&output, "rejects")
        .iter()
        .filter(|row| row["file"] == "hostile.jsonl")
        .map(|row| row["byte_offset"].parse().expect("an offset"))
        .collect();
    for offset in offsets {
        let at = usize::try_from(offset).expect("small");
        assert!(
            at == 0 || file[at - 1] == b'\n',
            "offset {offset} is no start of a line"
        );
    }
}

#[test]
fn a_line_of_a_gibibyte_costs_one_record_and_no_memory() {
    let corpus = Corpus::good(32, 3);
    let path = corpus.data().join("huge.jsonl");
    let mut file = fs::File::create(&path).expect("the file");
    let good = format!("{}\n", chat("before?", "yes"));
    file.write_all(good.as_bytes()).expect("the file");
    file.write_all(b"{\"messages\": \"").expect("the file");
    // A hole: the line is one GiB of zero bytes that take no room.
    file.seek(SeekFrom::Current(1 << 30)).expect("a hole");
    file.write_all(format!("\"}}\n{good}").as_bytes())
        .expect("the file");
    drop(file);
    let output = corpus.output("cache");
    let (ended, peak) = watched(&corpus.build(&output).args(["--json"]));
    let report = ended.expect_code(0).json();
    assert!(peak < MEMORY_MAX_KIB, "{peak} KiB");
    assert_eq!(report["records"], 6);
    let found = rejects(&output, "huge.jsonl");
    assert_eq!(found.len(), 1);
    assert_eq!(found[&2].0, "line_too_long");
}

#[test]
fn too_many_rejects_stop_the_build_and_a_higher_limit_goes_on() {
    let corpus = Corpus::empty();
    let mut lines: Vec<_> = (0..200)
        .map(|at| chat(&format!("number {at}?"), "yes"))
        .collect();
    lines.push(vqa("images/gone.png", "where?", "nowhere"));
    corpus.write_lines("a.jsonl", &lines[..200]);
    let bad = "{\"question\": oops}\n".repeat(2);
    corpus.write("b.jsonl", format!("{}\n{bad}", lines[200]).as_bytes());
    let output = corpus.output("cache");
    for (limit, allowed) in [("0", 0), ("0.1%", 0), ("2", 2), ("1%", 2)] {
        let ended = corpus
            .build(&output)
            .with("--max-rejects", limit)
            .end()
            .expect_code(1);
        assert!(
            ended.stderr.contains(&format!(
                "of 203 records rejected, more than the allowed {allowed}: "
            )),
            "{}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains("bad_json 2"),
            "{limit}: {}",
            ended.stderr
        );
        assert!(
            ended
                .stderr
                .contains("hint: mend the records, or raise --max-rejects")
        );
        assert!(committed(&output).is_none());
    }
    let ended = corpus
        .build(&output)
        .without("--max-rejects")
        .with("--on-reject", "fail")
        .end();
    let _ = ended.expect_code(1);
    let report = corpus
        .build(&output)
        .with("--max-rejects", "3")
        .args(["--json"])
        .end();
    let report = report.expect_code(0).json();
    assert_eq!(report["rejected"], 3);
    let clean = corpus.output("clean");
    let other = corpus
        .build(&clean)
        .args(["--json"])
        .end()
        .expect_code(0)
        .json();
    assert_eq!(report["fingerprint"], other["fingerprint"]);
}
