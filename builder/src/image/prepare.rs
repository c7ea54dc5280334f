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
use super::orient;
use super::patchify::patchify_into;
use super::profile::{Generation, Kernel, KeyRule, Profile};
use super::recipe::ImageRecipe;
use super::resize::{Code, Exact, resize};
use super::size::target_size;
use crate::reject::{Reason, Reject};

/// Scratch buffers above this size are freed after use: one huge image must not cost a thread its
/// memory for the rest of the build.
const KEEP_BYTES: usize = 64 << 20;

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
    /// Upper estimate of the memory that preparing takes, patches included, in bytes.
    pub working_bytes: u64,
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

    fn working_bytes(&self) -> u64 {
        let source = self.header.pixels() as u64;
        let target = u64::from(self.target.0) * u64::from(self.target.1);
        let decoder = match self.header.format {
            // Pixels, CMYK, and the coefficients of a progressive file.
            Format::Jpeg => 3 + 4 + 8,
            // Pixels and raw samples.
            Format::Png => 3 + 8,
            Format::Gif => 3 + 1,
            // Pixels, RGBA, planes.
            Format::Webp => 3 + 4 + 4,
        };
        let upright = if self.orientation == 1 { 0 } else { 3 * source };
        // Between the passes: at most one side at its longer length.
        let between = u64::from(self.source.0.max(self.target.0))
            * u64::from(self.source.1.max(self.target.1));
        decoder * source + upright + 3 * between + 6 * target
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
        working_bytes: job.working_bytes(),
    })
}

/// Prepares images by one recipe, one after the other. One per thread.
pub struct Preparer {
    recipe: ImageRecipe,
    /// Made at first use, and again after a panic.
    decoder: Option<Decoder>,
    resizer: Resizer,
    code: Code,
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

    /// Frees what only a huge image needed.
    fn shrink(&mut self) {
        let own = [&mut self.upright, &mut self.between, &mut self.resized];
        let decoders = self.decoder.as_mut().map(Decoder::buffers);
        for buffer in own.into_iter().chain(decoders.into_iter().flatten()) {
            if buffer.len() > KEEP_BYTES {
                *buffer = Vec::new();
            }
        }
        if self.resizer.size_of_internal_buffers() > KEEP_BYTES {
            self.resizer.reset_internal_buffers();
        }
    }
}
