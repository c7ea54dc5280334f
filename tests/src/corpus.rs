//! Small data sets in a temp folder, the same for the same seed.
//!
//! Owns records and images; builds nothing. Invariant: file names, records and pixels follow from the
//! seed and the counts alone.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{Run, repository};
use crate::dice::Dice;

/// Words of the texts: short and long ones, other scripts, and what must never become a label.
const WORDS: [&str; 16] = [
    "a",
    "red",
    "cat",
    "sits",
    "beside",
    "the",
    "harbour",
    "crane",
    "assistant",
    "\u{fc}ber",
    "\u{732b}",
    "<tag>",
    "12.5",
    "why?",
    "\u{1f6a2}",
    "and",
];

/// A data set on disk, and room for caches beside it.
#[derive(Debug)]
pub struct Corpus {
    folder: TempDir,
}

impl Corpus {
    /// An empty one, on a memory disk where there is one: a crash test syncs thousands of times.
    ///
    /// # Panics
    /// If no folder can be made.
    #[must_use]
    pub fn empty() -> Self {
        let memory = Path::new("/dev/shm");
        let folder = if std::env::var_os("TMPDIR").is_none() && memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let corpus = Self {
            folder: folder.expect("a temp folder"),
        };
        fs::create_dir_all(corpus.data().join("images")).expect("the image folder");
        corpus
    }

    /// `records` good records over about a third as many images, in three files of three shapes.
    #[must_use]
    pub fn good(seed: u64, records: usize) -> Self {
        let corpus = Self::empty();
        let mut dice = Dice::new(seed);
        let images = (records / 3).max(2);
        for image in 0..images {
            let (width, height) = (20 + dice.below(80), 20 + dice.below(80));
            let bytes = png(&mut dice, width, height);
            corpus.write(&image_name(image), &bytes);
            // Links start at their JSONL file, and `..` is refused: the third file has copies.
            corpus.write(&format!("sub/{}", image_name(image)), &bytes);
        }
        let mut files: [Vec<Value>; 3] = Default::default();
        for number in 0..records {
            let shape = number % files.len();
            files[shape].push(record(&mut dice, shape, number, images));
        }
        for (name, lines) in ["a.jsonl", "b.jsonl", "sub/c.jsonl"]
            .into_iter()
            .zip(&files)
        {
            corpus.write_lines(name, lines);
        }
        corpus
    }

    /// [`good`](Self::good), and one record for each of six ways to be unusable.
    #[must_use]
    pub fn mixed(seed: u64, records: usize) -> Self {
        let corpus = Self::good(seed, records);
        let mut dice = Dice::new(!seed);
        let mut cut = png(&mut dice, 60, 40);
        cut.truncate(cut.len() / 2);
        corpus.write("images/cut.png", &cut);
        corpus.write("images/text.png", b"this is no image at all");
        let mut lines: Vec<String> = ["gone.png", "cut.png", "text.png", "../../etc/passwd"]
            .iter()
            .map(|name| vqa(&format!("images/{name}"), "what?", "that").to_string())
            .collect();
        lines.push("{\"question\": \"broken".into());
        lines.push(json!({"question": "no answer at all", "image": image_name(0)}).to_string());
        lines.insert(
            2,
            vqa(&image_name(0), "between bad ones?", "yes").to_string(),
        );
        corpus.write("d.jsonl", (lines.join("\n") + "\n").as_bytes());
        corpus
    }

    /// The temp folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where the records are: for an S3 server at the temp folder, the prefix `set/` of bucket `data`.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.path().join("data/set")
    }

    /// A folder of the temp folder, not made.
    #[must_use]
    pub fn output(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file of the data set.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.data().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a folder of the data set");
        }
        fs::write(path, bytes).expect("a file of the data set");
    }

    /// Writes a JSONL file of the data set.
    pub fn write_lines(&self, name: &str, records: &[Value]) {
        let text: String = records.iter().map(|record| format!("{record}\n")).collect();
        self.write(name, text.as_bytes());
    }

    /// `stoker build` of the whole data set into `output`: two partitions, tiny shards, small images.
    #[must_use]
    pub fn build(&self, output: &Path) -> Run {
        self.build_of(&[self.data()], output)
    }

    /// The same, of these inputs.
    #[must_use]
    pub fn build_of(&self, inputs: &[PathBuf], output: &Path) -> Run {
        let run = Run::stoker(["build", "--output"]).args([output]);
        options(run.args(["--input"]).args(inputs))
    }

    /// The repair of a cache that [`build`](Self::build) has made, from the data set.
    #[must_use]
    pub fn rebuild(&self, cache: &Path) -> Run {
        let run = Run::stoker(["repair"]).args([cache]).args(["--rebuild"]);
        options(run.args(["--", "--input"]).args([self.data()]))
    }
}

/// The options of every build, after the inputs.
fn options(run: Run) -> Run {
    run.args(["--model"])
        .args([model()])
        .args([
            "--threads",
            "1",
            "--partitions",
            "2",
            "--shard-bytes",
            "24KiB",
        ])
        .args([
            "--min-pixels",
            "1024",
            "--max-pixels",
            "6144",
            "--max-rejects",
            "100%",
        ])
}

/// The small model folder of the repository.
#[must_use]
pub fn model() -> PathBuf {
    repository().join("tests/models/tiny")
}

/// The name of image `number`.
#[must_use]
pub fn image_name(number: usize) -> String {
    format!("images/{number:03}.png")
}

/// A record of the shape `vqa`.
#[must_use]
pub fn vqa(image: &str, question: &str, answer: &str) -> Value {
    json!({"image": image, "question": question, "answer": answer})
}

/// A text-only record of the shape `messages`.
#[must_use]
pub fn chat(question: &str, answer: &str) -> Value {
    json!({"messages": [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]})
}

fn record(dice: &mut Dice, shape: usize, number: usize, images: usize) -> Value {
    let image = image_name(dice.below(images));
    let other = image_name(dice.below(images));
    let (question, answer) = (words(dice), words(dice));
    match shape {
        // Every fourth record of this file is text alone.
        0 if number.is_multiple_of(4) => chat(&question, &answer),
        0 => json!({"id": format!("msg {number}"), "messages": [
            {"role": "system", "content": words(dice)},
            {"role": "user", "content": [
                {"type": "text", "text": question},
                {"type": "image", "image": image},
                {"type": "image", "image": other},
            ]},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": words(dice)},
            {"role": "assistant", "content": words(dice)},
        ]}),
        1 => json!({"id": number, "image": image, "conversations": [
            {"from": "human", "value": format!("<image>\n{question}")},
            {"from": "gpt", "value": answer},
        ]}),
        _ => vqa(&image, &question, &answer),
    }
}

fn words(dice: &mut Dice) -> String {
    let count = 1 + dice.below(12);
    let words: Vec<&str> = (0..count).map(|_| *dice.pick(&WORDS)).collect();
    words.join(" ")
}

/// A PNG of smooth colours with some noise.
///
/// # Panics
/// If the encoder refuses the size.
#[must_use]
pub fn png(dice: &mut Dice, width: usize, height: usize) -> Vec<u8> {
    let tint = dice.below(256);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let noise = dice.below(8);
            for value in [x * 3 + noise, y * 3 + noise, tint + x + y] {
                pixels.push((value % 256) as u8);
            }
        }
    }
    png_of(width, height, png::ColorType::Rgb, &pixels)
}

/// A PNG of these 8-bit samples.
///
/// # Panics
/// If the encoder refuses them.
#[must_use]
pub fn png_of(width: usize, height: usize, color: png::ColorType, samples: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let side = |length: usize| u32::try_from(length).expect("a small image");
    let mut encoder = png::Encoder::new(&mut bytes, side(width), side(height));
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().expect("a PNG header");
    writer.write_image_data(samples).expect("PNG samples");
    writer.finish().expect("a PNG's end");
    bytes
}
