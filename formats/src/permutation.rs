//! Keyed bijections: the one source of random order.
//!
//! Owns how a key is derived and how a position is mapped; `FORMAT.md` holds test vectors. Invariant: for one key and
//! one size, `get` is a bijection on `0..len` and `position_of` its inverse, the same on every machine for ever.

use crate::limits::{MAX_POSITIONS, MAX_TABLE_POSITIONS};

/// BLAKE3's key derivation context: names the construction, so that no other use of the seed meets it.
const CONTEXT: &str = "stoker 2026-11-29 permutation key v1";

const TABLE_PURPOSE: &[u8] = b"table";
const FEISTEL_PURPOSE: &[u8] = b"feistel";

/// Rounds of the Feistel network: as many as the bias tests were run with.
const ROUNDS: usize = 16;

/// A 256-bit key of one permutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Derives the key for `purpose` and `numbers` (such as cache, partition, epoch) from the user's seed.
    #[must_use]
    pub fn derive(seed: u64, purpose: &str, numbers: &[u64]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&seed.to_le_bytes());
        hasher.update(&(purpose.len() as u64).to_le_bytes());
        hasher.update(purpose.as_bytes());
        hasher.update(&(numbers.len() as u64).to_le_bytes());
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// An endless stream of random bytes for `purpose` and size `len`.
    fn stream(&self, purpose: &[u8], len: u64) -> blake3::OutputReader {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(purpose);
        hasher.update(&len.to_le_bytes());
        hasher.finalize_xof()
    }
}

/// A bijection on `0..len`.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    network: Network,
}

#[derive(Debug, Clone)]
enum Network {
    /// A shuffled table and its inverse.
    Table {
        forward: Vec<u16>,
        inverse: Vec<u16>,
    },
    /// A mixed-radix Feistel network on `0..radices[0] * radices[1]`.
    Feistel {
        radices: [u64; 2],
        keys: Box<[[u64; 2]; ROUNDS]>,
    },
}

impl Permutation {
    /// The bijection of `key` on `0..len`. Takes 4 bytes a position up to 65,536 positions, and 256 bytes above.
    ///
    /// # Panics
    ///
    /// If `len` is above 2^48.
    #[must_use]
    pub fn new(key: Key, len: u64) -> Self {
        assert!(len <= MAX_POSITIONS, "too many positions: {len}");
        let network = if len <= MAX_TABLE_POSITIONS {
            table(key, len)
        } else {
            feistel(key, len)
        };
        Self { len, network }
    }

    /// The number of positions.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no positions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What stands at `position`.
    ///
    /// # Panics
    ///
    /// If `position` is not below [`len`](Self::len).
    #[must_use]
    pub fn get(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} of {}", self.len);
        match &self.network {
            Network::Table { forward, .. } => u64::from(forward[position as usize]),
            Network::Feistel { radices, keys } => {
                let mut value = encrypt(*radices, keys, position);
                // Walks the cycle until it is back inside: about one position in the root of `len` needs a second step.
                while value >= self.len {
                    value = encrypt(*radices, keys, value);
                }
                value
            }
        }
    }

    /// Where `value` stands: the inverse of [`get`](Self::get).
    ///
    /// # Panics
    ///
    /// If `value` is not below [`len`](Self::len).
    #[must_use]
    pub fn position_of(&self, value: u64) -> u64 {
        assert!(value < self.len, "value {value} of {}", self.len);
        match &self.network {
            Network::Table { inverse, .. } => u64::from(inverse[value as usize]),
            Network::Feistel { radices, keys } => {
                let mut position = decrypt(*radices, keys, value);
                while position >= self.len {
                    position = decrypt(*radices, keys, position);
                }
                position
            }
        }
    }
}

/// What `word` draws below `bound` (at least 1): it is multiplied, and says nothing in the uneven part, so that there is no bias.
fn below(word: u32, bound: u32) -> Option<u32> {
    let product = u64::from(word) * u64::from(bound);
    // The uneven part is shorter than the bound: the division is seldom needed.
    let low = product as u32;
    (low >= bound || low >= bound.wrapping_neg() % bound).then_some((product >> 32) as u32)
}

/// The entries of the permutation of `key` on `0..len` from its last position back: up to `count` of them, after `skipped`
/// others.
///
/// A table is shuffled from its last position down, so this takes `skipped + count` draws instead of `len`. For readers that go through a permutation from its end.
///
/// # Panics
///
/// If `len` is above [`MAX_TABLE_POSITIONS`].
#[must_use]
pub fn last_entries(key: Key, len: u64, skipped: u64, count: u64) -> Box<[u16]> {
    assert!(len <= MAX_TABLE_POSITIONS, "no table: {len}");
    let end = len.saturating_sub(skipped);
    let from = end.saturating_sub(count);
    let entries = shuffled(key, len, from);
    let entries = &entries[from as usize..end as usize];
    entries.iter().rev().copied().collect()
}

/// Fisher-Yates from the last position down to `from`: from there on the entries are final.
fn shuffled(key: Key, len: u64, from: u64) -> Vec<u16> {
    let mut bytes = key.stream(TABLE_PURPOSE, len);
    let mut chunk = [0u8; 4096];
    let mut forward: Vec<u16> = (0..len).map(|position| position as u16).collect();
    let from = (from as usize).max(1);
    let mut left = forward.len();
    while left > from {
        let filled = chunk.len().min((left - from) * 4);
        bytes.fill(&mut chunk[..filled]);
        for word in chunk[..filled].as_chunks().0 {
            if let Some(other) = below(u32::from_le_bytes(*word), left as u32) {
                left -= 1;
                forward.swap(left, other as usize);
            }
        }
    }
    forward
}

fn table(key: Key, len: u64) -> Network {
    let forward = shuffled(key, len, 0);
    let mut inverse = vec![0; forward.len()];
    for (position, value) in forward.iter().enumerate() {
        inverse[usize::from(*value)] = position as u16;
    }
    Network::Table { forward, inverse }
}

fn feistel(key: Key, len: u64) -> Network {
    let root = len.isqrt();
    let first = if root * root < len { root + 1 } else { root };
    let mut bytes = key.stream(FEISTEL_PURPOSE, len);
    let mut keys = Box::new([[0; 2]; ROUNDS]);
    for half in keys.iter_mut().flatten() {
        let mut word = [0; 8];
        bytes.fill(&mut word);
        *half = u64::from_le_bytes(word);
    }
    Network::Feistel {
        radices: [first, len.div_ceil(first)],
        keys,
    }
}

/// A keyed 64-bit function: two rounds of a full-avalanche mixer, each with a half of the round key.
fn mix(key: [u64; 2], value: u64) -> u64 {
    key.into_iter().fold(value, |value, half| {
        let mut mixed = value.wrapping_add(half);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// What a round adds to one half, below `radix`, given the other half.
fn round(key: [u64; 2], other: u64, radix: u64) -> u64 {
    ((u128::from(mix(key, other)) * u128::from(radix)) >> 64) as u64
}

fn encrypt(radices: [u64; 2], keys: &[[u64; 2]; ROUNDS], value: u64) -> u64 {
    let mut halves = [value % radices[0], value / radices[0]];
    for (number, key) in keys.iter().enumerate() {
        let side = number % 2;
        let sum = halves[side] + round(*key, halves[1 - side], radices[side]);
        halves[side] = if sum >= radices[side] {
            sum - radices[side]
        } else {
            sum
        };
    }
    halves[1] * radices[0] + halves[0]
}

fn decrypt(radices: [u64; 2], keys: &[[u64; 2]; ROUNDS], value: u64) -> u64 {
    let mut halves = [value % radices[0], value / radices[0]];
    for (number, key) in keys.iter().enumerate().rev() {
        let side = number % 2;
        let add = round(*key, halves[1 - side], radices[side]);
        halves[side] = if halves[side] >= add {
            halves[side] - add
        } else {
            halves[side] + radices[side] - add
        };
    }
    halves[1] * radices[0] + halves[0]
}
