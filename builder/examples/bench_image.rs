//! Measures the image steps one by one: CPU milliseconds a picture, on one thread.
//!
//! Used by `scripts/bench/run build`. It owns no step itself; bare decoding goes straight to
//! libjpeg-turbo and is the bound for everything else. Invariant: every figure is the mean over the
//! pictures of the median of [`TRIES`] tries. Resized pictures go to a folder, if one is given, so that others can
//! compare their bytes.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use stoker_builder::image::patchify::patchify;
use stoker_builder::image::resize::{Code, Exact, resize};
use stoker_builder::image::{Generation, ImageRecipe, PassOrder, Preparer, Profile, probe};
use stoker_builder::model::family::{Family, ImageConstants};

/// Tries of each step, after one that is not counted.
const TRIES: usize = 5;
/// Pictures looked at: enough distinct ones, and the run stays short.
const PICTURES: usize = 12;

/// CPU time of this thread, in nanoseconds. Other programs on the machine hardly change it.
fn cpu_ns() -> io::Result<u64> {
    // The kernel brings the figure up to date when it looks for another thread to run, else once a tick.
    std::thread::yield_now();
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    text.split_whitespace()
        .next()
        .and_then(|field| field.parse().ok())
        .ok_or_else(|| io::Error::other("no CPU time in /proc/thread-self/schedstat"))
}

fn median_ms(mut step: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    step()?;
    let mut times = Vec::with_capacity(TRIES);
    for _ in 0..TRIES {
        let start = cpu_ns()?;
        step()?;
        times.push(cpu_ns()?.saturating_sub(start));
    }
    times.sort_unstable();
    Ok(f64::from(u32::try_from(times[TRIES / 2] / 1000)?) / 1000.0)
}

fn recipe(profile: Profile, max_pixels: u64) -> Result<ImageRecipe, Box<dyn Error>> {
    let constants = ImageConstants {
        max_pixels,
        ..Family::Qwen3Vl.constants()
    };
    let generation = Generation::V5;
    Ok(ImageRecipe::new(
        profile,
        generation,
        Family::Qwen3Vl,
        &constants,
        None,
        Some(max_pixels),
    )?)
}

/// Adds the times of one picture to `sums`, and writes what the kernels make of it to `out`.
fn measure(
    path: &Path,
    max_pixels: u64,
    out: Option<&Path>,
    sums: &mut BTreeMap<&str, f64>,
) -> Result<(), Box<dyn Error>> {
    let bytes = fs::read(path)?;
    let exact = recipe(Profile::TvPath, max_pixels)?;
    let probed = probe(&bytes, &exact).map_err(|reject| reject.message)?;
    let [height, width] = probed.source.map(|side| side as usize);
    let [to_height, to_width] = probed.target.map(|side| side as usize);

    let mut decoder = turbojpeg::Decompressor::new()?;
    // The vector code may read a little past the last pixel.
    let mut pixels = vec![0; height * width * 3 + stoker_builder::image::SLACK_BYTES];
    let mut add = |name, ms: f64| *sums.entry(name).or_insert(0.0) += ms;
    add(
        "decode_ms",
        median_ms(|| {
            let image = turbojpeg::Image {
                pixels: &mut pixels[..height * width * 3],
                width,
                pitch: width * 3,
                height,
                format: turbojpeg::PixelFormat::RGB,
            };
            Ok(decoder.decompress(&bytes, image)?)
        })?,
    );
    let (mut resized, mut between) = (Vec::new(), Vec::new());
    let kernels = [
        (
            "resize_pillow12_ms",
            "pillow12",
            Exact::Pillow(PassOrder::HorizontalFirst),
        ),
        (
            "resize_pillow13_ms",
            "pillow13",
            Exact::Pillow(PassOrder::Pillow13),
        ),
        ("resize_torch_ms", "torch", Exact::Torchvision),
    ];
    for (name, short, kernel) in kernels {
        let ms = median_ms(|| {
            let (from, to) = ((height, width), (to_height, to_width));
            resize(
                &pixels,
                from,
                &mut resized,
                to,
                &mut between,
                kernel,
                Code::best(),
            );
            Ok(())
        })?;
        add(name, ms);
        if let Some(out) = out {
            let stem = path.file_stem().unwrap_or_default().display();
            let rgb = &resized[..to_height * to_width * 3];
            fs::write(out.join(format!("{stem}.{short}.rgb")), rgb)?;
        }
    }
    add(
        "patchify_ms",
        median_ms(|| {
            drop(std::hint::black_box(patchify(
                &resized, to_height, to_width, &exact,
            )));
            Ok(())
        })?,
    );
    for (name, profile) in [
        ("prepare_ms", Profile::TvPath),
        ("prepare_fast_ms", Profile::Fast),
    ] {
        let mut preparer = Preparer::new(recipe(profile, max_pixels)?);
        let ms = median_ms(|| {
            let prepared = preparer.prepare(&bytes).map_err(|reject| reject.message)?;
            drop(std::hint::black_box(prepared));
            Ok(())
        })?;
        add(name, ms);
    }
    Ok(())
}

/// The first pictures below `folder`, by name.
fn pictures(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "jpg") {
                found.push(path);
            }
        }
    }
    found.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    found.truncate(PICTURES);
    Ok(found)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let (Some(max_pixels), Some(folder)) = (args.next(), args.next()) else {
        return Err("usage: bench_image MAX_PIXELS FOLDER [OUT]".into());
    };
    let out = args.next().map(PathBuf::from);
    let max_pixels: u64 = max_pixels.parse()?;
    let pictures = pictures(Path::new(&folder))?;
    if pictures.is_empty() {
        return Err(format!("no .jpg below `{folder}`").into());
    }
    let mut sums = BTreeMap::new();
    for path in &pictures {
        measure(path, max_pixels, out.as_deref(), &mut sums)?;
    }
    let count = f64::from(u32::try_from(pictures.len())?);
    let means: BTreeMap<_, _> = sums
        .into_iter()
        .map(|(name, sum)| (name, sum / count))
        .collect();
    writeln!(io::stdout(), "{}", serde_json::to_string(&means)?)?;
    Ok(())
}
