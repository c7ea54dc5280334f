//! What units cost, and how bins are filled evenly with them.
//!
//! Owns the two costs and the two ways to even them out. Invariant: integers only and ties by number, so that every machine
//! finds the same; two costs count at once, and neither is evened out at the other's expense.

use stoker_formats::Counts;

/// What all units of a global batch cost together.
const WHOLE: u64 = 1 << 30;

/// Bins that are tried for swaps, each time that a cost has its turn: the bound on time.
const MAX_TRIES: usize = 64;

/// Bins of the same place that a swap is looked for in; with those of other places twice as many.
const PARTNERS: usize = 4;

/// The share of a cost by which the heaviest bin may be above the mean without being looked at any more: 1/128.
const NEAR: u64 = 128;

/// The share of the other cost by which a swap may leave a bin above the mean, even if none is so far: 1/32.
const SLACK: u64 = 32;

/// The share of a mean bin that a swap must be good for: 1/256.
const GAIN: u64 = 256;

/// Tokens and patches, each as a share of the global batch.
pub(crate) type Cost = [u32; 2];

/// What each row costs. A row counts as a token's worth at least, so that rows of no cost are spread too.
pub(crate) fn costs(counts: &[Counts]) -> Vec<Cost> {
    let shares = |of: fn(&Counts) -> u32| {
        let sum: u64 = counts.iter().map(|counts| u64::from(of(counts))).sum();
        // A share is at most the whole, which fits.
        move |counts: &Counts| {
            (u64::from(of(counts)) * WHOLE)
                .checked_div(sum)
                .unwrap_or(0) as u32
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
pub(crate) fn weight(cost: Cost) -> u32 {
    cost[0].max(cost[1])
}

pub(crate) fn plus(load: Cost, cost: Cost) -> Cost {
    [load[0] + cost[0], load[1] + cost[1]]
}

/// The numbers of the rows, heaviest first, equal ones by number.
pub(crate) fn heaviest_first(costs: &[Cost]) -> Vec<u32> {
    let mut keys: Vec<u64> = (0u64..)
        .zip(costs)
        .map(|(row, cost)| (u64::from(!weight(*cost)) << 32) | row)
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|key| key as u32).collect()
}

/// Bins that rows are put into.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bins {
    /// What is in each.
    pub(crate) load: Vec<Cost>,
    /// Rows that still fit into each.
    pub(crate) room: Vec<u32>,
    /// Rows that each must get at least; no more than its room.
    pub(crate) need: Vec<u32>,
}

impl Bins {
    /// Puts `rows` one after another into the bin that is lightest with it, the first of equal ones, and tells `put` which.
    /// All rows must fit, and be enough for what is needed.
    pub(crate) fn spread(&mut self, rows: &[u32], costs: &[Cost], mut put: impl FnMut(u32, usize)) {
        let mut needed: u32 = self.need.iter().sum();
        for (given, row) in (0u32..).zip(rows) {
            let cost = costs[*row as usize];
            let must = rows.len() as u32 - given == needed;
            let bin = if must {
                self.lightest(&self.need, cost)
            } else {
                self.lightest(&self.room, cost)
            };
            self.load[bin] = plus(self.load[bin], cost);
            self.room[bin] -= 1;
            if self.need[bin] > 0 {
                self.need[bin] -= 1;
                needed -= 1;
            }
            put(*row, bin);
        }
    }

    /// The bin that is lightest with `cost` of those where `open` is not 0.
    fn lightest(&self, open: &[u32], cost: Cost) -> usize {
        let with = |(load, open): (&Cost, &u32)| {
            let with = weight(plus(*load, cost));
            if *open == 0 { u32::MAX } else { with }
        };
        let mut best = (u32::MAX, 0);
        for (bin, with) in self.load.iter().zip(open).map(with).enumerate() {
            if with < best.0 {
                best = (with, bin);
            }
        }
        best.1
    }
}

/// Rows that are in bins, of equal numbers of rows.
pub(crate) struct Filled<'a> {
    pub(crate) costs: &'a [Cost],
    /// The rows of the first bin, then those of the second, and so on.
    pub(crate) rows: &'a mut [u32],
    pub(crate) each: usize,
    pub(crate) load: Vec<Cost>,
    /// Where each bin is.
    pub(crate) places: &'a [u32],
    /// Whether nothing can be swapped between places.
    pub(crate) apart: bool,
}

/// What two bins may come to by a swap.
struct Limits {
    /// By the cost that it is for, less than this.
    below: u32,
    /// By the other cost at most this.
    other: u32,
}

impl Filled<'_> {
    /// Swaps rows of the heaviest bin with rows of lighter ones. `fits(a, in bin, b, in bin)` says whether two rows may be
    /// swapped.
    pub(crate) fn even_out(&mut self, fits: impl Fn(u32, usize, u32, usize) -> bool) {
        for by in [0, 1, 0, 1] {
            let mut tries = MAX_TRIES;
            while self.improve(by, &mut tries, &fits) {}
        }
    }

    /// Swaps one row of the bin that is heaviest by `by`; says whether there was need and a way. Counts `tries` down.
    fn improve(
        &mut self,
        by: usize,
        tries: &mut usize,
        fits: &impl Fn(u32, usize, u32, usize) -> bool,
    ) -> bool {
        let bins = self.load.len() as u64;
        let heaviest =
            |best: (u32, usize), next: (u32, usize)| if next.0 > best.0 { next } else { best };
        let loads = self.load.iter().map(|load| load[by]);
        let sum: u64 = loads.clone().map(u64::from).sum();
        let (most, heavy) = loads.zip(0..).fold((0, 0), heaviest);
        if u64::from(most) * bins <= sum + sum / NEAR {
            return false;
        }
        let others = self.load.iter().map(|load| load[1 - by]);
        let other_sum: u64 = others.clone().map(u64::from).sum();
        let slack = (other_sum + other_sum / SLACK) / bins;
        let limits = Limits {
            below: most.saturating_sub((sum / (GAIN * bins)) as u32),
            other: others.fold(slack as u32, u32::max),
        };
        for light in self.lighter(by, heavy) {
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            if let Some((from, to)) = self.best_swap(by, heavy, light, &limits, fits) {
                self.swap((heavy, from), (light, to));
                return true;
            }
        }
        false
    }

    /// The bins that bin `heavy` may swap with, the lightest first: some of its own place, and the lightest of each other.
    fn lighter(&self, by: usize, heavy: usize) -> Vec<usize> {
        let own = self.places[heavy];
        let mut near: Vec<(u32, usize)> = Vec::with_capacity(PARTNERS + 1);
        let most = self.places.iter().max().map_or(0, |place| place + 1);
        let mut far: Vec<Option<(u32, usize)>> = vec![None; most as usize];
        for (bin, (load, place)) in self.load.iter().zip(self.places).enumerate() {
            let key = (load[by], bin);
            if *place != own {
                let best = &mut far[*place as usize];
                *best = Some(best.map_or(key, |best| best.min(key)));
            } else if bin != heavy && (near.len() < PARTNERS || near.last() > Some(&key)) {
                near.truncate(PARTNERS - 1);
                near.insert(near.partition_point(|other| *other < key), key);
            }
        }
        if !self.apart {
            near.extend(far.into_iter().flatten());
            near.sort_unstable();
        }
        near.truncate(2 * PARTNERS);
        near.into_iter().map(|(_, bin)| bin).collect()
    }

    /// The swap after which the heavier of the two bins is lightest by `by`, within the limits.
    fn best_swap(
        &self,
        by: usize,
        heavy: usize,
        light: usize,
        limits: &Limits,
        fits: &impl Fn(u32, usize, u32, usize) -> bool,
    ) -> Option<(usize, usize)> {
        let (from, to) = (self.load[heavy], self.load[light]);
        let (mut best, mut found) = (limits.below, None);
        for (i, a) in self.rows[heavy * self.each..][..self.each]
            .iter()
            .enumerate()
        {
            let out = self.costs[*a as usize];
            for (j, b) in self.rows[light * self.each..][..self.each]
                .iter()
                .enumerate()
            {
                let back = self.costs[*b as usize];
                if out[by] <= back[by] {
                    continue;
                }
                let moved = out[by] - back[by];
                let after = (from[by] - moved).max(to[by] + moved);
                if after >= best {
                    continue;
                }
                let other = 1 - by;
                let others = (from[other] + back[other] - out[other])
                    .max(to[other] + out[other] - back[other]);
                if others <= limits.other && fits(*a, heavy, *b, light) {
                    (best, found) = (after, Some((i, j)));
                }
            }
        }
        found
    }

    fn swap(&mut self, (heavy, from): (usize, usize), (light, to): (usize, usize)) {
        let (a, b) = (heavy * self.each + from, light * self.each + to);
        let (out, back) = (
            self.costs[self.rows[a] as usize],
            self.costs[self.rows[b] as usize],
        );
        for by in [0, 1] {
            self.load[heavy][by] = self.load[heavy][by] + back[by] - out[by];
            self.load[light][by] = self.load[light][by] + out[by] - back[by];
        }
        self.rows.swap(a, b);
    }
}
