//! What Pillow 13 makes of rare images: every value here was read off Pillow itself.

use super::decode::{Decoder, inspect};
use super::profile::AlphaRule;
use super::recipe::ImageRecipe;
use super::{Generation, Profile};
use crate::model::family::Family;

const GREY: ::png::ColorType = ::png::ColorType::Grayscale;
const INDEXED: ::png::ColorType = ::png::ColorType::Indexed;
const RGB: ::png::ColorType = ::png::ColorType::Rgb;

fn png(
    color: ::png::ColorType,
    bits: u8,
    width: u32,
    row: &[u8],
    palette: &[u8],
    trns: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, 1);
    encoder.set_color(color);
    encoder.set_depth(::png::BitDepth::from_u8(bits).unwrap());
    if !palette.is_empty() {
        encoder.set_palette(palette);
    }
    if let Some(trns) = trns {
        encoder.set_trns(trns);
    }
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(row).unwrap();
    writer.finish().unwrap();
    bytes
}

/// Pixels with transparency dropped, pixels over white, and the colour still called transparent.
fn decoded(bytes: &[u8]) -> (Vec<u8>, Vec<u8>, Option<[u8; 3]>) {
    let constants = Family::Qwen3Vl.constants();
    let recipe = ImageRecipe::new(
        Profile::TvPilobj,
        Generation::V5,
        Family::Qwen3Vl,
        &constants,
        None,
        None,
    );
    let mut recipe = recipe.unwrap();
    let header = inspect(bytes, &recipe).unwrap();
    let mut decoder = Decoder::new().unwrap();
    let mut run = |alpha| {
        recipe.alpha = alpha;
        let pixels = decoder
            .decode(bytes, &header, &recipe, turbojpeg::ScalingFactor::ONE)
            .unwrap();
        let bytes = (pixels.width * pixels.height * 3) as usize;
        (decoder.rgb[..bytes].to_vec(), pixels.key)
    };
    let (dropped, key) = run(AlphaRule::Drop);
    let (white, same_key) = run(AlphaRule::White);
    assert_eq!(key, same_key);
    (dropped, white, key)
}

/// The same for a grey result: one number a pixel.
fn greys(bytes: &[u8]) -> (Vec<u8>, Vec<u8>, Option<[u8; 3]>) {
    let (dropped, white, key) = decoded(bytes);
    let first = |rgb: Vec<u8>| rgb.chunks_exact(3).map(|p| p[0]).collect();
    (first(dropped), first(white), key)
}

const PALETTE: [u8; 6] = [10, 20, 30, 40, 50, 60];

#[test]
fn palettes() {
    let row = [0, 1, 2, 200];
    let make = |trns| decoded(&png(INDEXED, 8, 4, &row, &PALETTE, trns));
    let plain = vec![10, 20, 30, 40, 50, 60, 0, 0, 0, 0, 0, 0];
    let second_white = vec![10, 20, 30, 255, 255, 255, 0, 0, 0, 0, 0, 0];
    assert_eq!(make(None), (plain.clone(), plain.clone(), None));
    assert_eq!(
        make(Some(&[255, 0])),
        (plain.clone(), second_white, Some([40, 50, 60]))
    );
    let both = vec![132, 137, 142, 255, 255, 255, 0, 0, 0, 0, 0, 0];
    assert_eq!(make(Some(&[128, 0])), (plain.clone(), both, None));
    let zeros = vec![255, 255, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0];
    assert_eq!(make(Some(&[0, 0])), (plain.clone(), zeros, None));
    assert_eq!(make(Some(&[255, 255])), (plain.clone(), plain, None));
}

#[test]
fn grey_depths_and_transparent_levels() {
    let one = |trns| greys(&png(GREY, 1, 4, &[0b0101_0000], &[], trns));
    let plain = vec![0, 255, 0, 255];
    assert_eq!(one(None), (plain.clone(), plain.clone(), None));
    assert_eq!(
        one(Some(&[0, 0])),
        (plain.clone(), vec![255; 4], Some([0; 3]))
    );
    assert_eq!(one(Some(&[0, 1])), (plain.clone(), plain, None));

    let two = greys(&png(GREY, 2, 4, &[0b0001_1011], &[], Some(&[0, 1])));
    let plain = vec![0, 85, 170, 255];
    assert_eq!(two, (plain.clone(), plain, Some([1; 3])));
    let four = greys(&png(GREY, 4, 4, &[0x01, 0x2f], &[], None));
    assert_eq!(four.0, [0, 17, 34, 255]);
    let eight = greys(&png(GREY, 8, 4, &[5, 6, 0, 255], &[], Some(&[0, 5])));
    assert_eq!(
        eight,
        (vec![5, 6, 0, 255], vec![255, 6, 0, 255], Some([5; 3]))
    );

    let row = [0, 44, 0, 6, 0, 255, 1, 44];
    let wide = |trns| greys(&png(GREY, 16, 4, &row, &[], trns));
    let plain = vec![44, 6, 255, 255];
    assert_eq!(wide(None), (plain.clone(), plain.clone(), None));
    assert_eq!(
        wide(Some(&[1, 44])),
        (plain.clone(), vec![255, 6, 255, 255], None)
    );
    assert_eq!(wide(Some(&[0, 0])), (plain.clone(), plain, Some([0; 3])));
}

#[test]
fn colours_and_alpha_channels() {
    let eight = decoded(&png(
        RGB,
        8,
        2,
        &[1, 2, 3, 4, 5, 6],
        &[],
        Some(&[0, 1, 0, 2, 0, 3]),
    ));
    let white = vec![255, 255, 255, 4, 5, 6];
    assert_eq!(eight, (vec![1, 2, 3, 4, 5, 6], white, Some([1, 2, 3])));
    let row = [1, 1, 2, 2, 3, 3, 4, 1, 0, 5, 0, 6];
    let wide = decoded(&png(RGB, 16, 2, &row, &[], Some(&[1, 1, 2, 2, 3, 3])));
    let white = vec![255, 255, 255, 4, 0, 0];
    assert_eq!(wide, (vec![1, 2, 3, 4, 0, 0], white, Some([1, 2, 3])));
    let la16 = greys(&png(
        ::png::ColorType::GrayscaleAlpha,
        16,
        1,
        &[7, 1, 9, 2],
        &[],
        None,
    ));
    assert_eq!(la16, (vec![7], vec![246], None));
    let rgba16 = decoded(&png(
        ::png::ColorType::Rgba,
        16,
        1,
        &[1, 2, 3, 4, 5, 6, 255, 8],
        &[],
        None,
    ));
    assert_eq!(rgba16, (vec![1, 3, 5], vec![1, 3, 5], None));
}

struct Gif<'a> {
    screen: u16,
    left: u16,
    clear: Option<u8>,
    palette: &'a [u8],
}

impl Gif<'_> {
    /// A one-line GIF with a frame of the two pixels 2 and 3.
    fn decoded(&self) -> (Vec<u8>, Vec<u8>, Option<[u8; 3]>) {
        let mut bytes = Vec::new();
        let mut encoder = ::gif::Encoder::new(&mut bytes, self.screen, 1, self.palette).unwrap();
        let frame = ::gif::Frame {
            left: self.left,
            width: 2,
            height: 1,
            transparent: self.clear,
            buffer: vec![2, 3].into(),
            ..Default::default()
        };
        encoder.write_frame(&frame).unwrap();
        drop(encoder);
        decoded(&bytes)
    }
}

#[test]
fn gif_frames_on_their_canvas() {
    let palette = [1, 2, 3, 10, 20, 30, 100, 110, 120, 200, 210, 220];
    let mut gif = Gif {
        screen: 4,
        left: 1,
        clear: None,
        palette: &palette,
    };
    let sub = vec![1, 2, 3, 100, 110, 120, 200, 210, 220, 1, 2, 3];
    assert_eq!(gif.decoded(), (sub.clone(), sub, None));
    gif.clear = Some(2);
    let grey = [100, 110, 120];
    let dropped = [grey, grey, [200, 210, 220], grey].concat();
    let white = [[255; 3], [255; 3], [200, 210, 220], [255; 3]].concat();
    assert_eq!(gif.decoded(), (dropped, white, Some(grey)));
    gif.clear = Some(200);
    let dropped = vec![0, 0, 0, 100, 110, 120, 200, 210, 220, 0, 0, 0];
    let white = vec![255, 255, 255, 100, 110, 120, 200, 210, 220, 255, 255, 255];
    assert_eq!(gif.decoded(), (dropped, white, Some([0; 3])));
    // A frame beyond the screen enlarges it.
    (gif.screen, gif.clear) = (2, None);
    let beyond = vec![1, 2, 3, 100, 110, 120, 200, 210, 220];
    assert_eq!(gif.decoded(), (beyond.clone(), beyond, None));
    // A palette of counted greys is none.
    (gif.screen, gif.clear) = (3, Some(200));
    gif.palette = &[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3];
    assert_eq!(gif.decoded().0, [200, 200, 200, 2, 2, 2, 3, 3, 3]);
}
