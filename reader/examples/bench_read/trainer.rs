//! The wait beside a trainer that burns one core and needs half of what the reader can feed.

use std::path::Path;
use std::time::{Duration, Instant};

use stoker_reader::{Backend, Batch, Reader, Verify};

use crate::limits::{AHEAD, BUFFERS};
use crate::point::{Way, next, taken};

/// How long the reader alone and the reader beside the trainer are measured.
const TIME: Duration = Duration::from_secs(2);

/// What was seen.
pub(crate) struct Beside {
    /// All of it burnt.
    pub(crate) step: Duration,
    /// Share of the time that the trainer waited.
    pub(crate) waiting: f64,
}

/// Reads batches of `batch` samples with one thread, checked, over and over.
pub(crate) fn beside(cache: &Path, batch: u32) -> Beside {
    let way = Way {
        batch,
        verify: Verify::Always,
        backend: Backend::Pread,
        threads: 1,
        prefetch_batches: AHEAD as u64,
        prefetch_bytes: None,
    };
    let mut reader = way.open(cache, false);
    for _ in 0..4 * BUFFERS {
        take(&mut reader);
    }
    let (_, batches) = run(&mut reader, Duration::ZERO);
    let step = 2 * TIME / batches;
    // Until there are batches ahead.
    run(&mut reader, step);
    let (waited, batches) = run(&mut reader, step);
    Beside {
        step,
        waiting: waited.div_duration_f64(waited + step * batches),
    }
}

/// Takes batches for a while, with a step after each; gives what was waited, and how many came.
fn run(reader: &mut Reader, step: Duration) -> (Duration, u32) {
    let start = Instant::now();
    let (mut waited, mut batches) = (Duration::ZERO, 0);
    while start.elapsed() < TIME {
        let asked = Instant::now();
        let batch = take(reader);
        let got = Instant::now();
        waited += got - asked;
        batches += 1;
        std::hint::black_box(taken(&batch));
        while got.elapsed() < step {
            std::hint::spin_loop();
        }
    }
    (waited, batches)
}

/// The next batch, of the next epoch where one ends.
fn take(reader: &mut Reader) -> Batch {
    loop {
        if let Some(batch) = next(reader) {
            return batch;
        }
    }
}
