//! Why a cache cannot be opened or a row cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use crate::device::DeviceFault;
use crate::fallback::RemoteFault;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A fault met while opening or reading a cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("could not {action} `{}`: {source}", path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The folder holds no manifest.
    #[error("no cache: there is no manifest.json in `{}`", path.display())]
    NotACache {
        /// The folder.
        path: PathBuf,
    },
    /// Files that the manifest names are not there.
    #[error("{} missing from `{}`:{}", counted(files.len()), root.display(), listed(files))]
    Missing {
        /// The cache's folder.
        root: PathBuf,
        /// All of them, relative to the folder.
        files: Vec<String>,
    },
    /// Shards that this node should read were brought to other nodes.
    #[error("the shards of {} are on other nodes: `{}`", named(partitions), root.display())]
    Elsewhere {
        /// The cache's folder.
        root: PathBuf,
        /// Their partitions, ascending.
        partitions: Vec<u32>,
    },
    /// A file holds other bytes than the manifest says.
    #[error("{what}: `{}`", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The bytes of a file are no valid part of a cache.
    #[error("{error} in `{}`", path.display())]
    Formats {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: stoker_formats::Error,
    },
    /// A row's shard cannot be read.
    #[error("could not read {kind} row {row} of partition {partition}, shard {shard}: {error}")]
    Row {
        /// "image" or "sample".
        kind: &'static str,
        /// The partition.
        partition: u32,
        /// The shard's ordinal in the partition.
        shard: u32,
        /// The row's number in the partition.
        row: u64,
        /// What happened, with the file.
        error: Box<Error>,
    },
    /// There is no such row.
    #[error("no {kind} row {row}: partition {partition} has `{rows}`")]
    NoRow {
        /// "image" or "sample".
        kind: &'static str,
        /// The partition.
        partition: u32,
        /// The row that was asked for.
        row: u64,
        /// How many there are.
        rows: u64,
    },
    /// A recipe lacks what a reader must know.
    #[error("the cache in `{}` does not say its `{field}`", root.display())]
    Recipe {
        /// The cache's folder.
        root: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// A recipe says a size that no model has.
    #[error("the cache in `{}` has its `{field}` out of range 1 to {most}: `{given}`", root.display())]
    RecipeRange {
        /// The cache's folder.
        root: PathBuf,
        /// The field.
        field: &'static str,
        /// The largest that is taken.
        most: u32,
        /// The value.
        given: String,
    },
    /// Caches of one mixture were made for different models.
    #[error("different {what} in `{}` and `{}`", one.display(), other.display())]
    OtherModel {
        /// What differs.
        what: &'static str,
        /// The first cache.
        one: PathBuf,
        /// The cache that differs.
        other: PathBuf,
    },
    /// There is nothing to read.
    #[error("no caches were given")]
    NoCaches,
    /// A cache has no such split.
    #[error("no split `{split}` in `{}`; there are {}", root.display(), splits.join(", "))]
    NoSplit {
        /// The split that was asked for.
        split: String,
        /// The cache's folder.
        root: PathBuf,
        /// The splits that there are.
        splits: Vec<String>,
    },
    /// A cache has no such pack table.
    #[error("no pack table `{pack}` in `{}`; there {}", root.display(), there_are(packs))]
    NoPack {
        /// The table that was asked for.
        pack: String,
        /// The cache's folder.
        root: PathBuf,
        /// The tables that there are.
        packs: Vec<String>,
    },
    /// A pack table was made for another cache than it lies in.
    #[error("the pack table is of another cache, or of an earlier state of this one: `{}`", path.display())]
    OtherPack {
        /// The table's entry.
        path: PathBuf,
    },
    /// Pack tables of one name have other budgets.
    #[error(
        "packs of {tokens} tokens in `{}`, but of {other_tokens} in `{}`", one.display(), other.display()
    )]
    OtherBudget {
        /// The first cache.
        one: PathBuf,
        /// Tokens of a pack there.
        tokens: u32,
        /// The cache that differs.
        other: PathBuf,
        /// Tokens of a pack there.
        other_tokens: u32,
    },
    /// A pack cannot be read.
    #[error("could not read pack {number} of partition {partition}, table {pack}: {error}")]
    InPack {
        /// The table.
        pack: String,
        /// The partition.
        partition: u32,
        /// The pack's number in the partition.
        number: u64,
        /// What happened, with the file.
        error: Box<Error>,
    },
    /// An option cannot be.
    #[error("{what}: `{given}`")]
    Option {
        /// What is wrong with it.
        what: &'static str,
        /// The value.
        given: String,
    },
    /// Some units would have to be read from other nodes.
    #[error(
        "{remote} of {units} units of a global batch lie on other nodes only, the first in partition {partition} of cache `{cache}`"
    )]
    Remote {
        /// Units that lie elsewhere.
        remote: usize,
        /// Units of the global batch.
        units: usize,
        /// The cache's number.
        cache: u32,
        /// The partition.
        partition: u32,
    },
    /// The fallback is the copy of another cache.
    #[error("`{}` is not what the fallback is a copy of: `{uri}`", path.display())]
    OtherFallback {
        /// The manifest here.
        path: PathBuf,
        /// The copy.
        uri: String,
    },
    /// A file that this node lacks could not be brought.
    #[error("could not bring `{file}`: {fault}: `{uri}`")]
    Fallback {
        /// The file, relative to the cache.
        file: String,
        /// The copy of the cache that it was to come from.
        uri: String,
        /// What happened.
        fault: RemoteFault,
    },
    /// A thread could not be started.
    #[error("could not start a thread: {source}")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// A thread of the reader panicked.
    #[error("a reading thread panicked: `{message}`")]
    Panicked {
        /// What it said.
        message: String,
    },
    /// The reader stopped after an error.
    #[error("the reader has stopped after an error: `{first}`")]
    Stopped {
        /// The error.
        first: String,
    },
    /// A rule of the program itself is broken.
    #[error("this should not happen, please report it: `{0}`")]
    Internal(&'static str),
    /// There is no such partition.
    #[error("no partition {partition}: the cache has `{partitions}`")]
    NoPartition {
        /// The partition that was asked for.
        partition: u32,
        /// How many there are.
        partitions: u32,
    },
    /// An order, a world or a cursor is refused.
    #[error(transparent)]
    Order(#[from] crate::order_error::OrderError),
    /// A device cannot be used.
    #[error("could not use the device: {fault}: `{device}`")]
    Device {
        /// Its name.
        device: String,
        /// What is wrong.
        fault: DeviceFault,
    },
    /// Something of a parent process is used in a child after a fork.
    #[error("{what} belongs to the process that opened it, before a fork: `{pid}`")]
    Forked {
        /// What is used.
        what: &'static str,
        /// The process that opened it.
        pid: u32,
    },
}

fn counted(count: usize) -> String {
    match count {
        1 => "1 file is".to_owned(),
        count => format!("{count} files are"),
    }
}

fn named(partitions: &[u32]) -> String {
    match partitions {
        [one] => format!("partition {one}"),
        _ => {
            let numbers: Vec<_> = partitions.iter().map(u32::to_string).collect();
            format!("partitions {}", numbers.join(", "))
        }
    }
}

fn listed(files: &[String]) -> String {
    files.iter().map(|file| format!("\n  `{file}`")).collect()
}

fn there_are(names: &[String]) -> String {
    if names.is_empty() {
        return "are none".to_owned();
    }
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    format!("are {}", names.join(", "))
}

impl Error {
    /// An [`Error::Io`] maker for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    /// An [`Error::Formats`] maker for `map_err`.
    pub(crate) fn formats(path: &Path) -> impl FnOnce(stoker_formats::Error) -> Self {
        let path = path.to_path_buf();
        move |error| Self::Formats { path, error }
    }

    /// An [`Error::Device`].
    pub(crate) fn device(device: &str, fault: DeviceFault) -> Self {
        Self::Device {
            device: device.to_owned(),
            fault,
        }
    }

    /// What is wrong with a file's bytes, if that is what this says; a file of a newer version is not damaged.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        match self {
            Self::Formats { error, .. } if !error.is_newer() => Some(error.to_string()),
            Self::Damaged { what, .. } => Some(what.clone()),
            _ => None,
        }
    }

    /// Whether a file of a cache is damaged, so that other bytes might be right.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Formats { error, .. } => error.is_damage(),
            Self::Row { error, .. } | Self::InPack { error, .. } => error.is_damage(),
            _ => false,
        }
    }

    /// What to do about it, if there is something to say.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Io { .. }
            | Self::NoRow { .. }
            | Self::NoPartition { .. }
            | Self::NoSplit { .. }
            | Self::NoCaches
            | Self::Thread { .. }
            | Self::Panicked { .. }
            | Self::Internal(_) => None,
            Self::Recipe { .. } | Self::RecipeRange { .. } => {
                Some("build the cache again with this version")
            }
            Self::OtherModel { .. } => {
                Some("mix caches that were built with the same model and image options")
            }
            Self::NoPack { .. } => Some(
                "give one of those, or make it with `stoker pack CACHE --max-tokens N --name NAME`",
            ),
            Self::OtherPack { .. } => {
                Some("make the table again with `stoker pack`, from the cache as it is")
            }
            Self::OtherBudget { .. } => Some(
                "make tables of one name with the same --max-tokens in every cache of a mixture",
            ),
            Self::InPack { error, .. } => error.hint(),
            Self::Option { .. } => Some("see the options of the reader"),
            Self::Remote { .. } => Some(
                "bring the partitions to this node with `stoker sync`, give a fallback that they are brought from, a placement that fits, or another number of nodes",
            ),
            Self::Elsewhere { .. } => Some(
                "give the placement that this share was synced by, bring the partitions to this node with `stoker sync`, or give a fallback",
            ),
            Self::OtherFallback { .. } => {
                Some("give the fallback of this cache, or bring its state here with `stoker sync`")
            }
            Self::Fallback { fault, .. } => match fault {
                RemoteFault::NoRoom { .. } => Some(
                    "give more cache_disk, or bring the partitions to this node with `stoker sync`",
                ),
                RemoteFault::Incomplete(_) => Some(
                    "the copy is incomplete or damaged: push it again with `stoker push`, from a node that holds the partition; then restore a cursor to go on",
                ),
                _ => Some(
                    "look after the network and the fallback, then restore a cursor to go on; `stoker sync` brings whole partitions",
                ),
            },
            Self::Stopped { .. } => Some("restore a cursor to go on, after the cause is mended"),
            Self::NotACache { .. } => Some(
                "give the folder that `stoker build` wrote; an unfinished build has no manifest yet",
            ),
            Self::Missing { .. } => Some(
                "check that the disk is mounted; bring the files again with `stoker repair CACHE --from REMOTE`, those of a synced share also with `stoker sync`, or make them where they were built with the build command; a node that holds a share of the cache needs a placement",
            ),
            Self::Damaged { .. } => Some("run `stoker verify` to see what it costs"),
            Self::Formats { error, .. } => error.hint(),
            Self::Row { error, .. } => error.hint(),
            Self::Order(error) => error.hint(),
            Self::Device { fault, .. } => fault.hint(),
            Self::Forked { .. } => Some(
                "open it in the process that uses it, or start workers with spawn or forkserver",
            ),
        }
    }
}
