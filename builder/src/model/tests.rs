//! The model folder: what opens, and what each broken file is answered with.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::family::Family;
use super::*;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/tiny")
}

fn copy() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(tiny()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

fn write(dir: &TempDir, name: &str, value: &Value) {
    fs::write(dir.path().join(name), value.to_string()).unwrap();
}

fn read(dir: &TempDir, name: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap()
}

#[test]
fn the_small_model_opens() {
    let model = ModelFolder::open(&tiny()).unwrap();
    assert_eq!(model.family(), Family::Qwen3Vl);
    assert_eq!(*model.image(), Family::Qwen3Vl.constants());
    let config: Value =
        serde_json::from_slice(&fs::read(tiny().join("config.json")).unwrap()).unwrap();
    assert_eq!(json!(model.special().image_pad), config["image_token_id"]);
    let bytes = fs::read(tiny().join("tokenizer.json")).unwrap();
    assert_eq!(
        model.tokenizer_blake3(),
        blake3::hash(&bytes).to_hex().as_str()
    );
}

#[test]
fn templates_are_found_wherever_exporters_put_them() {
    let dir = copy();
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    let named =
        json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    write(
        &dir,
        "tokenizer_config.json",
        &json!({ "chat_template": named }),
    );
    assert_eq!(ModelFolder::open(dir.path()).unwrap().template(), "d");
    write(
        &dir,
        "tokenizer_config.json",
        &json!({ "chat_template": "s" }),
    );
    assert_eq!(ModelFolder::open(dir.path()).unwrap().template(), "s");
    write(&dir, "chat_template.json", &json!({ "chat_template": "j" }));
    let model = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(model.template(), "j");
    assert_eq!(model.template_path(), dir.path().join("chat_template.json"));
}

#[test]
fn families_have_their_own_constants_and_sizes() {
    let dir = copy();
    write(&dir, "config.json", &json!({"model_type": "qwen2_5_vl"}));
    write(
        &dir,
        "preprocessor_config.json",
        &json!({"min_pixels": 3136, "max_pixels": 1_003_520, "image_processor_type": "Qwen2VLImageProcessor"}),
    );
    let model = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(model.family(), Family::Qwen25Vl);
    assert_eq!(
        (model.image().patch_size, model.image().max_pixels),
        (14, 1_003_520)
    );
    assert!((model.image().image_mean[0] - 0.481_454_66).abs() < 1e-12);

    fs::remove_file(dir.path().join("preprocessor_config.json")).unwrap();
    fs::remove_file(dir.path().join("config.json")).unwrap();
    write(
        &dir,
        "processor_config.json",
        &json!({"processor_class": "Qwen3VLProcessor", "image_processor": {"patch_size": 16,
            "size": {"shortest_edge": 1024, "longest_edge": 4096}}}),
    );
    let model = ModelFolder::open(dir.path()).unwrap();
    assert_eq!(model.family(), Family::Qwen3Vl);
    assert_eq!(
        (model.image().min_pixels, model.image().max_pixels),
        (1024, 4096)
    );
}

#[test]
fn another_family_is_refused_with_the_supported_ones() {
    let dir = copy();
    write(&dir, "config.json", &json!({"model_type": "llava_next"}));
    let error = ModelFolder::open(dir.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("model_type `llava_next` is not supported"),
        "{error}"
    );
    let hint = error.hint().unwrap();
    for name in ["Qwen3-VL", "Qwen2.5-VL", "Qwen2-VL"] {
        assert!(hint.contains(name), "{hint}");
    }
}

#[test]
fn each_missing_or_broken_file_is_named() {
    for name in [
        "tokenizer.json",
        "chat_template.jinja",
        "preprocessor_config.json",
    ] {
        let dir = copy();
        fs::remove_file(dir.path().join(name)).unwrap();
        let error = ModelFolder::open(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Model { .. }), "{name}: {error}");
        let said = format!("{error} {}", error.hint().unwrap());
        assert!(said.contains(name), "{name}: {said}");
    }
    for name in ["tokenizer.json", "preprocessor_config.json", "config.json"] {
        for bytes in [&b"{\"a\": "[..], b"[1]", b"\xff"] {
            let dir = copy();
            fs::write(dir.path().join(name), bytes).unwrap();
            let error = ModelFolder::open(dir.path()).unwrap_err();
            assert!(matches!(error, Error::Model { .. }), "{name}: {error}");
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }
    let missing = ModelFolder::open(Path::new("/nonexistent/model")).unwrap_err();
    assert!(missing.to_string().contains("no such folder"), "{missing}");
}

#[test]
fn constants_that_cannot_be_computed_with_are_refused() {
    for (key, value) in [
        ("patch_size", json!(0)),
        ("merge_size", json!(-1)),
        ("image_std", json!([0.0, 0.5, 0.5])),
        ("image_mean", json!([0.5])),
        ("min_pixels", json!(u64::MAX)),
        ("max_pixels", json!(3)),
        ("size", json!({"height": 3})),
    ] {
        let dir = copy();
        let mut config = read(&dir, "preprocessor_config.json");
        config[key] = value;
        write(&dir, "preprocessor_config.json", &config);
        let error = ModelFolder::open(dir.path()).unwrap_err();
        assert!(
            error.to_string().contains("preprocessor_config.json"),
            "{key}: {error}"
        );
    }
}

#[test]
fn a_tokenizer_without_special_tokens_or_with_dropout_is_refused() {
    let dir = copy();
    let mut tokenizer = read(&dir, "tokenizer.json");
    tokenizer["model"]["dropout"] = json!(0.1);
    write(&dir, "tokenizer.json", &tokenizer);
    let error = ModelFolder::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("dropout"), "{error}");

    tokenizer["model"]["dropout"] = Value::Null;
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    added.retain(|token| token["content"] != "<|im_end|>");
    write(&dir, "tokenizer.json", &tokenizer);
    let error = ModelFolder::open(dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("no special token `<|im_end|>`"),
        "{error}"
    );
}
