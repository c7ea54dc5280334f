//! What earlier runs have done of a partition: its receipts, from the first, as far as they go.
//!
//! A receipt counts if its bytes are whole, it belongs to this plan, follows the one before it and its
//! shard is there with the right size. Work goes on after the last one that counts, so a lost shard
//! costs itself and what follows it in its partition, and is made again with the same bytes.

use std::fs;
use std::io;
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
pub(crate) trait InFolder: ReceiptEntry {
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

/// The receipts of one partition, in order.
#[derive(Debug)]
pub(crate) struct Receipts<E> {
    receipts: Vec<Receipt<E>>,
    /// Their files, as the manifest names them.
    files: Vec<FileEntry>,
}

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
    /// Reads the receipts of `partition` in the cache folder `root`.
    pub(crate) fn load(root: &Path, layout: &Layout, partition: u32) -> Result<Self> {
        let folder = root.join(E::folder(layout).to_string());
        let mut found = Self {
            receipts: Vec::new(),
            files: Vec::new(),
        };
        loop {
            let rest = found.rest(u64::MAX);
            let Some((receipt, bytes)) = read::<E>(&folder, partition, rest.ordinal)? else {
                return Ok(found);
            };
            let follows = receipt.plan_id == E::plan_id(layout)
                && receipt.plan_range[0] == rest.items.start
                && receipt.first_row == rest.first_row;
            if !follows {
                return Ok(found);
            }
            found.push(receipt, &bytes);
        }
    }

    /// How many items of `partition` are done, judged by its last receipt alone: good enough for an estimate, and what
    /// stands before it need not be parsed.
    pub(crate) fn reach(root: &Path, layout: &Layout, partition: u32) -> Result<u64> {
        let folder = root.join(E::folder(layout).to_string());
        let there = |ordinal: &u32| {
            let name = FileName::Receipt {
                partition,
                ordinal: *ordinal,
            };
            folder.join(name.to_string()).exists()
        };
        let Some(last) = (0..).take_while(there).last() else {
            return Ok(0);
        };
        let receipt = read::<E>(&folder, partition, last)?;
        Ok(receipt.map_or(0, |(receipt, _)| receipt.plan_range[1]))
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Receipt<E>] {
        &self.receipts
    }

    /// The file of each of them.
    pub(crate) fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Items that are done.
    pub(crate) fn covered(&self) -> u64 {
        self.receipts.last().map_or(0, |last| last.plan_range[1])
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

    /// Appends a receipt and what stands in its file.
    pub(crate) fn push(&mut self, receipt: Receipt<E>, bytes: &[u8]) {
        self.files.push(FileEntry {
            bytes: bytes.len() as u64,
            hash: ContentHash::of(bytes),
            rows: receipt.entries.len() as u64,
        });
        self.receipts.push(receipt);
    }
}

/// A receipt and its bytes, if they are whole and its shard is there.
fn read<E: InFolder>(
    folder: &Path,
    partition: u32,
    ordinal: u32,
) -> Result<Option<(Receipt<E>, Vec<u8>)>> {
    let path = folder.join(FileName::Receipt { partition, ordinal }.to_string());
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let receipt = match Receipt::<E>::parse(&bytes) {
        Ok(receipt) => receipt,
        Err(error @ stoker_formats::Error::NewerVersion { .. }) => {
            return Err(error.in_file(&path).into());
        }
        Err(_) => return Ok(None),
    };
    let shard_is_there = receipt.shard.is_none_or(|shard| {
        let path = folder.join(FileName::Shard { partition, ordinal }.to_string());
        has_file(&path, shard.bytes)
    });
    let right = receipt.partition == partition && receipt.ordinal == ordinal && shard_is_there;
    Ok(right.then_some((receipt, bytes)))
}
