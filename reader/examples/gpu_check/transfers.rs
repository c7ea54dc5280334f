//! Many uploads on their way at once, each compared byte for byte with what the host makes of it.

use std::sync::mpsc::sync_channel;
use std::thread;

use stoker_reader::device::{Consumer, CudaDevice, Device, DeviceOptions, Patches, Upload};
use stoker_reader::{Error, FloatTable, Pixels, Result, expand_bytes};

/// Numbers that are the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// No two entries are alike.
pub(crate) fn table() -> FloatTable {
    FloatTable::new(std::array::from_fn(|channel| {
        std::array::from_fn(|byte| (byte as f32 - 127.3) / (31.7 + 9.1 * channel as f32))
    }))
}

/// One transfer: what is sent and what must arrive.
struct Sent {
    upload: Box<dyn Upload>,
    expected: Vec<u8>,
    patches: Option<Patches>,
}

fn send(device: &CudaDevice, random: &mut Random, most: usize) -> Result<Sent> {
    let patches = (random.below(4) == 0).then(|| Patches {
        offset: 4 * random.below(20),
        count: 1 + random.below(most / 130),
        area: 4 * (1 + random.below(12)),
        temporal: 1 + random.below(2),
        pixels: [Pixels::U8, Pixels::F32, Pixels::BF16][random.below(3)],
    });
    let bytes = match &patches {
        Some(patches) => patches.offset + patches.count * 3 * patches.area,
        None => 1 + random.below(most),
    };
    let mut staging = device.stage(bytes + random.below(100))?;
    // A copy that reads the buffer too late or still reads it finds this.
    staging.fill(0xee);
    random.fill(&mut staging[..bytes]);
    staging.truncate(bytes);
    let expected = match &patches {
        None => staging.to_vec(),
        Some(p) => {
            let mut out = vec![0; p.target_bytes().unwrap_or_default()];
            expand_bytes(
                &table(),
                p.pixels,
                &staging[p.offset..],
                p.area,
                p.temporal,
                &mut out,
            );
            out
        }
    };
    Ok(Sent {
        upload: device.upload(staging)?,
        expected,
        patches,
    })
}

/// Sends `count` uploads of about `most` bytes at most, reads them on two streams, compares a roundful at a time, and
/// gives the number of wrong bytes.
pub(crate) fn transfers(ordinal: u32, count: usize, seed: u64, most: usize) -> Result<usize> {
    const PLACES: usize = 50;
    // Twice the frames and four bytes for each.
    let place = 12 * most;
    let options = DeviceOptions {
        staging: 3,
        slots: 3,
        bytes: 2 * most,
        table: Some(table()),
    };
    let device = CudaDevice::open(ordinal, &options)?;
    let mut consumers = [
        Consumer::new(&device, PLACES * place)?,
        Consumer::new(&device, PLACES * place)?,
    ];
    let mut wrong = 0;
    let (give, take) = sync_channel(1);
    thread::scope(|scope| {
        let producer = &device;
        scope.spawn(move || {
            let mut random = Random(seed);
            for _ in 0..count {
                if give.send(send(producer, &mut random, most)).is_err() {
                    return;
                }
            }
        });
        // Goes with an early return, which ends the producer.
        let take = take;
        let mut round = Vec::new();
        let mut got = vec![0; PLACES * place];
        let blank = vec![0x5a; PLACES * place];
        for number in 1..=count {
            let sent: Result<Sent> = take
                .recv()
                .unwrap_or_else(|_| unreachable!("it sends that many"));
            let mut sent = sent?;
            let bytes = sent.expected.len();
            let at = round.len() / 2 * place;
            let target = consumers[round.len() % 2].target(at..at + bytes)?;
            match sent.patches {
                Some(patches) => sent.upload.expand(&patches, target)?,
                None => sent.upload.copy_out(0..bytes, target)?,
            }
            drop(sent.upload);
            round.push(sent.expected);
            if round.len() < 2 * PLACES && number < count {
                continue;
            }
            for (which, consumer) in consumers.iter_mut().enumerate() {
                consumer.read(&mut got)?;
                let expected = round.iter().skip(which).step_by(2);
                for (got, expected) in got.chunks_exact(place).zip(expected) {
                    if got[..expected.len()] != expected[..] {
                        wrong += got.iter().zip(expected).filter(|(a, b)| a != b).count();
                    }
                }
                consumer.write(&blank)?;
            }
            round.clear();
        }
        Ok::<_, Error>(())
    })?;
    Ok(wrong)
}
