//! The parts that are to be committed: their records, and whether all are of one build.

use std::path::{Path, PathBuf};

use stoker_formats::PartRecord;

use crate::build::commit::CREATED_BY;
use crate::build::state::BuildState;
use crate::error::{Error, Result};
use crate::records;
use crate::source::printable;

/// A part on disk.
pub(super) struct Part {
    pub(super) root: PathBuf,
    /// The record's file, as messages call it.
    path: PathBuf,
    pub(super) record: PartRecord,
}

impl Part {
    /// What was built, as an unfinished build says it.
    pub(super) fn state(&self) -> BuildState {
        let record = &self.record;
        BuildState::of(records::ids(record), &record.recipe, &record.inputs)
    }

    /// How messages call it.
    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// The records in `folders`, in order; at least one in each. Messages call the folders by their `names`.
pub(super) fn read(folders: &[PathBuf], names: &[PathBuf]) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for (root, name) in folders.iter().zip(names) {
        let before = parts.len();
        read_folder(root, name, &mut parts)?;
        if parts.len() == before {
            return Err(Error::Usage {
                what: format!("no finished part in `{}`", name.display()),
                hint: "give the --output folders of `stoker build --worker`, or copies of them; a build that did not end is finished by the same command"
                    .into(),
            });
        }
    }
    Ok(parts)
}

fn read_folder(root: &Path, name: &Path, parts: &mut Vec<Part>) -> Result<()> {
    for found in records::find(root)? {
        let record = found.read()?;
        if record.name != found.name {
            return Err(Error::Usage {
                what: format!("the record of another part: `{}`", found.path.display()),
                hint: "build this part again".into(),
            });
        }
        parts.push(Part {
            root: root.to_path_buf(),
            path: found
                .path
                .strip_prefix(root)
                .map_or_else(|_| root.into(), |path| name.join(path)),
            record,
        });
    }
    Ok(())
}

/// Names and partitions of the splits.
fn splits(record: &PartRecord) -> impl Iterator<Item = (&str, u32)> {
    let splits = record.splits.iter();
    splits.map(|split| (split.name.as_str(), split.partitions))
}

/// Refuses parts of another build than the first one's, or of another release of this program.
pub(super) fn check_same_build(parts: &[Part]) -> Result<()> {
    let state = parts[0].state();
    for part in parts {
        let record = &part.record;
        if record.created_by != CREATED_BY {
            return Err(Error::Usage {
                what: format!(
                    "part `{}` was built by {}, this is `{CREATED_BY}`",
                    part.name(),
                    printable(&record.created_by)
                ),
                hint:
                    "byte identity is promised for one release: build and commit with the same one"
                        .into(),
            });
        }
        let other = part.state();
        let first = &parts[0].record;
        let same_files = (&record.inputs, record.tokenizer) == (&first.inputs, first.tokenizer);
        if other == state && same_files && splits(record).eq(splits(first)) {
            continue;
        }
        let mut differences = state.differences(&other, ["there", "here"]);
        if differences.is_empty() {
            differences = "another order of inputs or links, or another size of a file".into();
        }
        return Err(Error::Usage {
            what: format!(
                "part `{}` is of another build than part `{}`: {differences}",
                part.name(),
                parts[0].name()
            ),
            hint: "give parts that were built of the same inputs with the same options".into(),
        });
    }
    Ok(())
}
