//! The plan: which record goes to which split, partition and place, decided before any image is fetched.
//!
//! A pure function of the records' links, the seed, the splits and the partition counts. The image
//! half knows nothing of any text, so that an edited prompt or template moves no picture.

mod collect;
mod deal;
mod draw;
pub mod estimate;
mod ids;
mod scan;
mod splits;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stoker_formats::{ContentHash, ImageKey};

pub(crate) use collect::{Collected, ToScan, collect};
pub use deal::Deal;
pub use ids::PlanIds;
pub(crate) use ids::{image_plan_id, text_plan_id};
pub use scan::Line;
pub use splits::{SplitPlan, SplitShare, default_partitions};

use crate::error::{Error, Result};
use crate::limits::LINE_BYTES_MAX;
use crate::record::{self, Shape};
use crate::reject::{Reason, Reject, kept};
use crate::source::link::{self, Base, Link, Policy};
use crate::source::stamp;

/// One input file, as planned.
#[derive(Debug)]
pub struct PlannedFile {
    /// Name relative to the input root; the same from disk and from S3.
    pub name: String,
    /// Where it came from.
    pub uri: String,
    /// The server's entity tag, if it has one.
    pub etag: Option<String>,
    /// The plain text: the file itself, or its spooled copy.
    pub path: PathBuf,
    /// Where its image links start.
    pub base: Base,
    /// Its record shape.
    pub shape: Shape,
    /// Number of its first record in the whole plan.
    pub first_record: u32,
    /// Its records.
    pub records: u32,
    /// Bytes of its plain text.
    pub bytes: u64,
    /// BLAKE3 over the hashes of its text's 8 MiB blocks.
    pub hash: ContentHash,
    /// None where there are many inputs: then it is opened for each look.
    pub(crate) text: Option<File>,
    /// Of the file as its scan began.
    pub(crate) stamp: String,
}

impl PlannedFile {
    /// What `look` makes of the open file.
    fn with_text<T>(&self, look: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        if let Some(text) = &self.text {
            return look(text);
        }
        let text = File::open(&self.path).map_err(Error::io("open", &self.path))?;
        self.check_stamp(&text)?;
        look(&text)
    }

    /// # Errors
    /// [`Error::Input`] if it was written to since its scan began.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        self.with_text(|text| self.check_stamp(text))
    }

    fn check_stamp(&self, text: &File) -> Result<()> {
        if stamp_of(text, &self.path)? == self.stamp {
            Ok(())
        } else {
            Err(self.changed())
        }
    }

    /// The error of an input that is another one now.
    pub(crate) fn changed(&self) -> Error {
        Error::Input {
            what: "input changed while it was read".into(),
            uri: self.uri.clone(),
            hint: "let nothing write to the inputs during a build, then run again".into(),
        }
    }
}

/// All records and images of a build. Records and images are numbered in order of appearance.
#[derive(Debug)]
pub struct Plan {
    /// The input files, in order.
    pub files: Vec<PlannedFile>,
    /// Every record's line.
    pub lines: Vec<Line>,
    /// Images of record `r`: `links[link_starts[r]..link_starts[r + 1]]`.
    link_starts: Vec<u32>,
    links: Vec<u32>,
    /// Every distinct image.
    pub images: Vec<PlannedImage>,
    /// Records that cannot be used whatever their images are, and why.
    pub faulty: Vec<(u32, Reason)>,
    /// Who goes where.
    pub deal: Deal,
    /// Which links are allowed.
    pub policy: Policy,
    record_options: record::RecordOptions,
}

/// One distinct image and where its link stands first.
#[derive(Debug, Clone, Copy)]
pub struct PlannedImage {
    /// Hash of the link.
    pub key: ImageKey,
    /// A record that names it.
    pub record: u32,
    /// The link's place among the valid links of that record.
    pub position: u16,
}

impl Plan {
    /// Deals the collected records to splits and partitions.
    ///
    /// # Errors
    /// [`Error::Usage`] for shares that cannot be met.
    pub(crate) fn new(
        collected: Collected,
        policy: Policy,
        record_options: record::RecordOptions,
        seed: u64,
        shares: &[SplitShare],
        partitions: Option<u32>,
    ) -> Result<Self> {
        let deal = Deal::new(&collected, seed, shares, partitions)?;
        Ok(Self {
            files: collected.files,
            lines: collected.lines,
            link_starts: collected.link_starts,
            links: collected.links,
            images: collected.images,
            faulty: collected.faulty,
            deal,
            policy,
            record_options,
        })
    }

    /// Records in all.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.lines.len() as u64
    }

    /// The images of a record, in order of appearance, with repeats.
    #[must_use]
    pub fn record_images(&self, record: u32) -> &[u32] {
        let at = record as usize;
        &self.links[self.link_starts[at] as usize..self.link_starts[at + 1] as usize]
    }

    /// The distinct images of a partition, in plan order.
    #[must_use]
    pub fn partition_images(&self, partition: u32) -> Vec<u32> {
        self.deal
            .partition_images(partition, self.images.len(), |record| {
                self.record_images(record)
            })
    }

    /// The records of a partition, in plan order.
    #[must_use]
    pub fn partition_records(&self, partition: u32) -> Vec<u32> {
        self.deal.partition_records(partition)
    }

    /// The file of a record.
    #[must_use]
    pub fn file_of(&self, record: u32) -> &PlannedFile {
        &self.files[self.file_number(record)]
    }

    fn file_number(&self, record: u32) -> usize {
        let after = self
            .files
            .partition_point(|file| file.first_record <= record);
        after - 1
    }

    /// `file:line` of a record: its sample id.
    #[must_use]
    pub fn sample_id(&self, record: u32) -> String {
        let line = self.lines[record as usize];
        format!("{}:{}", self.file_of(record).name, line.number)
    }

    /// Reads a record's line into `buffer`.
    ///
    /// # Errors
    /// An [`Error`] if the file cannot be read or has changed its size; inside, a [`Reject`] for a
    /// line above the limit.
    pub fn read_line(&self, record: u32, buffer: &mut Vec<u8>) -> Result<Result<(), Reject>> {
        let line = self.lines[record as usize];
        if line.bytes == Line::TOO_LONG {
            let message = format!("line is longer than {} bytes", LINE_BYTES_MAX);
            return Ok(Err(Reject::new(Reason::LineTooLong, message)));
        }
        let file = self.file_of(record);
        buffer.resize(line.bytes as usize, 0);
        file.with_text(|text| {
            text.read_exact_at(buffer, line.offset)
                .map_err(Error::io("read", &file.path))
        })?;
        Ok(Ok(()))
    }

    /// The link of an image, as a reject keeps it, and resolved.
    ///
    /// # Errors
    /// [`Error::Input`] if the record no longer holds it: the input changed while it was read.
    pub fn image_link(&self, image: u32) -> Result<(String, Link)> {
        let planned = self.images[image as usize];
        let file = self.file_of(planned.record);
        let mut line = Vec::new();
        let links = match self.read_line(planned.record, &mut line)? {
            Ok(()) => record::scan_links(&line, file.shape, &self.record_options).ok(),
            Err(_) => None,
        };
        let resolved = |raw: &Cow<'_, str>| {
            let link = link::resolve(raw, &file.base, &self.policy).ok()?;
            (link.key() == planned.key.0).then(|| (kept(raw), link))
        };
        // Only a link that is not allowed, before it, moves it from its place. Resolving decodes images in the text.
        let links = links.unwrap_or_default();
        let mut from = links
            .get(usize::from(planned.position)..)
            .unwrap_or_default()
            .iter();
        from.find_map(resolved).ok_or_else(|| file.changed())
    }

    /// # Errors
    /// [`Error::Input`] if an input that holds one of `records` was written to since its scan began.
    pub(crate) fn check_unchanged(&self, records: &[u32]) -> Result<()> {
        let numbers = records.iter().map(|record| self.file_number(*record));
        let numbers = BTreeSet::from_iter(numbers);
        numbers
            .into_iter()
            .try_for_each(|number| self.files[number].check_unchanged())
    }

    /// How records are read.
    #[must_use]
    pub fn record_options(&self) -> &record::RecordOptions {
        &self.record_options
    }
}

/// What changes when the open file `file`, which `path` names, is written to.
fn stamp_of(file: &File, path: &Path) -> Result<String> {
    let meta = file.metadata().map_err(Error::io("stat", path))?;
    Ok(stamp(&meta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::stop::Stop;

    #[test]
    fn each_link_is_found_again_and_shown_without_its_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        let inline = format!("data:image/png;base64,{}", "A".repeat(4000));
        let line = format!(
            r#"{{"question": "q", "answer": "a", "image": ["../no", "a", "/no", "{inline}", "./a", "http://no", "b"]}}"#
        );
        std::fs::write(&path, line).unwrap();
        let file = ToScan {
            name: "a.jsonl".into(),
            uri: "a.jsonl".into(),
            etag: None,
            base: Base::parse(dir.path().to_str().unwrap()).unwrap(),
            path,
        };
        let (policy, options, stop) = (Policy::default(), Default::default(), Stop::default());
        let collected = collect(vec![file], None, &options, &policy, &stop, &|_| {}).unwrap();
        let plan = Plan::new(collected, policy, options, 0, &[], Some(1)).unwrap();
        let links: Vec<_> = (0..3)
            .map(|image| plan.image_link(image).unwrap())
            .collect();
        let [(a, first), (shown, second), (b, third)] = links.as_slice() else {
            panic!("{links:?}");
        };
        assert_eq!((a.as_str(), first.canonical()), ("a", "a"));
        assert_eq!((b.as_str(), third.canonical()), ("b", "b"));
        assert!(second.canonical().starts_with("data:"));
        assert!(inline.starts_with(shown.trim_end_matches('.')) && shown.len() < 300);
        assert_eq!(plan.images.len(), 3);
    }
}
