//! Images made to do harm: bombs, cut and damaged files, metadata of many megabytes.

use std::fs;
use std::path::Path;

use stoker_builder::image::{Generation, ImageRecipe, Preparer, Profile, probe};
use stoker_builder::model::family::{Family, ImageConstants};
use stoker_builder::{Reason, Reject};

/// A file of each codec, small enough to be tried thousands of times.
const FILES: [&str; 6] = [
    "tiny_1x1.png",
    "palette_transparent.png",
    "small_28x28.jpg",
    "cmyk.jpg",
    "lossy.webp",
    "static.gif",
];

fn read(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images");
    fs::read(folder.join(name)).unwrap()
}

/// A recipe with small targets: these tests are about decoding.
fn recipe() -> ImageRecipe {
    let constants = ImageConstants {
        min_pixels: 1024,
        max_pixels: 4096,
        ..Family::Qwen3Vl.constants()
    };
    ImageRecipe::new(
        Profile::TvPath,
        Generation::V4,
        Family::Qwen3Vl,
        &constants,
        None,
        None,
    )
    .unwrap()
}

fn reason(bytes: &[u8]) -> Reason {
    let refused = probe(bytes, &recipe()).unwrap_err();
    let mut preparer = Preparer::new(recipe());
    assert_eq!(preparer.prepare(bytes).unwrap_err(), refused);
    refused.reason
}

/// Most memory this process ever held, in bytes.
#[cfg(target_os = "linux")]
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

fn png_chunk(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut chunk = (data.len() as u32).to_be_bytes().to_vec();
    chunk.extend(name);
    chunk.extend(data);
    // CRC-32, bit by bit.
    let mut crc = !0u32;
    for byte in &chunk[4..] {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    chunk.extend((!crc).to_be_bytes());
    chunk
}

fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut data = width.to_be_bytes().to_vec();
    data.extend(height.to_be_bytes());
    data.extend([8, 2, 0, 0, 0]);
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    bytes.extend(png_chunk(b"IHDR", &data));
    bytes
}

/// `bytes`, a JPEG, with another size in its frame header.
fn jpeg_sized(mut bytes: Vec<u8>, width: u16, height: u16) -> Vec<u8> {
    let frame = bytes
        .windows(2)
        .position(|pair| pair == [0xff, 0xc0])
        .unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

fn webp_extended(width: u32, height: u32, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = b"WEBPVP8X\x0a\0\0\0".to_vec();
    body.extend([flags, 0, 0, 0]);
    body.extend(&(width - 1).to_le_bytes()[..3]);
    body.extend(&(height - 1).to_le_bytes()[..3]);
    body.extend(rest);
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn a_jpeg_with_bytes_too_many_is_refused_though_pillow_decodes_it() {
    let mut bytes = read("small_28x28.jpg");
    let end = bytes.len() - 2;
    assert_eq!(bytes[end..], [0xff, 0xd9]);
    bytes.splice(end..end, [1, 2, 3]);
    let refused = Preparer::new(recipe()).prepare(&bytes).unwrap_err();
    assert_eq!(refused.reason, Reason::CorruptImage);
    // Behind the end nobody looks.
    let behind = [read("small_28x28.jpg"), vec![1, 2, 3]].concat();
    assert!(Preparer::new(recipe()).prepare(&behind).is_ok());
}

#[test]
fn bombs_are_refused_by_their_header() {
    assert_eq!(reason(&png_header(50_000, 50_000)), Reason::TooManyPixels);
    assert_eq!(
        reason(&png_header(u32::MAX, u32::MAX)),
        Reason::TooManyPixels
    );
    assert_eq!(reason(&png_header(0, 5)), Reason::CorruptImage);
    let jpeg = jpeg_sized(read("small_28x28.jpg"), 65_500, 65_500);
    assert_eq!(reason(&jpeg), Reason::TooManyPixels);
    assert_eq!(
        reason(&jpeg_sized(read("small_28x28.jpg"), 65_500, 16)),
        Reason::ExtremeAspect
    );

    let mut screen = read("static.gif");
    screen[6..10].fill(0xff);
    assert_eq!(reason(&screen), Reason::TooManyPixels);
    let mut frame = read("static.gif");
    let at = frame
        .windows(5)
        .position(|window| window == b",\0\0\0\0")
        .unwrap();
    frame[at + 1..at + 9].fill(0xff);
    assert_eq!(reason(&frame), Reason::TooManyPixels);

    let canvas = webp_extended(1 << 24, 1 << 24, 0, &[]);
    assert_eq!(reason(&canvas), Reason::TooManyPixels);
    // A frame far larger than its canvas.
    let mut inner = b"VP8 \x0a\0\0\0".to_vec();
    inner.extend([0, 0, 0, 0x9d, 0x01, 0x2a, 0xff, 0x3f, 0xff, 0x3f]);
    assert_eq!(
        reason(&webp_extended(10, 10, 0, &inner)),
        Reason::CorruptImage
    );
    assert_eq!(
        reason(&webp_extended(10, 10, 2, &inner)),
        Reason::UnsupportedImage
    );

    #[cfg(target_os = "linux")]
    assert!(peak_bytes() < 128 << 20, "peak {}", peak_bytes());
}

#[test]
fn too_many_bytes_are_refused_unread() {
    let mut small = recipe();
    small.max_source_bytes = 100;
    let refused = Preparer::new(small).prepare(&[0xff; 101]).unwrap_err();
    assert_eq!(refused.reason, Reason::TooManyBytes);
}

/// Metadata of any size changes nothing but the orientation, and is not copied.
#[test]
fn metadata_of_many_megabytes_is_skipped() {
    let mut preparer = Preparer::new(recipe());
    let jpeg = read("small_28x28.jpg");
    let mut fat = jpeg[..2].to_vec();
    for marker in [0xe1, 0xe2, 0xe1] {
        for _ in 0..100 {
            fat.extend([0xff, marker, 0xff, 0xff]);
            fat.extend([0x41; 65_533]);
        }
    }
    fat.extend(&jpeg[2..]);
    assert_eq!(preparer.prepare(&fat), preparer.prepare(&jpeg));

    let png = read("palette_transparent.png");
    let mut fat = png[..33].to_vec();
    for name in [b"eXIf", b"iTXt", b"zTXt"] {
        fat.extend(png_chunk(name, &vec![0x41; 8 << 20]));
    }
    fat.extend(&png[33..]);
    let fat = preparer.prepare(&fat);
    assert!(fat.is_ok() || fat.unwrap_err().reason == Reason::CorruptImage);
    #[cfg(target_os = "linux")]
    assert!(peak_bytes() < 400 << 20, "peak {}", peak_bytes());
}

/// What a damaged file may be called.
fn is_fault_of_the_file(reject: &Reject) -> bool {
    use Reason::*;
    matches!(
        reject.reason,
        NotAnImage
            | UnsupportedImage
            | TruncatedImage
            | CorruptImage
            | TooManyPixels
            | ExtremeAspect
            | DecoderCrash
    ) && !reject.message.is_empty()
}

#[test]
fn every_truncation_is_a_reject() {
    let mut preparer = Preparer::new(recipe());
    for name in FILES {
        let bytes = read(name);
        let whole = preparer.prepare(&bytes).unwrap();
        for length in (0..bytes.len()).step_by(37) {
            match preparer.prepare(&bytes[..length]) {
                Err(reject) => assert!(is_fault_of_the_file(&reject), "{name} {length} {reject:?}"),
                // What follows the pixels may be missing.
                Ok(prepared) => assert!(prepared == whole, "{name} {length}"),
            }
        }
        assert_eq!(preparer.prepare(&bytes).unwrap(), whole);
    }
}

#[test]
fn flipped_bytes_cost_at_most_the_image() {
    let mut preparer = Preparer::new(recipe());
    let mut state = 7u64;
    let mut random = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    for name in FILES {
        let bytes = read(name);
        let whole = preparer.prepare(&bytes).unwrap();
        for _ in 0..200 {
            let mut damaged = bytes.clone();
            for _ in 0..1 + random() % 4 {
                // Headers get their share.
                let end = if random() % 2 == 0 {
                    bytes.len()
                } else {
                    bytes.len().min(200)
                };
                damaged[random() % end] ^= 1 + (random() % 255) as u8;
            }
            if let Err(reject) = preparer.prepare(&damaged) {
                assert!(is_fault_of_the_file(&reject), "{name} {reject:?}");
            }
        }
        assert_eq!(preparer.prepare(&bytes).unwrap(), whole);
    }
}
