//! Which workers' parts a build makes: from options, or from the environment that a launcher sets.
//!
//! Invariant: without `--worker` or `--workers` the environment counts for nothing, so that a whole build that happens to run
//! inside a job stays one; an option beats the environment.

use std::fmt;

use stoker_formats::PartName;
use stoker_formats::limits::MAX_WORKERS;

use super::args::WorkerArg;
use crate::error::{Error, Result};
use crate::held::numbers;

/// What launchers call a worker's number and how many there are. An `mpirun` inside a Slurm job gives every process the
/// job's own `SLURM_PROCID`, so Open MPI is asked first.
const LAUNCHERS: [(&str, Option<&str>); 3] = [
    ("OMPI_COMM_WORLD_RANK", Some("OMPI_COMM_WORLD_SIZE")),
    ("SLURM_PROCID", Some("SLURM_NTASKS")),
    ("JOB_COMPLETION_INDEX", None),
];

/// The parts to build, and who said so.
#[derive(Debug)]
pub(super) struct Chosen {
    /// Ascending; at least one.
    ours: Vec<u32>,
    count: u32,
    worker: &'static str,
    workers: &'static str,
}

impl Chosen {
    pub(super) fn parts(&self) -> Vec<PartName> {
        let name = |worker: &u32| PartName {
            worker: *worker,
            workers: self.count,
        };
        self.ours.iter().map(name).collect()
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "building the part of worker {} (from {}) of {} (from {})",
            numbers(&self.ours),
            self.worker,
            self.count,
            self.workers
        )
    }
}

/// The parts that options and environment ask for; none for a whole build.
///
/// # Errors
/// [`Error::Usage`] if a number is missing, is none, or there is no such worker.
pub(super) fn choose(
    worker: Option<&WorkerArg>,
    workers: Option<u32>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Chosen>> {
    if worker.is_none() && workers.is_none() {
        return Ok(None);
    }
    let is_set = |name: &Option<&str>| name.is_some_and(|name| variable(name).is_some());
    let (ours, worker_from, size) = match worker {
        Some(WorkerArg(Some(numbers))) => {
            let size = LAUNCHERS.into_iter().map(|(_, size)| size).find(is_set);
            (numbers.clone(), "--worker", size.flatten())
        }
        _ => {
            let launcher = LAUNCHERS.into_iter().find(|(name, _)| is_set(&Some(*name)));
            let (name, size) = launcher.ok_or_else(|| Error::Usage {
                what: "no launcher has set this worker's number".into(),
                hint: "give --worker, or start it by srun, mpirun or an indexed Kubernetes job"
                    .into(),
            })?;
            let ours = vec![read(name, &variable)?];
            (ours, name, size.filter(|_| is_set(&size)))
        }
    };
    let (count, workers_from) = match (workers, size) {
        (Some(count), _) => (count, "--workers"),
        (None, Some(name)) => (read(name, &variable)?, name),
        (None, None) => {
            return Err(Error::Usage {
                what: "the number of workers is not known".into(),
                hint: "give --workers".into(),
            });
        }
    };
    if count > MAX_WORKERS {
        return Err(Error::Usage {
            what: format!("more than {MAX_WORKERS} workers: `{count}`"),
            hint: format!("look at {workers_from}"),
        });
    }
    if let Some(number) = ours.iter().find(|number| **number >= count) {
        return Err(Error::Usage {
            what: format!("{count} workers are numbered from 0, there is no worker `{number}`"),
            hint: format!("look at {worker_from} and {workers_from}"),
        });
    }
    Ok(Some(Chosen {
        ours,
        count,
        worker: worker_from,
        workers: workers_from,
    }))
}

fn read(name: &'static str, variable: impl Fn(&str) -> Option<String>) -> Result<u32> {
    let text = variable(name).unwrap_or_default();
    text.trim().parse().map_err(|_| Error::Usage {
        what: format!("the variable {name} is no number: `{text}`"),
        hint: "give --worker and --workers".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLURM: [(&str, &str); 2] = [("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4")];

    fn chosen(
        worker: Option<&WorkerArg>,
        workers: Option<u32>,
        variables: &[(&str, &str)],
    ) -> Result<Option<String>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        match choose(worker, workers, variable) {
            Ok(chosen) => Ok(chosen.map(|chosen| chosen.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_environment_alone_asks_for_no_part() {
        assert_eq!(chosen(None, None, &SLURM), Ok(None));
    }

    #[test]
    fn options_beat_the_environment() {
        let (auto, one, several) = (
            WorkerArg(None),
            WorkerArg(Some(vec![1])),
            WorkerArg(Some(vec![0, 1, 2, 5])),
        );
        let (auto, one) = (Some(&auto), Some(&one));
        let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let both = [SLURM, mpi].concat();
        let index = [("JOB_COMPLETION_INDEX", "6")];
        for (worker, workers, variables, expected) in [
            (
                one,
                Some(3),
                &SLURM[..],
                "1 (from --worker) of 3 (from --workers)",
            ),
            (
                Some(&several),
                Some(6),
                &[],
                "0-2, 5 (from --worker) of 6 (from --workers)",
            ),
            (
                one,
                None,
                &SLURM,
                "1 (from --worker) of 4 (from SLURM_NTASKS)",
            ),
            (
                None,
                Some(3),
                &SLURM,
                "2 (from SLURM_PROCID) of 3 (from --workers)",
            ),
            (
                auto,
                None,
                &SLURM,
                "2 (from SLURM_PROCID) of 4 (from SLURM_NTASKS)",
            ),
            (
                auto,
                None,
                &both,
                "1 (from OMPI_COMM_WORLD_RANK) of 2 (from OMPI_COMM_WORLD_SIZE)",
            ),
            (
                auto,
                Some(7),
                &index,
                "6 (from JOB_COMPLETION_INDEX) of 7 (from --workers)",
            ),
        ] {
            let expected = format!("building the part of worker {expected}");
            assert_eq!(chosen(worker, workers, variables), Ok(Some(expected)));
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let (auto, several) = (WorkerArg(None), WorkerArg(Some(vec![0, 3])));
        let (auto, several) = (Some(&auto), Some(&several));
        for (worker, workers, variables, expected) in [
            (None, Some(3), &[][..], "no launcher has set"),
            (
                auto,
                None,
                &[("JOB_COMPLETION_INDEX", "0")],
                "the number of workers is not known",
            ),
            (several, Some(3), &[], "there is no worker `3`"),
            (
                several,
                Some(1_000_001),
                &[],
                "more than 1000000 workers: `1000001`",
            ),
            (
                auto,
                Some(3),
                &[("SLURM_PROCID", "x")],
                "the variable SLURM_PROCID is no number: `x`",
            ),
        ] {
            let error = chosen(worker, workers, variables).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
