//! `stoker build`: from arguments to options, and the report.

use std::ffi::OsString;
use std::fmt::Write;
use std::thread::available_parallelism;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount, HumanDuration};

use super::args::{BuildArgs, Command, OnReject};
use super::worker::{Chosen, choose};
use super::{DONE, printer};
use crate::build::options::{RejectLimit, memory_budget_bytes};
use crate::build::{
    self, BuildOptions, BuildReport, PartReport, PlanReport, Progress, REJECTS_KEPT, SplitReport,
    Stop,
};
use crate::error::{Error, Result};
use crate::held::numbers;
use crate::source::Deadlines;

/// Rejected records that stop no build: one percent.
const REJECTS_DEFAULT: RejectLimit = RejectLimit::Millionths(10_000);

/// Between two looks at the stop request.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// A stop is promised within 5 s; a server that says nothing may keep a build longer.
const STOP_TIME_MAX: Duration = Duration::from_secs(4);

pub(super) fn run(args: &BuildArgs) -> Result<u8> {
    let (options, chosen) = options(args)?;
    if let Some(chosen) = chosen {
        printer::note(&chosen.to_string());
    }
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    end_in_time(stop.clone());
    super::raise_open_files();
    let progress = Progress::on_stderr(options.threads);
    if args.dry_run {
        let report = build::plan(&options, &stop, &progress)?;
        drop(progress);
        if args.json {
            printer::json(&report)?;
        } else {
            printer::data(&plan_text(&report))?;
        }
    } else {
        let report = build::build(&options, &stop, &progress)?;
        drop(progress);
        if args.json {
            printer::json(&report)?;
        } else {
            printer::data(&build_text(&report))?;
        }
    }
    Ok(DONE)
}

/// The options that the arguments of `stoker build` mean, and whether they ask for the plan only.
///
/// # Errors
/// [`Error::Usage`] for arguments that the command would not take, or an environment that names no worker.
pub fn build_options(args: impl IntoIterator<Item = OsString>) -> Result<(BuildOptions, bool)> {
    match super::parsed("build", args)? {
        Command::Build(args) => Ok((options(&args)?.0, args.dry_run)),
        _ => Err(super::usage("build", "not the arguments of a build")),
    }
}

/// Ends the process if a stop request is not answered in time, whatever the command is waiting for.
/// That is no worse than a kill: what is published stays, and temp files are made anew.
pub(super) fn end_in_time(stop: Stop) {
    std::thread::spawn(move || {
        let error = loop {
            match stop.check() {
                Ok(()) => std::thread::sleep(STOP_CHECK),
                Err(error) => break error,
            }
        };
        std::thread::sleep(STOP_TIME_MAX);
        printer::error(&error);
        std::process::exit(error.exit_code().into());
    });
}

/// The options, and which worker they are for if it is a part.
fn options(args: &BuildArgs) -> Result<(BuildOptions, Option<Chosen>)> {
    let cores = || available_parallelism().map_or(1, std::num::NonZero::get);
    let chosen = choose(args.worker.as_ref(), args.workers, |name| {
        std::env::var(name).ok()
    })?;
    let threads = args.threads.map_or_else(cores, usize::from);
    let options = BuildOptions {
        inputs: args.input.clone(),
        model: args.model.clone(),
        output: args.output.clone(),
        image_root: args.image_root.clone(),
        shape: args.schema.0,
        image_tag: args.image_tag,
        profile: args.profile,
        generation: args.transformers,
        min_pixels: args.min_pixels,
        max_pixels: args.max_pixels,
        max_tokens: args.max_tokens,
        overlong: args.overlong,
        label_rule: args.label_rule,
        seed: args.seed,
        partitions: args.partitions,
        shard_bytes: args.shard_bytes,
        splits: args.split.clone(),
        max_rejects: reject_limit(args)?,
        threads,
        memory_budget_bytes: args
            .memory_budget
            .unwrap_or_else(|| memory_budget_bytes(threads)),
        s3_endpoint: args.s3_endpoint.clone(),
        allowed_buckets: args.allow_bucket.clone(),
        deadlines: Deadlines::default(),
        trial_program: None,
        parts: chosen.as_ref().map(Chosen::parts).unwrap_or_default(),
        repair: None,
        restart: args.restart,
        prune: args.prune,
    };
    Ok((options, chosen))
}

fn reject_limit(args: &BuildArgs) -> Result<RejectLimit> {
    match (args.on_reject, args.max_rejects) {
        (OnReject::Skip, limit) => Ok(limit.unwrap_or(REJECTS_DEFAULT)),
        (OnReject::Fail, None) => Ok(RejectLimit::Fail),
        (OnReject::Fail, Some(_)) => Err(Error::Usage {
            what: "--max-rejects says nothing with `--on-reject fail`".into(),
            hint: "give one of them".into(),
        }),
    }
}

fn plan_text(report: &PlanReport) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "records     {} ({} unusable)",
        HumanCount(report.records),
        HumanCount(report.faulty_records)
    );
    let _ = writeln!(text, "images      {}", HumanCount(report.images));
    splits_text(&mut text, &report.splits, "records");
    let _ = writeln!(text, "partitions  {}", report.partitions);
    if let Some(part) = &report.part {
        let _ = writeln!(text, "worker      {}", worker_text(part));
    }
    let _ = writeln!(text, "shards      about {}", report.shards);
    let _ = writeln!(
        text,
        "to write    about {} ({} of it pixels)",
        HumanBytes(report.bytes),
        HumanBytes(report.image_bytes)
    );
    let _ = writeln!(
        text,
        "free        {}{}",
        HumanBytes(report.free_bytes),
        if report.fits { "" } else { ": it does not fit" }
    );
    let time = Duration::from_secs_f64(report.seconds);
    let _ = writeln!(
        text,
        "time        about {}, if the source keeps up",
        HumanDuration(time)
    );
    let _ = writeln!(text, "image plan  {}", report.image_plan_id);
    let _ = writeln!(text, "text plan   {}", report.text_plan_id);
    text
}

pub(super) fn build_text(report: &BuildReport) -> String {
    let mut text = String::new();
    let what = if report.part.is_some() {
        "part "
    } else {
        "cache"
    };
    let _ = writeln!(text, "{what}        {}", report.output);
    if let Some(fingerprint) = &report.fingerprint {
        let _ = writeln!(text, "fingerprint  {fingerprint}");
    }
    if let Some(part) = &report.part {
        let _ = writeln!(text, "worker       {}", worker_text(part));
    }
    splits_text(&mut text, &report.splits, "samples");
    let _ = writeln!(
        text,
        "tokens       {} ({} learnt)",
        HumanCount(report.tokens),
        HumanCount(report.loss_tokens)
    );
    let _ = writeln!(
        text,
        "images       {} ({} rejected)",
        HumanCount(report.images),
        HumanCount(report.rejected_images)
    );
    let _ = writeln!(text, "bytes        {}", HumanBytes(report.bytes));
    let _ = writeln!(
        text,
        "rejects      {} of {} records",
        HumanCount(report.rejected),
        HumanCount(report.records)
    );
    let mut reasons: Vec<_> = report.rejects.iter().collect();
    reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), reason.as_str()));
    for (reason, count) in reasons {
        let _ = writeln!(text, "  {count:>9}  {reason}");
    }
    if report.rejects_kept {
        let _ = writeln!(text, "kept         {REJECTS_KEPT}");
    }
    if !report.earlier_packs.is_empty() {
        let _ = writeln!(
            text,
            "pack tables  of an earlier cache, made useless by this one: {} (make them again with `stoker pack`, or remove them with --prune)",
            report.earlier_packs.join(", ")
        );
    }
    let time = Duration::from_secs_f64(report.seconds);
    let _ = writeln!(text, "time         {:.1} s", time.as_secs_f64());
    if let Some(part) = &report.part {
        let _ = writeln!(
            text,
            "next         when all {} workers are done: stoker commit PART... --output DIR",
            part.workers
        );
    }
    text
}

fn worker_text(part: &PartReport) -> String {
    format!(
        "{} of {}, counted from 0: {} of {} partitions",
        numbers(&part.worker),
        part.workers,
        part.partitions.len(),
        part.all_partitions
    )
}

fn splits_text(text: &mut String, splits: &[SplitReport], what: &str) {
    for split in splits {
        let _ = writeln!(
            text,
            "split        {}: {} {what} in {} partitions",
            split.name,
            HumanCount(split.samples),
            split.partitions
        );
    }
}
