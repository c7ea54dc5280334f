//! Records against Hugging Face: every golden row's text, ids and labels, by both label rules.
//!
//! Grids come from the golden rows; the images themselves are judged elsewhere. Needs the real tokenizer
//! and template, which `scripts/fetch-model` gets.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_builder::Reason;
use stoker_builder::model::ModelFolder;
use stoker_builder::record::{self, ImageTag, RecordOptions, Shape, detect, parse, scan_links};
use stoker_builder::text::{IGNORED, LabelRule, TextOptions, TextPreparer, TextRecipe};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn model() -> ModelFolder {
    let folder = std::env::var_os("STOKER_TEST_MODEL")
        .map_or_else(|| root().join("target/models/qwen3-vl"), PathBuf::from);
    assert!(
        folder.join("tokenizer.json").is_file(),
        "no model in `{}`: run scripts/fetch-model target/models/qwen3-vl, or set STOKER_TEST_MODEL to its folder",
        folder.display()
    );
    ModelFolder::open(&folder).unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    let text =
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(str::to_owned).collect()
}

fn rows(oracle: &str) -> Vec<Value> {
    lines(
        &root()
            .join("tests/golden/expected")
            .join(oracle)
            .join("records.jsonl"),
    )
    .iter()
    .map(|line| serde_json::from_str(line).unwrap())
    .collect()
}

/// Lines of the source by (file, id).
fn sources() -> HashMap<(String, String), String> {
    let mut found = HashMap::new();
    for entry in fs::read_dir(root().join("tests/golden/data")).unwrap() {
        let entry = entry.unwrap();
        let file = entry.file_name().into_string().unwrap();
        for line in lines(&entry.path()) {
            let value: Value = serde_json::from_str(&line).unwrap();
            found.insert((file.clone(), text(&value, "id")), line);
        }
    }
    found
}

fn text(row: &Value, key: &str) -> String {
    row[key]
        .as_str()
        .unwrap_or_else(|| panic!("no `{key}` in {row}"))
        .to_owned()
}

fn numbers<T: TryFrom<i64>>(value: &Value) -> Vec<T> {
    let list = value.as_array().unwrap().iter();
    list.map(|number| T::try_from(number.as_i64().unwrap()).ok().unwrap())
        .collect()
}

/// Half-open runs of labels that count.
fn runs(labels: &[i32]) -> Vec<[usize; 2]> {
    let mut runs: Vec<[usize; 2]> = Vec::new();
    for (at, _) in labels
        .iter()
        .enumerate()
        .filter(|(_, label)| **label != IGNORED)
    {
        match runs.last_mut() {
            Some(run) if run[1] == at => run[1] = at + 1,
            _ => runs.push([at, at + 1]),
        }
    }
    runs
}

fn wanted_runs(value: &Value) -> Vec<[usize; 2]> {
    let list = value.as_array().unwrap().iter();
    list.map(|run| numbers::<usize>(run).try_into().unwrap())
        .collect()
}

struct Golden {
    structure: TextPreparer,
    finetune: TextPreparer,
    sources: HashMap<(String, String), String>,
}

impl Golden {
    fn open() -> Self {
        let model = model();
        let preparer = |label_rule| {
            let options = TextOptions {
                label_rule,
                ..TextOptions::default()
            };
            TextPreparer::new(&model, TextRecipe::new(&model, options)).unwrap()
        };
        Self {
            structure: preparer(LabelRule::Structure),
            finetune: preparer(LabelRule::QwenFinetune),
            sources: sources(),
        }
    }

    /// Checks one row; `want` is the row that holds its expectation. Whether it was a whole sample.
    fn check(&self, row: &Value, want: &Value) -> bool {
        let name = format!("{} {} {}", row["id"], row["text_variant"], row["geometry"]);
        let shape = Shape::ALL
            .into_iter()
            .find(|shape| shape.name() == row["format"])
            .unwrap();
        let image_tag = match row["text_variant"].as_str() {
            Some("inplace") => ImageTag::Inplace,
            _ => ImageTag::Strip,
        };
        let line = &self.sources[&(text(row, "file"), text(row, "id"))];
        let options = RecordOptions { image_tag };
        let made = parse(line.as_bytes(), shape, &options);
        if let Some(error) = want.get("error") {
            if error.as_str().unwrap().starts_with("BadRecord") {
                assert_eq!(
                    made.unwrap_err().reason,
                    Reason::ImageCountMismatch,
                    "{name}"
                );
            } else {
                assert_eq!(
                    made.unwrap().links.len(),
                    1,
                    "{name}: the image is at fault, not the record"
                );
            }
            return false;
        }
        let record: record::Record = made.unwrap();
        assert_eq!(record.id.as_deref(), row["id"].as_str(), "{name}");
        assert_eq!(Value::from(record.links.clone()), want["images"], "{name}");
        assert_eq!(
            scan_links(line.as_bytes(), shape, &options).unwrap(),
            record.links,
            "{name}"
        );
        assert_eq!(
            self.structure.render(&record).unwrap(),
            text(want, "text"),
            "{name}"
        );

        let grids = want["image_grid_thw"].as_array().unwrap().iter();
        let grids: Vec<[i32; 3]> = grids
            .map(|grid| numbers(grid).try_into().unwrap())
            .collect();
        let prepared = self.structure.prepare(&record, &grids).unwrap();
        assert_eq!(
            prepared.input_ids,
            numbers::<i32>(&want["input_ids"]),
            "{name}"
        );
        assert_eq!(prepared.images, grids.len(), "{name}");
        assert_eq!(
            runs(&prepared.labels),
            wanted_runs(&want["loss_mask_runs"]),
            "{name}"
        );
        for (label, id) in prepared.labels.iter().zip(&prepared.input_ids) {
            assert!(*label == IGNORED || label == id, "{name}");
        }
        let finetune = self.finetune.prepare(&record, &grids).unwrap();
        let key = match want.get("qwen_finetune_mask_runs") {
            Some(_) => "qwen_finetune_mask_runs",
            None => "loss_mask_runs",
        };
        assert_eq!(finetune.input_ids, prepared.input_ids, "{name}");
        assert_eq!(runs(&finetune.labels), wanted_runs(&want[key]), "{name}");
        true
    }
}

#[test]
fn every_golden_record_is_reproduced() {
    let golden = Golden::open();
    for oracle in ["hf4", "hf5"] {
        let rows = rows(oracle);
        let find = |row: &Value| {
            let Some(same) = row.get("same_as") else {
                return row.clone();
            };
            let found = rows.iter().find(|other| {
                other["id"] == row["id"]
                    && other["file"] == row["file"]
                    && other["text_variant"] == same[0]
                    && other["geometry"] == same[1]
            });
            found.unwrap().clone()
        };
        let samples = rows
            .iter()
            .filter(|row| golden.check(row, &find(row)))
            .count();
        assert_eq!(
            (rows.len(), samples),
            (GOLDEN_ROWS, GOLDEN_SAMPLES),
            "{oracle}"
        );
    }
}

/// Rows of each oracle, and those of them that hold a sample: so that none is skipped unnoticed.
const GOLDEN_ROWS: usize = 129;
const GOLDEN_SAMPLES: usize = 105;

#[test]
fn every_golden_file_shows_its_shape() {
    for shape in Shape::ALL {
        let path = root().join(format!("tests/golden/data/{}.jsonl", shape.name()));
        let lines = lines(&path);
        assert_eq!(detect(lines.iter().map(String::as_bytes)), Some(shape));
    }
}
