//! Micro-batches: tensors in one buffer.
//!
//! Owns the schema: names, types, shapes, and where each tensor lies. Invariant: the schema depends on the options only;
//! a batch without images has empty tensors, never missing ones.

use std::fmt;
use std::str::FromStr;

use crate::buffer::Buffer;
use crate::expand::Pixels;
use crate::unit::Unit;

/// Every tensor begins at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// The name of the tensor of patches.
pub(crate) const PIXELS: &str = "pixel_values";

/// How samples become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One row a sample, filled up on the right to the longest, rounded up to a multiple.
    Padded {
        /// Row lengths are multiples of this; 1 for just the longest.
        multiple_of: usize,
    },
    /// All samples one after another in one row; of packs each is filled up to the table's budget.
    Packed,
}

impl Default for Layout {
    fn default() -> Self {
        Self::Padded { multiple_of: 1 }
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "padded" => Ok(Self::default()),
            "packed" => Ok(Self::Packed),
            other => Err(format!("layout is padded or packed, not `{other}`")),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Padded { .. } => "padded",
            Self::Packed => "packed",
        })
    }
}

/// The type of a tensor's values, little-endian in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Unsigned bytes.
    U8,
    /// 32-bit integers.
    I32,
    /// 64-bit integers.
    I64,
    /// float32.
    F32,
    /// bfloat16.
    BF16,
}

impl Dtype {
    /// Bytes of one value.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 => 8,
        }
    }

    /// PyTorch's name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F32 => "float32",
            Self::BF16 => "bfloat16",
        }
    }
}

impl From<Pixels> for Dtype {
    fn from(pixels: Pixels) -> Self {
        match pixels {
            Pixels::U8 => Self::U8,
            Pixels::F32 => Self::F32,
            Pixels::BF16 => Self::BF16,
        }
    }
}

/// One tensor of a batch: row-major, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, as Hugging Face models call it.
    pub name: &'static str,
    /// The type of its values.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where it begins in the batch's buffer.
    pub(crate) offset: usize,
}

impl Tensor {
    /// Bytes of all values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

/// The sizes that decide a batch's shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Tokens that each row takes.
    pub(crate) lengths: Vec<usize>,
    /// Samples, and what is padding in a packed row.
    pub(crate) segments: usize,
    pub(crate) images: usize,
    pub(crate) patches: usize,
    pub(crate) patch_bytes: usize,
    pub(crate) temporal: usize,
}

/// The tensors of a batch, and the bytes that they take together.
pub(crate) fn schema(sizes: &Sizes, layout: Layout, pixels: Pixels) -> (Vec<Tensor>, usize) {
    let rows = sizes.lengths.len();
    let longest = sizes.lengths.iter().copied().max().unwrap_or(0);
    let width = sizes.patch_bytes * pixels.frames(sizes.temporal);
    let mut tensors = Vec::with_capacity(7);
    let mut end = 0usize;
    let mut add = |name, dtype: Dtype, shape: Vec<usize>| {
        let tensor = Tensor {
            name,
            dtype,
            shape,
            offset: end.next_multiple_of(ALIGNMENT),
        };
        end = tensor.offset + tensor.bytes();
        tensors.push(tensor);
    };
    add(PIXELS, pixels.into(), vec![sizes.patches, width]);
    add("image_grid_thw", Dtype::I64, vec![sizes.images, 3]);
    match layout {
        Layout::Padded { multiple_of } => {
            let length = longest.next_multiple_of(multiple_of.max(1));
            add("input_ids", Dtype::I64, vec![rows, length]);
            add("labels", Dtype::I64, vec![rows, length]);
            add("position_ids", Dtype::I64, vec![3, rows, length]);
            add("attention_mask", Dtype::I64, vec![rows, length]);
        }
        Layout::Packed => {
            let length = sizes.lengths.iter().sum();
            add("input_ids", Dtype::I64, vec![1, length]);
            add("labels", Dtype::I64, vec![1, length]);
            add("position_ids", Dtype::I64, vec![4, 1, length]);
            add("cu_seqlens", Dtype::I32, vec![sizes.segments + 1]);
        }
    }
    (tensors, end)
}

/// A micro-batch of one rank.
#[derive(Debug)]
pub struct Batch {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) buffer: Buffer,
    /// The epoch.
    pub epoch: u64,
    /// The position in the epoch that its global batch begins with.
    pub position: u64,
    /// Which micro-batch of the global batch it is, from 0.
    pub micro_batch: u32,
    /// Micro-batches of the global batch that this rank takes.
    pub micro_batches: u32,
    /// Tokens of the whole global batch that take part in the loss, the same number on every rank.
    pub n_loss_tokens: u64,
    /// Tokens of its samples, padding not counted.
    pub tokens: usize,
    /// Tokens of the longest sample, or of the longest padding between two borders of `cu_seqlens`.
    pub max_seqlen: usize,
    /// The units of the rows in order; none for a padding row and for a dummy image.
    pub units: Vec<Option<Unit>>,
    /// `file:line` of each sample's record in order, if they were asked for; empty text for padding and dummy images. Packed batches have one for
    /// each segment of `cu_seqlens`, padded ones for each row.
    pub sample_ids: Option<Vec<String>>,
}

impl Batch {
    /// All tensors, in a fixed order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor called `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The values of one of this batch's tensors. They stay where they are until the batch is dropped.
    ///
    /// # Panics
    /// If `tensor` is of another batch and larger than this one.
    #[must_use]
    pub fn bytes(&self, tensor: &Tensor) -> &[u8] {
        &self.buffer[tensor.offset..][..tensor.bytes()]
    }
}
