//! What the name of a file says of it.

use stoker_formats::{FileName, Folder, Manifest};
use stoker_reader::CacheFile;

/// The folders of the manifest's plans: images, samples.
pub(crate) fn folders(manifest: &Manifest) -> [Folder; 2] {
    [
        Folder::Images(manifest.image_plan_id),
        Folder::Text(manifest.text_plan_id),
    ]
}

/// The partition of a shard; none for other files.
pub(crate) fn shard_partition(file: &CacheFile) -> Option<u32> {
    match file.name {
        FileName::Shard { partition, .. } => Some(partition),
        _ => None,
    }
}
