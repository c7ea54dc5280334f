//! Measures `push` at several levels, and `sync` against a plain download of the same objects, through the S3 server on loopback.
//!
//! Usage: `bench_sync FOLDER [--cache DIR] [--megabytes N] [--rounds N]`. Without a cache, one of made-up pictures is written: smooth,
//! with noise in the lowest two bits. Server and client share the machine's cores.

#![expect(clippy::print_stdout, reason = "its figures are its output")]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use stoker_builder::push::{LEVEL, PushRequest, push};
use stoker_builder::remote::{Remote, RemoteFile, RemoteOptions};
use stoker_builder::source::CredentialSource;
use stoker_builder::sync::{Share, SyncRequest, sync};
use stoker_tests::dice::Dice;
use stoker_tests::s3::{ACCESS_KEY, SECRET_KEY, Server};
use stoker_tests::synthetic;
use tokio::runtime::{Handle, Runtime};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Shards on their way at once.
const THREADS: usize = 4;
/// Partitions of a made-up cache.
const PARTITIONS: u64 = 8;
/// zstd's levels that are compared.
const LEVELS: [i32; 4] = [LEVEL, 2, 3, 6];

struct Options {
    folder: PathBuf,
    cache: Option<PathBuf>,
    megabytes: u64,
    rounds: usize,
}

fn options() -> Outcome<Options> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("a folder is needed")?.into();
    let mut options = Options {
        folder,
        cache: None,
        megabytes: 512,
        rounds: 5,
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--cache" => options.cache = Some(value.into()),
            "--megabytes" => options.megabytes = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            _ => return Err(format!("no such option: `{name}`").into()),
        }
    }
    Ok(options)
}

/// A cache of about so many megabytes of pictures in a shard a partition.
fn write_cache(root: &Path, megabytes: u64) {
    let mut dice = Dice::new(1);
    // A picture of the generator has 9 KB on average, and every second sample one of its own.
    let rows = (megabytes << 20) / PARTITIONS / 4600;
    let parts = (0..PARTITIONS).map(|_| {
        let mut part = synthetic::content_of(&[rows]).remove(0);
        for image in &mut part.images {
            for (at, byte) in image.patches.iter_mut().enumerate() {
                let slope = (at / 96) % 512;
                let smooth = if slope < 256 { slope } else { 511 - slope };
                *byte = (smooth as u8 & !3) | (dice.next_u64() & 3) as u8;
            }
        }
        part
    });
    let tables = synthetic::opaque_tables();
    let _ = synthetic::write_each(root, parts, &tables, synthetic::recipe(), usize::MAX);
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Downloads the objects as they stand into files; gives their bytes.
fn plain(remote: &Remote, files: &[RemoteFile], folder: &Path) -> Outcome<u64> {
    fs::create_dir_all(folder)?;
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<u64> {
        let mut bytes = 0;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = files.get(number) else {
                return Ok(bytes);
            };
            let mut stream = remote.plain(file).map_err(io::Error::other)?;
            let mut out = File::create(folder.join(number.to_string()))?;
            bytes += io::copy(&mut stream, &mut out)?;
            out.flush()?;
        }
    };
    std::thread::scope(|scope| {
        let crew: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut sum = 0;
        for thread in crew {
            sum += thread.join().map_err(|_| "a thread died")??;
        }
        Ok(sum)
    })
}

fn main() -> Outcome<()> {
    let options = options()?;
    let served = options.folder.join("s3");
    let _ = fs::remove_dir_all(&served);
    fs::create_dir_all(served.join("bucket"))?;
    let cache = options.cache.clone().unwrap_or_else(|| {
        let made = options.folder.join(format!("cache-{}", options.megabytes));
        if !made.join("manifest.json").exists() {
            write_cache(&made, options.megabytes);
        }
        made
    });
    let server = Server::start(&served)?;
    let runtime = Runtime::new()?;
    let handle: &Handle = runtime.handle();
    let reach = RemoteOptions {
        endpoint: Some(server.endpoint()),
        credentials: CredentialSource::Fixed {
            access_key: ACCESS_KEY.into(),
            secret_key: SECRET_KEY.into(),
        },
        ..RemoteOptions::default()
    };
    for level in LEVELS {
        let request = PushRequest {
            cache: cache.clone(),
            destination: format!("s3://bucket/level-{level}"),
            level,
            threads: THREADS,
            replace: false,
            options: reach.clone(),
            show: false,
        };
        let report = push(&request, handle.clone())?;
        let rate = report.shard_bytes as f64 / report.seconds / 1e6;
        let ratio = report.ratio.unwrap_or(1.0);
        println!("push, level {level}: {rate:.0} MB/s of shards, ratio {ratio:.3}");
    }
    let source = format!("s3://bucket/level-{LEVEL}");
    let remote = Remote::open(&source, &reach, handle.clone())?;
    let files: Vec<RemoteFile> = remote.files().map(|file| RemoteFile::from(&file)).collect();
    let (mut plains, mut syncs) = (Vec::new(), Vec::new());
    let (mut bytes, mut raw) = (0, 0);
    for _ in 0..options.rounds {
        let folder = options.folder.join("plain");
        let _ = fs::remove_dir_all(&folder);
        let start = Instant::now();
        bytes = plain(&remote, &files, &folder)?;
        plains.push(start.elapsed().as_secs_f64());
        let _ = fs::remove_dir_all(&folder);
        let destination = options.folder.join("synced");
        let _ = fs::remove_dir_all(&destination);
        let request = SyncRequest {
            source: source.clone(),
            destination: destination.clone(),
            share: Share::All,
            max_disk: None,
            prune: false,
            threads: THREADS,
            options: reach.clone(),
            show: false,
        };
        let start = Instant::now();
        raw = sync(&request, handle.clone())?.bytes;
        syncs.push(start.elapsed().as_secs_f64());
        let _ = fs::remove_dir_all(&destination);
    }
    let (plain, sync) = (median(plains), median(syncs));
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    println!("plain download: {plain:.2} s, {:.0} MB/s", rate(plain));
    println!(
        "sync: {sync:.2} s, {:.0} MB/s of the same objects, {:.0} MB/s on disk",
        rate(sync),
        raw as f64 / sync / 1e6
    );
    println!(
        "sync reaches {:.0} % of the plain download",
        100.0 * plain / sync
    );
    Ok(())
}
