//! Positions against those of the real library.

use stoker_reader::Mrope;

#[test]
fn positions_are_those_of_the_real_library() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/expected/hf5/records.jsonl"
    );
    let ints = |value: &serde_json::Value| -> Vec<i64> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|number| number.as_i64().unwrap())
            .collect()
    };
    let mut rows = 0;
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let Some(expected) = row.get("position_ids").and_then(|value| value.as_array()) else {
            continue;
        };
        let ids: Vec<i32> = ints(&row["input_ids"])
            .iter()
            .map(|id| *id as i32)
            .collect();
        let grids: Vec<[i32; 3]> = row["image_grid_thw"]
            .as_array()
            .unwrap()
            .iter()
            .map(|grid| {
                ints(grid)
                    .iter()
                    .map(|side| *side as i32)
                    .collect::<Vec<_>>()
                    .try_into()
                    .unwrap()
            })
            .collect();
        let mrope = Mrope {
            image_pad: 151_655,
            merge_size: 2,
        };
        let mut axes = [const { Vec::new() }; 3];
        mrope.positions(ids.iter().copied(), &grids, |_, position| {
            axes.iter_mut()
                .zip(position)
                .for_each(|(axis, at)| axis.push(at));
        });
        for (axis, expected) in axes.iter().zip(expected) {
            assert_eq!(axis, &ints(expected), "{}", row["id"]);
        }
        rows += 1;
    }
    assert!(rows > 20, "{rows}");
}
