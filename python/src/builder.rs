//! `build`, `commit`, `pack`, `place`, `push`, `sync`, `repair`, `verify`, `inspect` and `stats` for Python: the command's arguments in, the command's JSON out.
//!
//! Owns no option and no default of its own, so that the package and the command cannot differ.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use serde::Serialize;
use stoker_builder::build::{self as building, Progress, Stop};
use stoker_builder::{
    Error, Result, cli, inspect as inspecting, pack as packing, parts, push as pushing,
    repair as repairing, sync as syncing, verify as verifying,
};
use stoker_reader::CacheFiles;

use crate::errors::builder_error;
use crate::wait::{interruptible, watched};

/// Between two reports to a caller's function.
const REPORT_PAUSE: Duration = Duration::from_millis(250);

/// Builds a cache as `stoker build` with `args` does; `trial` is the command of a child that tries images. `shown` is whether
/// a line shows the progress, `report` is called with it as JSON.
#[pyfunction]
#[pyo3(signature = (args, trial, shown, report))]
pub(crate) fn build(
    py: Python<'_>,
    args: Vec<OsString>,
    trial: Vec<OsString>,
    shown: bool,
    report: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (mut options, dry_run) = cli::build_options(args).map_err(builder_error)?;
    options.trial_program = Some(trial);
    let stop = Stop::default();
    let asked = stop.clone();
    let progress = if shown {
        Progress::on_stderr(options.threads)
    } else {
        Progress::silent(options.threads)
    };
    let (seen, mut before) = (progress.clone(), None::<Instant>);
    let look = |py: Python<'_>| {
        let Some(report) = &report else { return Ok(()) };
        if before.is_some_and(|before| before.elapsed() < REPORT_PAUSE) {
            return Ok(());
        }
        before = Some(Instant::now());
        let doing = json(&seen.doing()).map_err(builder_error)?;
        report.call1(py, (doing,)).map(drop)
    };
    let work = move || {
        if dry_run {
            json(&building::plan(&options, &asked, &progress)?)
        } else {
            json(&building::build(&options, &asked, &progress)?)
        }
    };
    watched(py, &stop, look, work)?.map_err(builder_error)
}

/// Puts parts together as `stoker commit` with `args` does.
#[pyfunction]
#[pyo3(signature = (args))]
pub(crate) fn commit(py: Python<'_>, args: Vec<OsString>) -> PyResult<String> {
    let request = cli::commit_request(args).map_err(builder_error)?;
    let stop = Stop::default();
    let asked = stop.clone();
    answer(py, &stop, move || json(&parts::commit(&request, &asked)?))
}

/// Plans packs as `stoker pack` with `args` does.
#[pyfunction]
#[pyo3(signature = (args, progress))]
pub(crate) fn pack(py: Python<'_>, args: Vec<OsString>, progress: bool) -> PyResult<String> {
    let mut request = cli::pack_request(args).map_err(builder_error)?;
    request.show = progress;
    let stop = Stop::default();
    let asked = stop.clone();
    answer(py, &stop, move || json(&packing::pack(&request, &asked)?))
}

/// Places a cache's partitions as `stoker place` with `args` does.
#[pyfunction]
#[pyo3(signature = (args))]
pub(crate) fn place(py: Python<'_>, args: Vec<OsString>) -> PyResult<String> {
    answer(py, &Stop::default(), move || {
        json(&cli::place_report(args)?)
    })
}

/// Pushes a cache as `stoker push` with `args` does.
#[pyfunction]
#[pyo3(signature = (args, progress))]
pub(crate) fn push(py: Python<'_>, args: Vec<OsString>, progress: bool) -> PyResult<String> {
    let mut request = cli::push_request(args).map_err(builder_error)?;
    request.show = progress;
    let stop = request.options.stop.clone();
    answer(py, &stop, move || {
        let runtime = cli::runtime()?;
        json(&pushing::push(&request, runtime.handle().clone())?)
    })
}

/// Brings a share as `stoker sync` with `args` does.
#[pyfunction]
#[pyo3(signature = (args, progress))]
pub(crate) fn sync(py: Python<'_>, args: Vec<OsString>, progress: bool) -> PyResult<String> {
    let mut request = cli::sync_request(args).map_err(builder_error)?;
    request.show = progress;
    let stop = request.options.stop.clone();
    answer(py, &stop, move || {
        let runtime = cli::runtime()?;
        json(&syncing::sync(&request, runtime.handle().clone())?)
    })
}

/// Mends a cache as `stoker repair` with `args` does; `trial` is the command of a child that tries images. Damage that remains
/// stands in the report.
#[pyfunction]
#[pyo3(signature = (args, trial, progress))]
pub(crate) fn repair(
    py: Python<'_>,
    args: Vec<OsString>,
    trial: Vec<OsString>,
    progress: bool,
) -> PyResult<String> {
    let mut request = cli::repair_request(args).map_err(builder_error)?;
    if let repairing::Good::Source(options) = &mut request.good {
        options.trial_program = Some(trial);
    }
    request.show = progress;
    let stop = request.stop.clone();
    answer(py, &stop, move || {
        let runtime = cli::runtime()?;
        json(&repairing::repair(&request, runtime.handle().clone())?)
    })
}

/// Checks a cache as `stoker verify` does. Damage stands in the report.
#[pyfunction]
#[pyo3(signature = (cache, deep, progress))]
pub(crate) fn verify(
    py: Python<'_>,
    cache: PathBuf,
    deep: bool,
    progress: bool,
) -> PyResult<String> {
    let stop = Stop::default();
    let asked = stop.clone();
    answer(py, &stop, move || {
        json(&verifying::verify_until(&cache, deep, progress, &asked)?)
    })
}

/// Shows a cache, or one sample of it, as `stoker inspect` does.
#[pyfunction]
#[pyo3(signature = (cache, sample, row, image))]
pub(crate) fn inspect(
    py: Python<'_>,
    cache: PathBuf,
    sample: Option<String>,
    row: Option<u64>,
    image: Option<PathBuf>,
) -> PyResult<String> {
    answer(py, &Stop::default(), move || {
        if sample.is_none() && row.is_none() {
            return json(&inspecting::summarise(&CacheFiles::open(&cache)?)?);
        }
        let cache = inspecting::open(&cache)?;
        let place = match (&sample, row) {
            (Some(id), _) => inspecting::find(&cache, id)?,
            (None, row) => inspecting::locate(&cache, row.unwrap_or_default())?,
        };
        let pictures = match &image {
            Some(path) => Some(inspecting::write_pictures(&cache, place, path)?),
            None => None,
        };
        json(&Shown {
            sample: inspecting::view(&cache, place)?,
            pictures,
        })
    })
}

/// Counts over a cache, or how even ranks would be, as `stoker stats` with `args` says.
#[pyfunction]
#[pyo3(signature = (args))]
pub(crate) fn stats(py: Python<'_>, args: Vec<OsString>) -> PyResult<String> {
    answer(py, &Stop::default(), move || {
        json(&cli::stats_report(args)?)
    })
}

/// The command `stoker` with these arguments, the program's name first; gives its exit code.
#[pyfunction]
#[pyo3(signature = (args))]
pub(crate) fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| cli::run(args))
}

/// A sample, and the pictures that were written of it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    sample: inspecting::SampleView,
    #[serde(skip_serializing_if = "Option::is_none")]
    pictures: Option<Vec<PathBuf>>,
}

fn answer(
    py: Python<'_>,
    stop: &Stop,
    work: impl FnOnce() -> Result<String> + Send + 'static,
) -> PyResult<String> {
    interruptible(py, stop, work)?.map_err(builder_error)
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::io("write", "a report")(error.into()))
}
