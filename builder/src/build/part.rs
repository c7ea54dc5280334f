//! The end of a part build: the part's record, in place of the manifest.
//!
//! Invariant: the record is written after everything that it names, so a part without one is not finished, and the same
//! command goes on. A run that builds several parts finishes each as soon as its partitions are done.

use std::path::Path;

use stoker_formats::{PARTS_FOLDER, PartFile, PartName, PartRecord, VERSION};

use super::commit::{CREATED_BY, Commit, Making, inputs, publish_tokenizer, publish_unless_there};
use super::context::Context;
use super::report::Committed;
use super::tidy;
use crate::error::Result;
use crate::records;

impl Commit<'_> {
    /// Ends the part `name`: every partition of it has been added.
    pub(super) fn finish_part(mut self, making: &Making<'_>, name: PartName) -> Result<Committed> {
        let context = self.context;
        if context.mending.has_left() {
            // The record of the part says what the cache holds, and stays.
            context.layout.sync(&context.publisher)?;
            return Ok(self.committed);
        }
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
        let ids = context.layout.ids;
        // Those of earlier plans can be committed no more.
        records::remove(&context.publisher, Some(name), |of| of != Some(ids))?;
        let file = PartFile::Record(name).to_string();
        let parts = Path::new(PARTS_FOLDER);
        publish_unless_there(&context.publisher, parts, &file, &record.to_bytes()?)?;
        Ok(self.committed)
    }
}

/// Removes what only the run needed, once all of its parts are finished.
pub(super) fn end(context: &Context) -> Result<()> {
    if context.named.is_of(context.layout.ids) {
        // A committed share is whole again: nothing is left to commit.
        tidy::after_commit(&context.publisher)
    } else {
        tidy::after_parts(&context.publisher)
    }
}
