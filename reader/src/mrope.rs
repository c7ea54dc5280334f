//! Positions of tokens in text, time, height and width (mrope).
//!
//! Owns the rule of Qwen3-VL (`get_rope_index` of transformers): text counts on in all three; an image that begins at p
//! has t = p, h = p + row, w = p + column over its merged grid, and what follows begins at p + max(rows, columns).
//! Invariant: every token gets three numbers, whatever the ids are; pads without a grid count as text.

/// What of a model's recipe the positions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mrope {
    /// The token that stands for one merged block of patches.
    pub image_pad: i32,
    /// Patches a side of a merged block.
    pub merge_size: i32,
}

impl Mrope {
    /// Calls `put(token, [t, h, w])` for each of `ids` in order; `grids` are those of the sample's images.
    pub fn positions(
        &self,
        ids: impl IntoIterator<Item = i32>,
        grids: &[[i32; 3]],
        mut put: impl FnMut(usize, [i64; 3]),
    ) {
        let mut grids = grids.iter();
        let mut next = 0i64;
        let mut block: Option<Block> = None;
        for (token, id) in ids.into_iter().enumerate() {
            if id == self.image_pad {
                if block.is_none() {
                    block = grids
                        .next()
                        .map(|grid| Block::new(*grid, self.merge_size, next));
                }
                if let Some(open) = &mut block {
                    put(token, open.position());
                    if open.step() {
                        next = open.end();
                        block = None;
                    }
                    continue;
                }
            } else if let Some(cut) = block.take() {
                next = cut.end();
            }
            put(token, [next; 3]);
            next += 1;
        }
    }
}

/// A walk over the merged grid of one image, frame by frame, row by row.
struct Block {
    start: i64,
    rows: i64,
    columns: i64,
    left: i64,
    frame: i64,
    row: i64,
    column: i64,
}

impl Block {
    fn new([frames, height, width]: [i32; 3], merge: i32, start: i64) -> Self {
        let merged = |side: i32| i64::from(side / merge.max(1)).max(1);
        let (rows, columns) = (merged(height), merged(width));
        Self {
            start,
            rows,
            columns,
            left: i64::from(frames).max(1) * rows * columns,
            frame: 0,
            row: 0,
            column: 0,
        }
    }

    fn position(&self) -> [i64; 3] {
        [
            self.start + self.frame,
            self.start + self.row,
            self.start + self.column,
        ]
    }

    /// Goes to the next token; whether the image is over.
    fn step(&mut self) -> bool {
        self.left -= 1;
        self.column += 1;
        if self.column == self.columns {
            self.column = 0;
            self.row += 1;
        }
        if self.row == self.rows {
            self.row = 0;
            self.frame += 1;
        }
        self.left == 0
    }

    fn end(&self) -> i64 {
        self.start + self.rows.max(self.columns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ids: &[i32], grids: &[[i32; 3]]) -> Vec<[i64; 3]> {
        let mrope = Mrope {
            image_pad: 9,
            merge_size: 2,
        };
        let mut positions = Vec::new();
        mrope.positions(ids.iter().copied(), grids, |token, position| {
            assert_eq!(token, positions.len());
            positions.push(position);
        });
        positions
    }

    #[test]
    fn text_counts_on_and_images_span_their_grid() {
        assert_eq!(of(&[1, 2], &[]), [[0; 3], [1; 3]]);
        // Two rows of three blocks from 1 on; the text after begins at 1 + 3.
        let positions = of(&[1, 9, 9, 9, 9, 9, 9, 2, 3], &[[1, 4, 6]]);
        assert_eq!(
            positions,
            [
                [0, 0, 0],
                [1, 1, 1],
                [1, 1, 2],
                [1, 1, 3],
                [1, 2, 1],
                [1, 2, 2],
                [1, 2, 3],
                [4; 3],
                [5; 3]
            ]
        );
    }

    #[test]
    fn images_may_touch_and_pads_without_a_grid_are_text() {
        let positions = of(&[9, 9, 9], &[[1, 2, 2], [1, 2, 2]]);
        assert_eq!(positions, [[0; 3], [1; 3], [2; 3]]);
    }
}
