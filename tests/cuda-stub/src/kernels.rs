//! What the kernels do, by name, and how a launch is run.

use std::ops::Range;

use crate::memory::{load, store};
use crate::ptx::{self, Entry, Launch};

/// Ranges of device memory that a launch reads and writes; none if the parameters make no sense.
pub(crate) struct Ranges {
    pub(crate) read: Vec<Range<u64>>,
    pub(crate) written: Range<u64>,
}

/// Bytes of one result of an expansion kernel.
fn result_bytes(name: &str) -> Option<u64> {
    match name {
        "stoker_expand_f32" => Some(4),
        "stoker_expand_bf16" => Some(2),
        _ => None,
    }
}

pub(crate) fn ranges(name: &str, parameters: &[u64]) -> Option<Ranges> {
    match (result_bytes(name), parameters) {
        (Some(size), &[from, table, to, groups, _, _, _, frames]) => Some(Ranges {
            read: vec![from..from + groups * 4, table..table + 768 * size],
            written: to..to + groups * 4 * frames * size,
        }),
        (None, &[sink, _]) if name == "stoker_busy" => Some(Ranges {
            read: Vec::new(),
            written: sink..sink + 4,
        }),
        _ => None,
    }
}

/// Runs a launch: by its name, or its text.
pub(crate) fn run(entry: &Entry, launch: &Launch, interpret: bool) -> Result<(), String> {
    if interpret {
        return ptx::run(entry, launch);
    }
    match (result_bytes(&entry.name), &launch.parameters[..]) {
        (Some(4), parameters) => expand::<4>(parameters),
        (Some(_), parameters) => expand::<2>(parameters),
        (None, parameters) => std::thread::sleep(std::time::Duration::from_nanos(parameters[1])),
    }
    Ok(())
}

fn expand<const N: usize>(parameters: &[u64]) {
    let [from, table, to, groups, plane, _, _, frames] = *parameters else {
        unreachable!("checked at the launch")
    };
    let area = plane * 4;
    for index in 0..groups * 4 {
        let (q, i) = (index / area, index % area);
        let [byte] = load((from + index) as usize);
        let entry: [u8; N] = load((table + (q % 3 * 256 + u64::from(byte)) * N as u64) as usize);
        for frame in 0..frames {
            let place = (q * frames + frame) * area + i;
            store((to + place * N as u64) as usize, entry);
        }
    }
}
