//! What the committed manifest names, while a build works in the same folder.
//!
//! Owns the rule that keeps a committed cache true at every instant of a build: a named file that is lost or damaged is
//! made again with the bytes that the manifest names, or not at all.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use stoker_formats::{
    ContentHash, FileName, Folder, MANIFEST_NAME, Manifest, PartitionFiles, PlanId,
};

use super::state::BuildState;
use crate::error::{Error, Result};
use crate::plan::PlanIds;

/// The committed manifest, if there is one.
#[derive(Debug)]
pub(crate) struct Named {
    manifest: Option<Manifest>,
}

impl Named {
    /// Reads the manifest of the output `root`. A damaged one names nothing: the build makes it anew.
    ///
    /// # Errors
    /// If it cannot be read, or is of a newer version: its files are not ours to judge.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let path = root.join(MANIFEST_NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Self { manifest: None });
            }
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        match Manifest::parse(bytes) {
            Err(error @ stoker_formats::Error::NewerVersion { .. }) => {
                Err(error.in_file(&path).into())
            }
            parsed => Ok(Self {
                manifest: parsed.ok(),
            }),
        }
    }

    /// Whether there is one.
    pub(crate) fn is_committed(&self) -> bool {
        self.manifest.is_some()
    }

    /// Whether it is of these plans.
    pub(crate) fn is_of(&self, ids: PlanIds) -> bool {
        self.ids() == Some(ids)
    }

    /// The plans of it.
    pub(crate) fn ids(&self) -> Option<PlanIds> {
        self.manifest.as_ref().map(plan_ids)
    }

    /// Whether its images are of this plan.
    pub(crate) fn has_images(&self, image: PlanId) -> bool {
        self.ids().is_some_and(|ids| ids.image == image)
    }

    /// What it was made of.
    pub(crate) fn state(&self) -> Option<BuildState> {
        let manifest = self.manifest.as_ref()?;
        Some(BuildState::of(
            plan_ids(manifest),
            &manifest.recipe,
            &manifest.inputs,
        ))
    }

    /// Whether it names exactly this file.
    pub(crate) fn names(&self, folder: Folder, name: FileName, hash: ContentHash) -> bool {
        self.hash(folder, name) == Some(hash)
    }

    /// Whether it names a table with this hash.
    pub(crate) fn names_table(&self, hash: ContentHash) -> bool {
        let manifest = self.manifest.as_ref();
        let tables = manifest.map(|manifest| manifest.tables.files());
        tables.is_some_and(|tables| tables.iter().any(|(_, entry)| entry.hash == hash))
    }

    /// Whether a file of this hash may be published under this name.
    pub(crate) fn allows(&self, folder: Folder, name: FileName, hash: ContentHash) -> bool {
        self.hash(folder, name).is_none_or(|named| named == hash)
    }

    /// The hash of a partition's file, if the manifest names it.
    fn hash(&self, folder: Folder, name: FileName) -> Option<ContentHash> {
        let manifest = self.manifest.as_ref()?;
        let files = |partition: u32| -> Option<&PartitionFiles> {
            let files = manifest.partitions.get(partition as usize)?;
            match folder {
                Folder::Images(id) => (id == manifest.image_plan_id).then_some(&files.images),
                Folder::Text(id) => (id == manifest.text_plan_id).then_some(&files.samples),
            }
        };
        let file = match name {
            FileName::Index { partition } => Some(files(partition)?.index),
            FileName::Shard { partition, ordinal } => {
                *files(partition)?.shards.get(ordinal as usize)?
            }
            FileName::Receipt { partition, ordinal } => {
                files(partition)?.receipts.get(ordinal as usize).copied()
            }
            // Their names hold their hashes.
            FileName::Table { .. } | FileName::Tokenizer { .. } => None,
        };
        file.map(|file| file.hash)
    }
}

/// The plans of a manifest.
pub(crate) fn plan_ids(manifest: &Manifest) -> PlanIds {
    PlanIds {
        image: manifest.image_plan_id,
        text: manifest.text_plan_id,
    }
}
