//! The draw: which groups of records go to which split.
//!
//! Groups are drawn in dealt order, from its end, and whatever shares a picture with a drawn one goes along. A picture is
//! a link here: nobody has looked at bytes yet. Invariant: no picture stands in two splits, no named split gets more
//! groups than its share, and where no two groups share a picture the dealt order is only cut.

use std::ops::Range;

use super::splits::{SplitShare, cut};

/// Puts `order`, the groups in dealt order, into the order of the splits. Gives the range of each, the main split first.
/// `pictures` names every group with each of its `images` pictures, repeats allowed.
pub(super) fn draw(
    order: &mut Vec<u32>,
    shares: &[SplitShare],
    images: usize,
    pictures: impl Iterator<Item = (u32, u32)>,
) -> Vec<Range<u32>> {
    let count = u32::try_from(order.len()).unwrap_or(u32::MAX);
    let ranges = cut(count, shares);
    if shares.is_empty() {
        return ranges;
    }
    let mut bundles = Bundles::new(order.len(), images, pictures);
    let mut left: Vec<u32> = ranges[1..]
        .iter()
        .map(|range| range.end - range.start)
        .collect();
    // The split of each bundle: none yet, or its place among the ranges.
    let mut split_of: Vec<Option<usize>> = vec![None; order.len()];
    for group in order.iter().rev() {
        let bundle = bundles.of(*group);
        if split_of[bundle as usize].is_none() {
            let groups = bundles.groups[bundle as usize];
            let share = left.iter().position(|left| *left >= groups);
            if let Some(share) = share {
                left[share] -= groups;
            }
            // What fits into no share stays in the main split.
            split_of[bundle as usize] = Some(share.map_or(0, |share| share + 1));
        }
    }
    let mut drawn = vec![Vec::new(); ranges.len()];
    for group in order.iter() {
        let split = split_of[bundles.of(*group) as usize].unwrap_or(0);
        drawn[split].push(*group);
    }
    order.clear();
    let mut result = vec![0..0; ranges.len()];
    // The main split first, then the named ones from the last: as the cut lays them out.
    for split in std::iter::once(0).chain((1..ranges.len()).rev()) {
        let start = u32::try_from(order.len()).unwrap_or(u32::MAX);
        order.append(&mut drawn[split]);
        result[split] = start..u32::try_from(order.len()).unwrap_or(u32::MAX);
    }
    result
}

/// Groups bundled by the pictures they share, directly or by way of others.
struct Bundles {
    /// A group of the same bundle; the group itself where it names the bundle.
    parent: Vec<u32>,
    /// Groups of each bundle, by the group that names it.
    groups: Vec<u32>,
}

impl Bundles {
    fn new(groups: usize, images: usize, pictures: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut bundles = Self {
            parent: (0..).take(groups).collect(),
            groups: vec![1; groups],
        };
        // Some group that has the picture.
        let mut owner: Vec<Option<u32>> = vec![None; images];
        for (group, image) in pictures {
            let other = *owner[image as usize].get_or_insert(group);
            bundles.join(group, other);
        }
        bundles
    }

    /// The group that names the bundle of `group`.
    fn of(&mut self, mut group: u32) -> u32 {
        while self.parent[group as usize] != group {
            let next = self.parent[group as usize];
            self.parent[group as usize] = self.parent[next as usize];
            group = next;
        }
        group
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.of(one), self.of(other));
        if one == other {
            return;
        }
        let more = self.groups[one as usize] >= self.groups[other as usize];
        let (name, joined) = if more { (one, other) } else { (other, one) };
        self.parent[joined as usize] = name;
        self.groups[name as usize] += self.groups[joined as usize];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(texts: &[&str]) -> Vec<SplitShare> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn groups_that_share_nothing_are_cut_as_they_were_dealt() {
        let dealt: Vec<u32> = (0..100).map(|at| at * 37 % 100).collect();
        for shares in [shares(&[]), shares(&["a=10%"]), shares(&["a=10%", "b=25%"])] {
            let mut order = dealt.clone();
            let ranges = draw(&mut order, &shares, 100, (0..100).map(|at| (at, at)));
            assert_eq!(ranges, cut(100, &shares));
            assert_eq!(order, dealt);
        }
    }

    #[test]
    fn what_shares_a_picture_goes_to_one_split() {
        // Groups 4 and 9 share picture 20, 9 and 2 share 21; half of all share 22.
        let own = (0..20).map(|at| (at, at));
        let shared = [(4, 20), (9, 20), (9, 21), (2, 21)];
        let half = (10..20).map(|at| (at, 22));
        let shares = shares(&["a=10%", "b=20%"]);
        for turn in 0..20 {
            let dealt: Vec<u32> = (0..20).map(|at| (at + turn) % 20).collect();
            let mut order = dealt.clone();
            let pictures = own.clone().chain(shared).chain(half.clone());
            let ranges = draw(&mut order, &shares, 23, pictures);
            let split_of = |group: u32| {
                let at = order.iter().position(|other| *other == group).unwrap();
                let at = u32::try_from(at).unwrap();
                ranges.iter().position(|range| range.contains(&at)).unwrap()
            };
            assert!([9, 2].iter().all(|group| split_of(*group) == split_of(4)));
            assert!(
                (10..20).all(|group| split_of(group) == 0),
                "half fits into no share"
            );
            assert!(ranges[1].len() <= 2 && ranges[2].len() <= 4, "{ranges:?}");
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..20).collect::<Vec<_>>());
        }
    }
}
