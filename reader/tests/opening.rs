//! What opening refuses, and what it leaves to those who come there; and that every node finds the same model.

#[path = "../../tests/src/synthetic.rs"]
#[allow(unreachable_pub, dead_code, reason = "the tests crate owns it")]
mod synthetic;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use stoker_reader::{
    Dealing, Error, Held, Modalities, OrderError, Pixels, Placement, Reader, ReaderOptions, Step,
};
use synthetic::Content;

/// Two ranks on two nodes, a sample each at a time.
fn pair(path: &Path, rank: u32) -> ReaderOptions {
    let mut options = ReaderOptions::new(path, 2);
    options.world.micro_batch_size = 1;
    (options.world.world_size, options.world.rank) = (2, rank);
    (options.world.num_nodes, options.world.node_rank) = (2, rank);
    options
}

/// Node n holds partition n.
fn apart() -> Placement {
    let held = |partition| {
        vec![Held {
            cache: 0,
            partition,
        }]
    };
    Placement::new(&[held(0), held(1)]).unwrap()
}

#[test]
fn images_that_do_not_go_round_are_an_error_where_they_are_reached() {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[40, 40, 4]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    for placement in [Placement::everywhere(), apart()] {
        let mut options = pair(folder.path(), 0);
        options.dealing.modalities = Modalities::Same;
        options.placement = placement;
        let mut reader = Reader::open(options.clone()).unwrap();
        let mut given = 0;
        let fault = loop {
            match reader.next_batch(None) {
                Ok(Step::Batch(_)) => given += 1,
                Ok(other) => panic!("{other:?}"),
                Err(fault) => break fault,
            }
        };
        let refused = |fault: &Error| matches!(fault, Error::Order(OrderError::Modalities { .. }));
        assert!(refused(&fault), "{fault:?}");
        // Among those that opening looks at.
        assert!(given < 16, "{given}");
        // Another place may be as good as ever.
        let mut others = (given + 1..given + 16).filter(|batches| {
            reader.seek(2 * batches).unwrap();
            matches!(reader.next_batch(None), Ok(Step::Batch(_)))
        });
        assert!(others.next().is_some());
    }
}

#[test]
fn partitions_that_no_node_holds_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let content = synthetic::content_of(&[40, 40, 4]);
    synthetic::write(folder.path(), &content, &synthetic::opaque_tables());
    for shard in fs::read_dir(folder.path()).unwrap() {
        let shards = shard.unwrap().path().join("shards");
        for shard in fs::read_dir(shards).into_iter().flatten() {
            let path = shard.unwrap().path();
            if path.to_string_lossy().contains("/p0001-") {
                fs::remove_file(path).unwrap();
            }
        }
    }
    let held = Held {
        cache: 0,
        partition: 0,
    };
    for modalities in [Modalities::Any, Modalities::Same] {
        let mut options = pair(folder.path(), 1);
        options.dealing.modalities = modalities;
        options.placement = Placement::new(&[vec![held], vec![held]]).unwrap();
        let fault = Reader::open(options).unwrap_err();
        assert!(matches!(fault, Error::Remote { .. }), "{fault:?}");
    }
}

/// The second partition without a picture.
fn half_text() -> Vec<Content> {
    let mut content = synthetic::content_of(&[24, 24, 4]);
    let text = content[1].samples[2].clone();
    assert!(text.images.is_empty());
    for sample in &mut content[1].samples {
        let sample_id = sample.sample_id.clone();
        *sample = text.clone();
        sample.sample_id = sample_id;
    }
    content[1].images.clear();
    content
}

#[test]
fn dummies_are_the_same_on_a_node_without_an_image() {
    let [whole, part] = [(); 2].map(|()| {
        let folder = tempfile::tempdir().unwrap();
        synthetic::write(folder.path(), &half_text(), &synthetic::opaque_tables());
        folder
    });
    let images = fs::read_dir(part.path()).unwrap().map(|one| one.unwrap());
    let images = images.filter(|one| one.file_name().to_string_lossy().starts_with("images-"));
    for folder in images {
        fs::remove_dir_all(folder.path().join("shards")).unwrap();
    }
    for pixels in [Pixels::U8, Pixels::F32, Pixels::BF16] {
        let seen = |path: &Path| {
            let mut options = pair(path, 1);
            options.placement = apart();
            options.pixels = pixels;
            options.dealing = Dealing {
                dummy_image: true,
                ..Dealing::default()
            };
            let mut reader = Reader::open(options).unwrap();
            let mut batches = Vec::new();
            while let Step::Batch(batch) = reader.next_batch(None).unwrap() {
                let tensor = batch.tensor("pixel_values").unwrap();
                batches.push((tensor.shape.clone(), batch.bytes(tensor).to_vec()));
            }
            batches
        };
        let expected = seen(whole.path());
        assert_eq!(seen(part.path()), expected);
        let (shape, bytes) = expected.iter().find(|(shape, _)| shape[0] > 0).unwrap();
        assert_eq!(shape[0], 4);
        let black: Vec<u8> = match pixels {
            Pixels::U8 => vec![0],
            Pixels::F32 => synthetic::float(0, 0).to_le_bytes().to_vec(),
            Pixels::BF16 => (0xbfab_u16).to_le_bytes().to_vec(),
        };
        assert_eq!(bytes[..black.len()], black);
    }
}

#[test]
fn sizes_that_no_model_has_are_refused() {
    for (field, value, words) in [
        ("merge_size", json!(0), "out of range 1 to 8: `0`"),
        ("merge_size", json!(9), "out of range 1 to 8: `9`"),
        ("merge_size", json!(-2), "out of range 1 to 8: `-2`"),
        (
            "merge_size",
            json!(1u64 << 40),
            "out of range 1 to 8: `1099511627776`",
        ),
        (
            "merge_size",
            json!("2"),
            "does not say its `/image/merge_size`",
        ),
        ("patch_size", json!(0), "out of range 1 to 64: `0`"),
        ("patch_size", json!(65), "out of range 1 to 64: `65`"),
        ("temporal_patch_size", json!(0), "out of range 1 to 64: `0`"),
        (
            "temporal_patch_size",
            json!(65),
            "out of range 1 to 64: `65`",
        ),
        ("table", json!("other"), "does not say its `/image/table`"),
        (
            "image_mean",
            json!([0.5, 0.5]),
            "does not say its `/image/image_mean`",
        ),
        (
            "image_std",
            Value::Null,
            "does not say its `/image/image_std`",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut recipe = synthetic::recipe();
        recipe["image"][field] = value;
        let content = synthetic::content();
        synthetic::write_with(folder.path(), &content, &synthetic::opaque_tables(), recipe);
        let fault = Reader::open(ReaderOptions::new(folder.path(), 1)).unwrap_err();
        assert!(fault.to_string().contains(words), "{fault}");
        assert!(fault.hint().is_some());
    }
}

#[test]
fn a_cache_of_text_mixes_with_images_of_any_mean() {
    let folders = [(true, 0.5), (false, 0.25), (true, 0.25)].map(|(has_images, mean)| {
        let folder = tempfile::tempdir().unwrap();
        let mut content = half_text();
        if !has_images {
            content = vec![content[1].clone(), content[1].clone()];
        }
        let mut recipe = synthetic::recipe();
        recipe["image"]["image_mean"] = json!([mean, mean, mean]);
        synthetic::write_with(folder.path(), &content, &synthetic::opaque_tables(), recipe);
        folder
    });
    let [one, text, other] = folders.each_ref().map(|folder| folder.path());
    let open = |paths: &[&Path]| {
        let mut options = ReaderOptions::new("", 2);
        options.caches = paths
            .iter()
            .map(|path| stoker_reader::CacheOptions::new(*path))
            .collect();
        Reader::open(options)
    };
    for paths in [[one, text], [text, one]] {
        let reader = open(&paths).unwrap();
        let mean = open(&[one]).unwrap().model().float_table.clone();
        assert_eq!(reader.model().float_table, mean);
    }
    for paths in [[one, other], [other, one]] {
        let fault = open(&paths).unwrap_err().to_string();
        assert!(fault.contains("different image mean"), "{fault}");
    }
}
