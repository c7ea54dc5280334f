//! Runs the PTX text itself, for the instructions that the kernels use.
//!
//! Slow and strict: an instruction, symbol or access that it does not know is an error, never a guess. Global accesses
//! are checked against the ranges that the launch may read and write, all accesses for alignment.

use std::collections::HashMap;
use std::ops::Range;

use crate::memory::{load, store};

/// A kernel of a PTX text.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Name and bytes of each parameter.
    pub(crate) parameters: Vec<(String, usize)>,
    /// Name and bytes of each array in shared memory.
    shared: Vec<(String, usize)>,
    labels: HashMap<String, usize>,
    code: Vec<Instruction>,
}

#[derive(Debug, Clone)]
struct Instruction {
    guard: Option<String>,
    name: String,
    operands: Vec<String>,
}

/// All kernels of a text, or what is not understood in it.
pub(crate) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or("").trim());
    let text: String = lines
        .filter(|line| !line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let mut parts = text.split(".visible .entry ");
    let head = parts.next().unwrap_or("");
    for directive in [".version ", ".target sm_", ".address_size 64"] {
        if !head.contains(directive) {
            return Err(format!("no {directive}"));
        }
    }
    parts.map(entry).collect()
}

fn entry(text: &str) -> Result<Entry, String> {
    let wrong = |what: &str| format!("not understood: {what}");
    let (name, rest) = text.split_once('(').ok_or_else(|| wrong(text))?;
    let (parameters, rest) = rest.split_once(')').ok_or_else(|| wrong(text))?;
    let (_, body) = rest.split_once('{').ok_or_else(|| wrong(text))?;
    let body = body
        .trim_end()
        .strip_suffix('}')
        .ok_or_else(|| wrong(text))?;
    let parameter = |text: &str| match text.split_whitespace().collect::<Vec<_>>()[..] {
        [".param", ".u64", name] => Ok((name.to_owned(), 8)),
        [".param", ".u32", name] => Ok((name.to_owned(), 4)),
        _ => Err(wrong(text)),
    };
    let mut entry = Entry {
        name: name.trim().to_owned(),
        parameters: parameters
            .split(',')
            .map(parameter)
            .collect::<Result<_, _>>()?,
        shared: Vec::new(),
        labels: HashMap::new(),
        code: Vec::new(),
    };
    for line in body.lines().filter(|line| !line.is_empty()) {
        if let Some(label) = line.strip_suffix(':') {
            entry.labels.insert(label.to_owned(), entry.code.len());
            continue;
        }
        let line = line.strip_suffix(';').ok_or_else(|| wrong(line))?;
        if line.starts_with(".reg ") {
            continue;
        }
        if let Some(array) = line.strip_prefix(".shared .align 16 .b8 ") {
            let (name, bytes) = array.split_once('[').ok_or_else(|| wrong(line))?;
            let bytes = bytes
                .trim_end_matches(']')
                .parse()
                .map_err(|_| wrong(line))?;
            entry.shared.push((name.to_owned(), bytes));
            continue;
        }
        let (guard, line) = match line.strip_prefix('@') {
            Some(guarded) => {
                let (guard, line) = guarded.split_once(' ').ok_or_else(|| wrong(line))?;
                (Some(guard.to_owned()), line)
            }
            None => (None, line),
        };
        let (name, operands) = line.split_once(' ').unwrap_or((line, ""));
        // Commas inside of braces belong to a vector.
        let mut parts = vec![String::new()];
        let mut depth = 0;
        for character in operands.chars() {
            depth += i32::from(character == '{') - i32::from(character == '}');
            match character {
                ',' if depth == 0 => parts.push(String::new()),
                ' ' => {}
                other => parts.last_mut().unwrap().push(other),
            }
        }
        entry.code.push(Instruction {
            guard,
            name: name.to_owned(),
            operands: parts,
        });
    }
    Ok(entry)
}

/// A launch: values of the parameters, size of the grid, and what global memory may be touched.
pub(crate) struct Launch {
    pub(crate) parameters: Vec<u64>,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) readable: Vec<Range<u64>>,
    pub(crate) writable: Range<u64>,
}

struct Thread {
    registers: HashMap<String, u64>,
    at: usize,
    ended: bool,
}

/// Runs all blocks, one thread at a time between two barriers.
pub(crate) fn run(entry: &Entry, launch: &Launch) -> Result<(), String> {
    for block in 0..launch.blocks {
        let mut shared = vec![0xa5; entry.shared.iter().map(|(_, bytes)| bytes).sum()];
        let mut threads: Vec<_> = (0..launch.threads)
            .map(|thread| Thread {
                registers: HashMap::from([
                    ("%tid.x".to_owned(), u64::from(thread)),
                    ("%ctaid.x".to_owned(), u64::from(block)),
                    ("%nctaid.x".to_owned(), u64::from(launch.blocks)),
                ]),
                at: 0,
                ended: false,
            })
            .collect();
        while threads.iter().any(|thread| !thread.ended) {
            for thread in threads.iter_mut().filter(|thread| !thread.ended) {
                until_barrier(entry, launch, thread, &mut shared)?;
            }
        }
    }
    Ok(())
}

fn until_barrier(
    entry: &Entry,
    launch: &Launch,
    thread: &mut Thread,
    shared: &mut [u8],
) -> Result<(), String> {
    // No kernel here takes more steps in a test; an endless loop must not hang it.
    for _ in 0..10_000_000 {
        let instruction = entry.code.get(thread.at).ok_or("ran off the end")?;
        thread.at += 1;
        if let Some(guard) = &instruction.guard
            && thread.value(guard)? == 0
        {
            continue;
        }
        match instruction.name.as_str() {
            "bar.sync" => return Ok(()),
            "ret" => {
                thread.ended = true;
                return Ok(());
            }
            "bra" => {
                let label = &instruction.operands[0];
                thread.at = *entry.labels.get(label).ok_or("no such label")?;
            }
            _ => {
                let done = step(entry, launch, thread, shared, instruction);
                done.map_err(|what| {
                    format!("{} {:?}: {what}", instruction.name, instruction.operands)
                })?;
            }
        }
    }
    Err("too many steps".to_owned())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0f") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Thread {
    fn value(&self, operand: &str) -> Result<u64, String> {
        let known = self
            .registers
            .get(operand)
            .copied()
            .or_else(|| number(operand));
        known.ok_or_else(|| format!("`{operand}` has no value"))
    }

    fn word(&self, operand: &str) -> Result<u32, String> {
        let value = self.value(operand)?;
        u32::try_from(value).map_err(|_| format!("`{operand}` has more than 32 bits"))
    }

    fn float(&self, operand: &str) -> Result<f32, String> {
        Ok(f32::from_bits(self.word(operand)?))
    }
}

fn step(
    entry: &Entry,
    launch: &Launch,
    thread: &mut Thread,
    shared: &mut [u8],
    instruction: &Instruction,
) -> Result<(), String> {
    let operands: Vec<&str> = instruction.operands.iter().map(String::as_str).collect();
    let (name, to) = (instruction.name.as_str(), operands[0]);
    let value = |index: usize| thread.value(operands[index]);
    let word = |index: usize| thread.word(operands[index]);
    let result = match name {
        "ld.param.u64" | "ld.param.u32" => {
            let wanted = operands[1].trim_matches(['[', ']']);
            let found = entry.parameters.iter().position(|(name, _)| name == wanted);
            launch.parameters[found.ok_or("no such parameter")?]
        }
        "cvta.to.global.u64" => value(1)?,
        "mov.u32" | "mov.f32" => match entry
            .shared
            .iter()
            .position(|(name, _)| name == operands[1])
        {
            Some(index) => entry.shared[..index]
                .iter()
                .map(|(_, bytes)| *bytes as u64)
                .sum(),
            None => u64::from(word(1)?),
        },
        "mov.b32" => {
            let halves = operands[1].trim_matches(['{', '}']).split_once(',');
            let (low, high) = halves.ok_or("no pair")?;
            thread.value(low)? | (thread.value(high)? << 16)
        }
        "cvt.u64.u32" => u64::from(word(1)?),
        "cvt.u32.u64" => value(1)? & 0xffff_ffff,
        "cvt.rn.f32.u32" => u64::from((word(1)? as f32).to_bits()),
        "add.u32" => u64::from(word(1)?.wrapping_add(word(2)?)),
        "sub.u32" => u64::from(word(1)?.wrapping_sub(word(2)?)),
        "mul.lo.u32" => u64::from(word(1)?.wrapping_mul(word(2)?)),
        "rem.u32" => u64::from(word(1)? % word(2)?),
        "shl.b32" => u64::from(word(1)?.checked_shl(word(2)?).unwrap_or(0)),
        "bfe.u32" => u64::from((word(1)? >> word(2)?) & ((1 << word(3)?) - 1)),
        "mul.wide.u32" => u64::from(word(1)?) * u64::from(word(2)?),
        "add.u64" => value(1)?.wrapping_add(value(2)?),
        "shr.u64" => value(1)?.checked_shr(word(2)?).unwrap_or(0),
        "setp.ge.u32" => u64::from(word(1)? >= word(2)?),
        "setp.lt.f32" => u64::from(thread.float(operands[1])? < thread.float(operands[2])?),
        "fma.rn.f32" => {
            let product = thread
                .float(operands[1])?
                .mul_add(thread.float(operands[2])?, thread.float(operands[3])?);
            u64::from(product.to_bits())
        }
        "ld.global.nc.f32" | "ld.global.nc.u32" => u64::from(u32::from_le_bytes(load(global(
            thread,
            operands[1],
            4,
            &launch.readable,
        )?))),
        "ld.global.nc.u16" => u64::from(u16::from_le_bytes(load(global(
            thread,
            operands[1],
            2,
            &launch.readable,
        )?))),
        "ld.shared.f32" => {
            let bytes = local(thread, operands[1], 4, shared)?;
            u64::from(u32::from_le_bytes(bytes.try_into().unwrap()))
        }
        "ld.shared.u16" => {
            let bytes = local(thread, operands[1], 2, shared)?;
            u64::from(u16::from_le_bytes(bytes.try_into().unwrap()))
        }
        "st.shared.f32" => {
            let bits = word(1)?;
            local(thread, to, 4, shared)?.copy_from_slice(&bits.to_le_bytes());
            return Ok(());
        }
        "st.shared.u16" => {
            let bits = value(1)? as u16;
            local(thread, to, 2, shared)?.copy_from_slice(&bits.to_le_bytes());
            return Ok(());
        }
        "st.global.f32" | "st.global.v4.f32" | "st.global.v2.b32" => {
            let values: Vec<_> = operands[1].trim_matches(['{', '}']).split(',').collect();
            let address = global(
                thread,
                to,
                4 * values.len() as u64,
                std::slice::from_ref(&launch.writable),
            )?;
            for (index, value) in values.iter().enumerate() {
                store(address + 4 * index, thread.word(value)?.to_le_bytes());
            }
            return Ok(());
        }
        _ => return Err("an unknown instruction".to_owned()),
    };
    thread.registers.insert(to.to_owned(), result);
    Ok(())
}

/// `[register]` or `[register+offset]`.
fn address(thread: &Thread, operand: &str, bytes: u64) -> Result<u64, String> {
    let inner = operand.trim_matches(['[', ']']);
    let (register, offset) = inner.split_once('+').unwrap_or((inner, "0"));
    let address = thread.value(register)? + number(offset).ok_or("no offset")?;
    match address.is_multiple_of(bytes) {
        true => Ok(address),
        false => Err(format!("{address:#x} is not aligned")),
    }
}

fn global(
    thread: &Thread,
    operand: &str,
    bytes: u64,
    allowed: &[Range<u64>],
) -> Result<usize, String> {
    let address = address(thread, operand, bytes)?;
    match allowed
        .iter()
        .any(|range| range.start <= address && address + bytes <= range.end)
    {
        true => Ok(address as usize),
        false => Err(format!("{address:#x} lies outside of {allowed:x?}")),
    }
}

fn local<'a>(
    thread: &Thread,
    operand: &str,
    bytes: u64,
    shared: &'a mut [u8],
) -> Result<&'a mut [u8], String> {
    let address = address(thread, operand, bytes)? as usize;
    shared
        .get_mut(address..address + bytes as usize)
        .ok_or_else(|| "outside of shared memory".to_owned())
}
