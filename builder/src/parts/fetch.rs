//! Parts that lie in S3, brought here without their shards.
//!
//! Owns the folder where they wait for the commit. Invariant: names come from the records' types, never from the other side; a file
//! that is not what its record names is an error, and never handed on.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use stoker_formats::limits::MAX_MANIFEST_BYTES;
use stoker_formats::{FileEntry, FileName, PARTS_FOLDER, PartFile, PartRecord};
use stoker_reader::CacheFile;
use tokio::runtime::Runtime;

use super::{CommitRequest, small_files, tokenizer};
use crate::build::Stop;
use crate::build::receipts::Layout;
use crate::error::{Error, Result};
use crate::records;
use crate::remote::{RemoteOptions, Store, crew, runtime};

/// Where the parts wait, in the output folder.
const FOLDER: &str = ".parts.tmp";

/// The folders of all parts, here; what was brought goes when this does.
pub(super) struct Here {
    pub(super) folders: Vec<PathBuf>,
    brought: PathBuf,
}

impl Drop for Here {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.brought);
    }
}

/// Whether a part is in S3.
pub(super) fn is_remote(part: &Path) -> bool {
    part.to_string_lossy().starts_with("s3://")
}

/// Brings the parts that are in S3 into the output folder, which is locked.
pub(super) fn fetch(request: &CommitRequest, stop: &Stop) -> Result<Here> {
    let mut here = Here {
        folders: Vec::new(),
        brought: request.output.join(FOLDER),
    };
    remove(&request.output)?;
    let runtime = runtime()?;
    let options = RemoteOptions {
        endpoint: request.s3_endpoint.clone(),
        stop: stop.clone(),
        ..RemoteOptions::default()
    };
    for (number, part) in request.parts.iter().enumerate() {
        if is_remote(part) {
            let folder = here.brought.join(number.to_string());
            bring(&part.to_string_lossy(), &folder, &options, &runtime)?;
            here.folders.push(folder);
        } else {
            here.folders.push(part.clone());
        }
    }
    Ok(here)
}

/// Removes what a killed commit has left in the output folder, which is locked.
pub(super) fn remove(output: &Path) -> Result<()> {
    let folder = output.join(FOLDER);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io("remove", &folder)(error))
        }
        _ => Ok(()),
    }
}

/// A file of a part.
struct Small {
    name: String,
    entry: FileEntry,
}

fn bring(uri: &str, to: &Path, options: &RemoteOptions, runtime: &Runtime) -> Result<()> {
    let store = Store::open(uri, options, runtime.handle().clone())?;
    for name in store.names(PARTS_FOLDER)? {
        let Ok(PartFile::Record(part)) = PartFile::parse(&name) else {
            continue;
        };
        let name = format!("{PARTS_FOLDER}/{}", PartFile::Record(part));
        let Some(bytes) = store.read(&name, MAX_MANIFEST_BYTES as u64)? else {
            continue;
        };
        let record = PartRecord::parse(&bytes).map_err(|error| error.in_file(store.uri(&name)))?;
        crew::each(crew::threads(None), &files(&record), |small| {
            options.stop.check()?;
            let bytes = read(&store, small)?;
            write(&to.join(&small.name), &bytes)
        })?;
        // Last: without its record there is no part.
        write(&to.join(&name), &bytes)?;
    }
    Ok(())
}

/// All files of a part but its record and its shards.
fn files(record: &PartRecord) -> Vec<Small> {
    let layout = Layout::new(records::ids(record));
    let small = |file: CacheFile| Small {
        name: file.relative(),
        entry: file.entry,
    };
    let mut all = vec![small(tokenizer(layout, record))];
    for (name, entry) in record.tables.files() {
        if let FileName::Table { kind, .. } = name {
            let name = format!("{PARTS_FOLDER}/{}", PartFile::Table(record.name, kind));
            all.push(Small { name, entry });
        }
    }
    for entry in &record.partitions {
        all.extend(small_files(layout, entry).map(small));
    }
    all
}

fn read(store: &Store, small: &Small) -> Result<Vec<u8>> {
    let fault = |what: String| Error::Remote {
        what,
        uri: store.uri(&small.name),
        hint: "copy the part there again, all but its shards".into(),
    };
    let bytes = store
        .read(&small.name, small.entry.bytes)?
        .ok_or_else(|| fault("a file of the part is not there".into()))?;
    let checked = small.entry.hash.check("a file of the part", &bytes);
    checked.map_err(|error| fault(error.to_string()))?;
    Ok(bytes)
}

/// Not durable: what the commit takes from here becomes so.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io("create folder", folder))?;
    }
    fs::write(path, bytes).map_err(Error::io("write", path))
}
