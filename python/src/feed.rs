//! The two kinds of reader as one: batches on the host, or on a GPU.
//!
//! Owns the difference between them and nothing else.

use std::time::Duration;

use stoker_reader::device::Target;
use stoker_reader::{
    Batch, Cursor, DeviceReader, DeviceStep, Planner, Reader, ReaderOptions, Result, Stats, Step,
};

use crate::device::DeviceBatch;

/// A reader of one rank.
pub(crate) enum Feed {
    Host(Reader),
    Device(DeviceReader),
}

/// What a feed gives.
pub(crate) enum Given {
    Host(Batch),
    /// It stays the next one until it is written.
    Device(DeviceBatch),
    EpochEnd,
    TimedOut,
}

impl Feed {
    /// Opens a reader for the host, or for GPU number `gpu`.
    pub(crate) fn open(options: ReaderOptions, gpu: Option<u32>) -> Result<Self> {
        Ok(match gpu {
            None => Self::Host(Reader::open(options)?),
            Some(ordinal) => Self::Device(DeviceReader::open(options, ordinal)?),
        })
    }

    pub(crate) fn next(&mut self, timeout: Duration) -> Result<Given> {
        Ok(match self {
            Self::Host(reader) => match reader.next_batch(Some(timeout))? {
                Step::Batch(batch) => Given::Host(batch),
                Step::EpochEnd => Given::EpochEnd,
                Step::TimedOut => Given::TimedOut,
            },
            Self::Device(reader) => match reader.next_batch(Some(timeout))? {
                DeviceStep::Batch(batch) => Given::Device(DeviceBatch::new(batch)),
                DeviceStep::EpochEnd => Given::EpochEnd,
                DeviceStep::TimedOut => Given::TimedOut,
            },
        })
    }

    /// Writes batch `number` of a GPU; says whether it was still the next one.
    pub(crate) fn write(&mut self, number: u64, targets: Vec<Target<'_>>) -> Result<bool> {
        match self {
            Self::Device(reader)
                if reader.pending().map(stoker_reader::DeviceBatch::number) == Some(number) =>
            {
                reader.deliver(targets).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    pub(crate) fn epoch_batches(&self) -> u64 {
        match self {
            Self::Host(reader) => reader.epoch_batches(),
            Self::Device(reader) => reader.epoch_batches(),
        }
    }

    pub(crate) fn cursor(&self) -> Result<Cursor> {
        match self {
            Self::Host(reader) => reader.cursor(),
            Self::Device(reader) => reader.cursor(),
        }
    }

    pub(crate) fn restore(&mut self, cursor: &Cursor) -> Result<()> {
        match self {
            Self::Host(reader) => reader.restore(cursor),
            Self::Device(reader) => reader.restore(cursor),
        }
    }

    pub(crate) fn restore_reweighted(&mut self, cursor: &Cursor) -> Result<()> {
        match self {
            Self::Host(reader) => reader.restore_reweighted(cursor),
            Self::Device(reader) => reader.restore_reweighted(cursor),
        }
    }

    pub(crate) fn seek(&mut self, consumed_samples: u64) -> Result<()> {
        match self {
            Self::Host(reader) => reader.seek(consumed_samples),
            Self::Device(reader) => reader.seek(consumed_samples),
        }
    }

    pub(crate) fn planner(&self) -> Result<Planner> {
        match self {
            Self::Host(reader) => reader.planner(),
            Self::Device(reader) => reader.planner(),
        }
    }

    pub(crate) fn stats(&self) -> Result<Stats> {
        match self {
            Self::Host(reader) => reader.stats(),
            Self::Device(reader) => reader.stats(),
        }
    }
}
