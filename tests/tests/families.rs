//! Whole builds for Qwen2-VL and Qwen2.5-VL: patch 14, their default system prompt, the same invariants.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use stoker_builder::verify::verify;
use stoker_tests::command::{Run, repository};
use stoker_tests::corpus::{Corpus, model};

/// The small tokenizer with the families' template and settings.
fn earlier(corpus: &Corpus, model_type: &str) -> PathBuf {
    let folder = corpus.output(model_type);
    fs::create_dir(&folder).expect("a folder");
    let tokenizer = model().join("tokenizer.json");
    fs::copy(tokenizer, folder.join("tokenizer.json")).expect("the tokenizer");
    let template = repository().join("tests/golden/qwen2_5_vl.jinja");
    fs::copy(template, folder.join("chat_template.jinja")).expect("the template");
    for (name, settings) in [
        ("config.json", json!({ "model_type": model_type })),
        (
            "preprocessor_config.json",
            json!({"image_processor_type": "Qwen2VLImageProcessor"}),
        ),
    ] {
        fs::write(folder.join(name), settings.to_string()).expect("settings");
    }
    folder
}

#[test]
fn earlier_families_are_built_and_verified() {
    let corpus = Corpus::mixed(71, 60);
    for model_type in ["qwen2_vl", "qwen2_5_vl"] {
        let output = corpus.output(&format!("cache-{model_type}"));
        let folder = earlier(&corpus, model_type).display().to_string();
        let report = corpus
            .build(&output)
            .with("--model", &folder)
            .args(["--json"])
            .end();
        let report = report.expect_code(0).json();
        assert_eq!(report["rejected"], 6, "{report}");
        let verified = verify(&output, true, false).expect("a cache");
        assert!(verified.sound, "{:?}", verified.damages);
        let manifest = fs::read(output.join("manifest.json")).expect("the manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        let image = &manifest["recipe"]["image"];
        assert_eq!(image["family"], model_type);
        assert_eq!(image["patch_size"], 14);
        assert_eq!(image["image_mean"][0], 0.481_454_66);
        // A record without a system turn of its own.
        let inspect = Run::stoker(["inspect"])
            .args([&output])
            .args(["--sample", "b.jsonl:1"]);
        let shown = inspect.end().expect_code(0).stdout;
        assert!(shown.contains("You are a helpful assistant."), "{shown}");
    }
}
