//! One partition: its samples in a random order, window by window, into packs.
//!
//! Owns every draw of the packer. Invariant: packs depend on the lengths, the options, the cache's fingerprint and the
//! partition's number only. A pack's samples are a draw from a window of the random order; packs, and samples in a pack,
//! stand in random orders of their own, so that neither says anything about sizes.

use stoker_formats::{ContentHash, Counts, Key, Members, PackOptions, PackOverlong, Permutation};

use super::window::{Item, Limits, Pack, pack};

/// A pack that uses less of its budget is opened again: its samples are packed with the next window.
const FULL: f64 = 0.98;

/// The share of a window that may go on to the next one: bounds the work where samples match badly.
const CARRIED_PART: usize = 4;

/// Samples of a padded batch that packs are compared with.
pub(super) const PADDED_BATCH: usize = 8;

/// What identifies a partition's draws.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) fingerprint: ContentHash,
    pub(super) partition: u32,
}

impl Place {
    fn permutation(&self, seed: u64, purpose: &str, len: usize) -> Permutation {
        let (words, _) = self.fingerprint.0.as_chunks::<8>();
        let mut numbers: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        numbers.push(u64::from(self.partition));
        Permutation::new(Key::derive(seed, purpose, &numbers), len as u64)
    }
}

/// The packs of one partition.
#[derive(Debug, Default)]
pub(super) struct Packed {
    pub(super) counts: Vec<Counts>,
    pub(super) members: Members,
    /// Rows that exceed a limit by themselves, ascending, whatever becomes of them.
    pub(super) overlong: Vec<(u32, Counts)>,
    /// Tokens that the packed samples would take in padded batches of [`PADDED_BATCH`], in the random order.
    pub(super) padded_tokens: u64,
}

/// Packs the samples of which `lengths` says what they hold, by row.
pub(super) fn pack_partition(lengths: &[Counts], place: Place, options: &PackOptions) -> Packed {
    let limits = Limits::of(options);
    let order = place.permutation(options.seed, "pack windows", lengths.len());
    let mut done = Packed::default();
    let mut packer = Packer {
        limits,
        options,
        order_in_pack: place.permutation(options.seed, "pack rows", lengths.len()),
        packed: &mut done,
    };
    let modalities: &[Option<bool>] = if options.by_modality {
        &[Some(true), Some(false)]
    } else {
        &[None]
    };
    for modality in modalities {
        let drawn = (0..lengths.len() as u64).filter_map(|position| {
            // Row numbers fit: the caller has seen to it.
            let row = order.get(position) as u32;
            let counts = *lengths.get(row as usize)?;
            let wanted = modality.is_none_or(|images| images == (counts.images > 0));
            wanted.then_some(Item { row, counts })
        });
        packer.run(drawn);
    }
    done.overlong.sort_unstable_by_key(|(row, _)| *row);
    let order = place.permutation(options.seed, "pack order", done.counts.len());
    let mut members = Members::default();
    let mut counts = Vec::with_capacity(done.counts.len());
    for position in 0..order.len() {
        let from = order.get(position);
        members.push(done.members.rows(from).iter().copied());
        counts.extend(done.counts.get(from as usize));
    }
    Packed {
        counts,
        members,
        ..done
    }
}

struct Packer<'a> {
    limits: Limits,
    options: &'a PackOptions,
    order_in_pack: Permutation,
    packed: &'a mut Packed,
}

impl Packer<'_> {
    /// Packs all of `drawn`, in windows.
    fn run(&mut self, drawn: impl Iterator<Item = Item>) {
        let window = self.options.window as usize;
        let mut batch = Batch::default();
        let mut items = Vec::new();
        let mut fresh = 0;
        let mut drawn = drawn.peekable();
        while let Some(item) = drawn.next() {
            let admitted = self.limits.admit(&item.counts);
            if admitted {
                items.push(item);
                fresh += 1;
            } else {
                self.packed.overlong.push((item.row, item.counts));
            }
            let alone = !admitted && self.options.overlong == PackOverlong::Alone;
            if alone {
                self.close(Pack::alone(item));
            }
            if admitted || alone {
                self.packed.padded_tokens += batch.add(item.counts.tokens);
            }
            if fresh == window && drawn.peek().is_some() {
                items = self.pack_window(std::mem::take(&mut items));
                fresh = 0;
            }
        }
        self.packed.padded_tokens += batch.end();
        for done in pack(items, &self.limits, self.options) {
            self.close(done);
        }
    }

    /// Packs a window that others follow; returns the samples that go on.
    fn pack_window(&mut self, items: Vec<Item>) -> Vec<Item> {
        let most = self.options.window as usize / CARRIED_PART;
        let mut open = Vec::new();
        for done in pack(items, &self.limits, self.options) {
            if done.fill(&self.limits) < FULL {
                open.push(done);
            } else {
                self.close(done);
            }
        }
        // The emptiest first. Stable, so equal ones stay as they were made.
        open.sort_by(|one, other| {
            let (one, other) = (one.fill(&self.limits), other.fill(&self.limits));
            one.total_cmp(&other)
        });
        let mut carried = Vec::new();
        for pack in open {
            if carried.len() + pack.items.len() <= most {
                carried.extend(pack.items);
            } else {
                self.close(pack);
            }
        }
        carried
    }

    fn close(&mut self, mut pack: Pack) {
        let rank = &self.order_in_pack;
        pack.items
            .sort_by_cached_key(|item| rank.get(u64::from(item.row)));
        self.packed.counts.push(pack.counts);
        self.packed
            .members
            .push(pack.items.iter().map(|item| item.row));
    }
}

/// A padded batch that fills up.
#[derive(Debug, Default)]
struct Batch {
    samples: u64,
    longest: u32,
}

impl Batch {
    /// The tokens of the batch if this sample completes it, else 0.
    fn add(&mut self, tokens: u32) -> u64 {
        self.samples += 1;
        self.longest = self.longest.max(tokens);
        if self.samples == PADDED_BATCH as u64 {
            self.end()
        } else {
            0
        }
    }

    /// The tokens of what has come together; the next batch begins.
    fn end(&mut self) -> u64 {
        let tokens = self.samples * u64::from(self.longest);
        *self = Self::default();
        tokens
    }
}
