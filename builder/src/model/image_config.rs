//! The image processor's configuration: `preprocessor_config.json`, or `processor_config.json`.
//!
//! Owns turning that JSON into [`ImageConstants`]; what the file leaves out is the family's own value.
//! Invariant: constants returned here can be computed with (no zero, no infinity, min <= max).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::family::{Family, ImageConstants};
use super::files;
use crate::error::Error;

/// Image processors whose arithmetic we reproduce, whichever family uses them.
const PROCESSORS: [&str; 3] = [
    "Qwen2VLImageProcessor",
    "Qwen2VLImageProcessorFast",
    "Qwen2VLImageProcessorPil",
];
/// Largest area a configuration may allow, in pixels: a patch count must fit an i32 with room.
const PIXELS_MAX: u64 = 1 << 30;

/// Reads the configuration object and the path it came from.
pub(super) fn read(dir: &Path) -> Result<(PathBuf, Map<String, Value>), Error> {
    let path = dir.join("preprocessor_config.json");
    if let Some(object) = files::json_object_if_there(&path)? {
        return Ok((path, object));
    }
    let newer = dir.join("processor_config.json");
    let Some(mut object) = files::json_object_if_there(&newer)? else {
        return Err(files::fault(
            &path,
            "no such file",
            "copy preprocessor_config.json (or the newer processor_config.json) from the model",
        ));
    };
    let class = object.get("processor_class").cloned();
    match object.remove("image_processor") {
        Some(Value::Object(mut inner)) => {
            if let Some(class) = class {
                inner.entry("processor_class").or_insert(class);
            }
            Ok((newer, inner))
        }
        _ => Err(files::fault(
            &newer,
            "no object `image_processor`",
            "copy preprocessor_config.json from the model",
        )),
    }
}

/// The constants in `object`, or the family's where it is silent.
pub(super) fn constants(
    family: Family,
    path: &Path,
    object: &Map<String, Value>,
) -> Result<ImageConstants, Error> {
    if let Some(name) = object.get("image_processor_type").and_then(Value::as_str)
        && !PROCESSORS.contains(&name)
    {
        return Err(files::fault(
            path,
            format!(
                "image_processor_type `{}` is not supported",
                files::short(name)
            ),
            format!("supported are {}", PROCESSORS.join(", ")),
        ));
    }
    let reader = Reader { path, object };
    let own = family.constants();
    let constants = ImageConstants {
        patch_size: reader.small("patch_size", own.patch_size, 1, 64)?,
        merge_size: reader.small("merge_size", own.merge_size, 1, 8)?,
        temporal_patch_size: reader.small("temporal_patch_size", own.temporal_patch_size, 1, 8)?,
        image_mean: reader.channels("image_mean", own.image_mean, 0.0)?,
        image_std: reader.channels("image_std", own.image_std, 1e-6)?,
        min_pixels: reader.pixels("min_pixels", "shortest_edge", own.min_pixels)?,
        max_pixels: reader.pixels("max_pixels", "longest_edge", own.max_pixels)?,
    };
    if constants.min_pixels > constants.max_pixels {
        return Err(files::fault(
            path,
            format!(
                "least area {} is above the largest `{}`",
                constants.min_pixels, constants.max_pixels
            ),
            "copy the file from the model again",
        ));
    }
    Ok(constants)
}

struct Reader<'a> {
    path: &'a Path,
    object: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn wrong(&self, key: &str, want: &str) -> Error {
        files::fault(
            self.path,
            format!("`{key}` must be {want}"),
            "copy the file from the model again",
        )
    }

    fn small(&self, key: &str, own: u32, least: u32, most: u32) -> Result<u32, Error> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(own),
            Some(value) => value
                .as_u64()
                .and_then(|number| u32::try_from(number).ok())
                .filter(|number| (least..=most).contains(number))
                .ok_or_else(|| self.wrong(key, &format!("a number from {least} to {most}"))),
        }
    }

    fn channels(&self, key: &str, own: [f64; 3], least: f64) -> Result<[f64; 3], Error> {
        let list = match self.object.get(key) {
            None | Some(Value::Null) => return Ok(own),
            Some(value) => value.as_array(),
        };
        let numbers: Option<Vec<f64>> =
            list.and_then(|list| list.iter().map(Value::as_f64).collect());
        numbers
            .and_then(|numbers| <[f64; 3]>::try_from(numbers).ok())
            .filter(|numbers| numbers.iter().all(|number| (least..=1.0).contains(number)))
            .ok_or_else(|| self.wrong(key, "three numbers from 0 to 1"))
    }

    /// An area: the plain key wins over the one inside `size`, as in the image processor itself.
    fn pixels(&self, key: &str, size_key: &str, own: u64) -> Result<u64, Error> {
        let plain = self.object.get(key).filter(|value| !value.is_null());
        let size = self.object.get("size").filter(|value| !value.is_null());
        let value = match (plain, size) {
            (Some(value), _) => value,
            (None, None) => return Ok(own),
            (None, Some(size)) => match size.get(size_key) {
                Some(value) => value,
                None => {
                    return Err(self.wrong("size", "an object with shortest_edge and longest_edge"));
                }
            },
        };
        value
            .as_u64()
            .filter(|pixels| (1..=PIXELS_MAX).contains(pixels))
            .ok_or_else(|| self.wrong(key, &format!("an area from 1 to {PIXELS_MAX} pixels")))
    }
}
