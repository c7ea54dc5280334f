//! Labels: which ids the loss counts.
//!
//! Owns both label rules. Learnt are the answer, the token that closes its turn and the newline behind
//! it. Invariant of the structural rule: nothing outside an assistant's turn is ever labelled, whatever
//! the record's text says.

use super::layout::Layout;

/// The label of an id that the loss does not count.
pub const IGNORED: i32 = -100;

/// Ids that the label rules look for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    pub(super) im_start: i32,
    pub(super) im_end: i32,
}

/// Labels by the template's structure. `header` is how many ids the opening of an answer takes, with the
/// newline; a newline that the answer begins with is part of that last id, and so not learnt.
///
/// `None` if the control tokens among the ids are not those of the text.
pub(super) fn by_structure(
    ids: &[i32],
    layout: &Layout,
    marks: Marks,
    header: usize,
) -> Option<Vec<i32>> {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for (at, id) in ids.iter().enumerate() {
        if *id == marks.im_start {
            starts.push(at);
        } else if *id == marks.im_end {
            ends.push(at);
        }
    }
    if (starts.len(), ends.len()) != (layout.starts, layout.ends) {
        return None;
    }
    let mut labels = vec![IGNORED; ids.len()];
    for answer in &layout.answers {
        let from = starts[answer.start] + header;
        let to = ends[answer.end] + 1 + usize::from(answer.newline);
        labels
            .get_mut(from..to)?
            .copy_from_slice(ids.get(from..to)?);
    }
    Some(labels)
}

/// Labels as Qwen's finetune code makes them, to the letter: any id of the word `assistant`, wherever it
/// stands, opens an answer two ids later.
pub(super) fn by_finetune_code(ids: &[i32], assistant: i32, im_end: i32) -> Vec<i32> {
    let mut labels = vec![IGNORED; ids.len()];
    let mut at = 0;
    while at < ids.len() {
        if ids[at] == assistant {
            let from = (at + 2).min(ids.len());
            if let Some(length) = ids[from..].iter().position(|id| *id == im_end) {
                let end = from + length;
                let to = (end + 2).min(ids.len());
                labels[from..to].copy_from_slice(&ids[from..to]);
                at = end;
            }
        }
        at += 1;
    }
    labels
}
