//! A reader whose batches are on a GPU before they are asked for.
//!
//! Owns what is on its way to the GPU. Invariant: the cursor counts what was delivered, that is written into the consumer's
//! tensors, whatever was uploaded ahead; until then a batch stays the next one. An error comes after all batches before it.
//!
//! Threads of the reader put batches together in page-locked memory, with patches as they are stored. When one is
//! delivered, the copy of the next one is started if it is ready, so that it runs beside the consumer's work. Waiting for
//! the GPU is left to the consumer's stream, but where memory must grow or go: a slot that is too small, a buffer beyond the
//! pool's limit.

use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::{Batch, Dtype, PIXELS};
use crate::cursor::{Cursor, Resume};
use crate::device::{CudaDevice, DeviceOptions, Patches, Target};
use crate::device_batch::DeviceBatch;
use crate::error::{Error, Result};
use crate::expand::Pixels;
use crate::fetch_plan::Planner;
use crate::index_store::KEPT_BYTES;
use crate::reader::{Reader, Step};
use crate::reader_options::ReaderOptions;
use crate::stats::Stats;

/// Uploads in hand: the one that is delivered next, and the one after it.
const AHEAD: usize = 2;

/// Device slots at first: those ahead, and the one that the consumer reads from.
const SLOTS: usize = AHEAD + 1;

/// Size of a slot at first; they grow to that of the batches.
const SLOT_BYTES: usize = 2 << 20;

/// What [`DeviceReader::next_batch`] gives.
#[derive(Debug)]
pub enum DeviceStep<'a> {
    /// A micro-batch, to be written by [`DeviceReader::deliver`].
    Batch(&'a DeviceBatch),
    /// The epoch is over; the next call begins the next one.
    EpochEnd,
    /// Nothing was ready in time; the next call goes on waiting.
    TimedOut,
}

/// Delivers the micro-batches of one rank on its GPU.
#[derive(Debug)]
pub struct DeviceReader {
    /// Uploads that were started, or why one was not, with the place after each; none where an epoch ends.
    ahead: VecDeque<(Result<Option<DeviceBatch>>, Resume)>,
    /// Batches that were uploaded.
    sent: u64,
    reader: Reader,
    device: CudaDevice,
    pixels: Pixels,
    at: Resume,
    first_fault: Option<String>,
}

impl DeviceReader {
    /// Opens the caches as [`Reader::open`] does, and GPU number `ordinal`. `options.pixels` is the type in which
    /// `pixel_values` are written; to the GPU go the patches as they are stored.
    ///
    /// # Errors
    /// As [`Reader::open`], and [`Error::Device`].
    pub fn open(mut options: ReaderOptions, ordinal: u32) -> Result<Self> {
        let pixels = std::mem::replace(&mut options.pixels, Pixels::U8);
        let mut opened = None;
        let reader = Reader::open_in(options, KEPT_BYTES, |model| {
            let options = DeviceOptions {
                // Batches are put together in the pool's memory.
                staging: 0,
                slots: SLOTS,
                bytes: SLOT_BYTES,
                table: Some(model.float_table.clone()),
            };
            let device = opened.insert(CudaDevice::open(ordinal, &options)?);
            Ok(device.source())
        })?;
        let device = opened.ok_or(Error::Internal("the device of a reader"))?;
        Ok(Self {
            ahead: VecDeque::with_capacity(AHEAD),
            sent: 0,
            reader,
            device,
            pixels,
            at: Resume::default(),
            first_fault: None,
        })
    }

    /// The next micro-batch, the same one until it is delivered. Waits at most `timeout`, or without end, for it to be read;
    /// never for its upload, which the consumer's stream waits for.
    ///
    /// # Errors
    /// As [`Reader::next_batch`], and [`Error::Device`]. After an error only [`restore`](Self::restore) and
    /// [`seek`](Self::seek) go on.
    pub fn next_batch(&mut self, timeout: Option<Duration>) -> Result<DeviceStep<'_>> {
        self.reader.check_process()?;
        if let Some(first) = &self.first_fault {
            return Err(Error::Stopped {
                first: first.clone(),
            });
        }
        if self.ahead.is_empty() {
            match self.reader.next_batch(timeout) {
                Ok(Step::TimedOut) => return Ok(DeviceStep::TimedOut),
                step => self.start(step),
            }
        }
        while self.ahead.len() < AHEAD
            && self.ahead.back().is_some_and(|(step, _)| step.is_ok())
            && self.reader.has_next()
        {
            let step = self.reader.next_batch(Some(Duration::ZERO));
            self.start(step);
        }
        match self.ahead.pop_front() {
            Some((Ok(None), after)) => {
                self.at = after;
                Ok(DeviceStep::EpochEnd)
            }
            Some((Err(fault), _)) => Err(self.stopped(fault)),
            Some(batch) => {
                self.ahead.push_front(batch);
                self.pending()
                    .map(DeviceStep::Batch)
                    .ok_or(Error::Internal("a batch that waits"))
            }
            None => Err(Error::Internal("an upload")),
        }
    }

    /// The next micro-batch, if its upload has begun.
    #[must_use]
    pub fn pending(&self) -> Option<&DeviceBatch> {
        match self.ahead.front() {
            Some((Ok(Some(batch)), _)) if self.first_fault.is_none() => Some(batch),
            _ => None,
        }
    }

    /// Writes each tensor of the next micro-batch, the one that [`next_batch`](Self::next_batch) gave, into its target, in the
    /// order of the targets' streams, and comes back at once. From then on it counts as delivered.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such batch, which changes nothing; or if the targets are not one for each tensor, of its
    /// size, or the device fails. Nothing was delivered then, and the reader has stopped as after an error of
    /// [`next_batch`](Self::next_batch), so that this rank does not go a batch further than others.
    pub fn deliver(&mut self, targets: Vec<Target<'_>>) -> Result<()> {
        self.reader.check_process()?;
        if self.pending().is_none() {
            return Err(self.device.refused("there is no batch to write"));
        }
        let Some((Ok(Some(batch)), after)) = self.ahead.pop_front() else {
            return Err(Error::Internal("a batch that waits"));
        };
        batch.write(targets).map_err(|fault| self.stopped(fault))?;
        self.at = after;
        Ok(())
    }

    /// Notes that an error was told.
    fn stopped(&mut self, fault: Error) -> Error {
        self.first_fault = Some(fault.to_string());
        fault
    }

    /// Starts the upload of what the reader gave.
    fn start(&mut self, step: Result<Step>) {
        let started = step.and_then(|step| match step {
            Step::Batch(batch) => self.send(batch).map(Some),
            Step::EpochEnd => Ok(None),
            Step::TimedOut => Err(Error::Internal("a batch that is ready")),
        });
        self.ahead.push_back((started, self.reader.at()));
    }

    fn send(&mut self, mut batch: Batch) -> Result<DeviceBatch> {
        let model = self.reader.model();
        let mut patches = Patches {
            offset: 0,
            count: 0,
            area: model.patch_area(),
            temporal: model.temporal_patch_size,
            pixels: self.pixels,
        };
        let mut tensors = batch.tensors.clone();
        for tensor in tensors.iter_mut().filter(|tensor| tensor.name == PIXELS) {
            let [count, width] = &mut tensor.shape[..] else {
                return Err(Error::Internal("a batch's schema"));
            };
            *width *= self.pixels.frames(model.temporal_patch_size);
            (patches.count, patches.offset) = (*count, tensor.offset);
            tensor.dtype = Dtype::from(self.pixels);
        }
        let borders = batch.tensor("cu_seqlens").map(|tensor| {
            let (words, _) = batch.bytes(tensor).as_chunks::<4>();
            words.iter().map(|word| i32::from_ne_bytes(*word)).collect()
        });
        self.sent += 1;
        Ok(DeviceBatch {
            number: self.sent,
            borders,
            upload: self.device.send(&mut batch.buffer)?,
            batch,
            tensors,
            patches,
        })
    }

    /// Where the reader stands: after the last micro-batch that was delivered.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork.
    pub fn cursor(&self) -> Result<Cursor> {
        self.reader.cursor_at(self.at)
    }

    /// As [`Reader::restore`].
    ///
    /// # Errors
    /// As [`Reader::restore`]; then nothing has changed.
    pub fn restore(&mut self, cursor: &Cursor) -> Result<()> {
        self.reader.restore(cursor)?;
        self.moved();
        Ok(())
    }

    /// As [`Reader::restore_reweighted`].
    ///
    /// # Errors
    /// As [`Reader::restore_reweighted`]; then nothing has changed.
    pub fn restore_reweighted(&mut self, cursor: &Cursor) -> Result<()> {
        self.reader.restore_reweighted(cursor)?;
        self.moved();
        Ok(())
    }

    /// As [`Reader::seek`].
    ///
    /// # Errors
    /// As [`Reader::seek`]; then nothing has changed.
    pub fn seek(&mut self, consumed_samples: u64) -> Result<()> {
        self.reader.seek(consumed_samples)?;
        self.moved();
        Ok(())
    }

    /// The reader has gone elsewhere.
    fn moved(&mut self) {
        self.ahead.clear();
        self.at = self.reader.at();
        self.first_fault = None;
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// Micro-batches of this rank in an epoch.
    #[must_use]
    pub fn epoch_batches(&self) -> u64 {
        self.reader.epoch_batches()
    }

    /// As [`Reader::planner`].
    ///
    /// # Errors
    /// As [`Reader::planner`].
    pub fn planner(&self) -> Result<Planner> {
        self.reader.planner_at(self.at)
    }

    /// What was measured since the reader was opened. A batch counts once its upload has begun.
    ///
    /// # Errors
    /// [`Error::Forked`] in a fork.
    pub fn stats(&self) -> Result<Stats> {
        self.reader.stats()
    }
}
