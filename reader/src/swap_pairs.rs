//! What becomes of two bins if a row of one is swapped with each row of the other.
//!
//! Owns that arithmetic, for many rows side by side. Invariant: costs and loads are never negative and stay below 2^31.

use crate::balance::{LANES, Lanes};

/// Stands for a swap that is not possible.
const NONE: i32 = i32::MAX;

/// Worth less than anything that moving a row can make good.
const NEVER: i32 = i32::MIN / 2;

/// A row of the heavy bin.
#[derive(Debug)]
pub(crate) struct Row {
    /// First by the cost that the swap is for.
    pub(crate) costs: [i32; 2],
    pub(crate) kind: bool,
    /// What it is worth to move it.
    pub(crate) worth: i32,
}

/// The rows of the light bin, with which a row may be swapped.
#[derive(Debug, Default)]
pub(crate) struct Others {
    /// For both costs, what is in the heavy and in the light bin.
    ends: [[i32; 2]; 2],
    /// The most that a bin may come to by the other cost.
    limit: i32,
    rows: usize,
    blocks: Vec<Block>,
    /// The least and the largest of each cost.
    bounds: [[i32; 2]; 2],
    /// The most that moving a row of each kind is worth.
    worth: [i32; 2],
}

/// Rows side by side.
#[derive(Debug)]
struct Block {
    /// What the bins come to by the cost that the swap is for, before the other row is taken out and put in.
    from: Lanes,
    to: Lanes,
    /// By the other cost, from and up to what cost a row may be put in.
    least: Lanes,
    most: Lanes,
    /// What it is worth to move a row, for rows of each kind.
    worth: [Lanes; 2],
}

const EMPTY: Block = Block {
    from: [0; LANES],
    to: [0; LANES],
    least: [0; LANES],
    most: [0; LANES],
    worth: [[NEVER; LANES]; 2],
};

impl Others {
    /// No rows yet, in bins that come to `ends`.
    pub(crate) fn clear(&mut self, ends: [[i32; 2]; 2], limit: i32) {
        self.ends = ends;
        self.limit = limit;
        self.rows = 0;
        self.blocks.clear();
        self.bounds = [[i32::MAX, 0]; 2];
        self.worth = [NEVER; 2];
    }

    /// Adds a row: its costs, its kind, and what it is worth to move it.
    pub(crate) fn push(&mut self, costs: [i32; 2], kind: bool, worth: i32) {
        let lane = self.rows % LANES;
        if lane == 0 {
            self.blocks.push(EMPTY);
        }
        let Some(block) = self.blocks.last_mut() else {
            return;
        };
        let [[from, to], [other_from, other_to]] = self.ends;
        block.from[lane] = from + costs[0];
        block.to[lane] = to - costs[0];
        block.least[lane] = other_from + costs[1] - self.limit;
        block.most[lane] = self.limit - other_to + costs[1];
        block.worth[usize::from(kind)][lane] = worth;
        for ([least, most], cost) in self.bounds.iter_mut().zip(costs) {
            *least = cost.min(*least);
            *most = cost.max(*most);
        }
        let of_kind = &mut self.worth[usize::from(kind)];
        *of_kind = worth.max(*of_kind);
        self.rows += 1;
    }

    /// Whether a swap of `row` might be possible and leave less than `below`: quickly said, and mostly no.
    pub(crate) fn may_fit(&self, row: &Row, below: i32) -> bool {
        // What the heavier bin comes to at least.
        let [after, other] = [0, 1].map(|by| {
            let ([from, to], [least, most]) = (self.ends[by], self.bounds[by]);
            (from - (row.costs[by] - least)).max(to + (row.costs[by] - most))
        });
        let worth = self.worth[usize::from(row.kind)] + row.worth;
        (after < below) & (other <= self.limit) & (worth >= 0)
    }

    /// What the heavier of the two bins comes to by the best swap of `row`.
    pub(crate) fn lightest(&self, row: &Row) -> i32 {
        let mut least = [NONE; LANES];
        for block in &self.blocks {
            for (least, after) in least.iter_mut().zip(block.after(row)) {
                *least = after.min(*least);
            }
        }
        least.into_iter().fold(NONE, i32::min)
    }

    /// The first row with which the heavier bin comes to `after`.
    pub(crate) fn first(&self, row: &Row, after: i32) -> Option<usize> {
        let mut all = self.blocks.iter().flat_map(|block| block.after(row));
        all.position(|found| found == after)
    }
}

impl Block {
    /// What the heavier of the two bins comes to if `row` is swapped with each.
    #[inline]
    fn after(&self, row: &Row) -> Lanes {
        let [cost, other] = row.costs;
        let worth = &self.worth[usize::from(row.kind)];
        let mut after = [NONE; LANES];
        for lane in 0..LANES {
            let refused = i32::from(other < self.least[lane])
                | i32::from(other > self.most[lane])
                | i32::from(worth[lane] + row.worth < 0);
            // As a choice this is compiled to a branch a lane.
            after[lane] = (self.from[lane] - cost).max(self.to[lane] + cost) | (-refused & NONE);
        }
        after
    }
}
