//! What the tests of orders share: made-up caches, and dice.

#![allow(dead_code, reason = "each test binary uses its part")]

use stoker_reader::{
    Balance, CacheUnits, Cursor, Dealing, Modalities, OrderOptions, PartitionUnits, Shuffle, Tail,
    World, WorldSizes,
};

pub(crate) const SHUFFLES: [Shuffle; 3] = [Shuffle::Full, Shuffle::Shard, Shuffle::None];
pub(crate) const TAILS: [Tail; 2] = [Tail::Even, Tail::All];

/// A cache whose partitions have `sizes` units, in shards of up to `shard`.
pub(crate) fn cache_of(name: u8, sizes: &[u64], shard: u64) -> CacheUnits {
    let partitions = (0u32..)
        .zip(sizes)
        .map(|(partition, units)| PartitionUnits {
            partition,
            units: *units,
            shard_starts: (0..units.div_ceil(shard)).map(|n| n * shard).collect(),
        });
    CacheUnits {
        fingerprint: stoker_formats::ContentHash([name; 32]),
        pack: None,
        partitions: partitions.collect(),
    }
}

/// A cache of `partitions` partitions of unequal sizes with `units` units in all.
pub(crate) fn uneven(name: u8, units: u64, partitions: u64) -> CacheUnits {
    // In the proportion 1 : 2 : 3 ..., the rest to the first.
    let parts = partitions * (partitions + 1) / 2;
    let mut sizes: Vec<u64> = (1..=partitions).map(|part| units * part / parts).collect();
    sizes[0] += units - sizes.iter().sum::<u64>();
    cache_of(name, &sizes, 5)
}

pub(crate) fn options(seed: u64, shuffle: Shuffle, tail: Tail) -> OrderOptions {
    OrderOptions {
        seed,
        shuffle,
        tail,
        ..OrderOptions::default()
    }
}

/// A world on one node, as its first rank sees it.
pub(crate) fn world(world_size: u32, micro: u32, global: u32) -> World {
    World::new(WorldSizes {
        rank: 0,
        world_size,
        node_rank: 0,
        num_nodes: 1,
        micro_batch_size: micro,
        global_batch_size: global,
    })
    .unwrap()
}

/// The usual dealing.
pub(crate) const DEALING: Dealing = Dealing {
    balance: Balance::Cost,
    modalities: Modalities::Any,
    dummy_image: false,
};

/// A cursor that another process reads.
pub(crate) fn through_json(cursor: &Cursor) -> Cursor {
    let json = cursor.to_json();
    assert!(json.len() <= 1024 && json.is_ascii(), "{json}");
    let read = Cursor::from_json(&json).unwrap();
    assert_eq!(&read, cursor);
    read
}

/// A small source of made-up numbers.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

impl Dice {
    /// Between 0 and 1.
    fn part(&mut self) -> f64 {
        (self.below(1 << 52) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Lognormal, with this mean.
    pub(crate) fn lognormal(&mut self, mean: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * self.part().ln()).sqrt() * (std::f64::consts::TAU * self.part()).cos();
        mean * (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

/// What a made-up sample holds: lengths as in chats, three in ten without an image. The largest of a thousand batches' pictures
/// has some 16,000 patches, four megapixels: a build leaves them so, as its limit is the model's own, four times as much with Qwen3-VL.
pub(crate) fn sample(dice: &mut Dice) -> stoker_formats::Counts {
    let tokens = dice.lognormal(1500.0, 0.8).clamp(16.0, 8192.0) as u32;
    let images = u32::from(dice.below(10) < 7);
    let patches = images * (dice.lognormal(1600.0, 0.6) as u32).clamp(4, 4 * tokens);
    stoker_formats::Counts {
        tokens,
        loss_tokens: tokens / 4,
        images,
        patches,
    }
}

/// The same after a build with `--max-pixels 1003520`, the limit of the models' older processors, and the least that Qwen3-VL makes of
/// a picture: 256 to 3,920 patches each. One sample in ten has two to four of them.
pub(crate) fn limited_sample(dice: &mut Dice) -> stoker_formats::Counts {
    let images = match dice.below(10) {
        0..3 => 0,
        3..9 => 1,
        _ => 2 + dice.below(3) as u32,
    };
    let patches: u32 = (0..images)
        .map(|_| (dice.lognormal(1600.0, 0.6) as u32).clamp(256, 3920))
        .sum();
    let text = dice.lognormal(1100.0, 0.8).clamp(16.0, 8192.0) as u32;
    stoker_formats::Counts {
        tokens: (text + patches / 4).min(8192),
        loss_tokens: text / 4,
        images,
        patches,
    }
}

/// What a made-up pack of 8,192 tokens holds.
pub(crate) fn pack(dice: &mut Dice) -> stoker_formats::Counts {
    let mut pack = stoker_formats::Counts::default();
    while pack.tokens < 7900 {
        let next = sample(dice);
        if pack.tokens + next.tokens <= 8192 {
            pack.tokens += next.tokens;
            pack.loss_tokens += next.loss_tokens;
            pack.images += next.images;
            pack.patches += next.patches;
        }
    }
    pack
}
