//! A consumer without PyTorch: output memory and a stream of its own on a GPU.
//!
//! What tests, `scripts/gpu_check` and link measurements need. Invariant: the memory is freed after everything in the
//! stream has ended.

use std::ops::Range;
use std::sync::Arc;

use super::cuda::{DeviceMemory, Stream};
use super::upload::Shared;
use super::{CudaDevice, DeviceFault, Target};
use crate::error::Result;

/// Output memory and the stream whose order it follows.
#[derive(Debug)]
pub struct Consumer {
    /// None only while it is dropped.
    memory: Option<DeviceMemory>,
    stream: Stream,
    shared: Arc<Shared>,
}

impl Consumer {
    /// `bytes` of memory; what they hold at first is anything.
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        let shared = Arc::clone(device.shared());
        Ok(Self {
            memory: Some(DeviceMemory::new(&shared.context, bytes)?),
            stream: Stream::new(&shared.context)?,
            shared,
        })
    }

    fn parts(&mut self) -> Result<(&mut DeviceMemory, &Stream)> {
        let what = "the memory is gone";
        match &mut self.memory {
            Some(memory) => Ok((memory, &self.stream)),
            None => Err(self.shared.context.error(DeviceFault::Refused { what })),
        }
    }

    /// A part of the memory, in the order of the stream.
    pub fn target(&mut self, range: Range<usize>) -> Result<Target<'_>> {
        let what = "the range lies outside of the consumer's memory";
        let outside = self.shared.context.error(DeviceFault::Refused { what });
        let (memory, stream) = self.parts()?;
        memory.target(range, stream).ok_or(outside)
    }

    /// Parts of the memory that ascend and do not overlap, in the order of the stream.
    pub fn targets(&mut self, ranges: &[Range<usize>]) -> Result<Vec<Target<'_>>> {
        let what = "the ranges lie outside of the consumer's memory, or overlap";
        let outside = self.shared.context.error(DeviceFault::Refused { what });
        let (memory, stream) = self.parts()?;
        memory.targets(ranges, stream).ok_or(outside)
    }

    /// Writes the start of the memory in the order of the stream, and waits.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let (memory, stream) = self.parts()?;
        stream.write(memory, bytes)
    }

    /// Waits for all that the stream was given, and reads the start of the memory.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        let (memory, stream) = self.parts()?;
        stream.read(memory, bytes)
    }

    /// Keeps the device busy in the order of the stream: `rounds` of arithmetic in each thread of `blocks` blocks. The
    /// first four bytes of the memory may change.
    pub fn busy(&mut self, blocks: u32, rounds: u32) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let (memory, stream) = self.parts()?;
        shared.kernels.busy(stream, memory, blocks, rounds)
    }

    /// Waits for all that the stream was given.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.stream.synchronize().is_err() {
            // Something may still write to it.
            std::mem::forget(self.memory.take());
        }
    }
}
