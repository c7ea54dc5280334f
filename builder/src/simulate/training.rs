//! A training loop that takes batches from a line of stations: when it waits and when it trains.
//!
//! Owns which samples may be on their way. Invariant: a step begins when every sample of its batch is there and the step before it
//! is over, never earlier.

use super::line::{Line, Station};

/// How samples come to a training loop.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Supply {
    /// What every sample passes.
    pub(super) stations: Vec<Station>,
    /// Samples on their way at most.
    pub(super) window: usize,
    /// Batches that are made before they are asked for.
    pub(super) ahead: usize,
    /// Whether the next batch is begun only when the one before is whole.
    pub(super) batch_by_batch: bool,
    /// Seconds that the loop itself spends on copies of each batch.
    pub(super) copy_seconds: f64,
    /// The station whose servers make these copies meanwhile, and how many of them.
    pub(super) copying: Option<(usize, u32)>,
    /// Seconds that it then waits for the upload.
    pub(super) upload_seconds: f64,
    /// Seconds before the first sample can be asked for.
    pub(super) open_seconds: f64,
    /// For each sample in the order of need the moment from which it can be had; empty: from the start.
    pub(super) not_before: Vec<f64>,
}

/// A run of the loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Schedule {
    /// Samples of a step.
    pub(super) batch: usize,
    /// Seconds of a step.
    pub(super) step_seconds: f64,
    /// Steps to run, at least two.
    pub(super) steps: usize,
}

/// What became of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    /// Seconds from the start to the first step.
    pub(super) first_seconds: f64,
    /// Mean seconds of waiting before a step. The first steps are left out: they live on what was made before training began.
    pub(super) wait_seconds: f64,
    /// The station that was busy for the largest share of the time, and that share.
    pub(super) busiest: (&'static str, f64),
}

/// Runs the loop.
pub(super) fn train(supply: &Supply, schedule: Schedule, seed: u64) -> Run {
    let Schedule {
        batch,
        step_seconds,
        steps,
    } = schedule;
    let mut line = Line::new(&supply.stations, seed);
    let mut missing = vec![batch; steps];
    let (mut entered, mut on_way, mut whole, mut taken) = (0, 0, 0, 0);
    let mut now = supply.open_seconds;
    let (mut asked, mut asking) = (0.0, true);
    let mut waits = Vec::with_capacity(steps);
    while taken < steps {
        let allowed = taken + supply.ahead.max(usize::from(asking));
        while entered < batch * steps.min(allowed)
            && on_way < supply.window
            && (!supply.batch_by_batch || entered / batch <= whole)
        {
            let from = supply.not_before.get(entered).copied().unwrap_or(0.0);
            line.enter(now.max(from), entered as u32);
            entered += 1;
            on_way += 1;
        }
        if asking && taken < whole {
            let take_seconds = supply.copy_seconds + supply.upload_seconds;
            if let Some((station, servers)) = supply.copying {
                line.send_away(now, station, servers, supply.copy_seconds);
            }
            waits.push(now - asked + take_seconds);
            // The next batch is asked for after taking this one and the step on it.
            asked = now + take_seconds + step_seconds;
            asking = false;
            taken += 1;
            continue;
        }
        match line.next_at() {
            Some(at) if asking || at < asked => {
                now = at;
                if let Some(job) = line.step() {
                    on_way -= 1;
                    missing[job as usize / batch] -= 1;
                    while whole < steps && missing[whole] == 0 {
                        whole += 1;
                    }
                }
            }
            _ => {
                now = asked;
                asking = true;
            }
        }
    }
    let filled = (1 + supply.ahead).clamp(1, (steps / 2).max(1));
    let later = &waits[filled..];
    Run {
        first_seconds: waits[0],
        wait_seconds: later.iter().sum::<f64>() / later.len() as f64,
        busiest: line.busiest(now).unwrap_or(("nothing", 0.0)),
    }
}
