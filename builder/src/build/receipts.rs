//! What earlier runs have done of a partition: its receipts, from the first, as far as they go.
//!
//! A receipt counts if its bytes are whole, it belongs to this plan and follows the one before it. Work goes on after the last one
//! that counts. A shard that is not there with the right size, or was found damaged, is made again from the range of its receipt,
//! with the same bytes; a lost receipt costs itself and what follows it in its partition.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use stoker_formats::{
    ContentHash, FileEntry, FileName, Folder, ImageEntry, PlanId, Receipt, ReceiptEntry,
    SampleEntry,
};

use crate::error::{Error, Result};
use crate::folder::has_file;
use crate::plan::PlanIds;
use crate::publish::Publisher;

/// Folders inside a plan's folder.
const SUBFOLDERS: [&str; 3] = ["shards", "receipts", "index"];
/// Only the text folder has tables.
const TABLES_SUBFOLDER: &str = "tables";

/// The two folders of a cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) ids: PlanIds,
}

impl Layout {
    pub(crate) fn new(ids: PlanIds) -> Self {
        Self { ids }
    }

    pub(crate) fn images(&self) -> Folder {
        Folder::Images(self.ids.image)
    }

    pub(crate) fn text(&self) -> Folder {
        Folder::Text(self.ids.text)
    }

    /// Makes the folders that are not there yet.
    pub(crate) fn create(&self, publisher: &Publisher) -> Result<()> {
        for folder in [self.images(), self.text()] {
            for subfolder in SUBFOLDERS {
                publisher.create_folder(&Path::new(&folder.to_string()).join(subfolder))?;
            }
        }
        let text = self.text().to_string();
        publisher.create_folder(&Path::new(&text).join(TABLES_SUBFOLDER))?;
        Ok(())
    }
}

impl Layout {
    /// Makes all names in the folders durable: a run that died may have left a name without its sync.
    pub(crate) fn sync(&self, publisher: &Publisher) -> Result<()> {
        let text = self.text().to_string();
        for folder in [self.images().to_string(), text.clone()] {
            for subfolder in SUBFOLDERS {
                publisher.sync(&Path::new(&folder).join(subfolder))?;
            }
            publisher.sync(Path::new(&folder))?;
        }
        publisher.sync(&Path::new(&text).join(TABLES_SUBFOLDER))?;
        publisher.sync(Path::new(""))
    }
}

/// Which of a cache's two kinds of rows a receipt is about.
pub(crate) trait InFolder: ReceiptEntry + PartialEq {
    fn folder(layout: &Layout) -> Folder;
    fn plan_id(layout: &Layout) -> PlanId;
}

impl InFolder for ImageEntry {
    fn folder(layout: &Layout) -> Folder {
        layout.images()
    }

    fn plan_id(layout: &Layout) -> PlanId {
        layout.ids.image
    }
}

impl InFolder for SampleEntry {
    fn folder(layout: &Layout) -> Folder {
        layout.text()
    }

    fn plan_id(layout: &Layout) -> PlanId {
        layout.ids.text
    }
}

/// Files that were found damaged, and count as lost.
pub(crate) type Damaged = HashSet<(Folder, FileName)>;

/// The receipts of one partition, in order.
#[derive(Debug)]
pub(crate) struct Receipts<E> {
    receipts: Vec<Receipt<E>>,
    /// Their files, as the manifest names them.
    files: Vec<FileEntry>,
    /// Ordinals of those whose shard is lost.
    lost: BTreeSet<u32>,
    /// Whether something of them stays lost.
    given_up: bool,
}

impl<E> Default for Receipts<E> {
    fn default() -> Self {
        Self {
            receipts: Vec::new(),
            files: Vec::new(),
            lost: BTreeSet::new(),
            given_up: false,
        }
    }
}

/// A receipt, and what stands in its file.
pub(crate) type OnDisk<E> = (Receipt<E>, Vec<u8>);

pub(crate) type ImageReceipts = Receipts<ImageEntry>;
pub(crate) type SampleReceipts = Receipts<SampleEntry>;

/// What is still to be done of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rest {
    /// Ordinal of the next shard.
    pub(crate) ordinal: u32,
    /// Number of its first row in the partition.
    pub(crate) first_row: u64,
    /// Items of the partition's plan order.
    pub(crate) items: Range<u64>,
}

impl<E: InFolder> Receipts<E> {
    /// Reads the receipts of `partition`, which has `items` items, in the cache folder `root`.
    pub(crate) fn load(
        root: &Path,
        layout: &Layout,
        partition: u32,
        items: u64,
        damaged: &Damaged,
    ) -> Result<Self> {
        let folder = E::folder(layout);
        let path = root.join(folder.to_string());
        let mut found = Self::default();
        loop {
            let rest = found.rest(u64::MAX);
            let ordinal = rest.ordinal;
            let Some((receipt, bytes)) = read::<E>(&path, partition, ordinal)? else {
                return Ok(found);
            };
            let follows = receipt.plan_id == E::plan_id(layout)
                && receipt.plan_range[0] == rest.items.start
                && receipt.plan_range[1] <= items
                && receipt.first_row == rest.first_row;
            if !follows || damaged.contains(&(folder, FileName::Receipt { partition, ordinal })) {
                return Ok(found);
            }
            let name = FileName::Shard { partition, ordinal };
            let is_there = receipt.shard.is_none_or(|shard| {
                has_file(&path.join(name.to_string()), shard.bytes)
                    && !damaged.contains(&(folder, name))
            });
            found.put(receipt, &bytes);
            if !is_there {
                found.lost.insert(ordinal);
            }
        }
    }

    /// Bytes of each shard that a run will write again, in the place of what is there: the lost ones, and those after the last
    /// receipt that counts.
    pub(crate) fn replaced(&self, root: &Path, layout: &Layout, partition: u32) -> Vec<u64> {
        let folder = root.join(E::folder(layout).to_string());
        let bytes = |name: FileName| {
            let found = fs::symlink_metadata(folder.join(name.to_string()));
            found.ok().map(|found| found.len())
        };
        let lost = self.lost.iter().copied();
        let lost = lost.filter_map(|ordinal| bytes(FileName::Shard { partition, ordinal }));
        let first = self.rest(u64::MAX).ordinal;
        let after = (first..).map_while(|ordinal| {
            let shard = bytes(FileName::Shard { partition, ordinal });
            // The first may be the one that is lost; some receipts have no shard.
            let is_left = ordinal == first
                || shard.is_some()
                || bytes(FileName::Receipt { partition, ordinal }).is_some();
            is_left.then(|| shard.unwrap_or(0))
        });
        lost.chain(after).collect()
    }

    /// The receipt at `path` and its bytes, if one of the same shard as `receipt` stands there.
    pub(crate) fn before(path: &Path, receipt: &Receipt<E>) -> Option<OnDisk<E>> {
        let bytes = fs::read(path).ok()?;
        let there = Receipt::<E>::parse(&bytes).ok()?;
        let shard = |receipt: &Receipt<E>| (receipt.plan_id, receipt.partition, receipt.ordinal);
        (shard(&there) == shard(receipt)).then_some((there, bytes))
    }

    /// Whether two receipts differ at most in where the same things were read.
    pub(crate) fn agree(one: &Receipt<E>, other: &Receipt<E>) -> bool {
        let same_items = one.items == other.items && one.entries == other.entries;
        let same_range = (one.plan_range, one.first_row) == (other.plan_range, other.first_row);
        same_range && same_items && one.shard == other.shard && one.rejects == other.rejects
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Receipt<E>] {
        &self.receipts
    }

    /// The file of each of them.
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Items that are accounted for.
    pub(crate) fn covered(&self) -> u64 {
        self.receipts.last().map_or(0, |last| last.plan_range[1])
    }

    /// Those of them whose shards are there.
    pub(crate) fn done(&self) -> u64 {
        let lost = self.lost.iter().filter_map(|ordinal| self.again(*ordinal));
        self.covered()
            - lost
                .map(|rest| rest.items.end - rest.items.start)
                .sum::<u64>()
    }

    /// All that is to be made of a partition of `items`: the lost shards, then what is left.
    pub(crate) fn to_make(&self, items: u64) -> Vec<Rest> {
        let lost = self.lost.iter().filter_map(|ordinal| self.again(*ordinal));
        lost.chain([self.rest(items)])
            .filter(|rest| !rest.items.is_empty())
            .collect()
    }

    /// How the shard of a receipt is made again.
    fn again(&self, ordinal: u32) -> Option<Rest> {
        let receipt = self.receipts.get(ordinal as usize)?;
        Some(Rest {
            ordinal,
            first_row: receipt.first_row,
            items: receipt.plan_range[0]..receipt.plan_range[1],
        })
    }

    /// That these receipts account for exactly the `items` planned `what` of `partition`.
    ///
    /// # Errors
    /// [`Error::Usage`] with both counts.
    pub(crate) fn check_all(&self, partition: u32, what: &str, items: usize) -> Result<()> {
        let covered = self.covered();
        if covered == items as u64 {
            return Ok(());
        }
        Err(Error::Usage {
            what: format!(
                "receipts for {covered} of the {items} planned {what} of partition `{partition}`"
            ),
            hint: "run the build command again to make what is missing".into(),
        })
    }

    /// Bytes of the shards that are there.
    pub(crate) fn bytes(&self) -> u64 {
        let shards = self.receipts.iter().filter_map(|receipt| receipt.shard);
        shards.map(|shard| shard.bytes).sum()
    }

    /// What is left to do of a partition of `items`.
    pub(crate) fn rest(&self, items: u64) -> Rest {
        let last = self.receipts.last();
        Rest {
            ordinal: last.map_or(0, |last| last.ordinal + 1),
            first_row: last.map_or(0, |last| last.first_row + last.entries.len() as u64),
            items: self.covered()..items,
        }
    }

    /// Leaves the lost shard `ordinal` as it is, or what follows the last receipt.
    pub(crate) fn give_up(&mut self, ordinal: u32) {
        self.lost.remove(&ordinal);
        self.given_up = true;
    }

    /// Whether something of the partition stays lost.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up
    }

    /// Notes a receipt, of the next shard or of one that was lost, and what stands in its file.
    pub(crate) fn put(&mut self, receipt: Receipt<E>, bytes: &[u8]) {
        let file = FileEntry {
            bytes: bytes.len() as u64,
            hash: ContentHash::of(bytes),
            rows: receipt.entries.len() as u64,
        };
        if self.lost.remove(&receipt.ordinal) {
            let at = receipt.ordinal as usize;
            self.files[at] = file;
            self.receipts[at] = receipt;
        } else {
            self.files.push(file);
            self.receipts.push(receipt);
        }
    }
}

/// A receipt and its bytes, if they are whole.
fn read<E: InFolder>(folder: &Path, partition: u32, ordinal: u32) -> Result<Option<OnDisk<E>>> {
    let path = folder.join(FileName::Receipt { partition, ordinal }.to_string());
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let receipt = match Receipt::<E>::parse(&bytes) {
        Ok(receipt) => receipt,
        Err(error @ stoker_formats::Error::NewerVersion { .. }) => {
            return Err(error.in_file(&path).into());
        }
        Err(_) => return Ok(None),
    };
    let right = receipt.partition == partition && receipt.ordinal == ordinal;
    Ok(right.then_some((receipt, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_formats::{RejectEntry, SourceEntry};

    /// A receipt of items that were all rejected.
    fn receipt(items: Range<u64>) -> Receipt<ImageEntry> {
        Receipt {
            plan_id: PlanId([1; 16]),
            partition: 3,
            ordinal: 0,
            plan_range: [items.start, items.end],
            first_row: 0,
            shard: None,
            items: Vec::new(),
            entries: Vec::new(),
            rejects: items
                .map(|item| RejectEntry {
                    item,
                    reason: "missing_image".into(),
                    message: "gone".into(),
                    link: None,
                    column: None,
                })
                .collect(),
            sources: Vec::new(),
        }
    }

    #[test]
    fn too_few_and_too_many_items_are_named_with_their_counts() {
        let mut receipts = ImageReceipts::default();
        receipts.put(receipt(0..2), b"");
        assert!(receipts.check_all(3, "images", 2).is_ok());
        for items in [0, 1, 3] {
            let error = receipts.check_all(3, "images", items).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("receipts for 2 of the {items} planned images of partition `3`")
            );
        }
    }

    #[test]
    fn a_receipt_counts_only_inside_the_plan_and_is_not_contradicted() {
        let root = tempfile::tempdir().unwrap();
        let id = PlanId([1; 16]);
        let layout = Layout::new(PlanIds {
            image: id,
            text: id,
        });
        let name = FileName::Receipt {
            partition: 3,
            ordinal: 0,
        };
        let path = root
            .path()
            .join(layout.images().to_string())
            .join(name.to_string());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, receipt(0..2).to_bytes().unwrap()).unwrap();
        let covered = |items| {
            let found = ImageReceipts::load(root.path(), &layout, 3, items, &Damaged::default());
            found.unwrap().covered()
        };
        assert_eq!((covered(1), covered(2), covered(9)), (0, 2, 2));
        let agrees = |now: &Receipt<ImageEntry>| {
            let before = ImageReceipts::before(&path, now);
            before.map(|(before, _)| ImageReceipts::agree(&before, now))
        };
        let mut moved = receipt(0..2);
        moved.sources.push(SourceEntry {
            item: 0,
            uri: "/elsewhere/a.png".into(),
            bytes: 5,
            etag: None,
        });
        assert_eq!(agrees(&receipt(0..2)), Some(true));
        assert_eq!(agrees(&moved), Some(true));
        assert_eq!(agrees(&receipt(0..1)), Some(false));
        fs::write(&path, b"damaged").unwrap();
        assert_eq!(agrees(&receipt(0..1)), None);
    }
}
