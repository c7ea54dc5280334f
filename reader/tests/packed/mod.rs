//! Pack tables for tests, written through the formats crate.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use stoker_formats::{
    Counts, IGNORED_LABEL, Manifest, Members, PACKS_FOLDER, PackEntry, PackFile, PackOptions,
    PackOverlong, PackStrategy, PackTableWriter, PackTotals, VERSION,
};

use crate::synthetic::Content;

/// Packs of each partition: the rows of each.
pub(crate) type Groups = Vec<Vec<Vec<u32>>>;

fn counts_of(part: &Content, rows: &[u32]) -> Counts {
    let mut counts = Counts::default();
    for row in rows {
        let sample = &part.samples[*row as usize];
        let learnt = sample
            .labels
            .iter()
            .filter(|label| **label != IGNORED_LABEL);
        let patches = sample
            .image_grid_thw
            .iter()
            .map(|grid| grid.iter().product::<i32>());
        counts.tokens += sample.input_ids.len() as u32;
        counts.loss_tokens += learnt.count() as u32;
        counts.images += sample.images.len() as u32;
        counts.patches += patches.sum::<i32>() as u32;
    }
    counts
}

/// Packs of up to `max_tokens`, by taking rows from both ends in turn; a longer sample stands alone.
pub(crate) fn grouped(content: &[Content], max_tokens: u32) -> Groups {
    let of_part = |part: &Content| {
        let mut packs: Vec<Vec<u32>> = Vec::new();
        let (mut from, mut to) = (0, part.samples.len() as u32);
        while from < to {
            let row = if packs.len().is_multiple_of(2) {
                from += 1;
                from - 1
            } else {
                to -= 1;
                to
            };
            let fits = packs.last().is_some_and(|pack| {
                let with = [&pack[..], &[row]].concat();
                counts_of(part, &with).tokens <= max_tokens
            });
            match packs.last_mut() {
                Some(pack) if fits => pack.push(row),
                _ => packs.push(vec![row]),
            }
        }
        packs
    };
    content.iter().map(of_part).collect()
}

/// Writes `groups` as the table `name` of the cache at `root`; returns the files of entry and table.
pub(crate) fn write(
    root: &Path,
    manifest: &Manifest,
    content: &[Content],
    (name, max_tokens): (&str, u32),
    groups: &Groups,
) -> [PathBuf; 2] {
    let mut writer = PackTableWriter::new(Vec::new()).unwrap();
    let mut totals = PackTotals::default();
    for (partition, (packs, part)) in (0u32..).zip(groups.iter().zip(content)) {
        let counts: Vec<Counts> = packs.iter().map(|rows| counts_of(part, rows)).collect();
        let mut members = Members::default();
        for rows in packs {
            members.push(rows.iter().copied());
        }
        for (rows, counts) in packs.iter().zip(&counts) {
            totals.samples += rows.len() as u64;
            totals.add(counts);
            totals.overlong += u64::from(counts.tokens > max_tokens);
        }
        writer.write(partition, &counts, &members).unwrap();
    }
    let (bytes, table) = writer.finish().unwrap();
    let entry = PackEntry {
        format_version: VERSION,
        created_by: "a test".into(),
        fingerprint: manifest.fingerprint,
        name: name.parse().unwrap(),
        options: PackOptions {
            max_tokens,
            max_patches: None,
            max_samples: None,
            by_modality: false,
            strategy: PackStrategy::BestFit,
            seed: 0,
            window: 4096,
            overlong: PackOverlong::Alone,
        },
        totals,
        samples: content
            .iter()
            .map(|part| part.samples.len() as u64)
            .collect(),
        packs: groups.iter().map(|packs| packs.len() as u64).collect(),
        overlong: None,
        table,
    };
    let folder = root.join(PACKS_FOLDER);
    fs::create_dir_all(&folder).unwrap();
    let files = [
        folder.join(PackFile::Entry(entry.name.clone()).to_string()),
        folder.join(PackFile::table(entry.table.hash).to_string()),
    ];
    fs::write(&files[1], bytes).unwrap();
    fs::write(&files[0], entry.to_bytes().unwrap()).unwrap();
    files
}
