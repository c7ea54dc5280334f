//! Which open pack takes a sample: the packs' rooms, in an order that is searched and never scanned.
//!
//! Owns both strategies. Invariant: a search costs a few times log n, whatever was packed before; what it finds depends on
//! the calls before it only.

use std::collections::BTreeSet;

use stoker_formats::PackStrategy;

/// Packs of choice, and then packs with the most room, that one search looks at before it gives up: those that it passes over
/// have room in what is searched, but not in something else.
const PROBES_MAX: usize = 32;

/// What is left in packs of their scarce good, tokens or patches, by number of the pack.
#[derive(Debug)]
pub(super) enum Rooms {
    /// Fullest first, equally full ones by number.
    Best(BTreeSet<(u32, u32)>),
    /// By number.
    First(Tree),
}

impl Rooms {
    /// For up to `packs` packs.
    pub(super) fn new(strategy: PackStrategy, packs: usize) -> Self {
        match strategy {
            PackStrategy::BestFit => Self::Best(BTreeSet::new()),
            PackStrategy::Ffd => Self::First(Tree::new(packs)),
        }
    }

    /// Pack `pack` had the room `before`, and has `after` from now on; none: it is not searched.
    pub(super) fn change(&mut self, pack: u32, before: Option<u32>, after: Option<u32>) {
        match self {
            Self::Best(rooms) => {
                if let Some(room) = before {
                    rooms.remove(&(room, pack));
                }
                if let Some(room) = after {
                    rooms.insert((room, pack));
                }
            }
            Self::First(tree) => tree.set(pack, after.map_or(0, |room| u64::from(room) + 1)),
        }
    }

    /// The pack of choice among those with room for `size` that are `fit`; one of the newest or emptiest where many are not.
    pub(super) fn find(&self, size: u32, fit: impl Fn(u32) -> bool) -> Option<u32> {
        match self {
            Self::Best(rooms) => {
                let packs = || rooms.range((size, 0)..).map(|(_, pack)| *pack);
                let best = packs().take(PROBES_MAX).find(|pack| fit(*pack));
                best.or_else(|| packs().rev().take(PROBES_MAX).find(|pack| fit(*pack)))
            }
            Self::First(tree) => {
                let least = u64::from(size) + 1;
                let newest = tree.used.saturating_sub(PROBES_MAX as u32);
                [0, newest].into_iter().find_map(|from| {
                    let next = |pack: &u32| tree.first(*pack + 1, least);
                    std::iter::successors(tree.first(from, least), next)
                        .take(PROBES_MAX)
                        .find(|pack| fit(*pack))
                })
            }
        }
    }
}

/// Numbers with their largest one over every aligned run of a power of two.
#[derive(Debug)]
pub(super) struct Tree {
    /// Node 1 is the root, node i has the children 2 i and 2 i + 1; the second half are the leaves.
    nodes: Vec<u64>,
    /// Leaves up to the last one that was ever set.
    used: u32,
}

impl Tree {
    fn new(leaves: usize) -> Self {
        Self {
            nodes: vec![0; 2 * leaves.max(1).next_power_of_two()],
            used: 0,
        }
    }

    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }

    fn set(&mut self, leaf: u32, value: u64) {
        self.used = self.used.max(leaf + 1);
        let mut node = self.leaves() + leaf as usize;
        self.nodes[node] = value;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
        }
    }

    /// The first leaf from `from` on that holds at least `least`.
    fn first(&self, from: u32, least: u64) -> Option<u32> {
        let mut node = self.leaves() + from as usize;
        if node >= self.nodes.len() {
            return None;
        }
        // Up, to the next run on the right that has one; a right child's parent begins before `from`.
        while self.nodes[node] < least {
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves() {
            node *= 2;
            if self.nodes[node] < least {
                node += 1;
            }
        }
        u32::try_from(node - self.leaves()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_finds_what_a_scan_finds() {
        let mut tree = Tree::new(13);
        let mut plain = [0u64; 16];
        let mut state = 1u64;
        for _ in 0..2000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (leaf, value) = ((state >> 33) as u32 % 13, (state >> 40) % 10);
            tree.set(leaf, value);
            plain[leaf as usize] = value;
            for from in 0..=16u32 {
                for least in 1..=10 {
                    let wanted = (from..16).find(|leaf| plain[*leaf as usize] >= least);
                    assert_eq!(tree.first(from, least), wanted);
                }
            }
        }
    }

    #[test]
    fn best_fit_takes_the_fullest_and_ffd_the_first() {
        for (strategy, wanted) in [(PackStrategy::BestFit, 1), (PackStrategy::Ffd, 0)] {
            let mut rooms = Rooms::new(strategy, 3);
            for (pack, room) in [(0, 50), (1, 30), (2, 10)] {
                rooms.change(pack, None, Some(room));
            }
            assert_eq!(rooms.find(20, |_| true), Some(wanted));
            assert_eq!(rooms.find(20, |pack| pack != wanted), Some(1 - wanted));
            assert_eq!(rooms.find(51, |_| true), None);
            rooms.change(wanted, Some(if wanted == 0 { 50 } else { 30 }), None);
            assert_eq!(rooms.find(20, |_| true), Some(1 - wanted));
        }
    }
}
