//! `stoker read`: the batches of a run, without a trainer.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::slice;
use std::time::Duration;

use serde::Serialize;
use stoker_reader::{Batch, Cursor, OrderOptions, Pixels, Reader, ReaderOptions, Step, WorldSizes};

use super::args::ReadArgs;
use super::place::read_placement;
use super::{DONE, printer};
use crate::build::stop::Stop;
use crate::error::{Error, Result};
use crate::remote::{RemoteOptions, fallbacks};

/// Between two looks at the stop request.
const STOP_CHECK: Duration = Duration::from_millis(100);

/// Longest text of a cursor file that is read.
const MAX_CURSOR_BYTES: u64 = 4096;

/// One batch, as it is printed.
#[derive(Serialize)]
struct Shown<'a> {
    epoch: u64,
    position: u64,
    rows: usize,
    padding_rows: usize,
    tokens: usize,
    n_loss_tokens: u64,
    images: usize,
    patches: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_ids: Option<&'a [String]>,
}

pub(super) fn run(args: &ReadArgs) -> Result<u8> {
    let stop = Stop::on_signals().map_err(Error::io("watch for", "signals"))?;
    let mut reader = Reader::open(options(args)?)?;
    if let Some(path) = &args.cursor {
        restore(&mut reader, path)?;
    }
    // What was printed is delivered; what nobody saw is not.
    let mut printed = reader.cursor()?;
    let result = print_epochs(&mut reader, args, &stop, &mut printed);
    let saved = match &args.cursor {
        Some(path) => save(&printed, path),
        None => Ok(()),
    };
    // What stopped it says more than that the cursor could not be saved, too.
    if let (Err(_), Err(error)) = (&result, &saved) {
        printer::error(error);
    }
    result.and(saved).map(|()| DONE)
}

fn options(args: &ReadArgs) -> Result<ReaderOptions> {
    let mut options = ReaderOptions::new(&args.cache, args.batch_size);
    options.split.clone_from(&args.split);
    let ranks_per_node = args.world_size.checked_div(args.nodes).unwrap_or(0).max(1);
    options.world = WorldSizes {
        rank: args.rank,
        world_size: args.world_size,
        node_rank: args.rank / ranks_per_node,
        num_nodes: args.nodes,
        // One micro-batch a rank: the whole share of the global batch is one line.
        micro_batch_size: args
            .batch_size
            .checked_div(args.world_size)
            .unwrap_or(0)
            .max(1),
        global_batch_size: args.batch_size,
    };
    options.order = OrderOptions {
        seed: args.seed,
        shuffle: args.shuffle,
        tail: args.tail,
        last: args.last,
        ..OrderOptions::default()
    };
    if let Some(path) = &args.placement {
        options.placement = read_placement(path)?;
    }
    if let Some(uri) = &args.fallback {
        let remote = RemoteOptions {
            endpoint: args.s3_endpoint.clone(),
            ..RemoteOptions::default()
        };
        let fallbacks = fallbacks(slice::from_ref(uri), &remote)?;
        for (cache, fallback) in options.caches.iter_mut().zip(fallbacks) {
            cache.fallback = Some(fallback);
        }
    }
    options.remote.cache_disk = args.cache_disk;
    options.remote.cache_folder.clone_from(&args.cache_folder);
    options.pack.clone_from(&args.pack);
    options.pixels = Pixels::U8;
    options.sample_ids = args.ids;
    Ok(options)
}

fn print_epochs(
    reader: &mut Reader,
    args: &ReadArgs,
    stop: &Stop,
    printed: &mut Cursor,
) -> Result<()> {
    let mut epochs = 0;
    while epochs < args.epochs {
        stop.check()?;
        match reader.next_batch(Some(STOP_CHECK))? {
            Step::Batch(batch) => {
                if !printer::stream(&shown(&batch, args)?)? {
                    return Ok(());
                }
                *printed = reader.cursor()?;
            }
            Step::EpochEnd => epochs += 1,
            Step::TimedOut => {}
        }
    }
    Ok(())
}

/// What is printed of a batch.
fn shown(batch: &Batch, args: &ReadArgs) -> Result<String> {
    let rows = |name: &str| {
        let tensor = batch.tensor(name);
        tensor.and_then(|tensor| tensor.shape.first().copied())
    };
    let padding_rows = batch.units.iter().filter(|unit| unit.is_none()).count();
    let shown = Shown {
        epoch: batch.epoch,
        position: batch.position,
        rows: batch.units.len(),
        padding_rows,
        tokens: batch.tokens,
        n_loss_tokens: batch.n_loss_tokens,
        images: rows("image_grid_thw").unwrap_or(0),
        patches: rows("pixel_values").unwrap_or(0),
        sample_ids: batch.sample_ids.as_deref(),
    };
    if args.json {
        return printer::line(&shown);
    }
    let mut text = format!(
        "epoch {}  position {}  rows {}  tokens {}  loss tokens {}  images {}  patches {}\n",
        shown.epoch,
        shown.position,
        shown.rows - padding_rows,
        shown.tokens,
        shown.n_loss_tokens,
        shown.images,
        shown.patches
    );
    for id in shown
        .sample_ids
        .into_iter()
        .flatten()
        .filter(|id| !id.is_empty())
    {
        text.push_str(&format!("  {id}\n"));
    }
    Ok(text)
}

fn restore(reader: &mut Reader, path: &Path) -> Result<()> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("read", path)(error)),
    };
    if !metadata.is_file() || metadata.len() > MAX_CURSOR_BYTES {
        return Err(Error::Usage {
            what: format!("no cursor, but no file or too long: `{}`", path.display()),
            hint: "give the file that an earlier run saved, or a name that does not exist".into(),
        });
    }
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    let cursor = Cursor::from_json(&text).map_err(stoker_reader::Error::from)?;
    Ok(reader.restore(&cursor)?)
}

/// Replaces the file in one step, so that a crash leaves the old cursor or the new one.
fn save(cursor: &Cursor, path: &Path) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = Path::new(&name);
    let written = fs::File::create(temporary).and_then(|mut file| {
        file.write_all((cursor.to_json() + "\n").as_bytes())?;
        file.sync_all()
    });
    written.map_err(Error::io("write", temporary))?;
    fs::rename(temporary, path).map_err(Error::io("rename", path))
}
