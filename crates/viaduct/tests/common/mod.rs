//! What several test files need.
#![allow(dead_code)] // none of them needs all

use std::io::Read as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use viaduct_proto::rng::Rng;
use viaduct_sys::ring::Ring;

/// The same random bytes each time.
pub(crate) fn random(bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    Rng::from_seed(7).fill(&mut data);
    data
}

/// Reads to the end of `stream`; what came.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut data = Vec::new();
    stream.read_to_end(&mut data).unwrap();
    data
}

/// When the first TCP packet that `is` what is looked for passes a tap.
pub(crate) fn when_seen(tap: &mut Ring, is: impl Fn(u8) -> bool) -> Instant {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        while let Some(frame) = tap.next() {
            if frame.len() >= 40 && frame[0] >> 4 == 4 && frame[9] == 6 && is(frame[33]) {
                return Instant::now();
            }
        }
        assert!(Instant::now() < deadline, "nothing seen");
        thread::sleep(Duration::from_micros(500));
    }
}
