//! The outcome of a simulation, as a table for people.

use std::fmt::Write;

use serde::Serialize;

use super::constants::Constants;
use super::mode::Mode;

/// What was simulated, and what came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What it was fed with; as a file this is what `--constants` takes.
    pub constants: Constants,
    /// Steps of each run.
    pub steps: u32,
    /// Seed of what varies.
    pub seed: u64,
    /// One for each number of nodes and mode.
    pub rows: Vec<Row>,
}

/// One mode on one number of nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Nodes of the cluster.
    pub nodes: u32,
    /// How it is fed.
    pub mode: Mode,
    /// Share of the time that ranks wait for data, the first step left out.
    pub wait_ratio: f64,
    /// Mean seconds of waiting before a step, the first one left out.
    pub wait_seconds: f64,
    /// Samples that the cluster trains on in a second.
    pub samples_s: f64,
    /// GB (10^9 bytes) a second through the busiest direction of the busiest network card.
    pub nic_gb_s: f64,
    /// The same as a share of what the card can.
    pub nic_share: f64,
    /// Seconds from a cold start to the first step.
    pub first_step_seconds: f64,
    /// The station that was busy for the largest share of the time.
    pub busiest: &'static str,
    /// That share.
    pub busiest_share: f64,
}

impl Report {
    /// For people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let of = &self.constants;
        let mut text = format!(
            "nodes of {} GPUs, {} samples a step and GPU, {} s a step, {} streams, {} steps\n\n",
            of.ranks, of.batch_per_rank, of.step_seconds, of.streams, self.steps
        );
        text.push_str(
            "nodes  mode             waiting  samples/s  network card        first step  busiest\n",
        );
        let mut before = None;
        for row in &self.rows {
            if before.is_some_and(|nodes| nodes != row.nodes) {
                text.push('\n');
            }
            before = Some(row.nodes);
            let _ = writeln!(
                text,
                "{:>5}  {:<15} {:>6.1} %  {:>9.0}  {:>6.2} GB/s {:>4.0} %  {:>8.2} s  {} {:.0} %",
                row.nodes,
                row.mode.name(),
                row.wait_ratio * 100.0,
                row.samples_s,
                row.nic_gb_s,
                row.nic_share * 100.0,
                row.first_step_seconds,
                row.busiest,
                row.busiest_share * 100.0,
            );
        }
        text
    }
}
