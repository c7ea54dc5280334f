//! The text of a sample, as it lies in the shard.
//!
//! Invariant: the parts follow each other in the order in which the checksum takes them.

use stoker_formats::SampleEntry;

/// Offset and bytes in its shard of a sample's ids (its own and the record's), tokens, labels, images and grids.
pub(crate) fn parts(entry: &SampleEntry) -> [(u64, u64); 6] {
    let (tokens, images) = (u64::from(entry.n_tokens), u64::from(entry.n_images));
    [
        (entry.sample_id, u64::from(entry.sample_id_bytes)),
        (
            entry.record_id,
            u64::from(entry.record_id_bytes.unwrap_or(0)),
        ),
        (entry.input_ids, tokens * 4),
        (entry.labels, tokens * 4),
        (entry.images, images * 4),
        (entry.image_grid_thw, images * 12),
    ]
}

/// The text of one sample, as it lies in the shard. Used again for every sample.
#[derive(Debug, Default)]
pub(crate) struct SampleText {
    pub(crate) bytes: Vec<u8>,
    /// Where sample id, record id, ids, labels, images and grids end.
    pub(crate) ends: [usize; 6],
}

impl SampleText {
    fn part(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    pub(crate) fn sample_id(&self) -> &[u8] {
        self.part(0)
    }

    /// Little-endian words.
    pub(crate) fn input_ids(&self) -> impl Iterator<Item = i32> + '_ {
        words(self.part(2))
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = i32> + '_ {
        words(self.part(3))
    }

    pub(crate) fn images(&self) -> impl Iterator<Item = u32> + '_ {
        words(self.part(4)).map(i32::cast_unsigned)
    }

    pub(crate) fn grids(&self) -> impl Iterator<Item = [i32; 3]> + '_ {
        let (grids, _) = self.part(5).as_chunks::<12>();
        grids.iter().map(|grid| {
            let mut words = words(grid);
            [(); 3].map(|()| words.next().unwrap_or_default())
        })
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| i32::from_le_bytes(*word))
}
