//! The command line, as clap parses it. Help texts stand here and nowhere else.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use stoker_formats::limits::MAX_TOKENS;
use stoker_formats::{PackName, PackOverlong, PackStrategy};
use stoker_reader::{Last, Shuffle, Tail};

use super::remote_args::{PushArgs, RepairArgs, SyncArgs};
use crate::build::options::{RejectLimit, parse_bytes};
use crate::image::profile::{Generation, Profile};
use crate::plan::SplitShare;
use crate::record::{ImageTag, Shape};
use crate::text::{LabelRule, Overlong};

/// Prepares a multimodal training set once, offline, into a verified cache of tensors.
#[derive(Debug, Parser)]
#[command(name = "stoker", version, max_term_width = 100)]
#[command(
    after_help = "Exit codes: 0 done, 1 too many rejects or damage found (verify, repair), 2 could not run."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Build a cache from JSONL records and their images
    Build(Box<BuildArgs>),
    /// Put the parts of several workers together: check them, and commit one manifest
    Commit(CommitArgs),
    /// Check a cache: manifest, file hashes and, with --deep, every row
    Verify(VerifyArgs),
    /// Show what a cache holds, or one sample of it
    Inspect(InspectArgs),
    /// Show distributions of tokens, labels, patches and image sizes
    Stats(StatsArgs),
    /// Plan samples into full token budgets, once for all runs
    Pack(PackArgs),
    /// Say which partitions belong on which node
    Place(PlaceArgs),
    /// Copy a cache, or this node's share of one, to S3 or to another folder, compressed
    Push(PushArgs),
    /// Bring this node's share of a cache from where it was pushed to
    Sync(SyncArgs),
    /// Make damaged and missing files of a cache good again, from a remote or from the source
    Repair(RepairArgs),
    /// Print the batches that a training run would get
    Read(ReadArgs),
    /// Say what this machine can read, and whether a training step would wait
    Bench(BenchArgs),
    /// Say how long 1 to 1,024 nodes would wait for data, fed in seven ways
    Simulate(SimulateArgs),
    /// Prepare one image given on stdin and exit (used by the builder itself)
    #[command(hide = true)]
    TryImage(TryImageArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// JSONL files, globs, folders, s3://bucket/key or s3://bucket/prefix/ (.jsonl, .jsonl.gz, .jsonl.zst)
    #[arg(long, required = true, num_args = 1.., value_name = "URI")]
    pub(crate) input: Vec<String>,
    /// Hugging Face model folder: tokenizer, chat template, processor configuration
    #[arg(long, value_name = "DIR")]
    pub(crate) model: PathBuf,
    /// Folder of the cache, on a local disk
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Where image links start [default: at the JSONL file they stand in]
    #[arg(long, value_name = "URI")]
    pub(crate) image_root: Option<String>,
    /// Shape of the records: auto, messages, llava, swift, sharegpt or vqa
    #[arg(long, default_value = "auto", value_parser = parse_schema, value_name = "SHAPE")]
    pub(crate) schema: SchemaArg,
    /// What becomes of the text around <image> tags
    #[arg(long, value_enum, default_value = "strip", value_name = "RULE")]
    pub(crate) image_tag: ImageTag,
    /// What images are bit-exact with: tv_path, tv_path_ft, tv_pilobj, pil_path, qwenvl; or fast, which is not exact
    #[arg(long, default_value = "tv_path", value_name = "PROFILE")]
    pub(crate) profile: Profile,
    /// Major version of transformers that is the reference: 4 or 5
    #[arg(long, default_value = "5", value_parser = parse_generation, value_name = "MAJOR")]
    pub(crate) transformers: Generation,
    /// Least area of a resized image, in pixels [default: the model's]
    #[arg(long, value_name = "N")]
    pub(crate) min_pixels: Option<u64>,
    /// Largest area of a resized image, in pixels [default: the model's]
    #[arg(long, value_name = "N")]
    pub(crate) max_pixels: Option<u64>,
    /// Longest sample, in tokens [default: no limit]
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// What becomes of longer samples
    #[arg(
        long,
        value_enum,
        default_value = "reject",
        value_name = "RULE",
        requires = "max_tokens"
    )]
    pub(crate) overlong: Overlong,
    /// Which tokens are learnt
    #[arg(long, value_enum, default_value = "structure", value_name = "RULE")]
    pub(crate) label_rule: LabelRule,
    /// Seed of the deal and the order of samples
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// Partitions of the main split [default: the largest of 1, 2, 4, 12, 48, 240, 960 that leaves 256 samples each]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) partitions: Option<u32>,
    /// Target size of a shard
    #[arg(long, default_value = "512MiB", value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) shard_bytes: u64,
    /// A split beside train and its share, as in val=0.5%; no image link stands in two splits, but the same file may, under two paths
    #[arg(long, num_args = 1.., value_name = "NAME=SHARE")]
    pub(crate) split: Vec<SplitShare>,
    /// What the first rejected record does
    #[arg(long, value_enum, default_value = "skip", value_name = "RULE")]
    pub(crate) on_reject: OnReject,
    /// How many records may be rejected before the build stops: a number or a percentage [default: 1%]
    #[arg(long, value_name = "N|P%")]
    pub(crate) max_rejects: Option<RejectLimit>,
    /// Threads that prepare images and text [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Bound on bytes in flight between fetch and write [default: 2GiB, or 256MiB for each thread if that is more]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) memory_budget: Option<u64>,
    /// S3 endpoint, for servers other than Amazon's [default: what the AWS settings say, as in AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,
    /// Buckets that s3:// links may name, beside the inputs' own
    #[arg(long, num_args = 1.., value_name = "NAME")]
    pub(crate) allow_bucket: Vec<String>,
    /// Build only the partitions of worker I of --workers N, counted from 0, or of several, as in 0,3,5; auto: the number
    /// that OMPI_COMM_WORLD_RANK, SLURM_PROCID or JOB_COMPLETION_INDEX gives. `stoker commit` puts the parts together
    #[arg(long, value_name = "I,...|auto", value_parser = parse_worker)]
    pub(crate) worker: Option<WorkerArg>,
    /// How many workers share the build [default with --worker: what OMPI_COMM_WORLD_SIZE or SLURM_NTASKS says]; alone it
    /// means --worker auto
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) workers: Option<u32>,
    /// Begin anew: drop the unfinished build in the output folder, its rejects included (if it is of something else, but for
    /// what this build shares with it); a committed cache keeps its rejects
    #[arg(long)]
    pub(crate) restart: bool,
    /// After the commit, remove the folders of earlier plans and the pack tables of earlier caches
    #[arg(long, conflicts_with_all = ["worker", "workers"])]
    pub(crate) prune: bool,
    /// Print the plan and what it will take, and stop
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the first rejected record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnReject {
    /// Leave it out.
    Skip,
    /// Stop the build.
    Fail,
}

/// A shape, or `None` for `auto`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SchemaArg(pub(crate) Option<Shape>);

fn parse_schema(text: &str) -> Result<SchemaArg, String> {
    if text == "auto" {
        return Ok(SchemaArg(None));
    }
    let shape = Shape::ALL.into_iter().find(|shape| shape.name() == text);
    let known = Shape::ALL.map(Shape::name).join(", ");
    shape
        .map(|shape| SchemaArg(Some(shape)))
        .ok_or_else(|| format!("a shape is auto, {known}: `{text}`"))
}

/// Workers' numbers, ascending; none for `auto`.
#[derive(Debug, Clone)]
pub(crate) struct WorkerArg(pub(crate) Option<Vec<u32>>);

fn parse_worker(text: &str) -> Result<WorkerArg, String> {
    if text == "auto" {
        return Ok(WorkerArg(None));
    }
    let numbers = text.split(',').map(str::parse).collect::<Result<_, _>>();
    let mut numbers: Vec<u32> = numbers.map_err(|_| {
        format!("workers are numbers from 0 with commas between, or auto: `{text}`")
    })?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(WorkerArg(Some(numbers)))
}

fn parse_generation(text: &str) -> Result<Generation, String> {
    match text {
        "4" => Ok(Generation::V4),
        "5" => Ok(Generation::V5),
        _ => Err(format!("the oracle is transformers 4 or 5: `{text}`")),
    }
}

#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// The parts: output folders of `stoker build --worker`, or copies of them without their shards, here or at s3://bucket/prefix
    #[arg(required = true, value_name = "PART")]
    pub(crate) parts: Vec<PathBuf>,
    /// Folder that becomes the cache: one of the parts, or another one. Shards stay where they are
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// After the commit, remove the folders of earlier plans and the pack tables of earlier caches from the output
    #[arg(long)]
    pub(crate) prune: bool,
    /// S3 endpoint, for servers other than Amazon's [default: what the AWS settings say, as in AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Check every row: its checksum, its tokens, labels and images
    #[arg(long)]
    pub(crate) deep: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// A sample, by its sample id (file:line) or its record's own id
    #[arg(long, value_name = "ID", conflicts_with = "row")]
    pub(crate) sample: Option<String>,
    /// A sample, by its number in the cache
    #[arg(long, value_name = "N")]
    pub(crate) row: Option<u64>,
    /// Write the sample's image back from its patches; several images get -1, -2, ... before the extension
    #[arg(long, value_name = "FILE.png")]
    pub(crate) image: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Predict instead how even tokens and patches are over the ranks of a run
    #[arg(long, requires = "ranks")]
    pub(crate) balance: bool,
    /// Data-parallel ranks, for --balance
    #[arg(long, value_name = "R", requires = "balance")]
    pub(crate) ranks: Option<u32>,
    /// The pack table whose packs are dealt, for --balance; by default samples are
    #[arg(long, value_name = "NAME", requires = "balance")]
    pub(crate) pack: Option<String>,
    /// Samples, or packs, of a global batch over all ranks, for --balance; by default 8 a rank
    #[arg(long, value_name = "B", requires = "balance")]
    pub(crate) batch_size: Option<u32>,
    /// Nodes that the ranks are spread over, each with its share of partitions, for --balance
    #[arg(long, default_value_t = 1, value_name = "K", requires = "balance")]
    pub(crate) nodes: u32,
    /// The split, for --balance
    #[arg(
        long,
        default_value = "train",
        value_name = "NAME",
        requires = "balance"
    )]
    pub(crate) split: String,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Tokens that a pack may hold
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u32).range(1..=MAX_TOKENS as i64))]
    pub(crate) max_tokens: u32,
    /// Name of the table [default: after its tokens, as in 8k]
    #[arg(long, value_name = "NAME", value_parser = parse_pack_name)]
    pub(crate) name: Option<PackName>,
    /// Patches that a pack may hold [default: no limit]
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_patches: Option<u32>,
    /// Samples that a pack may hold [default: no limit]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_samples: Option<u32>,
    /// Keep samples with images and samples without in packs of their own
    #[arg(long)]
    pub(crate) by_modality: bool,
    /// How a sample finds its pack: best-fit or ffd (first fit), both by decreasing size
    #[arg(long, default_value = "best-fit", value_parser = parse_strategy, value_name = "STRATEGY")]
    pub(crate) strategy: PackStrategy,
    /// What becomes of a sample that fits into no pack: reject (left out and listed), alone (a pack of its own) or fail
    #[arg(long, default_value = "reject", value_parser = parse_pack_overlong, value_name = "RULE")]
    pub(crate) overlong: PackOverlong,
    /// Seed of the windows and of the orders of packs and samples
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// Threads that pack [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_pack_name(text: &str) -> Result<PackName, String> {
    text.parse().map_err(|_| {
        "a name has 1 to 64 letters, digits, `.`, `_` or `-`, and begins with a letter or a digit"
            .to_owned()
    })
}

fn parse_strategy(text: &str) -> Result<PackStrategy, String> {
    text.parse()
        .map_err(|_| format!("a strategy is best-fit or ffd: `{text}`"))
}

fn parse_pack_overlong(text: &str) -> Result<PackOverlong, String> {
    text.parse()
        .map_err(|_| format!("a rule is reject, alone or fail: `{text}`"))
}

#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Nodes that will read the cache
    #[arg(long, value_name = "K")]
    pub(crate) nodes: u32,
    /// The table of now, as an earlier run printed it: as little as possible moves
    #[arg(long, value_name = "FILE")]
    pub(crate) current: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Samples of a global batch, over all ranks; with --pack, packs
    #[arg(long, value_name = "B")]
    pub(crate) batch_size: u32,
    /// Read the packs of this pack table instead of samples
    #[arg(long, value_name = "NAME")]
    pub(crate) pack: Option<String>,
    /// Seed of the order
    #[arg(long, default_value_t = 0, value_name = "S")]
    pub(crate) seed: u64,
    /// The split to read
    #[arg(long, default_value = "train", value_name = "NAME")]
    pub(crate) split: String,
    /// Read as this data-parallel rank
    #[arg(long, default_value_t = 0, value_name = "R")]
    pub(crate) rank: u32,
    /// Data-parallel ranks in all
    #[arg(long, default_value_t = 1, value_name = "W")]
    pub(crate) world_size: u32,
    /// Nodes that the ranks are spread over
    #[arg(long, default_value_t = 1, value_name = "K")]
    pub(crate) nodes: u32,
    /// Which node holds which partitions: JSON, for each node a list of partitions [default: each node holds all]
    #[arg(long, value_name = "FILE")]
    pub(crate) placement: Option<PathBuf>,
    /// Bring shards that this node lacks from this copy of the cache as they are needed: s3://BUCKET/PREFIX or a folder
    #[arg(long, value_name = "URI", requires = "cache_disk")]
    pub(crate) fallback: Option<String>,
    /// Bytes that brought shards may take, such as 500GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) cache_disk: Option<u64>,
    /// Where brought shards lie; shared by the ranks of a node [default: the folder `fallback` of the cache]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_folder: Option<PathBuf>,
    /// S3 endpoint, for servers other than Amazon's [default: what the AWS settings say, as in AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,
    /// Stop after so many epochs
    #[arg(long, default_value_t = 1, value_name = "E")]
    pub(crate) epochs: u64,
    /// Order within a partition: full, shard or none
    #[arg(long, default_value = "full", value_name = "ORDER")]
    pub(crate) shuffle: Shuffle,
    /// What an epoch does with partitions of unequal size: even or all
    #[arg(long, default_value = "even", value_name = "RULE")]
    pub(crate) tail: Tail,
    /// What becomes of a short last batch: drop, pad or error
    #[arg(long, default_value = "drop", value_name = "RULE")]
    pub(crate) last: Last,
    /// Go on at the cursor in this file, if it exists; it is saved there at the end and on Ctrl-C
    #[arg(long, value_name = "FILE")]
    pub(crate) cursor: Option<PathBuf>,
    /// Print the sample ids of each batch
    #[arg(long)]
    pub(crate) ids: bool,
    /// Print one JSON object a batch
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// The split to read
    #[arg(long, default_value = "train", value_name = "NAME")]
    pub(crate) split: String,
    /// Samples of a micro-batch
    #[arg(long, default_value_t = 4, value_name = "B")]
    pub(crate) batch_size: u32,
    /// Seconds of one training step on a micro-batch: says whether it would wait
    #[arg(long, value_name = "SECONDS")]
    pub(crate) step: Option<f64>,
    /// A folder of the data set's images: says how many one core prepares in a second
    #[arg(long, value_name = "DIR")]
    pub(crate) images: Option<PathBuf>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0, value_name = "SECONDS")]
    pub(crate) seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Numbers of nodes
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128,256,512,1024", value_name = "K,...",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) nodes: Vec<u32>,
    /// What `stoker bench --json` printed: its figures replace the defaults
    #[arg(long, value_name = "FILE")]
    pub(crate) bench: Option<PathBuf>,
    /// A JSON object of constants, as under "constants" in the output of --json; what is left out keeps its value
    #[arg(long, value_name = "FILE")]
    pub(crate) constants: Option<PathBuf>,
    /// One constant, such as nic_gb_s=25 (may be repeated)
    #[arg(long, value_name = "NAME=NUMBER")]
    pub(crate) set: Vec<String>,
    /// Training steps of each run
    #[arg(long, default_value_t = 40, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) steps: u32,
    /// Seed of latencies and times that vary
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) seed: u64,
    /// Write a plot
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TryImageArgs {
    /// The image recipe, as JSON
    #[arg(long)]
    pub(crate) recipe: String,
}
