//! Rendered text against jinja2: tools, calls and awkward strings, which the golden records lack.
//!
//! `tests/golden/text.jsonl` was rendered with the real template (`scripts/make_golden_text.py`); the small
//! model's own template must give the same, so that tests with it say something about the real one. `text_qwen2_5_vl.jsonl` is the
//! same of the template that Qwen2-VL and Qwen2.5-VL share, with the place of every answer.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_builder::model::ModelFolder;
use stoker_builder::model::family::Family;
use stoker_builder::record::{Record, RecordOptions, Shape, parse};
use stoker_builder::text::{IGNORED, TextOptions, TextPreparer, TextRecipe};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

const PAD: &str = "<|image_pad|>";
/// Patches of every picture, and the pads that they become.
const GRID: [i32; 3] = [1, 4, 6];
const PADS: usize = 6;

/// Checks the text of each row of `golden`, and gives all to `check` too.
fn renders_as_jinja2_does(
    model: &ModelFolder,
    golden: &str,
    check: impl Fn(&TextPreparer, &Record, &Value),
) {
    let recipe = TextRecipe::new(model, TextOptions::default());
    let preparer = TextPreparer::new(model, recipe).unwrap();
    let text = fs::read_to_string(root().join("tests/golden").join(golden)).unwrap();
    let mut count = 0;
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let line = row["record"].to_string();
        let record = parse(line.as_bytes(), Shape::Messages, &RecordOptions::default()).unwrap();
        let rendered = preparer.render(&record).unwrap();
        assert_eq!(rendered, row["text"].as_str().unwrap(), "{line}");
        check(&preparer, &record, &row);
        count += 1;
    }
    assert_eq!(count, 60);
}

/// Ids are those of the text with all pads, and what counts is what lies in an answer.
fn learns_the_answers(
    model: &ModelFolder,
    preparer: &TextPreparer,
    record: &Record,
    row: &Value,
) -> usize {
    let text = row["text"].as_str().unwrap();
    let images = text.matches(PAD).count();
    let expanded = text.replace(PAD, &PAD.repeat(PADS));
    let moved = |at: u64| {
        let at = at as usize;
        at + text[..at].matches(PAD).count() * (PADS - 1) * PAD.len()
    };
    let answers = row["answers"].as_array().unwrap().iter();
    let answers: Vec<[usize; 2]> = answers
        .map(|run| [0, 1].map(|end| moved(run[end].as_u64().unwrap())))
        .collect();
    let encoding = model.tokenizer().encode(expanded, false).unwrap();
    let prepared = preparer.prepare(record, &vec![GRID; images]).unwrap();
    let ids: Vec<i32> = encoding
        .get_ids()
        .iter()
        .map(|id| id.cast_signed())
        .collect();
    assert_eq!(prepared.input_ids, ids, "{text}");
    for ((from, to), (id, label)) in encoding
        .get_offsets()
        .iter()
        .zip(ids.iter().zip(&prepared.labels))
    {
        let inside = |run: &&[usize; 2]| run[0] <= *from && *to <= run[1];
        let wanted = answers.iter().find(inside).map_or(IGNORED, |_| *id);
        assert_eq!(*label, wanted, "{text}: bytes {from} to {to}");
    }
    answers.len()
}

/// The small model with the settings and the template of an earlier family.
fn earlier(model_type: &str, processor: &str) -> (tempfile::TempDir, ModelFolder) {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let tiny = root().join("tests/models/tiny");
    fs::copy(tiny.join("tokenizer.json"), at("tokenizer.json")).unwrap();
    let template = root().join("tests/golden/qwen2_5_vl.jinja");
    fs::copy(template, at("chat_template.jinja")).unwrap();
    let config = serde_json::json!({ "model_type": model_type });
    fs::write(at("config.json"), config.to_string()).unwrap();
    let settings = serde_json::json!({"image_processor_type": processor});
    fs::write(at("preprocessor_config.json"), settings.to_string()).unwrap();
    let model = ModelFolder::open(folder.path()).unwrap();
    (folder, model)
}

#[test]
fn the_template_of_the_earlier_families_gives_what_jinja2_makes_of_it() {
    for (model_type, processor, family) in [
        ("qwen2_vl", "Qwen2VLImageProcessor", Family::Qwen2Vl),
        ("qwen2_5_vl", "Qwen2VLImageProcessorFast", Family::Qwen25Vl),
    ] {
        let (_folder, model) = earlier(model_type, processor);
        assert_eq!(model.family(), family);
        let answers = std::cell::Cell::new(0);
        renders_as_jinja2_does(&model, "text_qwen2_5_vl.jsonl", |preparer, record, row| {
            answers.set(answers.get() + learns_the_answers(&model, preparer, record, row));
        });
        assert!(answers.get() > 60);
    }
}

#[test]
fn the_small_template_gives_what_the_real_one_gives() {
    let model = ModelFolder::open(&root().join("tests/models/tiny")).unwrap();
    renders_as_jinja2_does(&model, "text.jsonl", |_, _, _| {});
}

#[test]
fn the_real_template_gives_what_jinja2_makes_of_it() {
    let folder = std::env::var_os("STOKER_TEST_MODEL")
        .map_or_else(|| root().join("target/models/qwen3-vl"), PathBuf::from);
    assert!(
        folder.join("chat_template.jinja").is_file(),
        "no model in `{}`: run scripts/fetch-model target/models/qwen3-vl, or set STOKER_TEST_MODEL to its folder",
        folder.display()
    );
    let model = ModelFolder::open(&folder).unwrap();
    renders_as_jinja2_does(&model, "text.jsonl", |_, _, _| {});
}
