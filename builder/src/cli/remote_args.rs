//! The arguments of the commands that reach a remote. Help texts stand here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::build::options::parse_bytes;
use crate::push::LEVEL;

/// How a remote is reached.
#[derive(Debug, Args)]
pub(crate) struct ReachArgs {
    /// Files on their way at once [default: one a core, at least 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// S3 endpoint, for servers other than Amazon's [default: what the AWS settings say, as in AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) s3_endpoint: Option<String>,
    /// Print one JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PushArgs {
    /// The cache's folder; of a share, what it holds is pushed
    pub(crate) cache: PathBuf,
    /// Where to: s3://bucket/prefix, or a folder
    #[arg(value_name = "URI")]
    pub(crate) destination: String,
    /// zstd's level for shards
    #[arg(long, default_value_t = LEVEL, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) level: i32,
    /// Replace the manifest of another cache that was pushed there; its files stay
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// Where the cache was pushed to: s3://bucket/prefix, or a folder; another node's cache folder does too
    #[arg(value_name = "URI")]
    pub(crate) source: String,
    /// The folder that becomes this node's share
    #[arg(value_name = "DIR")]
    pub(crate) destination: PathBuf,
    /// Bring what node K holds, counted from 0 [default: everything]
    #[arg(long, value_name = "K")]
    pub(crate) node: Option<u32>,
    /// How many nodes share the cache, as for `stoker place`
    #[arg(long, value_name = "N", requires = "node")]
    pub(crate) nodes: Option<u32>,
    /// Which node holds which partitions, as `stoker place` prints it
    #[arg(long, value_name = "FILE", requires = "node")]
    pub(crate) placement: Option<PathBuf>,
    /// Bytes that all files in the folder may have together, at any moment [default: what the disk has, less a reserve]
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) max_disk: Option<u64>,
    /// Remove shards that belong on other nodes, once the remote's copies were read and found right, and what earlier caches left
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// The cache's folder
    pub(crate) cache: PathBuf,
    /// Where the cache was pushed to: s3://bucket/prefix, or a folder; another node's cache folder does too
    #[arg(
        long,
        value_name = "URI",
        required_unless_present = "rebuild",
        conflicts_with = "rebuild"
    )]
    pub(crate) from: Option<String>,
    /// Make what is damaged again from the source, with the options of the build after --
    #[arg(long, requires = "build")]
    pub(crate) rebuild: bool,
    #[command(flatten)]
    pub(crate) reach: ReachArgs,
    /// With --rebuild: the options that `stoker build` was given, all but --output
    #[arg(last = true, requires = "rebuild", value_name = "BUILD OPTIONS")]
    pub(crate) build: Vec<OsString>,
}
