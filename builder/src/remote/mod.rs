//! A remote: a copy of a cache in S3 or in a folder elsewhere, which nodes bring their shards from.
//!
//! Owns what stands where in a remote (`formats/FORMAT.md`, section 9) and the check of every byte that comes from it. Does not
//! know who needs which file. Invariant: names come from the manifest's types, never from the other side; no byte is taken for
//! good that the manifest's size and hash do not confirm, and never more of them are handed on than the manifest names.

mod bring;
pub(crate) mod crew;
mod fallback;
pub(crate) mod files;
mod packed;
mod store;
mod upload;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use stoker_formats::limits::{MAX_MANIFEST_BYTES, MAX_PACK_ENTRY_BYTES};
use stoker_formats::{
    FileEntry, FileName, MANIFEST_NAME, Manifest, PACKS_FOLDER, PackEntry, PackFile, PackName,
};
use stoker_reader::CacheFile;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::build::Stop;
use crate::error::{Error, Result};
use crate::pack::store::tables;
use crate::source::{CredentialSource, Deadlines};
pub use bring::{Brought, Stages};
pub use fallback::fallbacks;
pub(crate) use packed::Packed;
pub(crate) use store::{Listing, Place, Store};
pub(crate) use upload::{Target, Upload};

/// What ends the name of a shard that stands compressed.
const PACKED_SUFFIX: &str = ".zst";

/// Threads that talk to a remote: checksums and copies of what comes keep more than one busy.
const FETCHING_THREADS: usize = 4;

/// The runtime that remotes do their waiting on.
///
/// # Errors
/// The system's reason, if threads cannot be started.
pub fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(FETCHING_THREADS)
        .enable_all()
        .thread_name("fetch")
        .build()
        .map_err(Error::io("start", "the fetching threads"))
}

/// How to reach a remote.
#[derive(Debug, Clone, Default)]
pub struct RemoteOptions {
    /// Base URL of an S3-compatible server, addressed path-style. Otherwise what the AWS settings say.
    pub endpoint: Option<String>,
    /// Where credentials come from.
    pub credentials: CredentialSource,
    /// Timeouts and number of tries.
    pub deadlines: Deadlines,
    /// A request to stop ends every wait, and every read of a folder.
    pub stop: Stop,
}

/// A file of a remote, with what is known of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the cache, with `/`.
    pub(crate) path: String,
    /// What the manifest, or the entry of a pack table, says of it.
    pub(crate) entry: FileEntry,
    /// Whether it may stand compressed.
    pub(crate) is_shard: bool,
}

impl From<&CacheFile> for RemoteFile {
    fn from(file: &CacheFile) -> Self {
        Self {
            path: file.relative(),
            entry: file.entry,
            is_shard: matches!(file.name, FileName::Shard { .. }),
        }
    }
}

impl RemoteFile {
    /// A pack table, or a table of over-long samples.
    #[must_use]
    pub fn pack_table(entry: FileEntry) -> Self {
        Self {
            path: format!("{PACKS_FOLDER}/{}", PackFile::table(entry.hash)),
            entry,
            is_shard: false,
        }
    }

    /// Its folder in the cache, and its name there.
    pub(crate) fn place(&self) -> (&str, &str) {
        self.path.rsplit_once('/').unwrap_or(("", &self.path))
    }

    /// The path of a shard that stands compressed.
    pub(crate) fn packed(&self) -> String {
        format!("{}{PACKED_SUFFIX}", self.path)
    }

    /// Most bytes that it may have then.
    pub(crate) fn packed_bytes_max(&self) -> u64 {
        packed::bytes_max(self.entry.bytes)
    }
}

/// A remote whose manifest was read. Cheap to clone, and for any number of threads.
///
/// Its functions wait for S3 and for disks: they are not to be called from inside a runtime.
#[derive(Debug, Clone)]
pub struct Remote {
    store: Arc<Store>,
    manifest: Arc<Manifest>,
    manifest_bytes: Arc<Vec<u8>>,
}

impl Remote {
    /// Opens the remote at `uri`: `s3://bucket/prefix`, or a folder. Reads the manifest, and nothing else. Does its waiting on the
    /// runtime behind `handle`, which needs its timer and I/O and must outlive the remote.
    ///
    /// # Errors
    /// [`Error::Input`] for a URI that is none; [`Error::Remote`] without a manifest; [`Error::Formats`] if it is damaged or of a
    /// newer major version; [`Error::Fetch`] and [`Error::Io`] for failures.
    pub fn open(uri: &str, options: &RemoteOptions, handle: Handle) -> Result<Self> {
        let store = Store::open(uri, options, handle)?;
        let bytes = store
            .read(MANIFEST_NAME, MAX_MANIFEST_BYTES as u64)?
            .ok_or_else(|| Error::Remote {
                what: "no cache is there, or its push has not ended".into(),
                uri: store.uri(MANIFEST_NAME),
                hint:
                    "give the URI that `stoker push` was given, or the folder of a committed cache"
                        .into(),
            })?;
        let manifest = Manifest::parse(bytes.clone())
            .map_err(|error| error.in_file(store.uri(MANIFEST_NAME)))?;
        Ok(Self::of(store, manifest, bytes))
    }

    /// The remote's folder, if it is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match &self.store.place {
            Place::Folder(root) => Some(root),
            Place::Bucket(_) => None,
        }
    }

    /// Whether the remote's copy of `file` is the very file at `path`, under whatever name.
    pub(crate) fn is_same_file(&self, file: &RemoteFile, path: &Path) -> bool {
        let id = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.dev(), found.ino()))
        };
        let there = self.folder().and_then(|root| id(&root.join(&file.path)));
        there.is_some() && there == id(path)
    }

    /// What becomes of `store` when the cache with this manifest is pushed there.
    pub(crate) fn of(store: Store, manifest: Manifest, manifest_bytes: Vec<u8>) -> Self {
        Self {
            store: Arc::new(store),
            manifest: Arc::new(manifest),
            manifest_bytes: Arc::new(manifest_bytes),
        }
    }

    /// Where it lies.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Where it is, without secrets.
    #[must_use]
    pub fn uri(&self) -> String {
        self.store.uri("")
    }

    /// What the remote is a copy of.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The bytes of `manifest.json`.
    #[must_use]
    pub fn manifest_bytes(&self) -> &[u8] {
        &self.manifest_bytes
    }

    /// Every file that the manifest names, in a fixed order.
    pub fn files(&self) -> impl Iterator<Item = CacheFile> + '_ {
        CacheFile::named_by(&self.manifest)
    }

    /// The entries of the pack tables that were made for this cache, with their bytes, by name.
    ///
    /// # Errors
    /// [`Error::Formats`] if one is damaged; [`Error::Fetch`] and [`Error::Io`] for failures.
    pub fn pack_entries(&self) -> Result<Vec<(PackEntry, Vec<u8>)>> {
        let mut found = Vec::new();
        for name in self.store.names(PACKS_FOLDER)? {
            if let Ok(PackFile::Entry(name)) = PackFile::parse(&name) {
                found.extend(self.pack_entry(&name)?);
            }
        }
        Ok(found)
    }

    /// The entry of the pack table `name`, with its bytes; none if there is none that was made for this cache.
    ///
    /// # Errors
    /// As [`pack_entries`](Self::pack_entries).
    pub(crate) fn pack_entry(&self, name: &PackName) -> Result<Option<(PackEntry, Vec<u8>)>> {
        let path = format!("{PACKS_FOLDER}/{}", PackFile::Entry(name.clone()));
        let Some(bytes) = self.store.read(&path, MAX_PACK_ENTRY_BYTES as u64)? else {
            return Ok(None);
        };
        let entry =
            PackEntry::parse(&bytes).map_err(|error| error.in_file(self.store.uri(&path)))?;
        let is_it = entry.name == *name && entry.fingerprint == self.manifest.fingerprint;
        Ok(is_it.then_some((entry, bytes)))
    }
}

/// The files that the entries of pack tables name beside their own, by path and each once: two tables may leave out the same
/// samples, and then share the list of these.
pub(crate) fn pack_files<'a>(
    entries: impl IntoIterator<Item = &'a PackEntry>,
) -> impl Iterator<Item = RemoteFile> {
    let files = entries.into_iter().flat_map(tables);
    let files = files.map(RemoteFile::pack_table);
    let by_path: BTreeMap<String, RemoteFile> =
        files.map(|file| (file.path.clone(), file)).collect();
    by_path.into_values()
}
