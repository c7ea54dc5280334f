//! Pictures of a sample, written back from its patches.
//!
//! Owns naming and encoding of the PNG files. Invariant: the pixels are those that the model sees, byte for byte, before
//! normalisation.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stoker_reader::{Cache, Place};

use crate::error::{Error, Result};
use crate::image::{ImageRecipe, unpatchify};

/// Writes the images of the sample at `place`: one to `path`, several to `path` with -1, -2, ... before its extension.
/// Returns the files written, none for a sample without images.
///
/// # Errors
/// If an image is damaged, its patches are no picture by the recipe, or a file cannot be written.
pub fn write_pictures(cache: &Cache, place: Place, path: &Path) -> Result<Vec<PathBuf>> {
    let recipe = &cache.manifest().recipe["image"];
    let recipe = ImageRecipe::deserialize(recipe).map_err(|_| Error::Usage {
        what: "the cache's image recipe is not one of this program's".into(),
        hint: "write the image with the program version that built the cache".into(),
    })?;
    recipe.check()?;
    let sample = cache.sample(place.partition, place.row)?;
    let several = sample.images.len() > 1;
    let mut written = Vec::with_capacity(sample.images.len());
    for (number, row) in (1..).zip(&sample.images) {
        let image = cache.image(place.partition, u64::from(*row))?;
        let (height, width, rgb) =
            unpatchify(&image.patches, image.grid_thw, &recipe).ok_or_else(|| Error::Usage {
                what: format!("image row {row} is no picture by the cache's recipe"),
                hint: "run `stoker verify --deep`".into(),
            })?;
        let file = if several {
            numbered(path, number)
        } else {
            path.to_path_buf()
        };
        write_png(&file, width, height, &rgb)?;
        written.push(file);
    }
    Ok(written)
}

/// `folder/name.png` as `folder/name-3.png`.
fn numbered(path: &Path, number: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn write_png(path: &Path, width: usize, height: usize, rgb: &[u8]) -> Result<()> {
    let failed = |error: png::EncodingError| {
        let source = match error {
            png::EncodingError::IoError(source) => source,
            other => std::io::Error::other(other),
        };
        Error::io("write", path)(source)
    };
    let side = |length: usize| {
        u32::try_from(length)
            .map_err(|error| Error::io("write", path)(std::io::Error::other(error)))
    };
    let file = File::create(path).map_err(Error::io("create", path))?;
    let mut out = BufWriter::new(file);
    let mut encoder = png::Encoder::new(&mut out, side(width)?, side(height)?);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(rgb).map_err(failed)?;
    writer.finish().map_err(failed)?;
    out.flush().map_err(Error::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_images_are_numbered_before_the_extension() {
        assert_eq!(
            numbered(Path::new("out/a.b.png"), 2),
            Path::new("out/a.b-2.png")
        );
        assert_eq!(numbered(Path::new("plain"), 1), Path::new("plain-1"));
    }

    #[test]
    fn a_png_holds_the_pixels_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let rgb: Vec<u8> = (0..3 * 4 * 2).map(|byte| byte * 9).collect();
        write_png(&path, 4, 2, &rgb).unwrap();
        let input = std::io::BufReader::new(File::open(&path).unwrap());
        let mut reader = png::Decoder::new(input).read_info().unwrap();
        let mut read = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut read).unwrap();
        assert_eq!(
            (info.width, info.height, info.color_type),
            (4, 2, png::ColorType::Rgb)
        );
        assert_eq!(read, rgb);
    }
}
