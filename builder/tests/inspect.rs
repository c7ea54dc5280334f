//! `stoker inspect` and `stoker stats` on a cache whose content is known.

#[path = "../../tests/src/synthetic.rs"]
#[expect(unreachable_pub, reason = "the tests crate owns it")]
mod synthetic;

use std::fs;
use std::path::Path;

use stoker_builder::image::patchify::patchify;
use stoker_builder::image::{Generation, ImageRecipe, Profile};
use stoker_builder::inspect::{Marks, find, locate, summarise, view, write_pictures};
use stoker_builder::model::family::Family;
use stoker_builder::stats::stats;
use stoker_formats::IGNORED_LABEL;
use stoker_reader::{Cache, CacheFiles, Place};

fn made() -> (tempfile::TempDir, Vec<synthetic::Content>) {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content();
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    (folder, content)
}

#[test]
fn samples_are_found_by_either_id_and_by_number() {
    let (folder, content) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let place = |partition, row| Place { partition, row };
    assert_eq!(find(&cache, "train.jsonl:13").unwrap(), place(1, 1));
    let record = content[1].samples[5].record_id.clone().unwrap();
    assert_eq!(find(&cache, &record).unwrap(), place(1, 5));
    assert_eq!(locate(&cache, 22).unwrap(), place(2, 4));
}

#[test]
fn ids_that_name_none_or_several_are_refused_with_what_to_do() {
    let (folder, _) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let error = find(&cache, "no\u{1b}[2J").unwrap_err();
    assert_eq!(error.to_string(), "no sample has the id `no\\u{1b}[2J`");
    // Lines 1 and 21 both have record 1.
    let error = find(&cache, "record-1").unwrap_err();
    assert_eq!(error.to_string(), "2 records have the id `record-1`");
    assert_eq!(
        error.hint().unwrap(),
        "choose one by its sample id: train.jsonl:1, train.jsonl:21"
    );
    let error = locate(&cache, 23).unwrap_err();
    assert_eq!(error.to_string(), "no row 23: the cache has `23` samples");
}

#[test]
fn a_sample_is_shown_with_images_collapsed_and_learnt_text_marked() {
    let (folder, _) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let sample = view(
        &cache,
        Place {
            partition: 0,
            row: 5,
        },
    )
    .unwrap();
    assert_eq!(
        sample.to_text(&Marks::PLAIN),
        "sample id       train.jsonl:6\n\
         record id       record-6\n\
         source          train.jsonl, line 6\n\
         row             5 (split train, partition 0, row 5 there)\n\
         tokens          19 (3 learnt, 4 for images)\n\
         input_ids       int32 [19]\n\
         labels          int32 [19]\n\
         images          uint32 [2]\n\
         image_grid_thw  int32 [2, 3]\n\
         image 1         32 x 96 pixels, grid [1, 6, 2], patches uint8 [12, 768], row 2, key 0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e0e\n\
         image 2         32 x 32 pixels, grid [1, 2, 2], patches uint8 [4, 768], row 0, key 00000000000000000000000000000000\n\
         \n\
         text ({+ +} is learnt):\n\
         <|im_start|> user <|vision_start|><image 1: 6x2 patches, 3 tokens><|vision_end|> \
         <|vision_start|><image 2: 2x2 patches, 1 token><|vision_end|> what is this <|im_end|> \
         <|im_start|> assistant{+this is <|im_end|>+}\n"
    );
}

#[test]
fn json_holds_ids_labels_and_spans() {
    let (folder, content) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let sample = view(
        &cache,
        Place {
            partition: 2,
            row: 0,
        },
    )
    .unwrap();
    let value = serde_json::to_value(&sample).unwrap();
    let known = &content[2].samples[0];
    assert_eq!(value["input_ids"], serde_json::json!(known.input_ids));
    assert_eq!(value["labels"], serde_json::json!(known.labels));
    assert_eq!(value["line"], 19);
    assert_eq!(value["split"], "val");
    let spans = value["spans"].as_array().unwrap();
    let mut next = 0;
    for span in spans {
        assert_eq!(span["start"], next);
        next = span["end"].as_u64().unwrap();
    }
    assert_eq!(next, known.input_ids.len() as u64);
}

#[test]
fn a_picture_comes_back_as_it_was_cut() {
    let constants = Family::Qwen3Vl.constants();
    let image = ImageRecipe::new(
        Profile::TvPath,
        Generation::V5,
        Family::Qwen3Vl,
        &constants,
        None,
        None,
    )
    .unwrap();
    let mut content = synthetic::content();
    let rgb: Vec<u8> = (0..96 * 32 * 3u32)
        .map(|at| (at * 7 + at / 96) as u8)
        .collect();
    content[0].images[2].patches = patchify(&rgb, 96, 32, &image);
    let mut recipe = synthetic::recipe();
    recipe["image"] = serde_json::to_value(&image).unwrap();
    let folder = tempfile::tempdir().unwrap();
    synthetic::write_with(folder.path(), &content, &synthetic::opaque_tables(), recipe);
    let cache = Cache::open(folder.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("it.png");
    let place = |row| Place { partition: 0, row };
    let written = write_pictures(&cache, place(5), &path).unwrap();
    assert_eq!(
        written,
        [out.path().join("it-1.png"), out.path().join("it-2.png")]
    );
    let input = std::io::BufReader::new(fs::File::open(&written[0]).unwrap());
    let mut reader = png::Decoder::new(input).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (32, 96));
    assert_eq!(pixels, rgb);
    assert_eq!(
        write_pictures(&cache, place(4), &path).unwrap(),
        std::slice::from_ref(&path)
    );
    assert!(write_pictures(&cache, place(2), &path).unwrap().is_empty());
}

#[test]
fn a_recipe_of_another_program_is_refused() {
    let (folder, _) = made();
    let cache = Cache::open(folder.path()).unwrap();
    let error = write_pictures(
        &cache,
        Place {
            partition: 0,
            row: 0,
        },
        Path::new("/nowhere/a.png"),
    );
    let error = error.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the cache's image recipe is not one of this program's"
    );
}

#[test]
fn the_summary_needs_the_manifest_alone() {
    let (folder, _) = made();
    fs::remove_dir_all(folder.path().join(format!("images-{}", "11".repeat(16)))).unwrap();
    let text = summarise(&CacheFiles::open(folder.path()).unwrap())
        .unwrap()
        .to_text();
    for line in [
        "format        1.0, written by synthetic",
        "split         train: 18 samples, ",
        "split         val: 5 samples, ",
        "input         train.jsonl: 25 records, 4.00 KiB",
        "rejects       2",
        "image recipe  profile = \"tv_path\"",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn what_others_have_written_cannot_steer_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let mut content = synthetic::content();
    content[0].samples[0].sample_id = "train\u{1b}[2J:1".into();
    let mut recipe = synthetic::recipe();
    recipe["text"]["note"] = "a\u{9b}2Jb".into();
    let tables = synthetic::opaque_tables();
    let mut manifest = synthetic::write_with(folder.path(), &content, &tables, recipe);
    manifest.created_by = "stoker\u{1b}[2J".into();
    fs::write(
        folder.path().join("manifest.json"),
        manifest.to_bytes().unwrap(),
    )
    .unwrap();
    let files = CacheFiles::open(folder.path()).unwrap();
    let text = summarise(&files).unwrap().to_text();
    for line in [
        "written by stoker\u{fffd}[2J\n",
        "note = \"a\u{fffd}2Jb\"\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text:?}");
    }
    let error = find(&Cache::open(folder.path()).unwrap(), "record-1").unwrap_err();
    assert_eq!(
        error.hint().unwrap(),
        "choose one by its sample id: train\u{fffd}[2J:1, train.jsonl:21"
    );
}

#[test]
fn statistics_are_those_of_the_content() {
    let (folder, content) = made();
    let found = stats(folder.path()).unwrap();
    let samples: Vec<_> = content.iter().flat_map(|part| &part.samples).collect();
    let mut tokens: Vec<u64> = samples
        .iter()
        .map(|sample| sample.input_ids.len() as u64)
        .collect();
    tokens.sort_unstable();
    let learnt: usize = samples
        .iter()
        .map(|sample| {
            sample
                .labels
                .iter()
                .filter(|label| **label != IGNORED_LABEL)
                .count()
        })
        .sum();
    assert_eq!(found.samples.tokens.count, 23);
    assert_eq!(found.samples.tokens.sum, tokens.iter().sum::<u64>());
    assert_eq!(found.samples.tokens.p50, tokens[11]);
    assert_eq!(found.samples.tokens.max, tokens[22]);
    assert_eq!(found.samples.loss_tokens.sum, learnt as u64);
    assert_eq!(found.images.width.count, 13);
    assert_eq!((found.images.height.max, found.images.width.max), (96, 64));
    assert_eq!(found.splits[1].samples.tokens.count, 5);
    let heavy = &found.heaviest_by_tokens;
    assert_eq!((heavy.len(), u64::from(heavy[0].tokens)), (10, tokens[22]));
    let named = samples
        .iter()
        .find(|sample| Some(&sample.sample_id) == heavy[0].sample_id.as_ref());
    assert_eq!(named.unwrap().input_ids.len() as u64, tokens[22]);
    let patches: usize = content
        .iter()
        .flat_map(|part| &part.images)
        .map(|image| image.patches.len())
        .sum();
    assert_eq!(found.bytes["patches"], patches as u64);
    assert_eq!(found.bytes["input_ids"], 4 * tokens.iter().sum::<u64>());
    assert_eq!((found.rejected, found.rejects), (2, None));
}

#[test]
fn all_bytes_are_accounted_for_and_lines_fit() {
    let (folder, _) = made();
    let found = stats(folder.path()).unwrap();
    let files = CacheFiles::open(folder.path()).unwrap();
    let manifest = fs::metadata(folder.path().join("manifest.json"))
        .unwrap()
        .len();
    let all: u64 = files.expected().map(|file| file.entry.bytes).sum::<u64>() + manifest;
    assert_eq!(found.bytes.values().sum::<u64>(), all);
    let text = found.to_text();
    let long = text.lines().skip(2).find(|line| line.len() > 80);
    assert_eq!(long, None);
    assert!(
        text.contains("rejected records: 2\n  reasons unknown"),
        "{text}"
    );
}

#[test]
fn statistics_need_no_shard() {
    let (folder, _) = made();
    for half in [
        format!("images-{}", "11".repeat(16)),
        format!("text-{}", "22".repeat(16)),
    ] {
        fs::remove_dir_all(folder.path().join(half).join("shards")).unwrap();
    }
    let found = stats(folder.path()).unwrap();
    assert_eq!(found.samples.tokens.count, 23);
    assert!(
        found
            .heaviest_by_tokens
            .iter()
            .all(|sample| sample.sample_id.is_none())
    );
    assert!(found.to_text().contains("  row "));
}
