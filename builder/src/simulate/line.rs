//! A line of stations with queues, and the events of samples that pass through it.
//!
//! Owns time inside the line; when samples enter it is the caller's. Invariant: events of one moment happen in the order in which
//! they were caused, so the same entries give the same times.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// What a sample passes: a queue in order of arrival, and servers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Station {
    /// For people, as what limits a line.
    pub(super) name: &'static str,
    /// How many samples are served at once.
    pub(super) servers: u32,
    /// Mean seconds of one sample.
    pub(super) seconds: f64,
    /// Coefficient of variation of these seconds, 0 to 1.
    pub(super) variation: f64,
}

impl Station {
    /// A station whose servers are a share of something larger: `servers` may be a fraction.
    pub(super) fn shared(name: &'static str, servers: f64, seconds: f64, variation: f64) -> Self {
        let whole = servers.ceil().max(1.0);
        Self {
            name,
            servers: whole as u32,
            seconds: seconds * whole / servers,
            variation,
        }
    }

    /// One server whose seconds do not vary.
    pub(super) fn single(name: &'static str, seconds: f64) -> Self {
        Self::shared(name, 1.0, seconds, 0.0)
    }

    /// Seconds of the sample `job`, whose draw is `key`. Part of the mean is fixed and the rest is exponential, as latencies are.
    fn draw(&self, key: u64) -> f64 {
        if self.variation == 0.0 {
            return self.seconds;
        }
        self.seconds * (1.0 - self.variation - self.variation * uniform(key).ln())
    }
}

/// A number in (0, 1] made of `key` (SplitMix64). No byte of a cache depends on it.
pub(super) fn uniform(key: u64) -> f64 {
    let mut bits = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Something that happens at a station.
#[derive(Debug, PartialEq)]
struct Event {
    at: f64,
    order: u64,
    station: usize,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A sample comes.
    Comes(u32),
    /// A sample was served.
    Served(u32),
    /// So many servers have done what else they had to do.
    Back(u32),
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest, as a heap wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .at
            .total_cmp(&self.at)
            .then(other.order.cmp(&self.order))
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<u32>,
    busy: u32,
    /// Servers that do something else; those at work finish first.
    away: u32,
    busy_seconds: f64,
}

/// The stations at work.
pub(super) struct Line<'a> {
    stations: &'a [Station],
    queues: Vec<Queue>,
    events: BinaryHeap<Event>,
    order: u64,
    seed: u64,
}

impl<'a> Line<'a> {
    pub(super) fn new(stations: &'a [Station], seed: u64) -> Self {
        Self {
            stations,
            queues: stations.iter().map(|_| Queue::default()).collect(),
            events: BinaryHeap::new(),
            order: 0,
            seed,
        }
    }

    /// Lets the sample `job` come to the first station at the moment `at`, which is not before that of the last event.
    pub(super) fn enter(&mut self, at: f64, job: u32) {
        self.plan(at, 0, What::Comes(job));
    }

    /// Sends `servers` of a station away from the moment `at` for some seconds.
    pub(super) fn send_away(&mut self, at: f64, station: usize, servers: u32, seconds: f64) {
        self.queues[station].away += servers;
        self.plan(at + seconds, station, What::Back(servers));
    }

    /// The moment of the next event.
    pub(super) fn next_at(&self) -> Option<f64> {
        self.events.peek().map(|event| event.at)
    }

    /// Lets the next event happen; the sample that left the line with it.
    pub(super) fn step(&mut self) -> Option<u32> {
        let Event {
            at, station, what, ..
        } = self.events.pop()?;
        match what {
            What::Comes(job) => self.arrive(at, job, station),
            What::Served(job) => {
                self.queues[station].busy -= 1;
                self.go_on(at, station);
                self.arrive(at, job, station + 1)
            }
            What::Back(servers) => {
                self.queues[station].away -= servers;
                self.go_on(at, station);
                None
            }
        }
    }

    /// The station that was busy for the largest share of the moment `now`, and that share.
    pub(super) fn busiest(&self, now: f64) -> Option<(&'static str, f64)> {
        let share = |(station, queue): (&Station, &Queue)| {
            let all = now * f64::from(station.servers);
            (station.name, queue.busy_seconds / all)
        };
        let shares = self.stations.iter().zip(&self.queues).map(share);
        shares.max_by(|left, right| left.1.total_cmp(&right.1))
    }

    fn arrive(&mut self, at: f64, job: u32, station: usize) -> Option<u32> {
        if station == self.stations.len() {
            return Some(job);
        }
        self.queues[station].waiting.push_back(job);
        self.go_on(at, station);
        None
    }

    /// Serves who waits, as long as somebody is free to.
    fn go_on(&mut self, at: f64, station: usize) {
        let servers = self.stations[station].servers;
        while self.queues[station].busy + self.queues[station].away < servers {
            let Some(job) = self.queues[station].waiting.pop_front() else {
                return;
            };
            let key = self.seed ^ (u64::from(job) << 8) ^ ((station as u64) << 56);
            let seconds = self.stations[station].draw(key);
            self.queues[station].busy += 1;
            self.queues[station].busy_seconds += seconds;
            self.plan(at + seconds, station, What::Served(job));
        }
    }

    fn plan(&mut self, at: f64, station: usize, what: What) {
        self.events.push(Event {
            at,
            order: self.order,
            station,
            what,
        });
        self.order += 1;
    }
}
