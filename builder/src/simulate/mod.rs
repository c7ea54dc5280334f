//! How training waits for data on 1 to 1,024 nodes, by a small model of discrete events.
//!
//! Owns the comparison behind `stoker simulate`. It is fed with measured constants and fitted to nothing. Invariant: the same
//! constants, nodes, steps and seed give the same report.

mod constants;
mod line;
mod mode;
mod plot;
mod report;
#[cfg(test)]
mod tests;
mod training;

pub use constants::Constants;
pub use mode::Mode;
pub use report::{Report, Row};

use training::Schedule;

/// What to simulate.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The cluster, its data and its training.
    pub constants: Constants,
    /// Numbers of nodes.
    pub nodes: Vec<u32>,
    /// Steps of each run, at least two.
    pub steps: u32,
    /// Seed of what varies.
    pub seed: u64,
}

/// Simulates every mode on every number of nodes.
#[must_use]
pub fn run(options: &Options) -> Report {
    let modes = |nodes| Mode::ALL.map(|mode| row(options, nodes, mode));
    Report {
        constants: options.constants.clone(),
        steps: options.steps,
        seed: options.seed,
        rows: options.nodes.iter().copied().flat_map(modes).collect(),
    }
}

fn row(options: &Options, nodes: u32, mode: Mode) -> Row {
    let of = &options.constants;
    let steps = options.steps as usize;
    let feed = mode::feed(mode, of, nodes, steps, options.seed);
    let schedule = Schedule {
        batch: of.node_batch() as usize,
        step_seconds: of.step_seconds,
        steps,
    };
    let run = training::train(&feed.supply, schedule, options.seed);
    let cycle = run.wait_seconds + of.step_seconds;
    let elapsed = run.first_seconds + cycle * (steps - 1) as f64 + of.step_seconds;
    let node_rate = f64::from(of.node_batch()) / cycle;
    let nic = (feed.nic_bytes * node_rate + feed.nic_bytes_once / elapsed) / 1e9;
    Row {
        nodes,
        mode,
        wait_ratio: run.wait_seconds / cycle,
        wait_seconds: run.wait_seconds,
        samples_s: node_rate * f64::from(nodes),
        nic_gb_s: nic,
        nic_share: nic / of.nic_gb_s,
        first_step_seconds: run.first_seconds,
        busiest: run.busiest.0,
        busiest_share: run.busiest.1,
    }
}
