//! The one bounded retry around a whole request: send, body, length, checksum, ETag.
//!
//! The SDK's own retries are off, because they end before the body. Owns deadlines, backoff and
//! the verdict; `answer` says what an answer means. Invariant: weather ends as an [`Error`], never
//! as a reject.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::FetchError;
use super::limiter::Limiter;
use crate::error::{Error, GO_ON};
use crate::reject::Reject;

/// How often two reads of one object may disagree before it counts as changed, not as weather.
const CHANGED_MAX: u32 = 3;

/// Tries to reach a server that never has answered: what is unreachable from the start is more often a wrong setting than weather.
const UNPROVEN_TRIES_MAX: u32 = 5;

/// How long to wait for what, and how often to try.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Until a connection stands.
    pub connect: Duration,
    /// From sending a request to the head of its answer.
    pub first_byte: Duration,
    /// Between two pieces of a body.
    pub stall: Duration,
    /// For all tries of one object together, waits between them included.
    pub total: Duration,
    /// Upper bound of the first wait between two tries; it doubles with every try.
    pub backoff: Duration,
    /// Upper bound of any wait between two tries.
    pub backoff_max: Duration,
    /// Tries of one object.
    pub tries: u32,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(30),
            stall: Duration::from_secs(10),
            total: Duration::from_secs(180),
            backoff: Duration::from_millis(200),
            backoff_max: Duration::from_secs(20),
            tries: 10,
        }
    }
}

/// Why one try failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// A fact about the object that no other try will change.
    Reject(Reject),
    /// Weather: try again, gently if the server asked for it.
    Retry { what: String, throttled: bool },
    /// The credentials of this generation of the client have expired: renew them once.
    Expired { what: String, generation: u64 },
    /// The object is not the one that was asked for.
    Changed { what: String },
    /// No connection came about: weather, unless none ever has.
    Unreachable { what: String, hint: &'static str },
    /// Refused for good, until somebody changes something.
    Stop { what: String, hint: &'static str },
}

impl Fault {
    pub(super) fn retry(what: impl Into<String>) -> Self {
        Self::Retry {
            what: what.into(),
            throttled: false,
        }
    }
}

const HINT_EXPIRED: &str =
    "renew the credentials and check what they may read, then run the same command again to go on";
const HINT_CHANGED: &str =
    "the source must not change during a build: run the command again when it is at rest";

/// Calls `attempt` until it succeeds, fails for good, or the deadlines are used up.
///
/// `attempt` gets the generation of the client whose credentials have expired, if any. Waiting for
/// a permit does not count against the deadlines: the queue is no fault of this object.
pub(super) async fn run<T, A, F>(
    deadlines: &Deadlines,
    limiter: &Arc<Limiter>,
    uri: &str,
    attempt: A,
) -> Result<T, FetchError>
where
    A: Fn(Option<u64>) -> F,
    F: Future<Output = Result<T, Fault>>,
{
    let mut left = deadlines.total;
    let mut tries = 0;
    let mut changes = 0;
    let mut stale = None;
    loop {
        tries += 1;
        let permit = limiter.acquire().await;
        let start = Instant::now();
        let outcome = tokio::time::timeout(left, attempt(stale)).await;
        drop(permit);
        left = left.saturating_sub(start.elapsed());
        let fault = match outcome {
            Ok(Ok(answer)) => {
                limiter.succeeded();
                return Ok(answer);
            }
            Ok(Err(fault)) => fault,
            Err(_) => Fault::retry(format!("no whole answer within {:?}", deadlines.total)),
        };
        let stop = |what, hint: &str| {
            Err(FetchError::Stop(Error::Fetch {
                uri: uri.to_owned(),
                tries,
                what,
                hint: hint.to_owned(),
            }))
        };
        let (what, hint) = match fault {
            Fault::Reject(reject) => {
                limiter.succeeded();
                return Err(FetchError::Reject(reject));
            }
            Fault::Stop { what, hint } => return stop(what, hint),
            Fault::Expired { what, .. } if stale.is_some() => return stop(what, HINT_EXPIRED),
            Fault::Expired { what, generation } => {
                stale = Some(generation);
                (what, HINT_EXPIRED)
            }
            Fault::Changed { what } => {
                changes += 1;
                if changes == CHANGED_MAX {
                    return stop(what, HINT_CHANGED);
                }
                (what, HINT_CHANGED)
            }
            Fault::Retry { what, throttled } => {
                if throttled {
                    limiter.throttled();
                }
                (what, GO_ON)
            }
            Fault::Unreachable { what, hint } => {
                if tries >= UNPROVEN_TRIES_MAX && !limiter.is_proven() {
                    return stop(what, hint);
                }
                (what, hint)
            }
        };
        let pause = backoff(deadlines, tries);
        if tries >= deadlines.tries || pause >= left {
            return stop(what, hint);
        }
        left -= pause;
        tokio::time::sleep(pause).await;
    }
}

/// Full jitter: anything between nothing and the doubling bound, so that workers that failed
/// together do not come back together.
fn backoff(deadlines: &Deadlines, tries: u32) -> Duration {
    let bound = deadlines
        .backoff
        .saturating_mul(1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX))
        .min(deadlines.backoff_max);
    // The standard library's hash keys are random, and nothing that is written depends on them.
    let random = RandomState::new().hash_one(tries) >> 32;
    let share = u32::try_from(random).unwrap_or(u32::MAX);
    bound.mul_f64(f64::from(share) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::reject::Reason;

    fn quick() -> Deadlines {
        Deadlines {
            total: Duration::from_secs(20),
            backoff: Duration::from_micros(100),
            backoff_max: Duration::from_millis(1),
            ..Deadlines::default()
        }
    }

    /// Runs with the faults that `fault` gives for each try; returns the result and the number of tries.
    fn run_with(
        deadlines: Deadlines,
        fault: impl Fn(u32, Option<u64>) -> Option<Fault>,
    ) -> (Result<u32, FetchError>, u32) {
        let tries = AtomicU32::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let result = runtime.block_on(run(&deadlines, &Limiter::new(), "s3://b/k", |stale| {
            let n = tries.fetch_add(1, Ordering::Relaxed) + 1;
            let fault = fault(n, stale);
            async move { fault.map_or(Ok(n), Err) }
        }));
        (result, tries.into_inner())
    }

    fn message(result: Result<u32, FetchError>) -> (String, String) {
        match result {
            Err(FetchError::Stop(error)) => (error.to_string(), error.hint().unwrap_or_default()),
            other => panic!("no stop: {other:?}"),
        }
    }

    #[test]
    fn weather_passes_or_stops_after_ten_tries() {
        let (result, _) = run_with(quick(), |n, _| (n < 10).then(|| Fault::retry("gust")));
        assert_eq!(result.unwrap(), 10);
        let (result, tries) = run_with(quick(), |_, _| Some(Fault::retry("gust")));
        assert_eq!(tries, 10);
        let (text, hint) = message(result);
        assert!(text.contains("10 tries: gust"), "{text}");
        assert_eq!(hint, GO_ON);
    }

    #[test]
    fn facts_and_refusals_are_not_tried_again() {
        let (result, tries) = run_with(quick(), |_, _| {
            Some(Fault::Reject(Reject::new(Reason::MissingImage, "gone")))
        });
        assert!(matches!(result, Err(FetchError::Reject(_))));
        assert_eq!(tries, 1);
        let (result, tries) = run_with(quick(), |_, _| {
            Some(Fault::Stop {
                what: "AccessDenied".into(),
                hint: "ask",
            })
        });
        assert_eq!((tries, message(result).1), (1, "ask".into()));
    }

    #[test]
    fn credentials_are_renewed_once() {
        let expired = |generation| Fault::Expired {
            what: "ExpiredToken".into(),
            generation,
        };
        let (result, tries) = run_with(quick(), |_, stale| stale.is_none().then(|| expired(7)));
        assert_eq!((result.unwrap(), tries), (2, 2));
        let (result, tries) = run_with(quick(), |_, _| Some(expired(7)));
        assert_eq!((tries, message(result).1), (2, HINT_EXPIRED.into()));
    }

    /// Unless it has answered before, as a server that is started again.
    #[test]
    fn a_server_that_was_never_reached_is_given_up_early() {
        let unreachable = || Fault::Unreachable {
            what: "nobody there".into(),
            hint: "look",
        };
        let (result, tries) = run_with(quick(), |_, _| Some(unreachable()));
        assert_eq!(
            (tries, message(result).1),
            (UNPROVEN_TRIES_MAX, "look".into())
        );
        let limiter = Limiter::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let deadlines = quick();
        let first = run(&deadlines, &limiter, "s3://b/k", |_| async { Ok(()) });
        assert!(runtime.block_on(first).is_ok());
        let later = run(&deadlines, &limiter, "s3://b/k", |_| async {
            Err::<(), _>(unreachable())
        });
        let FetchError::Stop(error) = runtime.block_on(later).unwrap_err() else {
            panic!("a reject");
        };
        assert!(error.to_string().contains("after 10 tries"), "{error}");
    }

    #[test]
    fn a_lasting_change_is_no_weather() {
        let changed = || Fault::Changed {
            what: "other ETag".into(),
        };
        assert!(run_with(quick(), |n, _| (n < 3).then(changed)).0.is_ok());
        let (result, tries) = run_with(quick(), |_, _| Some(changed()));
        assert_eq!(
            (tries, message(result).1),
            (CHANGED_MAX, HINT_CHANGED.into())
        );
    }

    #[test]
    fn the_total_bounds_all_tries() {
        let deadlines = Deadlines {
            total: Duration::from_millis(60),
            backoff: Duration::from_millis(40),
            ..quick()
        };
        let start = Instant::now();
        let (result, _) = run_with(deadlines, |_, _| Some(Fault::retry("gust")));
        assert!(result.is_err());
        assert!(start.elapsed() < Duration::from_millis(500));
    }

    #[test]
    fn backoff_is_spread_and_bounded() {
        let deadlines = Deadlines::default();
        let waits: Vec<_> = (0..100).map(|_| backoff(&deadlines, 4)).collect();
        assert!(waits.iter().all(|wait| *wait <= deadlines.backoff * 8));
        assert!(waits.iter().any(|wait| *wait > deadlines.backoff * 4));
        assert!(waits.iter().any(|wait| *wait < deadlines.backoff * 4));
        assert!(backoff(&deadlines, 60) <= deadlines.backoff_max);
    }
}
