//! Test pictures, encoded by libjpeg's `cjpeg` and decoded by its `djpeg`.
#![allow(clippy::unwrap_used)] // a test may panic

use std::io::Write as _;
use std::process::{Command, Stdio};

pub(crate) const SECRET: [u8; 32] = [0x5e; 32];

/// Output of `program` for `input`. Prints a notice and returns `None` if the program is not
/// installed.
fn filter(program: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: no {program}");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{program} {arguments:?}");
    Some(output.stdout)
}

/// JPEG file of a synthetic image with smooth and sharp parts, by `cjpeg` with these arguments.
pub(crate) fn picture(width: usize, height: usize, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut image = format!("P6 {width} {height} 255\n").into_bytes();
    let mut noise = 1_u32;
    for y in 0..height {
        for x in 0..width {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (a, b) = (x as f64 / 31.0, y as f64 / 17.0);
            let wave = 100.0 + 60.0 * (a.sin() + (a * b / 40.0).cos()) / 2.0;
            let edge = if (x / 23 + y / 29) % 2 == 0 { 30.0 } else { -10.0 };
            let grain = f64::from(noise >> 27);
            image.extend([wave + edge, wave + grain, 128.0 + edge - grain].map(|v| v as u8));
        }
    }
    filter("cjpeg", arguments, &image)
}

/// Samples of a picture as decoded by `djpeg`, which must accept the file.
pub(crate) fn decoded(file: &[u8]) -> Vec<u8> {
    let image = filter("djpeg", &["-pnm"], file).unwrap();
    let line_ends = image.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    image[line_ends.take(3).last().unwrap() + 1..].to_vec()
}

/// Peak signal-to-noise ratio of two pictures, in decibels.
#[allow(dead_code)] // used by some tests only
pub(crate) fn psnr(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |(x, y): (&u8, &u8)| (f64::from(*x) - f64::from(*y)).powi(2);
    let mean = a.iter().zip(b).map(square).sum::<f64>() / a.len() as f64;
    10.0 * (255.0_f64.powi(2) / mean).log10()
}
