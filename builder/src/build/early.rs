//! Image files that the estimate has fetched, kept for the image stage: nothing is fetched twice.
//!
//! Owns a bound in bytes; beyond it a file is forgotten and fetched again. Invariant: what is taken
//! out is what the source said of that image in this run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::reject::Reject;
use crate::source::Fetched;

/// A sample of photographs fits, and the process stays within its memory promise.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// What a source said of an image: its file, or why there is none.
pub(crate) type Answer = Result<Fetched, Reject>;

#[derive(Debug, Default)]
struct Kept {
    answers: HashMap<u32, Answer>,
    bytes: usize,
}

/// Answers by the image's number in the plan.
#[derive(Debug, Default)]
pub(crate) struct Early {
    kept: Mutex<Kept>,
}

impl Early {
    /// Keeps `answer`, if there is room.
    pub(crate) fn keep(&self, image: u32, answer: &Answer) {
        let mut kept = self.lock();
        let bytes = kept.bytes + size(answer);
        if bytes <= KEPT_BYTES_MAX && !kept.answers.contains_key(&image) {
            kept.bytes = bytes;
            kept.answers.insert(image, answer.clone());
        }
    }

    /// Whether a file of ordinary size would be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.lock().bytes < KEPT_BYTES_MAX / 2
    }

    /// The answer for `image`, if it is kept.
    pub(crate) fn get(&self, image: u32) -> Option<Answer> {
        self.lock().answers.get(&image).cloned()
    }

    /// The same, and forgets it.
    pub(crate) fn take(&self, image: u32) -> Option<Answer> {
        let mut kept = self.lock();
        let answer = kept.answers.remove(&image)?;
        kept.bytes -= size(&answer);
        Some(answer)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(answer: &Answer) -> usize {
    answer.as_ref().map_or(0, |fetched| fetched.bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reject::Reason;

    fn file(bytes: usize) -> Answer {
        Ok(Fetched {
            bytes: vec![0; bytes].into(),
            uri: "s3://bucket/key".into(),
            etag: None,
        })
    }

    #[test]
    fn an_answer_is_taken_once_and_the_bytes_are_bounded() {
        let early = Early::default();
        early.keep(1, &file(KEPT_BYTES_MAX - 10));
        early.keep(2, &file(11));
        early.keep(3, &Err(Reject::new(Reason::MissingImage, "gone")));
        assert!(early.get(2).is_none());
        assert_eq!(
            early.take(3),
            Some(Err(Reject::new(Reason::MissingImage, "gone")))
        );
        assert!(early.get(1).is_some() && early.take(1).is_some() && early.take(1).is_none());
        early.keep(2, &file(11));
        assert_eq!(early.take(2), Some(file(11)));
    }
}
