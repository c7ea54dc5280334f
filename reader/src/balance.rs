//! What units cost, and how bins are filled evenly with them.
//!
//! Owns the two costs and the first way to even them out; the second is `swap.rs`'s. Invariant: integers only and ties by
//! number, so that every machine finds the same; two costs count at once, and neither is evened out at the other's expense.

use stoker_formats::Counts;

/// What all units of a global batch cost together. Loads stay below 2^31 with it, whatever the number of rows.
const WHOLE: u64 = 1 << 30;

/// Tokens and patches, each as a share of the global batch: never negative, but signed numbers are compared faster.
pub(crate) type Cost = [i32; 2];

/// What each row costs. A row counts as a token's worth at least, so that rows of no cost are spread too.
pub(crate) fn costs(counts: &[Counts]) -> Vec<Cost> {
    let shares = |of: fn(&Counts) -> u32| {
        let sum: u64 = counts.iter().map(|counts| u64::from(of(counts))).sum();
        // A share is at most the whole, which fits.
        move |counts: &Counts| {
            (u64::from(of(counts)) * WHOLE)
                .checked_div(sum)
                .unwrap_or(0) as i32
        }
    };
    let (tokens, patches) = (
        shares(|counts| counts.tokens),
        shares(|counts| counts.patches),
    );
    counts
        .iter()
        .map(|counts| [1 + tokens(counts), patches(counts)])
        .collect()
}

/// The larger of two costs, which is what decides.
pub(crate) fn weight(cost: Cost) -> i32 {
    cost[0].max(cost[1])
}

pub(crate) fn plus(load: Cost, cost: Cost) -> Cost {
    [load[0] + cost[0], load[1] + cost[1]]
}

/// The numbers of the rows, heaviest first, equal ones by number.
pub(crate) fn heaviest_first(costs: &[Cost]) -> Vec<u32> {
    let mut keys: Vec<u64> = (0u64..)
        .zip(costs)
        .map(|(row, cost)| (u64::from((!weight(*cost)).cast_unsigned()) << 32) | row)
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| key as u32).collect()
}

/// Numbers that are worked on side by side.
pub(crate) const LANES: usize = 8;

/// So many of them.
pub(crate) type Lanes = [i32; LANES];

/// Bins that rows are put into. Every row looks at every bin, so bins stand side by side and no branch is taken for one.
#[derive(Debug, Default)]
pub(crate) struct Bins {
    bins: Vec<Bin>,
    /// What is in each, by cost.
    load: [Vec<Lanes>; 2],
    /// The largest number for bins without room, 0 for others.
    full: Vec<Lanes>,
    /// The largest number for bins that need nothing, 0 for others.
    sated: Vec<Lanes>,
}

/// How many rows a bin has, still takes, and must get at least.
#[derive(Debug, Default)]
struct Bin {
    rows: u32,
    room: u32,
    need: u32,
}

impl Bins {
    /// Empty bins, one for each of `room`: rows that fit into it, and how many of these it needs.
    pub(crate) fn clear(&mut self, room: impl Iterator<Item = (u32, u32)>) {
        self.bins.clear();
        self.bins.extend(room.map(|(room, need)| Bin {
            rows: 0,
            room,
            need,
        }));
        let lanes = self.bins.len().div_ceil(LANES);
        for load in &mut self.load {
            load.clear();
            load.resize(lanes, [0; LANES]);
        }
    }

    /// From here on there is room for `each` rows in every bin, and none is needed.
    pub(crate) fn fill_up(&mut self, each: u32) {
        for bin in &mut self.bins {
            bin.room = each - bin.rows;
            bin.need = 0;
        }
    }

    /// Notes which bins are full or sated. Where there is no bin, none is open.
    fn mark(&mut self) {
        let none = |count: u32| if count == 0 { i32::MAX } else { 0 };
        for (marks, of) in [
            (&mut self.full, (|bin| bin.room) as fn(&Bin) -> u32),
            (&mut self.sated, |bin| bin.need),
        ] {
            marks.clear();
            marks.extend(self.bins.chunks(LANES).map(|bins| {
                let mut lanes = [i32::MAX; LANES];
                for (lane, bin) in lanes.iter_mut().zip(bins) {
                    *lane = none(of(bin));
                }
                lanes
            }));
        }
    }

    /// What is in bin `bin`.
    pub(crate) fn load(&self, bin: usize) -> Cost {
        let [tokens, patches] = &self.load;
        [tokens, patches].map(|load| load[bin / LANES][bin % LANES])
    }

    /// Puts `rows` one after another into the bin that is lightest with it, the first of equal ones, and tells `put` which.
    /// All rows must fit, and be enough for what is needed.
    pub(crate) fn spread(&mut self, rows: &[u32], costs: &[Cost], mut put: impl FnMut(u32, usize)) {
        if rows.is_empty() {
            return;
        }
        self.mark();
        let mut needed: u32 = self.bins.iter().map(|bin| bin.need).sum();
        for (given, row) in (0u32..).zip(rows) {
            let cost = costs[*row as usize];
            let must = rows.len() as u32 - given == needed;
            let number = self.lightest(if must { &self.sated } else { &self.full }, cost);
            let (block, lane) = (number / LANES, number % LANES);
            for (load, cost) in self.load.iter_mut().zip(cost) {
                load[block][lane] += cost;
            }
            let bin = &mut self.bins[number];
            bin.rows += 1;
            bin.room -= 1;
            if bin.room == 0 {
                self.full[block][lane] = i32::MAX;
            }
            if bin.need > 0 {
                bin.need -= 1;
                needed -= 1;
                if bin.need == 0 {
                    self.sated[block][lane] = i32::MAX;
                }
            }
            put(*row, number);
        }
    }

    /// The bin that is lightest with `cost` of those that are not `closed`.
    fn lightest(&self, closed: &[Lanes], cost: Cost) -> usize {
        let [tokens, patches] = &self.load;
        let (mut least, mut found) = ([i32::MAX; LANES], [0; LANES]);
        let blocks = tokens.iter().zip(patches).zip(closed);
        for (block, ((tokens, patches), closed)) in (0..).zip(blocks) {
            for lane in 0..LANES {
                let with = weight(plus([tokens[lane], patches[lane]], cost)) | closed[lane];
                // All ones if it is lighter. As a choice this is compiled to a branch a lane.
                let lighter = -i32::from(with < least[lane]);
                least[lane] = with.min(least[lane]);
                found[lane] = (block & lighter) | (found[lane] & !lighter);
            }
        }
        // Never negative, so that the order is that of the pairs.
        let pair = |lane: usize| {
            (i64::from(least[lane]) << 32) | (i64::from(found[lane]) * 8 + lane as i64)
        };
        (0..LANES).map(pair).fold(i64::MAX, i64::min) as u32 as usize
    }
}
