//! The model against closed forms.

use super::line::{Line, Station, uniform};
use super::training::{Run, Schedule, Supply, train};
use super::{Constants, Mode, Options, Report, run};

const LATENCY: f64 = 0.03;
const PREPARE: f64 = 0.02;

fn wide(seconds: f64) -> Station {
    Station {
        name: "wide",
        servers: u32::MAX,
        seconds,
        variation: 0.0,
    }
}

fn supply(stations: Vec<Station>) -> Supply {
    Supply {
        stations,
        window: usize::MAX,
        ahead: 0,
        batch_by_batch: true,
        copy_seconds: 0.0,
        copying: None,
        upload_seconds: 0.0,
        open_seconds: 0.0,
        not_before: Vec::new(),
    }
}

fn trained(supply: &Supply, batch: usize, step_seconds: f64) -> Run {
    let schedule = Schedule {
        batch,
        step_seconds,
        steps: 30,
    };
    train(supply, schedule, 1)
}

#[track_caller]
fn close(found: f64, wanted: f64, share: f64) {
    assert!(
        (found - wanted).abs() <= share * wanted.abs() + 1e-12,
        "found {found}, wanted {wanted}"
    );
}

/// Mean seconds in the line of samples that come at random, `rate` a second.
fn mean_stay(station: Station, rate: f64) -> f64 {
    let jobs = 400_000u32;
    let stations = [station];
    let mut line = Line::new(&stations, 3);
    let mut at = 0.0;
    let mut came = Vec::new();
    for job in 0..jobs {
        at -= uniform(u64::from(job) << 20).ln() / rate;
        came.push(at);
        line.enter(at, job);
    }
    let mut stay = 0.0;
    while let Some(now) = line.next_at() {
        if let Some(job) = line.step() {
            stay += now - came[job as usize];
        }
    }
    stay / f64::from(jobs)
}

#[test]
fn one_server_with_fixed_seconds_queues_like_m_d_1() {
    let (seconds, load) = (0.02, 0.8);
    let wanted = seconds + load * seconds / (2.0 * (1.0 - load));
    close(
        mean_stay(Station::single("one", seconds), load / seconds),
        wanted,
        0.02,
    );
}

#[test]
fn one_server_with_exponential_seconds_queues_like_m_m_1() {
    let (seconds, load) = (0.02, 0.7);
    let station = Station::shared("one", 1.0, seconds, 1.0);
    close(
        mean_stay(station, load / seconds),
        seconds / (1.0 - load),
        0.03,
    );
}

#[test]
fn serial_waiting_is_the_sum_of_all_stages() {
    let mut serial = supply(vec![wide(LATENCY), Station::single("cores", PREPARE)]);
    serial.window = 1;
    serial.copy_seconds = 0.06;
    serial.upload_seconds = 0.04;
    let run = trained(&serial, 64, 0.5);
    close(run.wait_seconds, 64.0 * (LATENCY + PREPARE) + 0.1, 1e-9);
    close(run.first_seconds, run.wait_seconds, 1e-9);
}

#[test]
fn latency_is_shared_by_as_many_samples_as_are_on_their_way() {
    let mut concurrent = supply(vec![wide(LATENCY)]);
    concurrent.window = 16;
    close(
        trained(&concurrent, 64, 0.5).wait_seconds,
        4.0 * LATENCY,
        1e-9,
    );
    concurrent.window = usize::MAX;
    close(trained(&concurrent, 64, 0.5).wait_seconds, LATENCY, 1e-9);
}

#[test]
fn without_latency_the_narrowest_station_decides() {
    let stations = [
        Station::single("fast", 0.001),
        Station::shared("cores", 4.0, PREPARE, 0.0),
    ];
    let run = trained(&supply(stations.to_vec()), 400, 0.5);
    close(run.wait_seconds, 400.0 * PREPARE / 4.0, 0.002);
}

#[test]
fn a_share_of_a_server_is_as_much_slower() {
    let run = trained(
        &supply(vec![Station::shared("cores", 0.25, PREPARE, 0.0)]),
        50,
        0.5,
    );
    close(run.wait_seconds, 50.0 * PREPARE / 0.25, 1e-9);
}

#[test]
fn far_ahead_the_slower_of_making_and_training_decides() {
    for step in [0.2, 1.0, 3.0] {
        let mut ahead = supply(vec![wide(LATENCY), Station::single("cores", PREPARE)]);
        ahead.ahead = 1000;
        ahead.batch_by_batch = false;
        let made = 64.0 * PREPARE;
        close(
            trained(&ahead, 64, step).wait_seconds,
            (made - step).max(0.0),
            1e-9,
        );
    }
}

#[test]
fn one_batch_ahead_hides_as_much_as_a_step_lasts() {
    let mut ahead = supply(vec![Station::single("cores", PREPARE)]);
    ahead.ahead = 1;
    let made = 64.0 * PREPARE;
    close(trained(&ahead, 64, 0.5).wait_seconds, made - 0.5, 1e-9);
}

#[test]
fn a_core_that_copies_prepares_nothing_meanwhile() {
    let two = Station::shared("cores", 2.0, PREPARE, 0.0);
    let mut ahead = supply(vec![two]);
    (ahead.ahead, ahead.batch_by_batch) = (3, false);
    let (copy, step) = (0.3, 0.2);
    ahead.copy_seconds = copy;
    let made = 64.0 * PREPARE / 2.0;
    // Nothing in the way: all that is left of making a batch after the copy and the step, and the copy itself.
    close(trained(&ahead, 64, step).wait_seconds, made - step, 0.02);
    // One of two cores copies, and what it would have prepared comes later.
    ahead.copying = Some((0, 1));
    let cycle = made + copy / 2.0;
    close(trained(&ahead, 64, step).wait_seconds, cycle - step, 0.02);
    // Nobody is left to prepare.
    ahead.copying = Some((0, 2));
    let cycle = made + copy;
    close(trained(&ahead, 64, step).wait_seconds, cycle - step, 0.03);
    // Uploads keep no core busy.
    (ahead.copy_seconds, ahead.upload_seconds) = (0.0, copy);
    close(trained(&ahead, 64, step).wait_seconds, made - step, 0.02);
}

#[test]
fn ranks_that_copy_are_missed_by_those_that_prepare_ahead() {
    let of = Constants {
        copy_gb_s: 0.5,
        cores: 16,
        step_seconds: 0.5,
        ..exact()
    };
    let report = simulated(of.clone(), &[1]);
    let prefetch = (report.rows.iter())
        .find(|row| row.mode == Mode::Prefetch)
        .expect("every mode is there");
    let batch = f64::from(of.ranks * of.batch_per_rank);
    let copied = f64::from(of.batch_per_rank) * of.made_bytes / 1e9 / of.copy_gb_s;
    let lost = copied * f64::from(of.ranks) / f64::from(of.cores);
    let cycle = batch * of.prepare_seconds / f64::from(of.cores) + lost;
    close(prefetch.wait_seconds + of.step_seconds, cycle, 0.03);
}

#[test]
fn samples_that_come_late_are_waited_for() {
    let mut late = supply(vec![wide(0.0)]);
    late.ahead = 2;
    late.not_before = vec![7.0; 8];
    let run = trained(&late, 8, 0.5);
    close(run.first_seconds, 7.0, 1e-9);
    close(run.wait_seconds, 0.0, 1e-9);
}

/// Nothing varies, so closed forms hold to the last digit.
fn exact() -> Constants {
    Constants {
        variation: 0.0,
        ..Constants::default()
    }
}

fn simulated(constants: Constants, nodes: &[u32]) -> Report {
    run(&Options {
        constants,
        nodes: nodes.to_vec(),
        steps: 20,
        seed: 0,
    })
}

fn waiting(report: &Report, nodes: u32, mode: Mode) -> f64 {
    let found = (report.rows.iter()).find(|row| row.nodes == nodes && row.mode == mode);
    found.expect("every mode is there").wait_ratio
}

#[test]
fn a_serial_rank_waits_for_each_of_its_samples() {
    let of = exact();
    let report = simulated(of.clone(), &[1]);
    let sample = of.get_seconds + of.prepare_seconds;
    let batch = f64::from(of.batch_per_rank);
    let copied = batch * of.made_bytes / 1e9 * (1.0 / of.copy_gb_s + 1.0 / of.link_gb_s);
    let wait = batch * sample + copied;
    close(
        waiting(&report, 1, Mode::Serial),
        wait / (wait + of.step_seconds),
        0.01,
    );
}

#[test]
fn local_shards_wait_the_same_on_any_number_of_nodes() {
    let report = simulated(Constants::default(), &[1, 64, 1024]);
    for nodes in [1, 64, 1024] {
        close(waiting(&report, nodes, Mode::Stoker), 0.0, 0.0);
    }
}

#[test]
fn a_saturated_card_of_the_workers_bounds_their_object_store() {
    // All workers fit onto one of eight nodes.
    let of = Constants {
        nic_gb_s: 1.0,
        ..exact()
    };
    let report = simulated(of.clone(), &[8]);
    let sent = 7.0 * f64::from(of.ranks * of.batch_per_rank) * of.made_bytes / 1e9;
    let colocated = (report.rows.iter())
        .find(|row| row.mode == Mode::StoreColocated)
        .expect("every mode is there");
    close(
        colocated.wait_seconds + of.step_seconds,
        sent / of.nic_gb_s,
        0.05,
    );
    close(colocated.nic_share, 1.0, 0.05);
    assert_eq!(colocated.busiest, "network card of workers");
    assert!(waiting(&report, 8, Mode::StoreSpread) < colocated.wait_ratio);
}

#[test]
fn too_few_workers_wait_for_their_requests() {
    let of = Constants {
        workers: 2,
        gets: 4,
        get_seconds: 0.2,
        ..exact()
    };
    let report = simulated(of.clone(), &[1]);
    let spread = (report.rows.iter())
        .find(|row| row.mode == Mode::StoreSpread)
        .expect("every mode is there");
    // Eight requests at once, each with the preparing that follows it on a worker that has nothing to wait for.
    let batch = f64::from(of.ranks * of.batch_per_rank);
    let cycle = batch * (of.get_seconds + of.prepare_seconds) / 8.0;
    close(spread.wait_seconds + of.step_seconds, cycle, 0.05);
}

#[test]
fn more_waiting_nodes_wait_for_the_slowest() {
    let report = simulated(Constants::default(), &[1, 1024]);
    assert!(waiting(&report, 1024, Mode::Concurrent) > waiting(&report, 1, Mode::Concurrent));
}

#[test]
fn missing_shards_delay_the_first_step_and_all_there_is_local() {
    let first = |missing| {
        let of = Constants {
            missing,
            samples: 1_000_000,
            ..exact()
        };
        let report = simulated(of, &[8]);
        let row = (report.rows.iter()).find(|row| row.mode == Mode::StokerFallback);
        row.expect("every mode is there").first_step_seconds
    };
    assert!(first(1.0) > first(0.5) && first(0.5) > first(0.0));
    let local = simulated(exact(), &[8]);
    let row = local.rows.iter().find(|row| row.mode == Mode::Stoker);
    close(
        first(0.0),
        row.expect("every mode is there").first_step_seconds,
        1e-9,
    );
}

#[test]
fn a_seed_gives_one_report() {
    let of = || simulated(Constants::default(), &[1, 4]);
    assert_eq!(of(), of());
    assert_eq!(of().to_svg(), of().to_svg());
}

#[test]
fn constants_come_from_files_and_words_and_are_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = folder.path().join("bench.json");
    let own = folder.path().join("own.json");
    std::fs::write(&bench, r#"{"memcpy_gb_s": 11.0, "disk_gb_s": 2.5, "reader_batches_s": 50.0, "batch_size": 4, "first_batch_seconds": 0.02, "limit": "copy"}"#)
        .expect("a file");
    std::fs::write(&own, r#"{"disk_gb_s": 7.0, "ranks": 4}"#).expect("a file");
    let set = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Constants::collect(Some(&bench), Some(&own), &words)
    };
    let found = set(&["nic_gb_s=1.5"]).expect("constants");
    let wanted = Constants {
        copy_gb_s: 11.0,
        disk_gb_s: 7.0,
        read_seconds: 0.005,
        open_seconds: 0.02,
        ranks: 4,
        nic_gb_s: 1.5,
        ..Constants::default()
    };
    assert_eq!(found, wanted);
    for word in [
        "speed=3",
        "nic_gb_s",
        "nic_gb_s=fast",
        "nic_gb_s=0",
        "variation=2",
        "ranks=0",
        "ranks=2.5",
        "step_seconds=0",
    ] {
        let error = set(&[word]).expect_err(word);
        assert_eq!(error.exit_code(), 2, "{word}");
        assert!(error.hint().is_some(), "{word}");
    }
}

/// What was made before training began is no rate that a cluster can keep up.
#[test]
fn no_more_comes_than_cores_prepare() {
    let constants = Constants {
        step_seconds: 0.0125,
        batch_per_rank: 16,
        ahead_batches: 16,
        ..Constants::default()
    };
    let most = f64::from(constants.cores) / constants.prepare_seconds;
    let options = Options {
        constants,
        nodes: vec![1],
        steps: 300,
        seed: 1,
    };
    let online = run(&options).rows;
    for row in online
        .iter()
        .filter(|row| !matches!(row.mode, Mode::Stoker | Mode::StokerFallback))
    {
        assert!(
            row.samples_s <= most * 1.05,
            "{:?}: {}",
            row.mode,
            row.samples_s
        );
    }
}

#[test]
fn a_number_may_be_written_in_any_way_and_a_wrong_one_is_named() {
    let set = |word: &str| Constants::collect(None, None, &[word.to_owned()]);
    assert_eq!(set("samples=1e7").unwrap().samples, 10_000_000);
    for (word, name) in [
        ("samples=1.5", "samples"),
        ("get_seconds=null", "get_seconds"),
        ("ranks=-1", "ranks"),
    ] {
        let error = set(word).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}
