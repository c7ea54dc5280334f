//! Global batches that are dealt before their turn, where files are brought from elsewhere.
//!
//! Owns how far ahead. Invariant: it deals the same batches in the same order as without it, and what is wrong with one is told
//! in its turn.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cursor::Resume;
use crate::error::{Error, Result};
use crate::remote_cache::Run;
use crate::work::{Dealt, Plan};

/// Global batches that are known beyond the one in hand, at most.
const BATCHES: usize = 32;

/// Their units at most, so that large ones do not cost memory without end.
const UNITS: usize = 1 << 17;

/// How many more are dealt with each: so the first batch does not wait for all of them.
const GROWTH: usize = 2;

/// What is known of the batches to come.
pub(crate) struct LookAhead {
    run: Arc<Run>,
    dealt: VecDeque<Dealt>,
    /// Where the batch after those begins.
    next: Resume,
    /// Micro-batches of this rank so far.
    batches: u64,
}

impl LookAhead {
    /// Begins at `at`; files are asked of `run`, in which micro-batches are numbered from 0.
    pub(crate) fn new(run: Arc<Run>, at: Resume) -> Self {
        Self {
            run,
            dealt: VecDeque::new(),
            next: at,
            batches: 0,
        }
    }

    /// The next global batch.
    pub(crate) fn take(&mut self, plan: &Plan) -> Result<Dealt> {
        if self.dealt.is_empty() {
            self.deal(plan)?;
        }
        let next = self.dealt.pop_front();
        let units = plan.world.global_batch_size() as usize;
        for _ in 0..GROWTH {
            let len = self.dealt.len();
            if len >= BATCHES || len * units >= UNITS || self.deal(plan).is_err() {
                break;
            }
        }
        next.ok_or(Error::Internal("a dealt batch"))
    }

    fn deal(&mut self, plan: &Plan) -> Result<()> {
        let dealt = plan.deal(self.next.at)?;
        let size = plan.world.micro_batch_size() as usize;
        let skipped = self.next.micro_batches_delivered as usize;
        let units = dealt.assignment.rank(plan.world.rank());
        for units in units.chunks(size).skip(skipped) {
            let mut samples = Vec::new();
            for unit in units.iter().flatten() {
                // What is wrong with one is told when its batch is planned.
                let of_unit = plan.rows.units().samples(*unit).unwrap_or_default();
                let entries = of_unit.into_iter().filter_map(|sample| {
                    let entry = plan.rows.entry(sample).ok()?;
                    Some((sample, entry))
                });
                samples.extend(entries);
            }
            if let Some(remote) = plan.rows.remote() {
                remote.plan_batch(&self.run, self.batches, &samples);
            }
            self.batches += 1;
        }
        self.next = Resume {
            at: dealt.batch.next,
            micro_batches_delivered: 0,
        };
        self.dealt.push_back(dealt);
        Ok(())
    }
}
