//! Counts rejected records against the allowed number, each record once.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::plan::Plan;

/// Reasons named in the message of a stopped build.
const TOP_REASONS: usize = 3;

/// Which records are known to be rejected, and why. The stages share it.
#[derive(Debug)]
pub(crate) struct Rejected {
    records: u64,
    allowed: u64,
    hint: String,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    /// One bit a record.
    marks: Vec<u64>,
    count: u64,
    /// How many, and the first of them in the plan.
    reasons: BTreeMap<String, (u64, u32)>,
}

impl Rejected {
    /// At most `allowed` of the `records` of this run, which are among the `planned` ones; `hint` says what to do about more.
    pub(crate) fn new(planned: u64, records: u64, allowed: u64, hint: String) -> Self {
        let words = usize::try_from(planned.div_ceil(64)).unwrap_or(0);
        let known = Known {
            marks: vec![0; words],
            count: 0,
            reasons: BTreeMap::new(),
        };
        Self {
            records,
            allowed,
            hint,
            known: Mutex::new(known),
        }
    }

    /// Counts `record`, unless it is counted already.
    pub(crate) fn add(&self, record: u32, reason: &str) {
        let mut known = self.known();
        let (word, bit) = ((record / 64) as usize, 1 << (record % 64));
        if known.marks[word] & bit == 0 {
            known.marks[word] |= bit;
            known.count += 1;
            let (count, first) = known
                .reasons
                .entry(reason.to_owned())
                .or_insert((0, record));
            *count += 1;
            *first = record.min(*first);
        }
    }

    /// Rejected records so far.
    pub(crate) fn count(&self) -> u64 {
        self.known().count
    }

    /// # Errors
    /// [`Error::TooManyRejects`] once more are rejected than allowed, naming records of `plan`.
    pub(crate) fn check(&self, plan: &Plan) -> Result<()> {
        self.check_naming(|record| plan.sample_id(record))
    }

    fn check_naming(&self, name: impl Fn(u32) -> String) -> Result<()> {
        let known = self.known();
        if known.count <= self.allowed {
            return Ok(());
        }
        let mut top: Vec<_> = known.reasons.iter().collect();
        top.sort_by_key(|(reason, (count, _))| (std::cmp::Reverse(*count), reason.as_str()));
        let mut text = String::new();
        for (reason, (count, first)) in top.into_iter().take(TOP_REASONS) {
            let comma = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{comma}{reason} {count} (first: `{}`)", name(*first));
        }
        Err(Error::TooManyRejects {
            rejects: known.count,
            records: self.records,
            allowed: self.allowed,
            top: text,
            hint: self.hint.clone(),
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_once_and_the_limit_is_inclusive() {
        let rejected = Rejected::new(200, 100, 2, String::new());
        for record in [199, 0, 199, 0] {
            rejected.add(record, "missing_image");
        }
        assert_eq!(rejected.count(), 2);
        let check = || rejected.check_naming(|record| format!("a.jsonl:{}", record + 1));
        check().unwrap();
        rejected.add(64, "bad_json");
        let error = check().unwrap_err();
        assert_eq!(error.exit_code(), 1);
        assert!(
            error.to_string().contains(
                "3 of 100 records rejected, more than the allowed 2: missing_image 2 (first: `a.jsonl:1`), bad_json 1 (first: `a.jsonl:65`)"
            ),
            "{error}"
        );
    }
}
