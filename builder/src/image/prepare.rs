//! Preparing: one image's bytes in, patches out.
//!
//! Owns the steps between decoding and patches and the scratch memory reused between images.
//! Invariant: the same bytes and recipe give the same patches, whatever was prepared before.

use fast_image_resize::Resizer;
use turbojpeg::ScalingFactor;

use super::decode::{self, Decoder, guarded};
use super::exif;
use super::fast;
use super::header::{Format, Header};
use super::patchify::patchify_into;
use super::profile::{Generation, Kernel, KeyRule, Profile};
use super::recipe::ImageRecipe;
use super::resize::{BLOCK, Code, Exact, resize};
use super::size::target_size;
use super::{jpeg, orient};
use crate::reject::{Reason, Reject};

/// Rows of the source, for each by which the height shrinks, that a block of rows of the result needs: as many, and
/// the kernel's reach.
const BLOCK_ROWS: usize = BLOCK + 4;

/// Bytes of the kernels' weights and windows for each row and column, before and after.
const WEIGHT_BYTES: u64 = 96;

/// One prepared image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The patch grid: frames (always 1), rows, columns.
    pub grid_thw: [i32; 3],
    /// Height and width after resizing, in pixels.
    pub size: [i32; 2],
    /// `rows * columns` patches of `3 * patch_size^2` bytes, in the model's order.
    pub patches: Vec<u8>,
}

/// What the header alone tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Height and width of the source, upright.
    pub source: [u32; 2],
    /// Height and width after resizing.
    pub target: [u32; 2],
    /// The patch grid: frames (always 1), rows, columns.
    pub grid_thw: [i32; 3],
    /// Upper estimate of the memory that preparing takes beside the image and its patches, in bytes.
    pub scratch_bytes: u64,
}

impl Probe {
    /// Bytes of the image's patches.
    #[must_use]
    pub fn patches_bytes(&self) -> u64 {
        3 * u64::from(self.target[0]) * u64::from(self.target[1])
    }
}

/// The decisions made from the header.
struct Job {
    header: Header,
    orientation: u8,
    source: (u32, u32),
    target: (u32, u32),
}

impl Job {
    fn new(bytes: &[u8], recipe: &ImageRecipe) -> Result<Self, Reject> {
        let header = decode::inspect(bytes, recipe)?;
        let orientation = exif::orientation(bytes, header.format, recipe.exif);
        let source = orient::upright(orientation, header.height, header.width);
        // transformers 4's PIL processor takes these for images with channels first.
        let misread = recipe.profile == Profile::PilPath && recipe.generation == Generation::V4;
        let target = target_size(source.0, source.1, recipe)?;
        if misread && matches!(source.0, 1 | 3) {
            return Err(Reject::new(
                Reason::UnsupportedImage,
                format!(
                    "transformers 4 misreads an image of this height with profile pil_path: `{}`",
                    source.0
                ),
            ));
        }
        Ok(Self {
            header,
            orientation,
            source,
            target,
        })
    }

    fn grid(&self, recipe: &ImageRecipe) -> [i32; 3] {
        let side = recipe.patch_size;
        // Sides are below 2^28: the recipe bounds the area.
        [
            1,
            (self.target.0 / side) as i32,
            (self.target.1 / side) as i32,
        ]
    }

    /// Bytes that preparing `bytes` takes, patches left out.
    fn scratch_bytes(&self, bytes: &[u8], recipe: &ImageRecipe) -> u64 {
        let source = self.header.pixels() as u64;
        let (pixels, decoder) = match self.header.format {
            Format::Jpeg => jpeg::decoder_bytes(bytes),
            // Pixels and raw samples.
            Format::Png => ((3 + 8) * source, 0),
            Format::Gif => ((3 + 1) * source, 0),
            // Pixels, RGBA, planes.
            Format::Webp => ((3 + 4 + 4) * source, 0),
        };
        let upright = if self.orientation == 1 { 0 } else { 3 * source };
        let resized = 3 * u64::from(self.target.0) * u64::from(self.target.1);
        let later = upright + self.between_bytes(recipe) + resized;
        pixels + decoder.max(later)
    }

    /// Bytes of the weights of resizing, and of what lies between its two passes.
    fn between_bytes(&self, recipe: &ImageRecipe) -> u64 {
        let wide = |(height, width): (u32, u32)| (height as usize, width as usize);
        let [from, to] = [self.source, self.target].map(wide);
        let (rows, width) = match recipe.kernel {
            Kernel::Pillow if recipe.pass_order.vertical_first(from, to) => (to.0, from.1),
            Kernel::Fast => (from.0, to.1),
            _ => (from.0.min(BLOCK_ROWS * from.0.div_ceil(to.0)), to.1),
        };
        let sides = from.0 + from.1 + to.0 + to.1;
        3 * (rows * width) as u64 + WEIGHT_BYTES * sides as u64
    }
}

/// What preparing `bytes` would give, from its header; no pixel is decoded. A prefix of the file
/// is enough for all but metadata that stands later.
///
/// # Errors
/// The same rejects as [`Preparer::prepare`], as far as the header shows them.
pub fn probe(bytes: &[u8], recipe: &ImageRecipe) -> Result<Probe, Reject> {
    let job = Job::new(bytes, recipe)?;
    Ok(Probe {
        source: [job.source.0, job.source.1],
        target: [job.target.0, job.target.1],
        grid_thw: job.grid(recipe),
        scratch_bytes: job.scratch_bytes(bytes, recipe),
    })
}

/// Prepares images by one recipe, one after the other. One per thread.
pub struct Preparer {
    recipe: ImageRecipe,
    /// Made at first use, and again after a panic.
    decoder: Option<Decoder>,
    resizer: Resizer,
    code: Code,
    keep_bytes: usize,
    upright: Vec<u8>,
    between: Vec<u8>,
    resized: Vec<u8>,
}

impl Preparer {
    /// A preparer for `recipe`.
    #[must_use]
    pub fn new(recipe: ImageRecipe) -> Self {
        Self {
            recipe,
            decoder: None,
            resizer: Resizer::new(),
            code: Code::best(),
            keep_bytes: usize::MAX,
            upright: Vec::new(),
            between: Vec::new(),
            resized: Vec::new(),
        }
    }

    /// The recipe.
    #[must_use]
    pub fn recipe(&self) -> &ImageRecipe {
        &self.recipe
    }

    /// The same preparer without vector code of our own: for tests of equality.
    #[must_use]
    pub fn scalar(mut self) -> Self {
        self.code = Code::Scalar;
        self
    }

    /// The same preparer, which frees between images whatever of its scratch memory is beyond `bytes`: one huge image
    /// must not cost a thread its memory for the rest of the build.
    #[must_use]
    pub fn keeping(mut self, bytes: u64) -> Self {
        self.keep_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self
    }

    /// Prepares one image.
    ///
    /// # Errors
    /// A reject without link if the bytes are no image, not supported, damaged, above a limit, or
    /// a decoder panics.
    pub fn prepare(&mut self, bytes: &[u8]) -> Result<Prepared, Reject> {
        self.prepare_into(bytes, Vec::new())
    }

    /// Prepares one image, its patches in the memory of `patches`, whatever they held.
    ///
    /// # Errors
    /// As [`Preparer::prepare`].
    pub fn prepare_into(&mut self, bytes: &[u8], patches: Vec<u8>) -> Result<Prepared, Reject> {
        let result = guarded(|| self.run(bytes, patches));
        if matches!(&result, Err(reject) if reject.reason == Reason::DecoderCrash) {
            self.decoder = None;
        }
        self.shrink();
        result
    }

    fn run(&mut self, bytes: &[u8], mut patches: Vec<u8>) -> Result<Prepared, Reject> {
        let job = Job::new(bytes, &self.recipe)?;
        let scale = if self.recipe.kernel == Kernel::Fast && job.header.format == Format::Jpeg {
            let stored_target = orient::upright(job.orientation, job.target.0, job.target.1);
            fast::scale((job.header.height, job.header.width), stored_target)
        } else {
            ScalingFactor::ONE
        };
        if self.decoder.is_none() {
            self.decoder = Some(Decoder::new()?);
        }
        let Some(decoder) = &mut self.decoder else {
            return Err(Reject::new(Reason::DecoderCrash, "no image decoder"));
        };
        let pixels = decoder.decode(bytes, &job.header, &self.recipe, scale)?;
        let (height, width) = (pixels.height as usize, pixels.width as usize);
        let key = pixels.key;
        if let (KeyRule::BeforeResize, Some(key)) = (self.recipe.color_key, key) {
            decode::whiten(&mut decoder.rgb[..height * width * 3], key);
        }
        let source = if job.orientation == 1 {
            &decoder.rgb
        } else {
            orient::undo(
                job.orientation,
                &decoder.rgb,
                height,
                width,
                &mut self.upright,
            );
            &self.upright
        };
        let from = orient::upright(job.orientation, pixels.height, pixels.width);
        let to = job.target;
        let wide = |size: (u32, u32)| (size.0 as usize, size.1 as usize);
        let exact = match self.recipe.kernel {
            Kernel::Torchvision => Some(Exact::Torchvision),
            Kernel::Pillow => Some(Exact::Pillow(self.recipe.pass_order)),
            Kernel::Fast => None,
        };
        let whiten_last = self.recipe.color_key == KeyRule::AfterResize && key.is_some();
        let mut picture = source;
        if from != to || whiten_last {
            match exact {
                Some(kernel) => resize(
                    source,
                    wide(from),
                    &mut self.resized,
                    wide(to),
                    &mut self.between,
                    kernel,
                    self.code,
                ),
                None => fast::resize(&mut self.resizer, source, from, &mut self.resized, to)?,
            }
            if let (true, Some(key)) = (whiten_last, key) {
                let bytes = to.0 as usize * to.1 as usize * 3;
                decode::whiten(&mut self.resized[..bytes], key);
            }
            picture = &self.resized;
        }
        let (height, width) = wide(to);
        patchify_into(picture, height, width, &self.recipe, &mut patches);
        Ok(Prepared {
            grid_thw: job.grid(&self.recipe),
            size: [to.0 as i32, to.1 as i32],
            patches,
        })
    }

    /// Scratch buffers; first those that every image needs.
    fn buffers(&mut self) -> impl Iterator<Item = &mut Vec<u8>> {
        let decoders = self.decoder.as_mut().map(Decoder::buffers);
        let own = [&mut self.resized, &mut self.upright, &mut self.between];
        decoders.into_iter().flatten().chain(own)
    }

    /// Frees what is beyond the memory that may be kept.
    fn shrink(&mut self) {
        let mut left = self.keep_bytes;
        if self.resizer.size_of_internal_buffers() > left {
            self.resizer.reset_internal_buffers();
        }
        left -= self.resizer.size_of_internal_buffers();
        for buffer in self.buffers() {
            if buffer.capacity() > left {
                *buffer = Vec::new();
            }
            left -= buffer.capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::Generation;
    use super::*;
    use crate::model::family::Family;

    #[test]
    fn scratch_within_the_bound_is_used_again_and_what_is_beyond_is_freed() {
        let family = Family::Qwen3Vl;
        let (profile, generation) = (Profile::TvPath, Generation::V5);
        let constants = family.constants();
        let recipe = ImageRecipe::new(profile, generation, family, &constants, None, None).unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/images/");
        let bytes = std::fs::read(format!("{folder}rgb_420_baseline.jpg")).unwrap();
        let kept = |preparer: &mut Preparer| {
            preparer.prepare(&bytes).unwrap();
            let buffers = preparer.buffers().filter(|buffer| !buffer.is_empty());
            let buffers = buffers.map(|buffer| (buffer.as_ptr(), buffer.capacity()));
            buffers.collect::<Vec<_>>()
        };
        let mut preparer = Preparer::new(recipe);
        let all = kept(&mut preparer);
        assert_eq!(kept(&mut preparer), all);
        let sum: usize = all.iter().map(|(_, bytes)| bytes).sum();
        let mut exact = preparer.keeping(sum as u64);
        assert_eq!(kept(&mut exact), all);
        let mut less = exact.keeping(sum as u64 - 1);
        assert_eq!(kept(&mut less), all[..all.len() - 1]);
        assert_eq!(kept(&mut less.keeping(0)), []);
    }
}
