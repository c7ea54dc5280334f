//! Shards against a plain model: what is pushed is what every way of reading gives back.

mod common;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt32Type};
use common::{
    any_image, any_sample, head, image_row, image_shard, sample_row, sample_shard, some_images,
    some_samples,
};
use proptest::collection::vec;
use proptest::prelude::*;
use stoker_formats::{
    ContentHash, Error, ImageData, ImageIndex, ImageKey, ImageShardWriter, SampleIndex,
    SampleShardWriter, ShardKind, read_image, read_image_shard, read_sample, read_sample_shard,
    read_shard_head, write_image_index, write_sample_index,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn images_come_back(images in vec(any_image(), 1..12), partition in any::<u32>(), first_row in 0..u64::MAX / 2) {
        let head = head(partition, 3, first_row);
        let shard = image_shard(&head, &images);
        prop_assert_eq!(shard.bytes, shard.out.len() as u64);
        prop_assert_eq!(shard.hash, ContentHash::of(&shard.out));
        let (found, entries) = read_image_shard(&shard.out).unwrap();
        prop_assert_eq!(&found, &head);
        prop_assert_eq!(&entries, &shard.entries);
        let mut index = Vec::new();
        let written = write_image_index(&mut index, partition, &entries).unwrap();
        prop_assert_eq!(written.hash, ContentHash::of(&index));
        let index = ImageIndex::parse(index).unwrap();
        prop_assert_eq!((index.partition(), index.len()), (partition, images.len() as u64));
        for (number, image) in images.iter().enumerate() {
            let entry = index.get(number as u64).unwrap();
            prop_assert_eq!(entry, entries[number]);
            let row = first_row + number as u64;
            prop_assert_eq!(&read_image(&shard.out, partition, row, &entry).unwrap(), image);
            prop_assert!(read_image(&shard.out, partition, row + 1, &entry).is_err());
        }
        prop_assert!(index.get(index.len()).is_none());
    }

    #[test]
    fn samples_come_back(samples in vec(any_sample(), 1..24), partition in any::<u32>(), first_row in 0..u64::MAX / 2) {
        let head = head(partition, 3, first_row);
        let shard = sample_shard(&head, &samples);
        prop_assert_eq!(shard.hash, ContentHash::of(&shard.out));
        let (found, entries) = read_sample_shard(&shard.out).unwrap();
        prop_assert_eq!(&found, &head);
        prop_assert_eq!(&entries, &shard.entries);
        let mut index = Vec::new();
        write_sample_index(&mut index, partition, &entries).unwrap();
        let index = SampleIndex::parse(index).unwrap();
        prop_assert_eq!((index.partition(), index.len()), (partition, samples.len() as u64));
        for (number, sample) in samples.iter().enumerate() {
            let entry = index.get(number as u64).unwrap();
            prop_assert_eq!(entry, entries[number]);
            let row = first_row + number as u64;
            prop_assert_eq!(&read_sample(&shard.out, partition, row, &entry).unwrap(), sample);
            let counts = (entry.n_tokens as usize, entry.n_images as usize);
            prop_assert_eq!(counts, (sample.input_ids.len(), sample.images.len()));
            let loss = sample.labels.iter().filter(|label| **label != -100).count();
            prop_assert_eq!(entry.n_loss_tokens as usize, loss);
            let patches: i32 = sample.image_grid_thw.iter().map(|grid| grid.iter().product::<i32>()).sum();
            prop_assert_eq!(entry.n_patches, patches as u32);
        }
        prop_assert!(index.get(index.len()).is_none());
    }

    #[test]
    fn arrow_agrees_about_samples(samples in vec(any_sample(), 1..24)) {
        let shard = sample_shard(&head(1, 2, 3), &samples);
        let reader = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(shard.out), None).unwrap();
        let schema = reader.schema();
        prop_assert_eq!(&schema.metadata()["key11"], "value 121");
        let mut row = 0;
        for batch in reader {
            let batch = batch.unwrap();
            for line in 0..batch.num_rows() {
                let sample = &samples[row];
                let ids = batch["record_id"].as_string::<i64>();
                let record_id = arrow_array::Array::is_valid(ids, line).then(|| ids.value(line).to_owned());
                prop_assert_eq!(&record_id, &sample.record_id);
                prop_assert_eq!(batch["sample_id"].as_string::<i64>().value(line), &sample.sample_id);
                let list = |name: &str| batch[name].as_list::<i64>().value(line);
                let ids = list("input_ids");
                prop_assert_eq!(&ids.as_primitive::<Int32Type>().values()[..], &sample.input_ids[..]);
                let labels = list("labels");
                prop_assert_eq!(&labels.as_primitive::<Int32Type>().values()[..], &sample.labels[..]);
                let images = list("images");
                prop_assert_eq!(&images.as_primitive::<UInt32Type>().values()[..], &sample.images[..]);
                let grids = list("image_grid_thw");
                let grids = grids.as_fixed_size_list();
                for (number, grid) in sample.image_grid_thw.iter().enumerate() {
                    let found = grids.value(number);
                    prop_assert_eq!(&found.as_primitive::<Int32Type>().values()[..], &grid[..]);
                }
                row += 1;
            }
        }
        prop_assert_eq!(row, samples.len());
    }
}

#[test]
fn arrow_agrees_about_images() {
    let images = some_images();
    let shard = image_shard(&head(0, 0, 0), &images);
    let reader =
        arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(&shard.out), None).unwrap();
    let batch = reader.into_iter().next().unwrap().unwrap();
    for (line, image) in images.iter().enumerate() {
        assert_eq!(
            batch["patches"].as_binary::<i64>().value(line),
            image.patches
        );
        assert_eq!(batch["key"].as_fixed_size_binary().value(line), image.key.0);
        let grid = batch["grid_thw"].as_fixed_size_list().value(line);
        assert_eq!(
            grid.as_primitive::<Int32Type>().values()[..],
            image.grid_thw
        );
        let size = batch["size"].as_fixed_size_list().value(line);
        assert_eq!(size.as_primitive::<Int32Type>().values()[..], image.size);
        let entry = &shard.entries[line];
        let range = entry.offset as usize..(entry.offset + entry.length) as usize;
        assert_eq!(shard.out[range], image.patches);
    }
}

#[test]
fn batches_are_about_a_mebibyte_and_hold_a_row() {
    let mut images = some_images();
    images[1].patches = vec![7; 4 * 900_000];
    images[2].patches = vec![8; 6 * 60_000];
    let many: Vec<_> = (0..30).map(|number| images[number % 3].clone()).collect();
    let shard = image_shard(&head(0, 0, 0), &many);
    let reader =
        arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(&shard.out), None).unwrap();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    assert!(batches.len() > 10);
    assert!(batches.iter().all(|batch| batch.num_rows() >= 1));
    let (_, entries) = read_image_shard(&shard.out).unwrap();
    assert_eq!(entries, shard.entries);
    assert_eq!(
        read_shard_head(&shard.out, ShardKind::Images).unwrap(),
        head(0, 0, 0)
    );
    for (row, (image, entry)) in many.iter().zip(&entries).enumerate() {
        assert_eq!(
            &read_image(&shard.out, 0, row as u64, entry).unwrap(),
            image
        );
    }

    let samples: Vec<_> = (0..9000)
        .map(|number| {
            let mut sample = some_samples()[number % 3].clone();
            sample.input_ids.extend(0..number as i32 % 100);
            sample.labels.extend(0..number as i32 % 100);
            sample
        })
        .collect();
    let shard = sample_shard(&head(0, 0, 7), &samples);
    let (_, entries) = read_sample_shard(&shard.out).unwrap();
    assert_eq!(entries, shard.entries);
    assert_eq!(entries.len(), 9000);
    assert_eq!(
        read_shard_head(&shard.out, ShardKind::Samples).unwrap(),
        head(0, 0, 7)
    );
    for row in [0, 1, 4500, 8999] {
        let found = read_sample(&shard.out, 0, 7 + row as u64, &entries[row]).unwrap();
        assert_eq!(found, samples[row]);
    }
}

#[test]
fn bytes_depend_on_rows_and_head_only() {
    // Every map in the encoder has another random state in each of these, and another in every process.
    let images = some_images();
    let samples = some_samples();
    let first = (
        image_shard(&head(1, 2, 3), &images).hash,
        sample_shard(&head(1, 2, 3), &samples).hash,
    );
    for _ in 0..64 {
        let again = (
            image_shard(&head(1, 2, 3), &images).hash,
            sample_shard(&head(1, 2, 3), &samples).hash,
        );
        assert_eq!(again, first);
    }
    // Frozen: a change of these is a change of the format's bytes.
    assert_eq!(
        first.0.to_string(),
        "883ae547a648485a723e46dac63495c30bd0a808249c045ca3b3aa3f6ed43bde"
    );
    assert_eq!(
        first.1.to_string(),
        "b5ab804786faf0639bcb4d9cc766fbff8f5d7fd3dd33d06be32f00c456ef139f"
    );
}

#[test]
fn a_row_read_as_another_is_refused() {
    let shard = sample_shard(&head(1, 2, 0), &some_samples());
    let entry = shard.entries[0];
    assert!(read_sample(&shard.out, 1, 0, &entry).is_ok());
    let error = read_sample(&shard.out, 1, 1, &entry).unwrap_err();
    assert_eq!(
        error.to_string(),
        "checksum differs: sample row 1 of partition 1, shard `2`"
    );
    assert!(read_sample(&shard.out, 0, 0, &entry).is_err());
    let mut other = entry;
    other.n_loss_tokens += 1;
    assert!(read_sample(&shard.out, 1, 0, &other).is_err());
    let mut other = entry;
    other.n_tokens = 1 << 27;
    let error = read_sample(&shard.out, 1, 0, &other).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("the shard ends before the row"),
        "{error}"
    );
}

#[test]
fn rows_that_do_not_fit_are_refused_and_leave_the_shard_as_it_was() {
    let samples = some_samples();
    let mut writer = SampleShardWriter::new(Vec::new(), &head(1, 2, 3)).unwrap();
    for sample in &samples {
        let row = sample_row(sample);
        for bad in [
            stoker_formats::SampleRow {
                sample_id: "",
                ..row
            },
            stoker_formats::SampleRow {
                labels: &[1, 2, 3],
                ..row
            },
            stoker_formats::SampleRow {
                images: &[1, 2, 3, 4, 5],
                ..row
            },
            stoker_formats::SampleRow {
                images: &[1],
                image_grid_thw: &[[1, 0, 4]],
                ..row
            },
            stoker_formats::SampleRow {
                images: &[1],
                image_grid_thw: &[[i32::MAX; 3]],
                ..row
            },
        ] {
            assert!(matches!(writer.push(&bad), Err(Error::Unwritable { .. })));
        }
        writer.push(&row).unwrap();
    }
    assert_eq!(
        writer.finish().unwrap().hash,
        sample_shard(&head(1, 2, 3), &samples).hash
    );

    let images = some_images();
    let mut writer = ImageShardWriter::new(Vec::new(), &head(1, 2, 3)).unwrap();
    for image in &images {
        let row = image_row(image);
        for bad in [
            stoker_formats::ImageRow {
                patches: &[],
                ..row
            },
            stoker_formats::ImageRow {
                patches: &[1; 13],
                ..row
            },
            stoker_formats::ImageRow {
                grid_thw: [1, -2, -2],
                ..row
            },
            stoker_formats::ImageRow {
                size: [0, 4],
                ..row
            },
        ] {
            assert!(matches!(writer.push(&bad), Err(Error::Unwritable { .. })));
        }
        writer.push(&row).unwrap();
    }
    assert_eq!(
        writer.finish().unwrap().hash,
        image_shard(&head(1, 2, 3), &images).hash
    );
    assert!(
        ImageShardWriter::new(Vec::new(), &head(1, 2, 3))
            .unwrap()
            .finish()
            .is_err()
    );
    let mut reserved = head(1, 2, 3);
    reserved.metadata.insert("stoker.kind".into(), "x".into());
    assert!(ImageShardWriter::new(Vec::new(), &reserved).is_err());
}

#[test]
fn given_away_patches_make_the_same_shard_and_come_back() {
    // Two share a batch, two are larger than a batch may be, one is left over.
    let sizes = [600 << 10, 300 << 10, 2 << 20, (1 << 20) - 16, 1 << 10];
    let images: Vec<_> = (0u8..)
        .zip(sizes)
        .map(|(number, bytes)| ImageData {
            key: ImageKey([number; 16]),
            grid_thw: [1, 1, 16],
            size: [16, 256],
            patches: (0..bytes).map(|at| number.wrapping_add(at as u8)).collect(),
        })
        .collect();
    let mut writer = ImageShardWriter::new(Vec::new(), &head(1, 2, 3)).unwrap();
    for image in &images {
        let patches = image.patches.clone();
        let memory = patches.as_ptr();
        let pushed = writer.push_owned(image.key, image.grid_thw, image.size, patches);
        let back = pushed.unwrap();
        assert_eq!(back.as_ptr(), memory);
    }
    let owned = writer.finish().unwrap();
    let borrowed = image_shard(&head(1, 2, 3), &images);
    assert_eq!(owned.hash, borrowed.hash);
    assert_eq!(owned.entries, borrowed.entries);
    let batches: Vec<usize> =
        arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(owned.out), None)
            .unwrap()
            .map(|batch| batch.unwrap().num_rows())
            .collect();
    assert_eq!(batches, [2, 1, 1, 1]);
}

#[test]
fn an_index_may_be_empty_and_is_of_one_kind() {
    let mut bytes = Vec::new();
    write_image_index(&mut bytes, 12_345, &[]).unwrap();
    let index = ImageIndex::parse(bytes.clone()).unwrap();
    assert!(index.is_empty() && index.get(0).is_none() && index.iter().next().is_none());
    assert!(SampleIndex::parse(bytes).is_err());
    let shard = sample_shard(&head(1, 2, 3), &some_samples());
    assert!(read_image_shard(&shard.out).is_err());
    assert!(SampleIndex::parse(shard.out).is_err());
}

#[test]
fn checksums_of_the_specification_hold() {
    // Computed by another implementation, in another language, from the tables of FORMAT.md.
    let head = stoker_formats::ShardHead {
        partition: 3,
        first_row: 5,
        ..Default::default()
    };
    let samples = sample_shard(&head, &some_samples()).entries;
    assert_eq!(samples[0].checksum, 0xa602_3b9e_d11a_e176);
    assert_eq!(samples[1].checksum, 0x4c68_1263_93cd_c656);
    let images = image_shard(&head, &some_images()).entries;
    assert_eq!(images[0].checksum, 0xbfc8_8c94_d364_cac7);
}
