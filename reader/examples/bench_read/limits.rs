//! What the machine can do at most with the bytes of a cache's images: copies, reads from the page cache, direct reads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stoker_reader::{CacheFiles, PlainMemory, Views};

/// Batches that are prepared ahead.
pub(crate) const AHEAD: usize = 4;

/// Buffers that a reader then goes round: those ahead, the one in hand and the one that is being filled.
pub(crate) const BUFFERS: usize = AHEAD + 2;

/// Bytes of each: no batch is larger.
const BUFFER: usize = 16 << 20;

/// An image: its file, first byte and bytes.
pub(crate) type Range = (PathBuf, u64, u64);

pub(crate) struct Measured {
    pub(crate) bytes: u64,
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

impl Measured {
    pub(crate) fn of(work: impl FnOnce() -> u64) -> Self {
        let (cpu, wall) = (cpu_time(), Instant::now());
        let bytes = work();
        Self {
            bytes,
            wall: wall.elapsed().as_secs_f64(),
            cpu: (cpu_time() - cpu).as_secs_f64(),
        }
    }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Every image, in a shuffled order, the same each time.
pub(crate) fn ranges(cache: &Path) -> Vec<Range> {
    let files = CacheFiles::open(cache).expect("a cache");
    let views = Views::open(cache).expect("a cache");
    let mut ranges = Vec::new();
    for partition in 0..files.partitions() {
        for row in 0..views.images(partition).expect("a partition") {
            ranges.push(views.range(partition, row).expect("a row"));
        }
    }
    let mut state = 1u64;
    for last in (1..ranges.len()).rev() {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ranges.swap(last, (state >> 33) as usize % (last + 1));
    }
    ranges
}

/// Bytes of all images.
pub(crate) fn total(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(_, _, length)| length).sum()
}

/// Fills the page cache by plain reads, as another program would.
pub(crate) fn warm(ranges: &[Range]) {
    let mut buffer = vec![0; BUFFER];
    for (path, offset, length) in ranges {
        let file = File::open(path).expect("a shard");
        file.read_exact_at(&mut buffer[..*length as usize], *offset)
            .expect("a read");
    }
}

/// Takes the shards out of the page cache.
pub(crate) fn drop_pages(ranges: &[Range]) {
    let mut paths: Vec<&PathBuf> = ranges.iter().map(|(path, ..)| path).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let file = File::open(path).expect("a shard");
        // What was not written yet would stay.
        file.sync_data().expect("written data");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    }
    // A virtual machine may hand free memory back to its host, and getting it again would be measured as reading: have it
    // back first.
    drop(PlainMemory::new(total(ranges) as usize).expect("memory"));
}

/// Memory like the reader's: whole batches, one image after the other, in as many buffers as it has.
struct Buffers {
    all: Vec<PlainMemory>,
    batch: usize,
    filled: usize,
}

impl Buffers {
    fn new(batch: usize) -> Self {
        let buffer = || PlainMemory::new(BUFFER).expect("memory");
        Self {
            all: (0..BUFFERS).map(|_| buffer()).collect(),
            batch,
            filled: 0,
        }
    }

    /// Where image `number` of all goes.
    fn next(&mut self, number: usize, length: usize) -> &mut [u8] {
        if number.is_multiple_of(self.batch) {
            self.filled = 0;
        }
        let from = self.filled;
        self.filled += length;
        &mut self.all[number / self.batch % BUFFERS][from..from + length]
    }
}

/// Copies as many bytes in pieces of the same sizes from ordinary memory into batch buffers that are used again.
pub(crate) fn memcpy(ranges: &[Range], batch: usize, threads: usize) -> Measured {
    let source = vec![7u8; 1 << 30];
    let shares: Vec<_> = ranges.chunks(ranges.len().div_ceil(threads)).collect();
    let mut buffers: Vec<Buffers> = shares.iter().map(|_| Buffers::new(batch)).collect();
    Measured::of(|| {
        std::thread::scope(|scope| {
            let copies = shares.iter().zip(&mut buffers);
            let threads: Vec<_> = copies
                .map(|(share, buffers)| scope.spawn(|| copy(share, &source, buffers)))
                .collect();
            let copied = threads.into_iter().map(|thread| thread.join());
            copied.map(|bytes| bytes.expect("a thread")).sum()
        })
    })
}

fn copy(ranges: &[Range], source: &[u8], buffers: &mut Buffers) -> u64 {
    let mut state = 1u64;
    for (number, (_, _, length)) in ranges.iter().enumerate() {
        let length = *length as usize;
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let at = (state >> 20) as usize % (source.len() - length);
        let into = buffers.next(number, length);
        into.copy_from_slice(&source[at..at + length]);
        std::hint::black_box(&into[length / 2]);
    }
    total(ranges)
}

/// Reads the same ranges from the page cache into buffers that are used again: what no reader with `pread` can pass.
pub(crate) fn pread(ranges: &[Range], batch: usize) -> Measured {
    let mut buffers = Buffers::new(batch);
    let mut files = BTreeMap::new();
    for (path, ..) in ranges {
        files
            .entry(path)
            .or_insert_with(|| File::open(path).expect("a shard"));
    }
    Measured::of(|| {
        for (number, (path, offset, length)) in ranges.iter().enumerate() {
            let into = buffers.next(number, *length as usize);
            files[path].read_exact_at(into, *offset).expect("a read");
        }
        total(ranges)
    })
}

/// Reads the same ranges with aligned direct reads on two threads.
pub(crate) fn raw_direct(ranges: &[Range]) -> Measured {
    Measured::of(|| {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut buffer = vec![0u8; BUFFER + 2 * 4096];
                    let start = buffer.as_ptr().align_offset(4096);
                    while let Some((path, offset, length)) =
                        ranges.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let file = OpenOptions::new()
                            .read(true)
                            .custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed())
                            .open(path)
                            .expect("a shard");
                        let from = offset / 4096 * 4096;
                        let whole = (offset + length - from).next_multiple_of(4096) as usize;
                        let mut filled = 0;
                        while (filled as u64) < offset + length - from {
                            let into = &mut buffer[start + filled..start + whole];
                            filled += file.read_at(into, from + filled as u64).expect("a read");
                        }
                    }
                });
            }
        });
        total(ranges)
    })
}
