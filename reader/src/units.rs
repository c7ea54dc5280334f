//! What units are made of.
//!
//! Owns the way from a unit to its samples and to what it weighs. Invariant: nothing else knows whether a unit is a sample
//! or a pack; a row of a batch is asked for by sample, never by unit.

use std::sync::Arc;

use stoker_formats::{Counts, SplitEntry};

use crate::error::{Error, Result};
use crate::files::CacheFiles;
use crate::index_store::IndexStore;
use crate::packs::Packs;
use crate::unit::{CacheUnits, Unit};

/// A pack that is longer than its budget takes a multiple of this many tokens.
const OVERLONG_MULTIPLE: usize = 128;

/// One sample, by where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) cache: u32,
    pub(crate) partition: u32,
    pub(crate) row: u64,
}

/// What the units of a reader are.
#[derive(Debug)]
pub(crate) enum Units {
    /// Each is the sample with its number.
    Samples,
    /// Each is several samples, planned into `tokens` tokens.
    Packs {
        tokens: usize,
        /// Of each cache.
        caches: Vec<Packs>,
    },
}

impl Units {
    /// The samples of `caches`, or their packs by the table called `pack`.
    pub(crate) fn open(caches: &[Arc<CacheFiles>], pack: Option<&str>) -> Result<Self> {
        let Some(name) = pack else {
            return Ok(Self::Samples);
        };
        let caches = caches
            .iter()
            .map(|files| Packs::open(Arc::clone(files), name))
            .collect::<Result<Vec<_>>>()?;
        let first = caches.first().ok_or(Error::NoCaches)?;
        let tokens = first.max_tokens();
        if let Some(other) = caches.iter().find(|packs| packs.max_tokens() != tokens) {
            return Err(Error::OtherBudget {
                one: first.root().to_path_buf(),
                tokens,
                other: other.root().to_path_buf(),
                other_tokens: other.max_tokens(),
            });
        }
        Ok(Self::Packs {
            tokens: tokens as usize,
            caches,
        })
    }

    /// The units of a split of each cache.
    pub(crate) fn of_splits(
        &self,
        caches: &[Arc<CacheFiles>],
        splits: &[&SplitEntry],
    ) -> Vec<CacheUnits> {
        match self {
            Self::Samples => caches
                .iter()
                .zip(splits)
                .map(|(files, split)| CacheUnits::of_split(files.manifest(), split))
                .collect(),
            Self::Packs { caches, .. } => caches
                .iter()
                .zip(splits)
                .map(|(packs, split)| packs.units(split))
                .collect(),
        }
    }

    fn packs(caches: &[Packs], cache: u32) -> Result<&Packs> {
        let packs = caches.get(cache as usize);
        packs.ok_or(Error::Internal("a cache's pack table"))
    }

    /// What a unit holds; `index` is that of its cache.
    pub(crate) fn counts(&self, index: &IndexStore, unit: Unit) -> Result<Counts> {
        match self {
            Self::Samples => index.counts(unit.partition, unit.number),
            Self::Packs { caches, .. } => Self::packs(caches, unit.cache)?.counts(unit),
        }
    }

    /// The samples of a unit, in order.
    pub(crate) fn samples(&self, unit: Unit) -> Result<Vec<Sample>> {
        let sample = |row| Sample {
            cache: unit.cache,
            partition: unit.partition,
            row,
        };
        match self {
            Self::Samples => Ok(vec![sample(unit.number)]),
            Self::Packs { caches, .. } => {
                let rows = Self::packs(caches, unit.cache)?.rows(unit)?;
                Ok(rows.iter().map(|row| sample(u64::from(*row))).collect())
            }
        }
    }

    /// Fails unless the samples of a unit have together what the unit was planned with; none is more than can be counted.
    pub(crate) fn check(&self, unit: Unit, found: Option<Counts>) -> Result<()> {
        match self {
            Self::Samples => Ok(()),
            Self::Packs { caches, .. } => Self::packs(caches, unit.cache)?.check(unit, found),
        }
    }

    /// What is wrong with a unit's sample, told with the unit.
    pub(crate) fn fault(&self, unit: Unit, error: Error) -> Error {
        match self {
            Self::Samples => error,
            Self::Packs { caches, .. } => match Self::packs(caches, unit.cache) {
                Ok(packs) => packs.fault(unit, error),
                Err(error) => error,
            },
        }
    }

    /// Tokens that a unit of `filled` tokens takes in a batch; a padding row has none.
    pub(crate) fn row_length(&self, filled: usize) -> usize {
        match self {
            Self::Samples => filled.max(1),
            Self::Packs { tokens, .. } if filled <= *tokens => *tokens,
            Self::Packs { .. } => filled.next_multiple_of(OVERLONG_MULTIPLE),
        }
    }
}
