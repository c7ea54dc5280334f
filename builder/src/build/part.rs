//! The end of a part build: the part's record, in place of the manifest.
//!
//! Invariant: the record is written after everything that it names, so a part without one is not finished, and the same
//! command goes on.

use std::fs;
use std::path::Path;

use stoker_formats::{PARTS_FOLDER, PartFile, PartName, PartRecord, TableKind, VERSION};

use super::commit::{CREATED_BY, Commit, Making, inputs, publish_tokenizer, publish_unless_there};
use super::context::Context;
use super::report::Committed;
use super::tidy;
use crate::error::Result;
use crate::folder;

impl Commit<'_> {
    /// Ends the part: every partition of it has been added.
    pub(super) fn finish_part(mut self, making: &Making<'_>, name: PartName) -> Result<Committed> {
        let context = self.context;
        self.close()?;
        for (report, split) in self.committed.splits.iter_mut().zip(&self.splits) {
            let range = split.first_partition..split.first_partition + split.partitions;
            let own = self.partitions.iter();
            let own = own.filter(|entry| range.contains(&entry.partition)).count();
            report.partitions = u32::try_from(own).unwrap_or(u32::MAX);
        }
        let record = PartRecord {
            format_version: VERSION,
            created_by: CREATED_BY.into(),
            name,
            image_plan_id: context.layout.ids.image,
            text_plan_id: context.layout.ids.text,
            recipe: making.recipe.clone(),
            splits: self.splits,
            inputs: inputs(context),
            tables: self.tables.finish(&context.publisher)?,
            tokenizer: publish_tokenizer(context, making)?,
            partitions: self.partitions,
        };
        context.layout.sync(&context.publisher)?;
        remove_others(context, name)?;
        let file = PartFile::Record(name).to_string();
        let parts = Path::new(PARTS_FOLDER);
        publish_unless_there(&context.publisher, parts, &file, &record.to_bytes()?)?;
        tidy::after_part(&context.publisher)?;
        Ok(self.committed)
    }
}

/// Removes the records of earlier plans: their parts can be committed no more.
fn remove_others(context: &Context, name: PartName) -> Result<()> {
    let (publisher, ids) = (&context.publisher, context.layout.ids);
    let parts = Path::new(PARTS_FOLDER);
    for entry in folder::entries(&publisher.root().join(parts))? {
        let file = entry.file_name().to_string_lossy().into_owned();
        let Ok(PartFile::Record(other)) = PartFile::parse(&file) else {
            continue;
        };
        let record = fs::read(entry.path()).ok();
        let record = record.and_then(|bytes| PartRecord::parse(&bytes).ok());
        let is_ours = record.is_some_and(|record| {
            (record.image_plan_id, record.text_plan_id) == (ids.image, ids.text)
        });
        if is_ours {
            continue;
        }
        publisher.remove(parts, &file)?;
        // Those of this part are new.
        for kind in TableKind::ALL.into_iter().filter(|_| other != name) {
            publisher.remove(parts, &PartFile::Table(other, kind).to_string())?;
        }
    }
    Ok(())
}
