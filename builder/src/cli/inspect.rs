//! `stoker inspect`: a cache or one sample of it, as text or JSON.

use std::env;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use serde::Serialize;
use stoker_reader::CacheFiles;

use super::args::InspectArgs;
use super::{DONE, printer};
use crate::error::{Error, Result};
use crate::inspect::{self, Marks, SampleView};

/// A sample, and the pictures that were written of it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    sample: &'a SampleView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pictures: Option<&'a [PathBuf]>,
}

pub(super) fn run(args: &InspectArgs) -> Result<u8> {
    if args.sample.is_none() && args.row.is_none() {
        return summary(args);
    }
    let cache = inspect::open(&args.cache)?;
    let place = match (&args.sample, args.row) {
        (Some(id), _) => inspect::find(&cache, id)?,
        (None, row) => inspect::locate(&cache, row.unwrap_or_default())?,
    };
    let sample = inspect::view(&cache, place)?;
    let pictures = match &args.image {
        Some(path) => Some(inspect::write_pictures(&cache, place, path)?),
        None => None,
    };
    if args.json {
        let pictures = pictures.as_deref();
        printer::json(&Shown {
            sample: &sample,
            pictures,
        })?;
        return Ok(DONE);
    }
    let mut text = sample.to_text(marks());
    match pictures.as_deref() {
        Some([]) => text.push_str("\nno picture written: the sample has no image\n"),
        Some(written) => {
            text.push('\n');
            for path in written {
                text.push_str(&format!("written  {}\n", path.display()));
            }
        }
        None => {}
    }
    printer::data(&text)?;
    Ok(DONE)
}

fn summary(args: &InspectArgs) -> Result<u8> {
    if args.image.is_some() {
        return Err(Error::Usage {
            what: "--image needs a sample".into(),
            hint: "add --sample ID or --row N".into(),
        });
    }
    let summary = inspect::summarise(&CacheFiles::open(&args.cache)?)?;
    if args.json {
        printer::json(&summary)?;
    } else {
        printer::data(&summary.to_text())?;
    }
    Ok(DONE)
}

/// Colours for a terminal whose user has not said no.
fn marks() -> &'static Marks {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stdout().is_terminal() && !refused {
        &Marks::COLOUR
    } else {
        &Marks::PLAIN
    }
}
