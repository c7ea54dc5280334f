//! Rendered text against jinja2: tools, calls and awkward strings, which the golden records lack.
//!
//! `tests/golden/text.jsonl` was rendered with the real template (`scripts/make_golden_text.py`); the small
//! model's own template must give the same, so that tests with it say something about the real one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use stoker_builder::model::ModelFolder;
use stoker_builder::record::{RecordOptions, Shape, parse};
use stoker_builder::text::{TextOptions, TextPreparer, TextRecipe};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn renders_as_jinja2_does(folder: &Path) {
    let model = ModelFolder::open(folder).unwrap();
    let recipe = TextRecipe::new(&model, TextOptions::default());
    let preparer = TextPreparer::new(&model, recipe).unwrap();
    let text = fs::read_to_string(root().join("tests/golden/text.jsonl")).unwrap();
    let mut count = 0;
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let line = row["record"].to_string();
        let record = parse(line.as_bytes(), Shape::Messages, &RecordOptions::default()).unwrap();
        let rendered = preparer.render(&record).unwrap();
        assert_eq!(rendered, row["text"].as_str().unwrap(), "{line}");
        count += 1;
    }
    assert_eq!(count, 60);
}

#[test]
fn the_small_template_gives_what_the_real_one_gives() {
    renders_as_jinja2_does(&root().join("tests/models/tiny"));
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
    renders_as_jinja2_does(&folder);
}
