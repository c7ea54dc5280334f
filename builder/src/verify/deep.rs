//! The checks of every row of one partition.
//!
//! Owns comparing shards, receipts and index with each other, and the rules that tie a sample to its images. Invariant:
//! files that are damaged by their hash are not looked into again; each other file gets one finding at most.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};

use stoker_formats::{
    FileEntry, FileName, Folder, IGNORED_LABEL, ImageEntry, PartitionFiles, PlanId, Receipt,
    ReceiptEntry, SampleData, SampleEntry, ShardHead, read_sample, visit_image_shard,
    visit_sample_shard,
};
use stoker_reader::{CacheFile, CacheFiles};

use super::cost::rows_of;
use super::progress::Progress;
use super::{CacheFileKey, Fault, Finding, Indexes, Rows};

/// One partition, to be checked.
pub(super) struct Partition<'a> {
    files: &'a CacheFiles,
    number: u32,
    indexes: &'a Indexes,
    damaged: &'a BTreeSet<CacheFileKey>,
    tokens: ImageTokens,
}

/// What the recipe says about image tokens.
#[derive(Debug, Clone, Copy)]
struct ImageTokens {
    pad: Option<i64>,
    merge: Option<u64>,
}

/// Hands out row and entry of a shard, one by one.
type Visit<E> = fn(&File, &mut dyn FnMut(u64, E)) -> stoker_formats::Result<ShardHead>;

/// One kind of rows of the partition.
struct Side<'a, E> {
    folder: Folder,
    plan: PlanId,
    files: &'a PartitionFiles,
    /// The entry of a row, by the index.
    get: Box<dyn Fn(u64) -> Option<E> + 'a>,
    /// Hands out row and entry of a shard, made from its payloads.
    visit: Visit<E>,
}

impl<'a> Partition<'a> {
    pub(super) fn new(
        files: &'a CacheFiles,
        number: u32,
        indexes: &'a Indexes,
        damaged: &'a BTreeSet<CacheFileKey>,
    ) -> Self {
        let recipe = &files.manifest().recipe;
        Self {
            files,
            number,
            indexes,
            damaged,
            tokens: ImageTokens {
                pad: recipe["text"]["special"]["image_pad"].as_i64(),
                merge: recipe["image"]["merge_size"]
                    .as_u64()
                    .filter(|side| *side > 0),
            },
        }
    }

    /// All findings.
    pub(super) fn run(&self, progress: &Progress) -> Vec<Finding> {
        let mut findings = Vec::new();
        let Ok(entry) = self.files.partition(self.number) else {
            return findings;
        };
        let manifest = self.files.manifest();
        if let Some(index) = &self.indexes.images {
            let side = Side::<ImageEntry> {
                folder: self.files.images(),
                plan: manifest.image_plan_id,
                files: &entry.images,
                get: Box::new(|row| index.get(row)),
                visit: |file, each| {
                    visit_image_shard(file, |row, entry| {
                        each(row, entry);
                        Ok(())
                    })
                },
            };
            self.check_side(&side, progress, &mut findings);
        }
        if let Some(index) = &self.indexes.samples {
            let side = Side::<SampleEntry> {
                folder: self.files.text(),
                plan: manifest.text_plan_id,
                files: &entry.samples,
                get: Box::new(|row| index.get(row)),
                visit: |file, each| {
                    visit_sample_shard(file, |row, entry| {
                        each(row, entry);
                        Ok(())
                    })
                },
            };
            self.check_side(&side, progress, &mut findings);
            self.check_samples(&entry.samples, &mut findings);
        }
        findings
    }

    /// The file, unless it is known to be damaged.
    fn intact(&self, folder: Folder, name: FileName, entry: FileEntry) -> Option<CacheFile> {
        let known = self.damaged.contains(&(folder, name));
        (!known).then_some(CacheFile {
            folder,
            name,
            entry,
        })
    }

    /// Compares shards and receipts with the index.
    fn check_side<E: ReceiptEntry + PartialEq>(
        &self,
        side: &Side<'_, E>,
        progress: &Progress,
        findings: &mut Vec<Finding>,
    ) {
        let partition = self.number;
        for (ordinal, shard) in (0u32..).zip(&side.files.shards) {
            let name = FileName::Shard { partition, ordinal };
            let Some(file) = shard.and_then(|entry| self.intact(side.folder, name, entry)) else {
                continue;
            };
            if progress.stopped() {
                return;
            }
            if let Some((what, rows)) = self.check_shard(side, ordinal, &file) {
                let lost = match side.folder {
                    Folder::Text(_) => rows,
                    // Found by the samples that use them.
                    Folder::Images(_) => Vec::new(),
                };
                let mut finding = Finding::new(file, Fault::Inconsistent, what);
                finding.lost = Rows {
                    partition,
                    rows: lost,
                };
                findings.push(finding);
            }
            progress.advance(file.entry.bytes);
        }
        let mut next_item = Some(0);
        for (ordinal, entry) in (0u32..).zip(&side.files.receipts) {
            let name = FileName::Receipt { partition, ordinal };
            let Some(file) = self.intact(side.folder, name, *entry) else {
                next_item = None;
                continue;
            };
            match self.check_receipt(side, ordinal, &file, next_item) {
                Ok(next) => next_item = Some(next),
                Err(what) => {
                    next_item = None;
                    findings.push(Finding::new(file, Fault::Inconsistent, what));
                }
            }
        }
    }

    /// What is wrong with a shard, and which rows of it are not those of the index.
    fn check_shard<E: PartialEq>(
        &self,
        side: &Side<'_, E>,
        ordinal: u32,
        file: &CacheFile,
    ) -> Option<(String, Vec<u64>)> {
        let wanted = rows_of(side.files, ordinal);
        let mut wrong: BTreeSet<u64> = wanted.clone().collect();
        let path = self.files.path(file.folder, file.name);
        let input = match File::open(&path) {
            Ok(input) => input,
            Err(error) => return Some((format!("cannot be read: {error}"), wanted.collect())),
        };
        let visited = (side.visit)(&input, &mut |row, entry| {
            if wanted.contains(&row) && (side.get)(row).as_ref() == Some(&entry) {
                wrong.remove(&row);
            }
        });
        let place = (self.number, ordinal, wanted.start);
        match visited {
            Err(error) => Some((error.to_string(), wrong.into_iter().collect())),
            Ok(head) if (head.partition, head.shard, head.first_row) != place => Some((
                "another shard stands in this place".into(),
                wanted.collect(),
            )),
            Ok(_) => {
                let first = *wrong.first()?;
                let what = format!("row {first} is not as the index says");
                Some((what, wrong.into_iter().collect()))
            }
        }
    }

    /// The item after a receipt's, or what is wrong with it.
    fn check_receipt<E: ReceiptEntry + PartialEq>(
        &self,
        side: &Side<'_, E>,
        ordinal: u32,
        file: &CacheFile,
        next_item: Option<u64>,
    ) -> Result<u64, String> {
        let path = self.files.path(file.folder, file.name);
        let bytes = fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
        let receipt = Receipt::<E>::parse(&bytes).map_err(|error| error.to_string())?;
        if (receipt.plan_id, receipt.partition, receipt.ordinal)
            != (side.plan, self.number, ordinal)
        {
            return Err("the receipt of another shard".into());
        }
        let shard = receipt.shard.map(|shard| FileEntry {
            bytes: shard.bytes,
            hash: shard.hash,
            rows: shard.rows,
        });
        if side.files.shards.get(ordinal as usize) != Some(&shard) {
            return Err("its shard is not the manifest's".into());
        }
        if next_item.is_some_and(|item| item != receipt.plan_range[0]) {
            return Err("its items do not follow those of the receipt before".into());
        }
        let rows = rows_of(side.files, ordinal);
        if receipt.first_row != rows.start {
            return Err("its first row is not the manifest's".into());
        }
        for (row, entry) in rows.zip(&receipt.entries) {
            if (side.get)(row).as_ref() != Some(entry) {
                return Err(format!("its row {row} is not as the index says"));
            }
        }
        Ok(receipt.plan_range[1])
    }

    /// Checks the rules of every sample in an intact shard.
    fn check_samples(&self, samples: &PartitionFiles, findings: &mut Vec<Finding>) {
        let partition = self.number;
        let mut ids = HashSet::new();
        for (ordinal, shard) in (0u32..).zip(&samples.shards) {
            let name = FileName::Shard { partition, ordinal };
            let folder = self.files.text();
            let Some(file) = shard.and_then(|entry| self.intact(folder, name, entry)) else {
                continue;
            };
            let known =
                |finding: &Finding| (finding.file.folder, finding.file.name) == (folder, name);
            if findings.iter().any(known) {
                continue;
            }
            let Ok(input) = File::open(self.files.path(folder, name)) else {
                continue;
            };
            let mut first = None;
            let mut rows = Vec::new();
            for row in rows_of(samples, ordinal) {
                if let Err(what) = self.check_row(&input, row, &mut ids) {
                    first.get_or_insert_with(|| format!("sample row {row}: {what}"));
                    rows.push(row);
                }
            }
            if let Some(what) = first {
                let mut finding = Finding::new(file, Fault::Inconsistent, what);
                finding.lost = Rows { partition, rows };
                findings.push(finding);
            }
        }
    }

    fn check_row(&self, input: &File, row: u64, ids: &mut HashSet<[u8; 32]>) -> Result<(), String> {
        let entry = self
            .indexes
            .samples
            .as_ref()
            .and_then(|index| index.get(row));
        let entry = entry.ok_or("not in the index")?;
        let sample =
            read_sample(input, self.number, row, &entry).map_err(|error| error.to_string())?;
        // Hashes: the ids of a large partition would not fit into small memory.
        if !ids.insert(*blake3::hash(sample.sample_id.as_bytes()).as_bytes()) {
            return Err("another sample of the partition has the same sample id".into());
        }
        check_tokens(&sample, self.tokens)?;
        self.check_images(&sample)
    }

    /// Every image exists and has the grid that the sample says.
    fn check_images(&self, sample: &SampleData) -> Result<(), String> {
        let Some(index) = &self.indexes.images else {
            return Ok(());
        };
        for (image, grid) in sample.images.iter().zip(&sample.image_grid_thw) {
            match index.get(u64::from(*image)) {
                None => {
                    return Err(format!(
                        "image {image} is none of the partition's {}",
                        index.len()
                    ));
                }
                Some(entry) if entry.grid_thw != *grid => {
                    return Err(format!(
                        "image {image} has grid {grid:?} here and {:?} in its index",
                        entry.grid_thw
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// Labels are the ids or ignored; image pads are as many as merged patches.
fn check_tokens(sample: &SampleData, tokens: ImageTokens) -> Result<(), String> {
    let pairs = sample.input_ids.iter().zip(&sample.labels);
    for (at, (id, label)) in pairs.enumerate() {
        if *id < 0 {
            return Err(format!("token {at} is {id}, which is no token id"));
        }
        if label != id && *label != IGNORED_LABEL {
            return Err(format!(
                "label {at} is {label}, neither {IGNORED_LABEL} nor the token id {id}"
            ));
        }
    }
    let (Some(pad), Some(merge)) = (tokens.pad, tokens.merge) else {
        return Ok(());
    };
    let found = sample
        .input_ids
        .iter()
        .filter(|id| i64::from(**id) == pad)
        .count() as u64;
    let patches: u64 = sample
        .image_grid_thw
        .iter()
        .map(|grid| {
            grid.iter()
                .map(|side| u64::from(side.unsigned_abs()))
                .product::<u64>()
        })
        .sum();
    let block = merge.saturating_mul(merge);
    if !patches.is_multiple_of(block) || found != patches / block {
        return Err(format!(
            "{found} image tokens for {patches} patches in blocks of {block}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SampleData {
        SampleData {
            sample_id: "a.jsonl:1".into(),
            record_id: None,
            input_ids: vec![1, 9, 9, 2],
            labels: vec![-100, -100, -100, 2],
            images: vec![0],
            image_grid_thw: vec![[1, 2, 4]],
        }
    }

    const TOKENS: ImageTokens = ImageTokens {
        pad: Some(9),
        merge: Some(2),
    };

    #[test]
    fn each_rule_of_tokens_is_noticed() {
        assert_eq!(check_tokens(&sample(), TOKENS), Ok(()));
        let mut wrong = sample();
        wrong.labels[0] = 2;
        let text = check_tokens(&wrong, TOKENS).unwrap_err();
        assert_eq!(text, "label 0 is 2, neither -100 nor the token id 1");
        let mut wrong = sample();
        wrong.input_ids[0] = -1;
        assert_eq!(
            check_tokens(&wrong, TOKENS).unwrap_err(),
            "token 0 is -1, which is no token id"
        );
        let mut wrong = sample();
        wrong.input_ids[1] = 8;
        let text = check_tokens(&wrong, TOKENS).unwrap_err();
        assert_eq!(text, "1 image tokens for 8 patches in blocks of 4");
        let mut wrong = sample();
        wrong.image_grid_thw[0] = [1, 3, 3];
        assert!(check_tokens(&wrong, TOKENS).is_err());
    }
}
