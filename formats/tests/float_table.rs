//! The float table by the recipe is the one that image shards of released versions hold.

use std::fs;
use std::path::Path;

use stoker_formats::{Manifest, ShardKind, TableRule, float_table, read_shard_head};

fn hex(table: &[[f32; 256]; 3]) -> String {
    let bytes = table.iter().flatten().flat_map(|value| value.to_le_bytes());
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn shards_of_version_1_hold_the_table_of_their_recipe() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/v1");
    let manifest = Manifest::parse(fs::read(root.join("manifest.json")).unwrap()).unwrap();
    let image = &manifest.recipe["image"];
    let numbers = |name: &str| serde_json::from_value(image[name].clone()).unwrap();
    let rule = serde_json::from_value(image["table"].clone()).unwrap();
    let table = float_table(rule, numbers("image_mean"), numbers("image_std"));
    let shards = root
        .join(format!("images-{}", manifest.image_plan_id))
        .join("shards");
    let mut seen = 0;
    for shard in fs::read_dir(shards).unwrap() {
        let file = fs::File::open(shard.unwrap().path()).unwrap();
        let head = read_shard_head(&file, ShardKind::Images).unwrap();
        assert_eq!(head.metadata["float_table"], hex(&table));
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn the_two_rules_differ_in_the_last_bits_only() {
    // Mean and deviation of CLIP.
    let mean = [0.48145466, 0.4578275, 0.40821073];
    let std = [0.26862954, 0.26130258, 0.27577711];
    let [one, other] = [TableRule::Torchvision, TableRule::Pil].map(|rule| {
        let table = float_table(rule, mean, std);
        table.into_iter().flatten().collect::<Vec<f32>>()
    });
    let differ = one.iter().zip(&other).filter(|(one, other)| one != other);
    assert!(differ.count() > 0);
    for (one, other) in one.iter().zip(&other) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
}
