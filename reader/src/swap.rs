//! Swaps rows of bins until these are about even.
//!
//! Owns which bins are tried, and the search for the best swap of two of them. Invariant: a swap never makes a bin heavier
//! than the heaviest was, by either cost; so many are tried at most, whatever the rows are.

use crate::balance::Cost;
use crate::swap_pairs::{Others, Row};

/// Bins that are tried for swaps, each time that a cost has its turn: the bound on time.
const MAX_TRIES: usize = 64;

/// Bins of the same place that a swap is looked for in; with those of other places twice as many.
const PARTNERS: usize = 4;

/// The share of a cost by which the heaviest bin may be above the mean without being looked at any more: 1/128.
const NEAR: i64 = 128;

/// The share of the other cost by which a swap may leave a bin above the mean, even if none is so far: 1/32.
const SLACK: i64 = 32;

/// The share of a mean bin that a swap must be good for: 1/256.
const GAIN: i64 = 256;

/// Places that one word tells of.
pub(crate) const WORD: usize = 64;

/// Rows that are in bins, of equal numbers of rows.
#[derive(Debug)]
pub(crate) struct Filled {
    /// The rows of the first bin, then those of the second, and so on.
    rows: Vec<u32>,
    /// What each of them costs, by cost.
    costs: [Vec<i32>; 2],
    /// Of which of two kinds each is: only like is swapped with like.
    kinds: Vec<bool>,
    each: usize,
    /// What is in each bin, by cost.
    load: [Vec<i32>; 2],
    sums: [i64; 2],
    /// The bins of each place, ascending.
    bins: Vec<Vec<usize>>,
    /// The place of each bin.
    places: Vec<u32>,
    /// Of each row, for each 64 places, a bit for those where it is at home; nothing if rows stay in their places.
    homes: Vec<Vec<u64>>,
}

/// What two bins may come to by a swap.
struct Limits {
    /// By the cost that it is for, less than this.
    below: i32,
    /// By the other cost at most this.
    other: i32,
}

impl Filled {
    /// The rows `rows` in bins of `each`, where `places` says where each bin is. `of` gives cost and kind of a row, and `home`,
    /// unless rows are to stay in their places, in which of 64 places from a number on it is at home.
    pub(crate) fn new(
        rows: Vec<u32>,
        each: usize,
        places: &[u32],
        of: impl Fn(u32) -> (Cost, bool),
        home: Option<impl Fn(u32, usize) -> u64>,
    ) -> Self {
        let mut costs = [
            Vec::with_capacity(rows.len()),
            Vec::with_capacity(rows.len()),
        ];
        let mut kinds = Vec::with_capacity(rows.len());
        for row in &rows {
            let ([tokens, patches], kind) = of(*row);
            costs[0].push(tokens);
            costs[1].push(patches);
            kinds.push(kind);
        }
        let load = [0, 1].map(|by: usize| {
            let bins = costs[by].chunks(each);
            bins.map(|bin| bin.iter().sum()).collect::<Vec<i32>>()
        });
        let sums = [0, 1].map(|by: usize| load[by].iter().copied().map(i64::from).sum());
        let count = places.iter().max().map_or(0, |place| place + 1);
        let mut bins = vec![Vec::new(); count as usize];
        for (bin, place) in places.iter().enumerate() {
            bins[*place as usize].push(bin);
        }
        let homes = home.map_or_else(Vec::new, |home| {
            let of_rows = |word| rows.iter().map(|row| home(*row, word)).collect();
            (0..bins.len().div_ceil(WORD)).map(of_rows).collect()
        });
        Self {
            homes,
            rows,
            costs,
            kinds,
            each,
            load,
            sums,
            bins,
            places: places.to_vec(),
        }
    }

    /// The rows, bin after bin.
    pub(crate) fn into_rows(self) -> Vec<u32> {
        self.rows
    }

    /// Swaps rows of the heaviest bin with rows of lighter ones, so that no fewer rows are where they are at home.
    pub(crate) fn even_out(&mut self) {
        let (mut partners, mut others) = (Vec::new(), Others::default());
        for by in [0, 1, 0, 1] {
            let mut tries = MAX_TRIES;
            while self.improve(by, &mut tries, (&mut partners, &mut others)) {}
        }
    }

    /// Swaps one row of the bin that is heaviest by `by`; says whether there was need and a way. Counts `tries` down.
    fn improve(
        &mut self,
        by: usize,
        tries: &mut usize,
        (partners, others): (&mut Vec<u64>, &mut Others),
    ) -> bool {
        let bins = self.places.len() as i64;
        let most = |by: usize| self.load[by].iter().copied().fold(0, i32::max);
        let (sum, heaviest) = (self.sums[by], most(by));
        if i64::from(heaviest) * bins <= sum + sum / NEAR {
            return false;
        }
        let heavy = self.load[by].iter().position(|load| *load == heaviest);
        let heavy = heavy.unwrap_or_default();
        let other = self.sums[1 - by];
        let limits = Limits {
            below: (heaviest - (sum / (GAIN * bins)) as i32).max(0),
            other: most(1 - by).max(((other + other / SLACK) / bins) as i32),
        };
        self.lighter(by, heavy, partners);
        for partner in &*partners {
            if *tries == 0 {
                return false;
            }
            *tries -= 1;
            let light = *partner as u32 as usize;
            if let Some((from, to)) = self.best_swap(by, (heavy, light), &limits, others) {
                self.swap((heavy, from), (light, to));
                return true;
            }
        }
        false
    }

    /// The bins that bin `heavy` may swap with, the lightest first: some of its own place, and the lightest of each other.
    fn lighter(&self, by: usize, heavy: usize, found: &mut Vec<u64>) {
        // Load and number as one number, so that the least is the first of the lightest.
        let key = |bin: &usize| u64::from(self.load[by][*bin].cast_unsigned()) << 32 | *bin as u64;
        found.clear();
        let own = self.places[heavy] as usize;
        let mut limit = u64::MAX;
        for key in self.bins[own].iter().filter(|bin| **bin != heavy).map(key) {
            if key < limit {
                found.truncate(PARTNERS - 1);
                found.insert(found.partition_point(|other| *other < key), key);
                limit = found.get(PARTNERS - 1).map_or(u64::MAX, |last| *last);
            }
        }
        if !self.homes.is_empty() {
            let others = self.bins.iter().enumerate();
            let others = others.filter(|(place, _)| *place != own);
            found.extend(others.filter_map(|(_, bins)| bins.iter().map(key).min()));
            found.sort_unstable();
        }
        found.truncate(2 * PARTNERS);
    }

    /// The swap after which the heavier of the two bins is lightest by `by`, within the limits. There are many pairs of rows
    /// and most are no better, so they are looked at side by side and no branch is taken for one.
    fn best_swap(
        &self,
        by: usize,
        (heavy, light): (usize, usize),
        limits: &Limits,
        others: &mut Others,
    ) -> Option<(usize, usize)> {
        let (here, there) = (self.places[heavy], self.places[light]);
        let order = [by, 1 - by];
        let ends = order.map(|by| [self.load[by][heavy], self.load[by][light]]);
        others.clear(ends, limits.other);
        for at in light * self.each..(light + 1) * self.each {
            let costs = order.map(|by| self.costs[by][at]);
            others.push(costs, self.kinds[at], self.worth(at, there, here));
        }
        let (mut best, mut found) = (limits.below, None);
        for i in 0..self.each {
            let at = heavy * self.each + i;
            let row = Row {
                costs: order.map(|by| self.costs[by][at]),
                kind: self.kinds[at],
                worth: self.worth(at, here, there),
            };
            if !others.may_fit(&row, best) {
                continue;
            }
            let after = others.lightest(&row);
            if after < best {
                best = after;
                found = others.first(&row, after).map(|j| (i, j));
            }
        }
        found
    }

    /// What it is worth to move the row at `at` from one place to another: 1 if it comes home, -1 if it leaves home.
    fn worth(&self, at: usize, from: u32, to: u32) -> i32 {
        let home = |place: u32| {
            let place = place as usize;
            let word = self.homes.get(place / WORD);
            word.map_or(0, |rows| (rows[at] >> (place % WORD)) as i32 & 1)
        };
        home(to) - home(from)
    }

    fn swap(&mut self, (heavy, from): (usize, usize), (light, to): (usize, usize)) {
        let (a, b) = (heavy * self.each + from, light * self.each + to);
        for (load, costs) in self.load.iter_mut().zip(&mut self.costs) {
            let moved = costs[a] - costs[b];
            load[heavy] -= moved;
            load[light] += moved;
            costs.swap(a, b);
        }
        self.homes.iter_mut().for_each(|rows| rows.swap(a, b));
        self.kinds.swap(a, b);
        self.rows.swap(a, b);
    }
}
