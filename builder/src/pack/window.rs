//! One window: some samples into as few packs as can be, by decreasing size.
//!
//! Owns the limits of a pack. Invariant: no pack exceeds one; every sample stands in exactly one pack; with the same
//! samples in the same order the packs are the same.

use std::cmp::Reverse;

use stoker_formats::{Counts, PackOptions};

use super::rooms::Rooms;

/// A sample that is to be packed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    /// The row in its partition.
    pub(super) row: u32,
    pub(super) counts: Counts,
}

/// What a pack may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    tokens: u32,
    patches: Option<u32>,
    samples: u32,
}

impl Limits {
    pub(super) fn of(options: &PackOptions) -> Self {
        Self {
            tokens: options.max_tokens,
            patches: options.max_patches,
            samples: options.max_samples.unwrap_or(u32::MAX),
        }
    }

    /// Whether a sample fits into a pack of its own.
    pub(super) fn admit(&self, counts: &Counts) -> bool {
        counts.tokens <= self.tokens && self.patches.is_none_or(|limit| counts.patches <= limit)
    }

    /// How much of a pack `counts` takes, by the limit that it uses most. Without a unit: both limits multiply it.
    fn share(&self, counts: &Counts) -> u64 {
        match self.patches {
            None => u64::from(counts.tokens),
            Some(patches) => {
                let by_tokens = u64::from(counts.tokens) * u64::from(patches);
                by_tokens.max(u64::from(counts.patches) * u64::from(self.tokens))
            }
        }
    }
}

/// A pack that is being filled, and then a finished one.
#[derive(Debug, Clone, Default)]
pub(super) struct Pack {
    pub(super) counts: Counts,
    pub(super) items: Vec<Item>,
}

impl Pack {
    /// A pack of one sample, whatever its size.
    pub(super) fn alone(item: Item) -> Self {
        Self {
            counts: item.counts,
            items: vec![item],
        }
    }

    /// What it would hold with one more sample; none if that is too much.
    fn with(&self, counts: &Counts, limits: &Limits) -> Option<Counts> {
        let sum = self.counts.checked_add(*counts)?;
        (limits.admit(&sum) && self.items.len() < limits.samples as usize).then_some(sum)
    }

    /// The share of its budget that a pack uses, of the limit that it uses most.
    pub(super) fn fill(&self, limits: &Limits) -> f64 {
        let share = |used: u32, limit: u32| f64::from(used) / f64::from(limit);
        let patches = limits
            .patches
            .map_or(0.0, |limit| share(self.counts.patches, limit));
        let samples = self.items.len() as f64 / f64::from(limits.samples);
        share(self.counts.tokens, limits.tokens)
            .max(patches)
            .max(samples)
    }
}

/// Packs `items`, each of which fits into a pack.
pub(super) fn pack(mut items: Vec<Item>, limits: &Limits, options: &PackOptions) -> Vec<Pack> {
    // Stable: equal samples stay in the order of the draw.
    items.sort_by_cached_key(|item| Reverse(limits.share(&item.counts)));
    let least = |field: fn(&Counts) -> u32| items.iter().map(|item| field(&item.counts)).min();
    let least_tokens = least(|counts| counts.tokens).unwrap_or(0);
    let least_patches = items
        .iter()
        .map(|item| item.counts.patches)
        .filter(|patches| *patches > 0)
        .min()
        .unwrap_or(0);
    let of_images = items.iter().filter(|item| item.counts.patches > 0);
    let (tokens, patches) = of_images.fold((0, 0), |(tokens, patches), item| {
        let Counts {
            tokens: more_tokens,
            patches: more_patches,
            ..
        } = item.counts;
        (
            tokens + u64::from(more_tokens),
            patches + u64::from(more_patches),
        )
    });
    let searched = Searched {
        limits,
        least_tokens,
        least_patches,
        patches_are_scarce: limits.patches.is_some_and(|limit| {
            u128::from(patches) * u128::from(limits.tokens) > u128::from(tokens) * u128::from(limit)
        }),
    };
    let mut filling = Filling {
        limits,
        searched,
        packs: Vec::new(),
        all: Rooms::new(options.strategy, items.len()),
        for_images: Rooms::new(options.strategy, items.len()),
    };
    for item in items {
        filling.add(item);
    }
    filling.packs
}

/// Which packs of a window are worth a search: those that its smallest sample may fit into.
#[derive(Debug, Clone, Copy)]
struct Searched<'a> {
    limits: &'a Limits,
    least_tokens: u32,
    /// Of the samples that have images.
    least_patches: u32,
    /// Whether the window's images use more of the packs' patches than of their tokens.
    patches_are_scarce: bool,
}

impl Searched<'_> {
    /// The room in a pack: tokens for samples of any kind; for those with images tokens or patches, what is scarce.
    fn rooms(&self, pack: &Pack) -> (Option<u32>, Option<u32>) {
        let left = self.limits.tokens.saturating_sub(pack.counts.tokens);
        let open = !pack.items.is_empty()
            && pack.items.len() < self.limits.samples as usize
            && left >= self.least_tokens;
        let patches = self.limits.patches.unwrap_or(u32::MAX);
        let patches = patches.saturating_sub(pack.counts.patches);
        let takes_patches = open && patches >= self.least_patches;
        let scarce = if self.patches_are_scarce {
            patches
        } else {
            left
        };
        (open.then_some(left), takes_patches.then_some(scarce))
    }
}

/// The packs of a window while it is packed.
struct Filling<'a> {
    limits: &'a Limits,
    searched: Searched<'a>,
    packs: Vec<Pack>,
    all: Rooms,
    /// Those that can take patches: the others must not stand in the way of a search.
    for_images: Rooms,
}

impl Filling<'_> {
    fn add(&mut self, item: Item) {
        let (rooms, size) = if item.counts.patches == 0 {
            (&self.all, item.counts.tokens)
        } else if self.searched.patches_are_scarce {
            (&self.for_images, item.counts.patches)
        } else {
            (&self.for_images, item.counts.tokens)
        };
        let sum = |pack: u32| {
            self.packs
                .get(pack as usize)?
                .with(&item.counts, self.limits)
        };
        let found = rooms.find(size, |pack| sum(pack).is_some());
        let (number, counts) = match found.and_then(|pack| Some((pack, sum(pack)?))) {
            Some(found) => found,
            None => {
                self.packs.push(Pack::default());
                // A window has fewer than 2^32 samples.
                (self.packs.len() as u32 - 1, item.counts)
            }
        };
        let pack = &mut self.packs[number as usize];
        let before = self.searched.rooms(pack);
        pack.counts = counts;
        pack.items.push(item);
        let after = self.searched.rooms(pack);
        self.all.change(number, before.0, after.0);
        self.for_images.change(number, before.1, after.1);
    }
}
