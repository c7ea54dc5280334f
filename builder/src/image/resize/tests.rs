use proptest::prelude::*;

use super::*;

/// Windows and weights straight from the written rules, in the slowest form.
fn taps(size_in: usize, size_out: usize) -> Vec<(usize, Vec<f64>)> {
    let kernel = |x: f64| {
        let x = x.abs();
        if x < 1.0 {
            (1.5 * x - 2.5) * x * x + 1.0
        } else if x < 2.0 {
            -0.5 * (((x - 5.0) * x + 8.0) * x - 4.0)
        } else {
            0.0
        }
    };
    let scale = size_in as f64 / size_out as f64;
    let stretch = if scale > 1.0 { scale } else { 1.0 };
    (0..size_out)
        .map(|i| {
            let center = (i as f64 + 0.5) * scale;
            let low = ((center - 2.0 * stretch + 0.5).trunc() as i64).max(0);
            let high = ((center + 2.0 * stretch + 0.5).trunc() as i64).min(size_in as i64);
            let row: Vec<f64> = (low..high)
                .map(|k| kernel((k as f64 - center + 0.5) * (1.0 / stretch)))
                .collect();
            let total = row.iter().fold(0.0, |a, b| a + b);
            (low as usize, row.iter().map(|w| w / total).collect())
        })
        .collect()
}

/// One pass of the model, in i64, along rows (`axis` 1) or columns (0).
fn model_pass(img: &[u8], (h, w): (usize, usize), n: usize, axis: usize, pillow: bool) -> Vec<u8> {
    let rows = taps([h, w][axis], n);
    let mut bits = 22;
    if !pillow {
        let top = rows
            .iter()
            .flat_map(|r| &r.1)
            .copied()
            .fold(f64::MIN, f64::max);
        bits = (0..=22)
            .rev()
            .find(|p| ((0.5 + top * 2f64.powi(*p)) as i64) < 32768)
            .unwrap();
    }
    let fixed = |w: f64| (w * 2f64.powi(bits) + if w < 0.0 { -0.5 } else { 0.5 }).trunc() as i64;
    let rows: Vec<(usize, Vec<i64>)> = rows
        .into_iter()
        .map(|(low, weights)| (low, weights.into_iter().map(fixed).collect()))
        .collect();
    let (oh, ow) = if axis == 0 { (n, w) } else { (h, n) };
    let mut out = vec![0; oh * ow * 3];
    for y in 0..oh {
        for x in 0..ow {
            for c in 0..3 {
                let (low, weights) = &rows[if axis == 0 { y } else { x }];
                let mut sum = 1i64 << (bits - 1);
                for (k, weight) in weights.iter().enumerate() {
                    let (sy, sx) = if axis == 0 {
                        (low + k, x)
                    } else {
                        (y, low + k)
                    };
                    sum += i64::from(img[(sy * w + sx) * 3 + c]) * weight;
                }
                out[(y * ow + x) * 3 + c] = (sum >> bits).clamp(0, 255) as u8;
            }
        }
    }
    out
}

fn model(img: &[u8], from: (usize, usize), to: (usize, usize), kernel: Exact) -> Vec<u8> {
    let (pillow, vertical) = match kernel {
        Exact::Torchvision => (false, false),
        Exact::Pillow(order) => (true, order.vertical_first(from, to)),
    };
    let (mut img, mut size) = (img.to_vec(), from);
    for axis in if vertical { [0, 1] } else { [1, 0] } {
        let n = [to.0, to.1][axis];
        if [size.0, size.1][axis] != n {
            img = model_pass(&img, size, n, axis, pillow);
            if axis == 0 { size.0 = n } else { size.1 = n }
        }
    }
    img
}

/// Noise, either of all values or of black and white only (the hardest case for overshoot).
fn noise(bytes: usize, seed: u64, hard: bool) -> Vec<u8> {
    let mut state = seed | 1;
    let mut img: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let byte = (state >> 56) as u8;
            if hard {
                if byte > 127 { 255 } else { 0 }
            } else {
                byte
            }
        })
        .collect();
    // What lies behind the pixels must not matter.
    img.extend([0xa5; SLACK_BYTES]);
    img
}

const KERNELS: [Exact; 4] = [
    Exact::Torchvision,
    Exact::Pillow(PassOrder::HorizontalFirst),
    Exact::Pillow(PassOrder::Pillow122),
    Exact::Pillow(PassOrder::Pillow13),
];

fn check(from: (usize, usize), to: (usize, usize), seed: u64, hard: bool) {
    let img = noise(from.0 * from.1 * 3, seed, hard);
    for kernel in KERNELS {
        let expected = model(&img[..from.0 * from.1 * 3], from, to, kernel);
        for code in Code::all() {
            let (mut dst, mut between) = (Vec::new(), vec![0x5a; 1000]);
            resize(&img, from, &mut dst, to, &mut between, kernel, code);
            assert!(
                dst[..to.0 * to.1 * 3] == expected,
                "{kernel:?} {code:?} {from:?} -> {to:?} seed {seed}"
            );
        }
    }
}

#[test]
fn chosen_sizes_equal_the_model() {
    for (i, (from, to)) in [
        ((1, 1), (32, 32)),
        ((1, 1), (1, 1)),
        ((5, 1), (64, 32)),
        ((1, 7), (32, 224)),
        ((3, 300), (32, 11)),
        ((300, 3), (2, 32)),
        ((2000, 12), (32, 12)),
        ((12, 2000), (12, 32)),
        ((1300, 12), (1280, 32)),
        ((64, 64), (64, 61)),
        ((64, 64), (61, 64)),
        ((1200, 10), (600, 9)),
        ((9, 3000), (8, 1)),
    ]
    .into_iter()
    .enumerate()
    {
        check(from, to, i as u64, i % 2 == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_sizes_equal_the_model(
        h in 1usize..90, w in 1usize..90, th in 1usize..90, tw in 1usize..90,
        seed in any::<u64>(), hard in any::<bool>(),
    ) {
        check((h, w), (th, tw), seed, hard);
    }
}
