//! A build from options to a committed manifest.
//!
//! Owns the order of the steps. Data flows one way: plan, then for each partition images and text,
//! then the commit. Everything durable goes through [`publish`](crate::publish).

mod budget;
pub(crate) mod commit;
mod context;
mod decoding;
pub(crate) mod early;
mod gate;
mod images;
pub(crate) mod in_flight;
pub mod lock;
mod mending;
pub(crate) mod named;
pub mod options;
mod part;
mod partitions;
pub mod progress;
pub(crate) mod receipts;
mod rejects;
mod report;
mod setup;
pub(crate) mod share;
mod sink;
pub mod state;
pub mod stop;
pub(crate) mod tables;
mod text;
pub(crate) mod tidy;
pub(crate) mod trial;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use stoker_formats::{ImageKey, PARTS_FOLDER};

pub use options::{BuildOptions, REJECTS_KEPT};
pub use progress::Progress;
pub(crate) use report::Committed;
pub use report::{BuildReport, PartReport, PlanReport, SplitReport};
pub use stop::Stop;

use crate::error::{Error, Result};
use crate::plan::estimate::{self, Estimate, Tools};
use crate::publish::free_bytes;
use context::{Context, Preparers};
use decoding::Decoding;
use early::Early;
use in_flight::InFlight;
use mending::Mending;
use receipts::Layout;
use rejects::Rejected;
use setup::{Setup, set_up};
use state::BuildState;

/// Left free on the output disk whatever the estimate says.
const RESERVE_BYTES: u64 = 64 << 20;

/// Plans a build, measures what it will take on a sample, and builds nothing.
///
/// # Errors
/// Whatever keeps the plan from being made; see [`Error`].
pub fn plan(options: &BuildOptions, stop: &Stop, progress: &Progress) -> Result<PlanReport> {
    let setup = set_up(options, stop, progress)?;
    let layout = Layout::new(setup.ids);
    let notes = Notes::start(&setup, options, stop)?;
    let estimate = estimate_build(&setup, options, &layout, &notes, &Early::default(), true)?;
    setup
        .publisher
        .remove(Path::new(""), in_flight::IN_FLIGHT_NAME)?;
    PlanReport::new(&setup, estimate, options)
}

/// Builds the cache, or goes on with an unfinished build of the same thing.
///
/// # Errors
/// Whatever stops the build; see [`Error`]. What is done stays on disk.
pub fn build(options: &BuildOptions, stop: &Stop, progress: &Progress) -> Result<BuildReport> {
    build_all(options, stop, progress).map_err(Error::resumable)
}

fn build_all(options: &BuildOptions, stop: &Stop, progress: &Progress) -> Result<BuildReport> {
    let start = Instant::now();
    let setup = set_up(options, stop, progress)?;
    let records = setup.plan.records();
    if records == 0 {
        return Err(Error::Input {
            what: "no records in the inputs".into(),
            uri: options.inputs.join(" "),
            hint: "check --input".into(),
        });
    }
    if options.repair.is_some() {
        refuse_another(&setup, options)?;
    } else {
        resume_or_refuse(&setup, options, progress)?;
    }
    // Images that the committed cache has are not looked at again, nor those that it could not use.
    let rejects_kept = setup.named.has_images(setup.ids.image);
    let share = &setup.share;
    let allowed = options.max_rejects.allowed(share.records);
    let hint = options.max_rejects.hint(rejects_kept);
    let rejected = Rejected::new(records, share.records, allowed, hint);
    for (record, reason) in &share.faulty {
        rejected.add(*record, reason.code());
    }
    rejected.check(&setup.plan)?;
    let layout = Layout::new(setup.ids);
    let notes = Notes::start(&setup, options, stop)?;
    let early = Early::default();
    let estimate = estimate_build(&setup, options, &layout, &notes, &early, false)?;
    let free = free_bytes(&options.output)?;
    let needed = estimate.space_bytes() + RESERVE_BYTES;
    if needed > free {
        return Err(Error::DiskFull {
            path: options.output.clone(),
            needed,
            free,
        });
    }
    setup.publisher.set_remaining_bytes(estimate.space_bytes());
    // A repair ends no build, and its cache is committed all the time.
    if options.repair.is_none() {
        setup.state.publish(&setup.publisher)?;
    }
    layout.create(&setup.publisher)?;
    if !options.parts.is_empty() {
        setup.publisher.create_folder(Path::new(PARTS_FOLDER))?;
    }
    let decoding = Decoding::new(
        options.threads,
        options.memory_budget_bytes / 2,
        progress.clone(),
    );
    let context = Arc::new(Context {
        image_metadata: sink::image_metadata(&setup.image_recipe),
        sample_metadata: sink::sample_metadata(setup.text.recipe()),
        preparers: Preparers::new(setup.image_recipe.clone(), decoding.share_bytes()),
        buffers: context::Buffers::default(),
        gate: gate::Gate::new(options.threads),
        budget: budget::Budget::new(
            options.memory_budget_bytes / 2,
            estimate.largest_image_bytes,
        ),
        decoding,
        in_flight: notes.in_flight,
        damaged: options.repair.clone().unwrap_or_default(),
        mending: Mending::new(options.repair.is_some()),
        crashers: notes.crashers,
        early,
        layout,
        named: setup.named,
        plan: setup.plan,
        share: setup.share,
        image_recipe: setup.image_recipe,
        text: setup.text,
        source: setup.source,
        handle: setup.runtime.handle().clone(),
        pool: setup.pool,
        publisher: setup.publisher,
        progress: progress.clone(),
        stop: stop.clone(),
        halt: partitions::Halt::default(),
        shard_bytes: options.shard_bytes,
    });
    let making = commit::Making {
        recipe: &setup.recipe,
        model: &setup.model,
        prune: options.prune,
    };
    let committed = partitions::run(&context, &making, &rejected)?;
    if !options.parts.is_empty() {
        part::end(&context)?;
    }
    setup.runtime.shutdown_background();
    let mut report = BuildReport::new(committed, &options.output, start.elapsed());
    report.left = context.mending.left();
    report.rejects_kept = rejects_kept && report.rejected_images > 0;
    report.part = PartReport::of(&context.share, &context.plan);
    report.cpu_seconds = Some(progress.counters().cpu_seconds());
    Ok(report)
}

/// Refuses options that would make another cache than the one that is to be mended.
fn refuse_another(setup: &Setup, options: &BuildOptions) -> Result<()> {
    if setup.named.is_of(setup.ids) {
        return Ok(());
    }
    let committed = setup.named.state();
    let differences = committed.map(|state| state.differences(&setup.state, ["there", "now"]));
    Err(Error::Usage {
        what: format!(
            "these options make another cache than that in `{}`: {}",
            options.output.display(),
            differences.unwrap_or_default()
        ),
        hint: "give the inputs and options that it was built with".into(),
    })
}

/// Refuses to mix two builds in one folder, or drops the unfinished one when asked.
fn resume_or_refuse(setup: &Setup, options: &BuildOptions, progress: &Progress) -> Result<()> {
    if options.restart {
        // A damaged state may be of this very build; of another one it names no folder.
        let earlier = BuildState::read(&options.output)
            .map_or(Some(setup.ids), |earlier| Some(earlier?.ids()));
        return match earlier {
            Some(earlier) => {
                tidy::drop_unfinished(&setup.publisher, &setup.named, earlier, setup.ids)
            }
            None => {
                progress.warn(&nothing_dropped(setup, options));
                Ok(())
            }
        };
    }
    match BuildState::read(&options.output)? {
        // Killed after its commit, a build has left its state.
        Some(earlier) if earlier.ids() != setup.ids && !setup.named.is_of(earlier.ids()) => {
            Err(Error::Changed {
                path: options.output.clone(),
                changed: earlier.differences(&setup.state, ["before", "now"]),
            })
        }
        _ => Ok(()),
    }
}

/// What is said of a restart without an unfinished build.
fn nothing_dropped(setup: &Setup, options: &BuildOptions) -> String {
    let kept = if setup.named.has_images(setup.ids.image) {
        format!("; {REJECTS_KEPT}")
    } else {
        String::new()
    };
    let output = options.output.display();
    format!("--restart has dropped nothing, as no build is unfinished in `{output}`{kept}")
}

/// What is still to be written: nothing for shards that earlier runs, or an earlier cache, have left.
fn estimate_build(
    setup: &Setup,
    options: &BuildOptions,
    layout: &Layout,
    notes: &Notes,
    early: &Early,
    timed: bool,
) -> Result<Estimate> {
    let tools = Tools {
        source: &setup.source,
        handle: setup.runtime.handle(),
        image_recipe: &setup.image_recipe,
        text: &setup.text,
        layout,
        output: setup.publisher.root(),
        crashers: &notes.crashers,
        in_flight: &notes.in_flight,
        damaged: &options.repair.clone().unwrap_or_default(),
        early,
    };
    estimate::estimate(&setup.plan, &setup.share, &tools, timed)
}

/// What protects this run from images that took earlier ones down.
struct Notes {
    crashers: BTreeSet<ImageKey>,
    in_flight: InFlight,
}

impl Notes {
    /// Before any image is looked at: its header alone may be enough to kill.
    fn start(setup: &Setup, options: &BuildOptions, stop: &Stop) -> Result<Self> {
        let crashers = find_crashers(setup, options, stop)?;
        // Headers are read on the fetching threads, pixels on the preparing ones.
        let slots = options.threads + setup::fetching_threads(options);
        Ok(Self {
            crashers,
            in_flight: InFlight::start(&options.output, slots)?,
        })
    }
}

/// The images that took earlier runs down, those found guilty now included.
fn find_crashers(setup: &Setup, options: &BuildOptions, stop: &Stop) -> Result<BTreeSet<ImageKey>> {
    let mut crashers = in_flight::crashers(&options.output)?;
    let mut suspects = in_flight::left_behind(&options.output)?;
    suspects.retain(|key| !crashers.contains(key));
    let guilty = trial::find_crashers(
        &setup.plan,
        &setup.image_recipe,
        &setup.source,
        setup.runtime.handle(),
        &suspects,
        options.trial_program.as_deref(),
        stop,
    )?;
    if !guilty.is_empty() {
        crashers.extend(guilty);
        in_flight::keep_crashers(&setup.publisher, &crashers)?;
    }
    Ok(crashers)
}
