//! From options to a plan: opens the model, lists and spools the inputs, scans them, deals.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};
use stoker_formats::PARTS_FOLDER;
use tokio::runtime::Runtime;

use super::lock::Lock;
use super::named::Named;
use super::options::BuildOptions;
use super::progress::{Counters, Progress};
use super::share::Share;
use super::state::{BuildState, InputState};
use super::stop::Stop;
use crate::error::{Error, Result};
use crate::image::ImageRecipe;
use crate::model::ModelFolder;
use crate::plan::{Plan, PlanIds, SplitPlan, ToScan, collect, image_plan_id, text_plan_id};
use crate::publish::Publisher;
use crate::remote::crew;
use crate::source::link::{Base, Policy};
use crate::source::ranges::RANGE_BYTES;
use crate::source::{self, InputFile, Source, SourceOptions, Spool};
use crate::text::{TextOptions, TextPreparer, TextRecipe};

/// Where compressed and remote inputs lie as plain text until the build is committed.
pub(crate) const SPOOL_FOLDER: &str = "spool";

/// Small inputs brought to the spool at once: each costs a round trip and a sync, which thousands must not wait for in turn.
const SMALL_AT_ONCE: usize = 16;

/// Local files read at once: enough for a network file system, few enough to cost nothing.
const LOCAL_READS_MAX: usize = 32;

/// Threads that fetch and look at headers: waiting costs no thread, so a few are enough.
pub(crate) fn fetching_threads(options: &BuildOptions) -> usize {
    options.threads.clamp(1, 4)
}

/// A planned build.
pub(crate) struct Setup {
    pub(crate) plan: Plan,
    pub(crate) share: Share,
    pub(crate) ids: PlanIds,
    pub(crate) recipe: Value,
    pub(crate) image_recipe: ImageRecipe,
    pub(crate) text: TextPreparer,
    pub(crate) model: ModelFolder,
    pub(crate) source: Source,
    pub(crate) publisher: Publisher,
    pub(crate) named: Named,
    pub(crate) state: BuildState,
    pub(crate) runtime: Runtime,
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) _lock: Lock,
}

pub(crate) fn set_up(options: &BuildOptions, stop: &Stop, progress: &Progress) -> Result<Setup> {
    let model = ModelFolder::open(&options.model)?;
    let image_recipe = ImageRecipe::new(
        options.profile,
        options.generation,
        model.family(),
        model.image(),
        options.min_pixels,
        options.max_pixels,
    )?;
    let text_recipe = TextRecipe::new(
        &model,
        TextOptions {
            schema: options.shape,
            image_tag: options.image_tag,
            label_rule: options.label_rule,
            max_tokens: options.max_tokens,
            overlong: options.overlong,
        },
    );
    let text = TextPreparer::new(&model, text_recipe.clone())?;
    let publisher = Publisher::make(options.output.clone())?;
    let lock = Lock::take(&options.output)?;
    let named = Named::read(publisher.root())?;
    if !options.parts.is_empty() {
        refuse_whole(&named, &options.output)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(fetching_threads(options))
        .max_blocking_threads(LOCAL_READS_MAX)
        .enable_all()
        .thread_name("fetch")
        .build()
        .map_err(Error::io("start", "the fetching threads"))?;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(options.threads)
        .thread_name(|at| format!("prepare-{at}"))
        .build()
        .map_err(|error| {
            Error::io("start", "the preparing threads")(std::io::Error::other(error))
        })?;
    let source = Source::new(
        SourceOptions {
            endpoint: options.s3_endpoint.clone(),
            deadlines: options.deadlines,
            stop: stop.clone(),
            ..SourceOptions::default()
        },
        runtime.handle().clone(),
    );
    let record_options = text_recipe.record_options();
    let files = fetch_inputs(options, &source, &publisher, stop, progress)?;
    let image_root = options.image_root.as_deref().map(Base::parse).transpose()?;
    let policy = Policy::new(
        files.iter().map(|file| &file.base),
        image_root,
        &options.allowed_buckets,
    )?;
    let bytes = files.iter().filter_map(|file| file.path.metadata().ok());
    progress.phase("plan", bytes.map(|meta| meta.len()).sum());
    let on_bytes = |bytes| {
        Counters::add(&progress.counters().bytes_in, bytes);
        progress.advance(bytes);
    };
    let collected = pool.install(|| {
        collect(
            files,
            options.shape,
            &record_options,
            &policy,
            stop,
            &on_bytes,
        )
    })?;
    let plan = Plan::new(
        collected,
        policy,
        record_options,
        options.seed,
        &options.splits,
        options.partitions,
    )?;
    for lack in plan.deal.splits.iter().skip(1).filter_map(SplitPlan::lack) {
        progress.warn(&lack);
    }
    let image = pool.install(|| image_plan_id(&plan, &(&image_recipe, options.shard_bytes)))?;
    let text_id = text_plan_id(&plan, image, &(&text_recipe, options.shard_bytes))?;
    let ids = PlanIds {
        image,
        text: text_id,
    };
    let recipe = json!({
        "image": image_recipe,
        "text": text_recipe,
        "seed": options.seed,
        "shard_bytes": options.shard_bytes,
        "splits": plan.deal.splits.iter().map(|split| json!({
            "name": split.name,
            "partitions": split.partitions,
        })).collect::<Vec<_>>(),
        "shares": options.splits,
    });
    let state = BuildState {
        image_plan_id: ids.image,
        text_plan_id: ids.text,
        recipe: recipe.clone(),
        inputs: plan
            .files
            .iter()
            .map(|file| InputState {
                name: file.name.clone(),
                records: u64::from(file.records),
                hash: file.hash.to_string(),
            })
            .collect(),
    };
    Ok(Setup {
        share: Share::new(&plan, &options.parts),
        plan,
        ids,
        recipe,
        image_recipe,
        text,
        model,
        source,
        publisher,
        named,
        state,
        runtime,
        pool,
        _lock: lock,
    })
}

/// Lists the inputs and brings those that are not plain local files to the spool folder.
fn fetch_inputs(
    options: &BuildOptions,
    source: &Source,
    publisher: &Publisher,
    stop: &Stop,
    progress: &Progress,
) -> Result<Vec<ToScan>> {
    publisher.create_folder(Path::new(SPOOL_FOLDER))?;
    let inputs = source::list(&options.inputs, source)?;
    let spool = Spool::new(options.output.join(SPOOL_FOLDER), source)?;
    progress.phase("fetch inputs", inputs.iter().map(|input| input.bytes).sum());
    let inputs = inputs.into_iter().map(|input| (input, OnceLock::new()));
    let inputs: Vec<(InputFile, OnceLock<PathBuf>)> = inputs.collect();
    let fetch = |(input, path): &&(InputFile, OnceLock<PathBuf>)| {
        stop.check()?;
        let text = spool.text(input)?;
        progress.advance(input.bytes);
        path.get_or_init(|| text.path);
        Ok(())
    };
    let (small, large): (Vec<_>, Vec<_>) = inputs
        .iter()
        .partition(|(input, _)| input.bytes <= RANGE_BYTES);
    crew::each(SMALL_AT_ONCE, &small, fetch)?;
    // Of a large one several ranges are on their way at once.
    crew::each(1, &large, fetch)?;
    // Without an error each of them has its path.
    let files = inputs.into_iter().filter_map(|(input, path)| {
        Some(ToScan {
            path: path.into_inner()?,
            name: input.name,
            uri: input.uri,
            etag: input.etag,
            base: input.base,
        })
    });
    Ok(files.collect())
}

/// Refuses to build a part where a whole cache is: as a share, it could lack shards without being damaged.
fn refuse_whole(named: &Named, output: &Path) -> Result<()> {
    if !named.is_committed() || output.join(PARTS_FOLDER).is_dir() {
        return Ok(());
    }
    Err(Error::Usage {
        what: format!(
            "a part cannot be built where a whole cache is: `{}`",
            output.display()
        ),
        hint: "build without --worker and --workers to mend that cache, or choose another --output"
            .into(),
    })
}
