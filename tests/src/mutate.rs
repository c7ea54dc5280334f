//! Seeded mutations of byte strings, for the smoke test of the fuzz bodies.
//!
//! Owns no target. Invariant: the same seed and corpus give the same inputs.

use crate::dice::Dice;

/// An input grows by at most this much in one step.
const GROWTH_BYTES_MAX: usize = 64;
/// Numbers that sit on the edge of something.
const EDGES: [u64; 8] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// One of `seeds` with one to four changes; `tokens` are pasted in now and then.
#[must_use]
pub fn mutated(dice: &mut Dice, seeds: &[Vec<u8>], tokens: &[&[u8]]) -> Vec<u8> {
    let mut bytes = dice.pick(seeds).clone();
    for _ in 0..=dice.below(4) {
        mutate(dice, &mut bytes, seeds, tokens);
    }
    bytes
}

fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>, seeds: &[Vec<u8>], tokens: &[&[u8]]) {
    if bytes.is_empty() {
        bytes.push(0);
    }
    let at = dice.below(bytes.len());
    match dice.below(9) {
        0 => bytes[at] ^= 1 << dice.below(8),
        1 => bytes[at] = dice.below(256) as u8,
        2 => bytes.truncate(at),
        3 => {
            let end = (at + 1 + dice.below(GROWTH_BYTES_MAX)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => {
            let end = (at + 1 + dice.below(GROWTH_BYTES_MAX)).min(bytes.len());
            let part = bytes[at..end].to_vec();
            let to = dice.below(bytes.len() + 1);
            bytes.splice(to..to, part);
        }
        5 => {
            let edge = dice.pick(&EDGES).to_le_bytes();
            let width = (1 << dice.below(4)).min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&edge[..width]);
        }
        6 => {
            let other = dice.pick(seeds);
            let from = dice.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        7 if !tokens.is_empty() => {
            let token = dice.pick(tokens).to_vec();
            bytes.splice(at..at, token);
        }
        _ => bytes.insert(at, dice.below(256) as u8),
    }
}
